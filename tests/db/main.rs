//! SQL level: every op, every query, and the indexes they use.

mod atomic;
mod claim;
mod dedup;
mod enqueue;
mod file;
mod group;
mod leave;
mod limited;
mod limits;
mod lives;
mod manage;
mod migrate;
mod plans;
mod policies;
mod read;
mod room;
mod schedule;
mod settle;
mod sound;
