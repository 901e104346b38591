//! The local state of Local mode: a directory that holds a base, what was committed locally since, and the intents of
//! the bodies that are to publish it (P19, P20).
//!
//! Called by the writer. `dir` is the door to the disk, `log` the state and what is written of it, `replay` reads it
//! back, `entry` has its bytes, `place` says where it lies, `verdict` judges intents; `copy` and `export` write
//! files for people. Sends nothing anywhere.

mod copy;
mod dir;
mod entry;
mod export;
mod log;
mod place;
mod replay;
mod verdict;

pub(crate) use copy::Settled;
pub use dir::{Dir, Disk, Lock};
pub(crate) use dir::{failed, make};
pub(crate) use export::export;
pub(crate) use log::{Intent, Log, Taken};
pub(crate) use place::directory;
pub(crate) use verdict::{Fate, judge};
