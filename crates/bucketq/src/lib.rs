//! bucketq.
pub mod config;
#[doc(hidden)]
pub mod db;
pub mod env;
pub mod error;
pub mod job;
pub mod lease;
pub mod op;
pub mod query;
pub mod store;
