//! SQL level: every op, every query, and the indexes they use.

mod atomic;
mod claim;
mod dedup;
mod enqueue;
mod file;
mod group;
mod leave;
mod left;
mod limited;
mod limits;
mod lives;
mod manage;
mod migrate;
mod names;
mod plans;
mod policies;
mod read;
mod room;
mod schedule;
mod sessions;
mod settle;
mod sound;
