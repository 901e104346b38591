//! The processes of one machine: where they meet, and how one shows another that it may write the queue file.
//!
//! Most tests start real processes, the program `host` (`tests/src/bin/host.rs`).
#![cfg(unix)]

mod kit;
mod place;
mod proof;
mod seats;
