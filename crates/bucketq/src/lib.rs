//! bucketq: a job queue whose whole state is one SQLite database kept in object storage, guarded by compare-and-swap.
//!
//! A program opens a [`QueueFile`], names a [`Queue`] in it, enqueues [`Payload`]s and claims jobs. No server is
//! needed: the state is a handful of objects in a bucket, a directory or memory.
//!
//! # How an enqueue becomes a commit
//! From Python, `python/bucketq/queue.py` and `_op.py` beside it convert the job, and `File.enqueue` in
//! `crates/bucketq-python/src/file.rs` makes the op: one call into Rust. The call continues at `handle/file.rs`.
//! 1. [`Queue::enqueue`] (`handle/queue.rs`) makes an [`Op`]; `handle/file.rs` checks it.
//! 2. `door/mod.rs` puts it into the mailbox of the *writer*, the one actor per process and queue file.
//! 3. `engine/writer/durable/gather.rs` collects the waiting ops, and `commit.rs` beside it runs them as one batch:
//!    `engine/writer/chain/execute.rs` begins the transaction.
//! 4. `state/db/mod.rs` applies the batch in one SQLite transaction (`op/enqueue.rs` beside it is this op).
//! 5. `state/pages/file.rs` returns the changed pages as a delta.
//! 6. `engine/writer/build.rs` builds the next HEAD with `engine/commit.rs`; `durable/publish.rs` sends it, and
//!    `remote/mod.rs` puts it under compare-and-swap.
//! 7. After any result but success, `durable/settle.rs` reads HEAD and `engine/settle.rs` decides: the commit landed, or
//!    it is sent again, or it is undone (`chain/mod.rs`) and run again on top of other writers' commits (`follow.rs`,
//!    `engine/catchup.rs`).
//!
//! # Folders
//! `noun` has plain values, `fit` the fit model, `state` the database, `bytes` the stores, `bucket` the formats of
//! objects, `door` the mailbox, `engine` the writer, `link` the messages between processes, `host` the place where
//! those of one machine meet, `operate` check and restore, `handle` the public handles.
//! docs/architecture.md is the same map with its borders; docs/format.md describes every byte.

mod bucket;
mod bytes;
mod door;
mod engine;
pub mod fit;
#[doc(hidden)]
pub mod fork;
mod handle;
mod host;
#[doc(hidden)]
pub mod internals;
mod link;
mod noun;
pub mod operate;
mod state;

pub use crate::bytes::metrics::{self, Cost, Metrics};
pub use crate::bytes::store;
pub use crate::door::{Done, Events, Synced, Unsynced};
pub use crate::handle::claim::{ClaimRequest, ClaimedJob};
pub use crate::handle::file::QueueFile;
pub use crate::handle::keeper::{Keeper, LeaseGuard};
pub use crate::handle::queue::Queue;
pub use crate::noun::config::{self, Fsync, Host, Mode, Options, S3Options};
pub use crate::noun::env::{self, Env};
pub use crate::noun::error::{self, Code, Error, Kind, Result};
pub use crate::noun::event::{self, Event, Happened, Loss};
pub use crate::noun::host::HostRole;
pub use crate::noun::job::{
    self, Attempt, Backoff, Dedup, DedupScope, Died, Ended, Job, JobId, New, Payload, Reason, State, When,
};
pub use crate::noun::lease::{self, Lease, Token};
pub use crate::noun::op::{self, Enqueued, Held, Op, Outcome, Queues};
pub use crate::noun::policy::{self, Changes, OnExpiry, Overflow, Policy, Rate};
pub use crate::noun::query::{
    self, Answer, Collected, Commit, Cursor, Detail, DetailPage, Exported, Filter, Page, Query, QueueInfo,
    ScheduleInfo, Stats,
};
pub use crate::noun::schedule::{self, Missed, Schedule, Timing};
pub use crate::noun::{life, settings};
pub use crate::operate::{check, fix_time, restore, set_max_skew};

// Compiles the README's example in doc tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

// Compiles the examples about the modes in doc tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/modes.md")]
struct Modes;
