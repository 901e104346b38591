//! Local mode: acknowledged changes are on this machine, and `sync` publishes them. None is published twice or dropped
//! silently, whatever happens to the process, the directory, the store and the other writers.

mod basics;
mod cache;
mod clocks;
mod copies;
mod disk;
mod fixture;
mod model;
mod power;
mod settling;
mod snapshots;
