//! SQL level: every op, every query, and the indexes they use.

mod archive;
mod atomic;
mod backpressure;
mod claim;
mod claim_with;
mod dedup;
mod enqueue;
mod expiry;
mod file;
mod group;
mod integrity;
mod left_ids;
mod limited;
mod limits;
mod lives;
mod manage;
mod migrate;
mod moves;
mod names;
mod plans;
mod policies;
mod queues;
mod read;
mod schedule;
mod sessions;
mod settle;
