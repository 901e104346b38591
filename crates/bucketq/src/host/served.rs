//! One connection of another process: its ops go into the writer's mailbox, their results back.
//!
//! Every connection is bounded: ops and bytes without a reply, reads at work, bytes that the other process does not read.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::hello::BEAT;
use super::requests::{OpenRequests, ask};
use super::serve::{CREDIT, CREDIT_BYTES, Leader};
use super::stream::Connection;
use crate::door::{
    DeliveryResult, Load, Mail, ReplyTo, SessionClock, SessionOp, SessionReplies, Slot, Stage, Wait, Work,
};
use crate::link::frame::Arrived;
use crate::link::message::{
    OpReply, OpReport, OpRequest, Reply, Request, Unknown, WireError, WireWait, decode, encode,
};
use crate::noun::error::{Code, Error, Result};
use crate::noun::op::Op;
use crate::noun::session::{Delivery, SessionId};

/// Most reads without a reply: each may return a large payload.
const READS: usize = 256;
/// A connection with more unread bytes than this gets no further requests served ...
const UNREAD: usize = 8 * 1024 * 1024;
/// ... and one that reads nothing for this long, or sends no heartbeat, is ended.
const STALLED: Duration = Duration::from_secs(10);
/// How long a leader that leaves waits for the results of its last batch.
pub(super) const LEAVING: Duration = Duration::from_secs(2);

/// One connection of a session.
pub(super) struct Served<'a> {
    connection: Connection,
    leader: &'a Arc<Leader>,
    session: SessionId,
    born: u64,
    /// The newest stamp of the client's clock.
    stamp: Arc<AtomicU64>,
    replies: SessionReplies,
    results: mpsc::UnboundedReceiver<DeliveryResult>,
    answers: mpsc::UnboundedSender<Reply>,
    answered: mpsc::UnboundedReceiver<Reply>,
    /// Requests for reads and tasks, until their caller leaves.
    asked: OpenRequests,
    /// Ops without a reply, with the bytes that they take.
    ops: HashMap<u64, (u64, Arc<Stage>)>,
    held_bytes: u64,
    /// Ops whose client knows that they wait for room.
    parked: Vec<u64>,
    trouble: Option<String>,
    leaving: Option<Instant>,
    /// When this side last left requests unread.
    deaf: Instant,
}

impl<'a> Served<'a> {
    pub fn new(connection: Connection, leader: &'a Arc<Leader>, session: SessionId, born: u64) -> Self {
        let (replies, results) = mpsc::unbounded_channel();
        let (answers, answered) = mpsc::unbounded_channel();
        Self {
            connection,
            leader,
            session,
            born,
            stamp: Arc::default(),
            replies,
            results,
            answers,
            answered,
            asked: OpenRequests::default(),
            ops: HashMap::new(),
            held_bytes: 0,
            parked: vec![],
            trouble: None,
            leaving: None,
            deaf: leader.env.monotonic(),
        }
    }

    pub async fn run(mut self, mut leaving: watch::Receiver<()>) -> Result<()> {
        let env = self.leader.env.clone();
        let mut tick = env.monotonic();
        loop {
            let now = env.monotonic();
            if now >= tick {
                tick = now + BEAT;
                self.tick(now)?;
            }
            if self.leaving.is_some_and(|until| self.ops.is_empty() || now >= until) {
                self.connection.send(&Reply::Moving)?;
                let flushed = self.connection.flush();
                tokio::select! { flushed = flushed => flushed?, () = env.sleep(BEAT) => {} }
                return Ok(());
            }
            let serves = self.leaving.is_none() && self.has_credit();
            if !serves {
                self.deaf = now;
            }
            tokio::select! {
                biased;
                result = self.results.recv() => self.reply(result)?,
                answer = self.answered.recv() => {
                    if let Some(answer) = answer { self.answer(&answer)?; }
                }
                _ = leaving.changed(), if self.leaving.is_none() => self.leaving = Some(now + LEAVING),
                arrived = self.connection.next_if(serves) => {
                    if let Some(arrived) = arrived? { self.arrived(arrived)?; }
                }
                () = env.sleep(tick.saturating_duration_since(now)) => {}
            }
        }
    }

    fn has_credit(&self) -> bool {
        self.ops.len() + self.asked.waits() < 2 * CREDIT as usize
            && self.held_bytes < 2 * CREDIT_BYTES
            && self.asked.reads() < READS
            && self.connection.unsent() < UNREAD
    }

    fn tick(&mut self, now: Instant) -> Result<()> {
        if self.leader.shared.is_dead() {
            self.leaving.get_or_insert(now);
        }
        if now.saturating_duration_since(self.connection.flowed()) > STALLED {
            return Err(Error::new(Code::Closed, "the other process does not read its replies"));
        }
        // Its connection may outlive it in a forked child; and if it was only stopped, it joins again.
        if now.saturating_duration_since(self.connection.heard().max(self.deaf)) > STALLED {
            return Err(Error::new(Code::Closed, "the other process has stopped"));
        }
        self.connection.beat(0);
        for (n, (_, stage)) in &self.ops {
            if stage.is_parked() && !self.parked.contains(n) {
                self.connection.send(&Reply::Parked { n: *n })?;
                self.parked.push(*n);
            }
        }
        let trouble = self.leader.shared.last_trouble();
        let text = trouble.as_ref().map(ToString::to_string);
        if self.trouble != text {
            self.connection.send(&Reply::Trouble(trouble.as_ref().map(WireError::from)))?;
            self.trouble = text;
        }
        Ok(())
    }

    fn answer(&mut self, answer: &Reply) -> Result<()> {
        if let Reply::Answer { id, .. } = answer {
            self.asked.end(*id);
        }
        self.connection.send(answer)
    }

    /// Sends this result, and all others of the same commit.
    fn reply(&mut self, first: Option<DeliveryResult>) -> Result<()> {
        let mut results: VecDeque<DeliveryResult> = first.into_iter().collect();
        while let Ok(result) = self.results.try_recv() {
            results.push_back(result);
        }
        let mut replies = Vec::with_capacity(results.len());
        for result in results {
            if let Some((bytes, _)) = self.ops.remove(&result.n) {
                self.held_bytes -= bytes;
            }
            self.parked.retain(|n| *n != result.n);
            replies.push(op_reply(result)?);
        }
        self.connection.send(&Reply::Ops(replies))
    }

    fn arrived(&mut self, arrived: Arrived) -> Result<()> {
        let bytes = match arrived {
            Arrived::Beat(stamp) => {
                self.stamp.fetch_max(stamp, SeqCst);
                return Ok(());
            }
            Arrived::Message(bytes) => bytes,
        };
        match decode(&bytes)? {
            Request::Op(request) => self.op(request),
            Request::Leave { id } => {
                self.asked.leave(id);
                Ok(())
            }
            request @ (Request::Ask { .. } | Request::Await { .. } | Request::Run { .. }) => {
                let Some(mail) = self.leader.mail.upgrade() else {
                    self.gone();
                    return Ok(());
                };
                self.asked.begin(ask(request, mail, self.leader, self.answers.clone())?);
                Ok(())
            }
        }
    }

    /// The writer has ended: whatever comes now belongs to the next one.
    fn gone(&mut self) {
        self.leaving.get_or_insert(self.leader.env.monotonic());
    }

    fn op(&mut self, request: OpRequest) -> Result<()> {
        let OpRequest { n, have, again, cancel, watched, last_ms, stamp, wait, op } = request;
        let Ok(decoded) = decode::<Op>(&op) else {
            return self.connection.send(&Reply::Ops(vec![unknown_op(n)]));
        };
        let Some(mail) = self.leader.mail.upgrade() else {
            self.gone();
            return Ok(());
        };
        let now = self.leader.env.monotonic();
        // An enqueue waits for room since its caller first sent it.
        let ago = self.stamp.fetch_max(stamp, SeqCst).saturating_sub(stamp);
        let arrived = now.checked_sub(Duration::from_millis(ago)).unwrap_or(now);
        let (session, born) = (self.session, self.born);
        let delivery = Delivery { session, born, n, have, again, cancel, last_ms, stamp };
        let stage = Arc::new(Stage::default());
        let bytes = op.len() as u64;
        let before = self.ops.insert(n, (bytes, Arc::clone(&stage)));
        self.held_bytes = self.held_bytes + bytes - before.map_or(0, |(bytes, _)| bytes);
        let slot = Slot {
            load: Load::new(Work::Op(decoded), None),
            wait: match wait {
                WireWait::No => Wait::No,
                WireWait::Ms(ms) => Wait::Until(now + Duration::from_millis(ms.min(AGES_MS))),
                WireWait::Forever => Wait::Forever,
            },
            arrived,
            stage,
            session: Some(Box::new(SessionOp::new(
                delivery,
                SessionClock::Brought(Arc::clone(&self.stamp)),
                watched,
            ))),
            reply: ReplyTo::Connection(self.replies.clone()),
        };
        if mail.send(Mail::Op(slot)).is_err() {
            self.gone();
        }
        Ok(())
    }
}

/// A wait for longer than this is as good as one without end.
const AGES_MS: u64 = 1_000 * 365 * 24 * 3_600;

fn op_reply(result: DeliveryResult) -> Result<OpReply> {
    let DeliveryResult { n, result, commit: (commit_seq, commit_ms), fate } = result;
    let report = OpReport {
        events: if fate.report.events.is_empty() { Bytes::new() } else { encode(&fate.report.events)? },
        waits_ms: fate.report.waits_ms,
        runs_ms: fate.report.runs_ms,
    };
    Ok(OpReply {
        n,
        result: match result {
            Ok(outcome) => Ok(encode(&outcome)?),
            Err(error) => Err(WireError::from(&error)),
        },
        recorded: fate.recorded,
        unknown: fate.forgotten.then_some(Unknown::Session),
        commit_seq,
        commit_ms,
        stamp: fate.stamp,
        report,
    })
}

fn unknown_op(n: u64) -> OpReply {
    let error = Error::new(Code::Internal, "the leader does not know this op");
    OpReply {
        n,
        result: Err(WireError::from(&error)),
        recorded: false,
        unknown: Some(Unknown::Op),
        commit_seq: 0,
        commit_ms: 0,
        stamp: 0,
        report: OpReport::default(),
    }
}
