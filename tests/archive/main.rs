//! Finished jobs: kept, deleted, or archived, each run exactly once.

mod every_store;
mod kit;
mod leaving;
mod objects;
mod races;
