//! Crash tests: real processes work on one queue file and are killed at random moments. Their promises are compared
//! with the file afterwards.
//!
//! The entry point is [`hunt`]. Used by the tests of `tests/crash` and by the program `crash`, which also is the
//! process that gets killed ([`victim`]).

mod hunt;
mod ledger;
pub mod victim;

pub use hunt::{Found, Place, Plan, hunt};
