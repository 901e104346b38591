//! bucketq.
pub mod config;
pub mod env;
pub mod error;
pub mod job;
pub mod lease;
pub mod op;
#[doc(hidden)]
pub mod pages;
pub mod query;
pub mod store;
