//! Crash tests: real processes work on one queue file and are killed at random moments; what they had been promised is
//! compared with what is there afterwards.
//!
//! [`hunt`] is the whole of it. Used by the tests of `tests/crash` and by the program `crash`, which also is the process
//! that gets killed ([`victim`]).

mod hunt;
mod ledger;
pub mod victim;

pub use hunt::{Found, Place, Plan, hunt};
