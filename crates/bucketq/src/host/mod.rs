//! Several processes of one host share one writer: they meet at a place, elect a leader, and send it their ops.
//!
//! `place` and `proof` say who may, `join` finds the leader, `hello` introduces both sides, `stream` carries messages,
//! `serve` and `requests` are the leader's side, `forward` the other one. Called by handle/role.

#[cfg(unix)]
mod forward;
#[cfg(unix)]
mod hello;
#[cfg(unix)]
mod join;
pub mod place;
pub mod proof;
#[cfg(unix)]
mod requests;
#[cfg(unix)]
mod serve;
#[cfg(unix)]
mod served;
#[cfg(unix)]
mod socket;
#[cfg(unix)]
mod stream;

#[cfg(unix)]
pub(crate) use forward::{Exporter, Forwarder, Parted};
#[cfg(unix)]
pub(crate) use hello::Introduction;
#[cfg(unix)]
pub(crate) use join::{Joined, Role, find_role};
#[cfg(unix)]
pub(crate) use place::{MeetingPlace, Seat};
#[cfg(unix)]
pub(crate) use serve::{Leader, start};
