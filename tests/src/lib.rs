//! Helpers shared by the tests.
#![expect(clippy::missing_panics_doc, reason = "a helper of a test panics when the test has failed")]

pub mod clock;
pub mod crash;
pub mod given;
pub mod ground;
pub mod http;
pub mod puppet;
pub mod servers;

pub mod queue_db;
