//! SQL level: every op, every query, and the indexes they use.

mod atomic;
mod claim;
mod enqueue;
mod file;
mod group;
mod limits;
mod manage;
mod migrate;
mod plans;
mod read;
mod settle;
mod sound;
