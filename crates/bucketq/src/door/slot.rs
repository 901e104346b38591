//! A [`Slot`] is an op on its way through the writer, with the channel for its reply; its [`Stage`] decides between
//! "surely not applied" and "unknown" when its caller gives up (P7).

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Done, Load, Loaded, SessionOp, SessionReplies, Wait, Work};
use crate::noun::error::Result;
use crate::noun::op::{Held, Op};

/// How far an op has come. When its caller gives up, it decides between "surely not applied" and "unknown" (P7).
#[derive(Debug, Default)]
pub(crate) struct Stage(AtomicU8);

const QUEUED: u8 = 0;
const SENT: u8 = 1;
const GONE: u8 = 2;
const PARKED: u8 = 3;
const ELSEWHERE: u8 = 4;
const PARKED_ELSEWHERE: u8 = 5;

impl Stage {
    /// Returns the stage of an op that may have been sent.
    pub fn sent() -> Self {
        Self(AtomicU8::new(SENT))
    }

    /// Marks the op as sent, before its body is. Returns false if the caller has given up: do not send the body.
    pub fn send(&self) -> bool {
        let send = |now| match now {
            GONE => None,
            ELSEWHERE | PARKED_ELSEWHERE => Some(ELSEWHERE),
            _ => Some(SENT),
        };
        self.0.fetch_update(SeqCst, SeqCst, send).is_ok()
    }

    /// Marks the op as sent to the writer of another process, before it is: whatever happens here, that writer may
    /// have applied it. Returns false if the caller has given up: do not send the op.
    pub fn send_elsewhere(&self) -> bool {
        self.0.fetch_update(SeqCst, SeqCst, |now| (now != GONE).then_some(ELSEWHERE)).is_ok()
    }

    /// Marks an op that was sent elsewhere as one that waits for room: its caller waits longer than its deadline.
    pub fn park_elsewhere(&self) {
        let _ = self.0.compare_exchange(ELSEWHERE, PARKED_ELSEWHERE, SeqCst, SeqCst);
    }

    /// Marks the op as not sent: its body was surely not applied.
    pub fn unsend(&self) {
        let _ = self.0.compare_exchange(SENT, QUEUED, SeqCst, SeqCst);
    }

    /// Marks the op as parked: it was surely not applied and is tried again until the writer ends it, not the deadline.
    pub fn park(&self) {
        let park = |now| match now {
            GONE => None,
            ELSEWHERE | PARKED_ELSEWHERE => Some(PARKED_ELSEWHERE),
            _ => Some(PARKED),
        };
        let _ = self.0.fetch_update(SeqCst, SeqCst, park);
    }

    pub fn is_parked(&self) -> bool {
        matches!(self.0.load(SeqCst), PARKED | PARKED_ELSEWHERE)
    }

    /// Marks the caller as gone. Returns true if the op is surely not applied.
    pub fn give_up(&self) -> bool {
        matches!(self.0.swap(GONE, SeqCst), QUEUED | PARKED)
    }

    pub fn is_gone(&self) -> bool {
        self.0.load(SeqCst) == GONE
    }
}

/// An op on its way through the writer, and the channel for its reply.
#[derive(Debug)]
pub(crate) struct Slot {
    pub load: Load,
    pub wait: Wait,
    pub arrived: Instant,
    pub stage: Arc<Stage>,
    /// Set for an op that is, or was, sent from one process to another.
    pub session: Option<Box<SessionOp>>,
    pub reply: ReplyTo,
}

/// The receiver of a slot's result.
#[derive(Debug)]
pub(crate) enum ReplyTo {
    /// None: jobs are handed back, or an empty commit is made for the writer itself.
    Nobody,
    /// A call of this process.
    Caller(oneshot::Sender<Result<Done>>),
    /// A connection.
    Connection(SessionReplies),
}

impl ReplyTo {
    /// Returns whether the receiver is gone.
    pub fn is_closed(&self) -> bool {
        match self {
            Self::Nobody => false,
            Self::Caller(reply) => reply.is_closed(),
            Self::Connection(replies) => replies.is_closed(),
        }
    }
}

impl Slot {
    /// Returns the work; `None` once the caller has left.
    pub fn work(&self) -> Option<Arc<Loaded>> {
        self.load.get()
    }

    /// Returns whether there is work of this kind.
    pub fn is(&self, kind: impl Fn(&Work) -> bool) -> bool {
        self.work().is_some_and(|loaded| kind(&loaded.work))
    }

    /// Returns whether the caller no longer waits. False for a slot that hands back jobs, which has no caller.
    pub fn is_gone(&self) -> bool {
        self.stage.is_gone() || self.reply.is_closed()
    }

    /// Returns whether this op of this process was sent to the writer of another one before, which may have executed it.
    pub fn was_elsewhere(&self) -> bool {
        self.session.as_ref().is_some_and(|session| !session.is_of_another_process())
    }

    /// Returns whether to drop the op, because its caller has left. An op that was elsewhere stays, as one that is given
    /// up: if it was executed there, the jobs that it claimed are handed back (P39).
    pub fn is_to_drop(&mut self) -> bool {
        if !self.is_gone() {
            return false;
        }
        let stays = self.was_elsewhere();
        if stays && let Some(session) = &mut self.session {
            session.delivery.cancel = true;
            (self.reply, self.stage, self.wait) = (ReplyTo::Nobody, Arc::default(), Wait::No);
        }
        !stays
    }

    /// Returns a slot for an empty commit.
    pub fn fence(now: Instant, stage: Arc<Stage>, reply: ReplyTo) -> Self {
        Self { load: Load::new(Work::Fence, None), wait: Wait::No, arrived: now, stage, session: None, reply }
    }

    pub fn release(held: Held, now: Instant) -> Self {
        Self {
            load: Load::new(Work::Op(Op::Release { held }), None),
            wait: Wait::No,
            arrived: now,
            stage: Arc::default(),
            session: None,
            reply: ReplyTo::Nobody,
        }
    }
}
