//! Helpers shared by the tests.

pub mod queue_db;
