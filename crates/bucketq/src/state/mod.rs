//! The state of a queue file: the pages of its database in memory, and the SQL that changes and reads them.
//!
//! Synchronous. No code here knows buckets, reads a clock or draws a random number.

pub mod db;
pub mod pages;
