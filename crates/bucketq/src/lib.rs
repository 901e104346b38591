//! bucketq: a job queue whose whole state is one SQLite database kept in object storage, guarded by compare-and-swap.
//!
//! A program opens a [`QueueFile`], names a [`Queue`] in it, enqueues [`Payload`]s and claims jobs. Nothing else has to
//! run: the state is a handful of objects in a bucket, a directory or memory.
//!
//! # The walk of a change
//! [`Queue::enqueue`] makes an [`Op`] and sends it through the *door* (`door`). The *writer* (`writer`), one
//! per process and queue file, gathers what waits, runs it in one SQLite transaction (`db`) on pages in memory
//! (`pages`), takes the changed pages as a delta (`record`), builds the next HEAD (`commit`, `head`) and puts it under
//! compare-and-swap (`store`). When the store says so, callers get their answers. When it says anything else, the
//! writer looks (`settle`): the commit is ours after all, or is sent again, or is undone and run again on top of what
//! others wrote (`catchup`). Older deltas move out of HEAD into segments, and full images into bases (`upload`).
//!
//! # Where things are
//! Nouns: [`job`], [`lease`], [`life`], [`op`], [`query`], [`policy`], [`schedule`], [`error`], [`mod@env`], [`config`],
//! [`settings`], [`fit`]. State:
//! `pages`, `db`. Bytes:
//! [`store`]. What lies in the bucket: `head`, `record`, `segment`, `base`, `wire`, `keys`. Joining both: `archive`, `commit`,
//! `settle`, `catchup`, `upload`, `gc`, `time`, `writer`. Doors: `door`, `registry`, `file`, `claim`, `queue`,
//! `keeper`, `finished`, `manage`, `workload`.
//!
//! docs/architecture.md is the same map with its borders; docs/format.md has every byte.

#[cfg(feature = "archive")]
pub mod archive;
pub mod base;
pub mod broken;
mod cache;
mod catchup;
mod claim;
mod commit;
pub mod config;
mod content;
mod cron;
#[doc(hidden)]
pub mod db;
mod door;
pub mod env;
pub mod error;
pub mod event;
mod file;
mod finished;
pub mod fit;
mod gc;
pub mod head;
pub mod job;
mod keeper;
pub mod keys;
pub mod lease;
pub mod life;
pub mod local;
mod manage;
pub mod metrics;
pub mod op;
pub mod operate;
pub mod pages;
pub mod policy;
pub mod query;
mod queue;
pub mod record;
mod registry;
pub mod schedule;
pub mod segment;
pub mod settings;
mod settle;
pub mod store;
mod sync;
mod time;
mod upload;
pub mod wire;
mod workload;
mod writer;

pub use claim::{ClaimRequest, Taken};
pub use config::{Fsync, Host, Mode, Options, S3Options};
pub use door::{Done, Events, Synced, Unsynced};
pub use env::Env;
pub use error::{Code, Error, Kind, Result};
pub use event::{Event, Happened, Loss};
pub use file::QueueFile;
pub use job::{Attempt, Backoff, Dedup, DedupScope, Ended, Job, JobId, New, Payload, State, When};
pub use keeper::{Keeper, Kept};
pub use lease::{Lease, Token};
pub use metrics::{Cost, Metrics};
pub use op::{Enqueued, Held, Op, Outcome, Queues};
pub use operate::{check, restore};
pub use policy::{Changes, Overflow, Policy, Rate};
pub use query::{
    Answer, Collected, Commit, Cursor, Detail, Exported, Filter, Page, Query, QueueInfo, ScheduleInfo, Stats,
};
pub use queue::Queue;
pub use schedule::{Missed, Schedule, Timing};

// The README's example compiles, or the tests fail.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

// And so does the one about the modes.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/modes.md")]
struct Modes;
