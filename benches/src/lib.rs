//! What the benchmarks share. One question a binary (`src/bin`); `README.md` says how to read each.
//!
//! Walk: [`delayed`] is the simulated store, [`null`] the loop that costs nothing but its PUTs, [`load`] the closed
//! loop over the engine, [`cells`] the grid of callers and backlogs, [`single`] one caller against a raw PUT,
//! [`cost`] what an op costs in the database,
//! [`delta`] what a commit adds to HEAD, [`quiet`] what an idle queue asks of the store, [`real`] the same
//! loop against a real server. [`fit`], [`growth`] and [`lifecycle`] belong to binaries of their own. Nothing here is called by
//! what ships.

pub mod cells;
pub mod cost;
pub mod counting;
pub mod delayed;
pub mod delta;
pub mod fit;
pub mod growth;
pub mod lifecycle;
pub mod load;
pub mod local;
pub mod null;
pub mod quiet;
pub mod raw;
pub mod real;
pub mod servers;
pub mod single;
pub mod stats;
