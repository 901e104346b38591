//! The client's side of a session: numbers its ops, sends them again over the next connection, and decides which result
//! is final (P29, P32, P33, P38, P39). Pure.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::message::{OpReply, OpRequest, Unknown, WireWait};
use crate::noun::session::{Delivery, SessionId};

/// An op as its caller gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The op, encoded.
    pub op: Bytes,
    /// How long a claim waits for a job, or an enqueue for room.
    pub wait: WireWait,
    /// No commit with a later time executes the op.
    pub last_ms: i64,
    /// The client's clock when it first sent the op.
    pub stamp: u64,
    /// The client has listeners for events.
    pub watched: bool,
}

/// An op without a final result.
#[derive(Debug)]
struct Pending {
    call: Call,
    /// How often it was sent, over all connections.
    deliveries: u32,
    /// The client gives it up.
    cancel: bool,
}

/// The meaning of a reply for its op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The reply is the result.
    Final,
    /// Another delivery may have another result: send the op again.
    Again,
    /// Not applied: send the op in a new session.
    Renew,
    /// This writer cannot execute the op: the client executes it itself, under the same number.
    Direct,
    /// An earlier delivery may have been applied or not, and nothing records it any more.
    Unknown,
    /// The op has a result already, or the reply comes over a connection that was left.
    Late,
}

/// The ops of one client, across connections.
#[derive(Debug)]
pub struct Session {
    id: [u8; 16],
    born: u64,
    next: u64,
    connection: u64,
    pending: BTreeMap<u64, Pending>,
}

impl Session {
    /// Returns a session with this id, born at this commit: the newest one that its first writer has settled.
    pub fn new(id: [u8; 16], born: u64) -> Self {
        Self { id, born, next: 1, connection: 0, pending: BTreeMap::new() }
    }

    /// Returns the id.
    pub fn id(&self) -> [u8; 16] {
        self.id
    }

    /// Returns the commit at which the session was born.
    pub fn born(&self) -> u64 {
        self.born
    }

    /// Returns the number of the current connection. Replies over an earlier one are not believed (P32).
    pub fn connection(&self) -> u64 {
        self.connection
    }

    /// Returns the number of ops without a final result.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Returns the number up to which every op has its final result (P33).
    fn have(&self) -> u64 {
        self.pending.first_key_value().map_or(self.next, |(n, _)| *n) - 1
    }

    /// Adds an op, and returns what to send.
    pub fn send(&mut self, call: Call) -> OpRequest {
        let n = self.next;
        self.next += 1;
        let mut pending = Pending { call, deliveries: 0, cancel: false };
        let have = self.pending.first_key_value().map_or(n, |(first, _)| *first) - 1;
        let request = pending.deliver(n, have);
        self.pending.insert(n, pending);
        request
    }

    /// Gives an op up: what to send, unless it has its result. The reply to it is the result of the op, whichever
    /// delivery it belongs to.
    pub fn give_up(&mut self, n: u64) -> Option<OpRequest> {
        self.pending.get_mut(&n)?.cancel = true;
        self.again(n)
    }

    /// Leaves the connection for a new one. Returns what to send over it, in this order.
    pub fn reconnect(&mut self) -> Vec<OpRequest> {
        self.connection += 1;
        let have = self.have();
        self.pending.iter_mut().map(|(n, pending)| pending.deliver(*n, have)).collect()
    }

    /// Returns the meaning of a reply over this connection. After [`Meaning::Final`] and [`Meaning::Unknown`] the op is
    /// done; after [`Meaning::Renew`] it is the caller's again.
    pub fn reply(&mut self, connection: u64, reply: &OpReply) -> Meaning {
        let Some(pending) = self.pending.get(&reply.n).filter(|_| connection == self.connection) else {
            return Meaning::Late;
        };
        let only = pending.deliveries == 1;
        let meaning = match reply.unknown {
            Some(Unknown::Session) if only => Meaning::Renew,
            Some(Unknown::Session) => Meaning::Unknown,
            Some(Unknown::Op) => Meaning::Direct,
            None if reply.recorded || only => Meaning::Final,
            None => Meaning::Again,
        };
        if matches!(meaning, Meaning::Final | Meaning::Renew | Meaning::Unknown) {
            self.pending.remove(&reply.n);
        }
        meaning
    }

    /// Returns a pending op to send again over this connection.
    pub fn again(&mut self, n: u64) -> Option<OpRequest> {
        let have = self.have();
        self.pending.get_mut(&n).map(|pending| pending.deliver(n, have))
    }

    /// Returns how an op without a final result arrives at a writer of this process, after it was sent elsewhere.
    pub fn taken_over(&mut self, n: u64) -> Option<Delivery> {
        let (session, born) = (SessionId(self.id), self.born);
        let OpRequest { n, have, again, cancel, last_ms, stamp, .. } = self.again(n)?;
        Some(Delivery { session, born, n, have, again, cancel, last_ms, stamp })
    }

    /// Returns the call of a pending op.
    pub fn call(&self, n: u64) -> Option<&Call> {
        self.pending.get(&n).map(|pending| &pending.call)
    }
}

impl Pending {
    /// Counts a delivery, and returns it.
    fn deliver(&mut self, n: u64, have: u64) -> OpRequest {
        let again = self.deliveries > 0;
        self.deliveries += 1;
        let Call { op, wait, last_ms, stamp, watched } = self.call.clone();
        OpRequest { n, have, again, cancel: self.cancel, watched, last_ms, stamp, wait, op }
    }
}
