//! The processes of one machine: where they meet, and how one shows another that it may write the queue file.
//!
//! Most tests start real processes, the program `host` (`tests/src/bin/host.rs`).
#![cfg(unix)]

mod client;
mod forks;
mod found;
mod hostile;
mod kit;
mod leases;
mod peers;
mod place;
mod proof;
mod seats;
mod sharing;
mod takeover;
mod versions;
