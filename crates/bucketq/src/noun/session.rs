//! The identity of an op that reaches the writer over a connection (P29).
//!
//! Used by the link, which sends such ops, and by the database, which executes each of them once.

use serde::{Deserialize, Serialize};

/// A session: 128 random bits that a client process draws when it connects, and anew after a fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SessionId(pub [u8; 16]);

/// One delivery of an op. Every delivery of the same op has the same session and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// The session.
    pub session: SessionId,
    /// The newest commit when the session began, as its first writer named it.
    pub born: u64,
    /// The number of the op in its session, from 1.
    pub n: u64,
    /// The client has the final result of every op up to this number.
    pub have: u64,
    /// The client has sent this op before.
    pub again: bool,
    /// The client gives the op up: execute it no more, and return its result if it has one (P39).
    pub cancel: bool,
    /// No commit with a later time executes the op (P39).
    pub last_ms: i64,
    /// The newest stamp of the client's clock that the writer held before it ran the op; leases count from it.
    pub stamp: u64,
}
