//! Bytes under keys: the stores, the wrappers around a store, and the metrics of their requests.
//!
//! Nothing here knows SQLite or jobs.

pub mod disk;
pub mod metrics;
pub mod store;
pub mod wrap;
