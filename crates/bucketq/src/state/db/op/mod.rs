//! The ops, one file for each or for a few that belong together.
//!
//! Called by [`Tx::apply`](super::Tx::apply) and, for archives, by the writer.

pub(super) mod archive;
pub(super) mod claim;
pub(super) mod claim_with;
pub(super) mod enqueue;
pub(super) mod lease_ops;
pub(super) mod manage;
pub(super) mod moves;
pub(super) mod policy;
pub(super) mod queue_ops;
pub(super) mod schedule;
