//! Shared code of the benchmarks. Each program in `src/bin` measures one question; `README.md` explains the results.
//!
//! [`delayed`] is the simulated store, [`null`] the loop that does nothing but its PUTs, [`load`] the closed
//! loop over the engine, [`cells`] the grid of callers and backlogs, [`single`] one caller against a raw PUT,
//! [`cost`] the cost of an op in the database, [`delta`] the bytes a commit adds to HEAD, [`quiet`] the requests
//! of an idle queue, [`real`] the same loop against a real server. [`fit`], [`growth`], [`hosts`] and [`lifecycle`] belong to
//! their own programs. Shipped code never calls this crate.

pub mod cells;
pub mod cost;
pub mod counting;
pub mod delayed;
pub mod delta;
pub mod fit;
pub mod growth;
pub mod hosts;
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
