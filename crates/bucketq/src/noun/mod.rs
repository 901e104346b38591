//! The nouns: jobs, leases, ops, queries, policies, settings, errors. Plain values without I/O, SQL or tasks.
//!
//! Every other folder uses them, and they use none. `lib.rs` re-exports each under a public name.

pub mod config;
pub mod content;
pub mod cron;
pub mod env;
pub mod error;
pub mod event;
pub mod facts;
pub mod host;
pub mod job;
pub mod lease;
pub mod life;
pub mod op;
pub mod policy;
pub mod query;
pub mod schedule;
pub mod session;
pub mod settings;
