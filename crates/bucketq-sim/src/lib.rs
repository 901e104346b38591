//! Seeded simulation of bucketq: many processes on one queue file, a faulty store, wrong clocks, and G1 to G10 checked
//! over everything that happened. Not published.
//!
//! `plan` decides what a seed is, `world` holds it, `node` and `workload` live in it, `bucket` and `store` are what
//! they write to, `history` is what they sent and got, `check` and `replay` judge it (through `museum`, which shows
//! each commit), `local` is a process in Local mode, `archive` finds the jobs that have left, `expired_archives` the expired
//! archive objects, `variants` proves that the checks find faults. `keeping` has workers whose leases the engine
//! renews, `waits` callers that wait.

pub mod archive;
pub mod bucket;
pub mod check;
pub mod clock;
pub mod crowd;
pub mod expired_archives;
pub mod garbage;
pub mod history;
pub mod judge;
pub mod keeping;
pub mod leases;
pub mod local;
pub mod loss;
pub mod museum;
#[cfg(feature = "mutants")]
pub mod mutants;
pub mod node;
pub mod ops;
pub mod plan;
pub mod policies;
pub mod refusal;
pub mod replay;
pub mod rng;
pub mod run;
pub mod store;
pub mod turned;
pub mod variants;
pub mod waits;
pub mod work;
pub mod workload;
pub mod world;
