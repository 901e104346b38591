//! Local mode: what is acknowledged is on this machine, `sync` publishes it, and nothing is published twice or dropped
//! without a word, whatever becomes of the process, the directory, the store and the other writers.

mod basics;
mod cache;
mod copies;
mod disk;
mod fixture;
mod model;
mod power;
mod settling;
mod snapshots;
