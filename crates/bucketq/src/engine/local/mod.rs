//! The state of Local mode: a directory with a base, the local commits since, and the intents of the bodies that
//! publish them (P19, P20).
//!
//! Called by the writer. `dir` is the door to the disk, `log` holds the state and writes it, `replay` reads it back,
//! `entry` encodes log entries, `path` chooses the directory, `settle_intents` settles intents; `copy` and `export`
//! write files for people. Nothing here uses the store.

mod copy;
mod dir;
mod entry;
mod export;
mod log;
mod path;
mod replay;
mod settle_intents;

pub(crate) use copy::Settled;
pub(crate) use dir::failed;
pub use dir::{Dir, Disk, Lock};
pub(crate) use export::export;
pub(crate) use log::{Intent, LockedDir, Log};
pub(crate) use path::directory;
pub(crate) use settle_intents::{Fate, judge};
