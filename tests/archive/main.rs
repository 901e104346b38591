//! Finished jobs and where they go: kept, deleted, or archived, each life exactly once.

mod every_store;
mod kit;
mod leaving;
mod objects;
mod races;
