//! An op of a session on its way through the writer: executed once, however often and over however many writers it
//! arrives (P29 to P39).
//!
//! It comes over a connection, or it is an op of this process that was sent to another writer before.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::noun::error::{Code, Error, Result};
use crate::noun::event::Happened;
use crate::noun::op::Outcome;
use crate::noun::session::Delivery;

/// The clock of a session's client, in milliseconds since the session began. Leases count from it (P34).
#[derive(Clone, Debug)]
pub(crate) enum SessionClock {
    /// The client is this process: the session began at this moment.
    Own(Instant),
    /// The newest stamp that a connection has brought.
    Brought(Arc<AtomicU64>),
}

impl SessionClock {
    /// Returns the newest stamp that this process holds.
    pub fn newest(&self, now: Instant) -> u64 {
        match self {
            Self::Own(began) => millis(*began, now),
            Self::Brought(newest) => newest.load(SeqCst),
        }
    }
}

/// Returns the whole milliseconds from `began` to `now`.
pub(crate) fn millis(began: Instant, now: Instant) -> u64 {
    u64::try_from(now.saturating_duration_since(began).as_millis()).unwrap_or(u64::MAX)
}

/// The facts that an op reported while it was executed, for listeners and metrics of its own process.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct OpFacts {
    /// Events, in order; none unless the process has a listener.
    pub events: Vec<Happened>,
    /// How long claimed jobs had waited.
    pub waits_ms: Vec<i64>,
    /// How long acked jobs had been worked on.
    pub runs_ms: Vec<i64>,
}

/// How the last execution of an op ended. It counts once the batch is settled.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExecutionEnd {
    /// The commit of the batch records the result, or an earlier commit has it.
    pub recorded: bool,
    /// The session may have been dropped: the op was not executed, and may have been before.
    pub forgotten: bool,
    /// The earlier commit that has the result, and its time.
    pub earlier: Option<(u64, i64)>,
    /// The client's clock from which leases count.
    pub stamp: u64,
    pub report: OpFacts,
}

/// The part of a slot that makes its op one of a session.
#[derive(Debug)]
pub(crate) struct SessionOp {
    /// Its stamp is the client's clock when the op was first sent.
    pub delivery: Delivery,
    pub clock: SessionClock,
    /// The client has listeners for events.
    pub watched: bool,
    fate: Mutex<ExecutionEnd>,
}

impl SessionOp {
    pub fn new(delivery: Delivery, clock: SessionClock, watched: bool) -> Self {
        Self { delivery, clock, watched, fate: Mutex::default() }
    }

    /// Returns the delivery with the newest stamp, for an execution that begins now (P34).
    pub fn stamped(&self, now: Instant) -> Delivery {
        Delivery { stamp: self.delivery.stamp.max(self.clock.newest(now)), ..self.delivery }
    }

    /// Notes how an execution ended; it replaces the last one, which did not count.
    pub fn set_fate(&self, fate: ExecutionEnd) {
        *self.fate.lock().unwrap_or_else(PoisonError::into_inner) = fate;
    }

    /// Returns how the last execution ended.
    pub fn fate(&self) -> ExecutionEnd {
        self.fate.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether another process has sent it, which emits its events itself.
    pub fn is_of_another_process(&self) -> bool {
        matches!(self.clock, SessionClock::Brought(_))
    }

    /// Returns whether the last execution has a result that never changes.
    pub fn is_recorded(&self) -> bool {
        self.fate.lock().unwrap_or_else(PoisonError::into_inner).recorded
    }
}

/// The result of one delivery, for its connection.
#[derive(Debug)]
pub(crate) struct DeliveryResult {
    pub n: u64,
    pub result: Result<Outcome>,
    /// The commit that contains the op, or on which it was decided, and its time.
    pub commit: (u64, i64),
    pub fate: ExecutionEnd,
}

/// The channel of a connection for the results of its ops.
pub(crate) type SessionReplies = mpsc::UnboundedSender<DeliveryResult>;

/// Returns the error of an op that was sent to another writer too, which may have applied it.
pub(crate) fn perhaps_elsewhere(here: Option<Error>) -> Error {
    let error = Error::new(
        Code::OutcomeUnknown,
        "it may have been applied: another process of this machine, which has ended, may have committed it",
    );
    match here {
        Some(cause) => error.because(cause),
        None => error,
    }
}
