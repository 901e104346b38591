//! The leader's side: accepts the other processes of this host, and puts their requests into the writer's mailbox.
//!
//! It runs on a thread of its own, so that heartbeats leave while the writer is busy. Every connection is bounded: ops
//! and bytes without a reply, bytes that the other process does not read. It never decides anything about an op.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use bytes::Bytes;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::hello::{self, BEAT, Introduction, SILENCE};
use super::place::{MeetingPlace, SEATS, Seat};
use super::requests::{OpenRequests, ask};
use super::stream::Connection;
use crate::door::{
    DeliveryResult, Door, Info, Load, Mail, ReplyTo, SessionClock, SessionOp, SessionReplies, Shared, Slot,
    Stage, Wait, Work, millis,
};
use crate::fork;
use crate::link::frame::Arrived;
use crate::link::message::{
    OpReply, OpReport, OpRequest, Reply, Request, Unknown, WireError, WireWait, decode, encode,
};
use crate::noun::config::Options;
use crate::noun::env::Env;
use crate::noun::error::{Code, Error, Result};
use crate::noun::op::Op;
use crate::noun::session::{Delivery, SessionId};

/// Most connections at the same time; further processes write directly.
const CONNECTIONS: usize = 512;
/// Most requests of one connection without a reply ...
pub(super) const CREDIT: u32 = 1_024;
/// ... and most bytes of their ops, beyond one op of any size.
pub(super) const CREDIT_BYTES: u64 = 8 * 1024 * 1024;
/// Largest message: an op with the largest payload, and room for the rest.
pub(super) const LARGEST: usize = 64 * 1024 * 1024;
/// A connection with more unread bytes than this gets no further requests served ...
const UNREAD: usize = 8 * 1024 * 1024;
/// ... and one that reads nothing for this long, or sends no heartbeat, is ended.
const STALLED: Duration = Duration::from_secs(10);
/// The pause after a connection could not be accepted, for lack of descriptors.
const NO_DESCRIPTORS: Duration = Duration::from_millis(100);
/// How often a leader looks whether another process has taken over, beside the times after it was stopped itself.
const SUCCESSOR: Duration = Duration::from_secs(5);
/// How long a leader that leaves waits for the results of its last batch.
const LEAVING: Duration = Duration::from_secs(2);

/// The state that the leader's connections share with its writer.
pub(crate) struct Leader {
    /// The mailbox. It does not keep the writer alive.
    pub mail: mpsc::WeakUnboundedSender<Mail>,
    /// Ends when the last handle of this process is gone.
    pub handles: watch::Receiver<()>,
    /// The queue file, once it is open.
    pub info: watch::Receiver<Option<Info>>,
    pub shared: Arc<Shared>,
    pub options: Arc<Options>,
    pub place: MeetingPlace,
    pub introduction: Introduction,
    pub env: Env,
    /// Becomes true when the writer has ended.
    pub ended: watch::Receiver<bool>,
}

impl Leader {
    /// Returns a door to the writer for one request, unless the writer has ended.
    pub fn door(&self) -> Option<Arc<Door>> {
        let info = self.info.borrow().clone()?;
        Some(Arc::new(Door {
            tx: self.mail.upgrade()?,
            shared: Arc::clone(&self.shared),
            options: Arc::clone(&self.options),
            env: self.env.clone(),
            info,
            began: self.env.monotonic(),
            ended: self.ended.clone(),
            handles: watch::Sender::new(()),
        }))
    }
}

/// Starts to serve the other processes of the host. It ends when the writer or its last handle is gone.
pub(crate) fn start(seat: Seat, leader: Leader) -> Result<()> {
    let listener = std::os::unix::net::UnixListener::bind(seat.socket());
    let listener =
        listener.and_then(|listener| listener.set_nonblocking(true).map(|()| listener)).map_err(|e| {
            Error::new(Code::Disk, "the socket for the other processes cannot be made").because(e)
        })?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::exhausted("the runtime for the other processes cannot be started", &e))?;
    let serve = async move {
        let listener = UnixListener::from_std(listener)?;
        serve(listener, seat, Arc::new(leader)).await;
        Ok::<_, std::io::Error>(())
    };
    std::thread::Builder::new()
        .name("bucketq host".to_owned())
        .spawn(move || {
            fork::apart();
            if let Err(error) = runtime.block_on(fork::stepwise(serve)) {
                tracing::warn!(%error, "the other processes of this host cannot be served");
            }
            // Requests of the other processes may still run, such as a collection.
            runtime.shutdown_background();
        })
        .map_err(|e| Error::exhausted("the thread for the other processes cannot be started", &e))?;
    Ok(())
}

async fn serve(listener: UnixListener, seat: Seat, leader: Arc<Leader>) {
    let since = leader.env.monotonic();
    let open = Arc::new(AtomicUsize::new(0));
    let mut handles = leader.handles.clone();
    let mut info = leader.info.clone();
    let (alive, mut all_ended) = mpsc::channel::<()>(1);
    let (mut looked, mut awake) = (since, since);
    let (leave, leaving) = watch::channel(());
    loop {
        // A writer that has stopped for good leads nobody.
        if leader.shared.is_dead() {
            break;
        }
        let now = leader.env.monotonic();
        if now >= looked + SUCCESSOR || now >= awake + SILENCE {
            looked = now;
            if (seat.number() + 1..SEATS).any(|higher| matches!(leader.place.is_taken(higher), Ok(true))) {
                tracing::info!("another process of this host has taken over while this one was stopped");
                if let Some(mail) = leader.mail.upgrade() {
                    let _ = mail.send(Mail::Resign);
                }
                break;
            }
        }
        awake = now;
        let accepted = tokio::select! {
            biased;
            () = leader.env.sleep(BEAT) => continue,
            _ = handles.changed() => break,
            changed = info.changed() => {
                // The opening has failed, or the writer has ended.
                if changed.is_err() { break }
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let (leader, open, alive) = (Arc::clone(&leader), Arc::clone(&open), alive.clone());
                let leaving = leaving.clone();
                tokio::spawn(async move {
                    let many = open.fetch_add(1, SeqCst) >= CONNECTIONS;
                    if let Err(error) = connected(stream, &leader, leaving, (since, many)).await {
                        tracing::info!(%error, "a connection of another process has ended");
                    }
                    open.fetch_sub(1, SeqCst);
                    drop(alive);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection of another process cannot be accepted");
                leader.env.sleep(NO_DESCRIPTORS).await;
            }
        }
    }
    // The others elect a new leader when they hear that this one leaves: its seat must be free then.
    drop(listener);
    drop(seat);
    drop(leave);
    drop(alive);
    tokio::select! {
        biased;
        _ = all_ended.recv() => {}
        () = leader.env.sleep(LEAVING + BEAT) => {}
    }
}

/// Serves one connection until it ends.
async fn connected(
    stream: UnixStream,
    leader: &Arc<Leader>,
    leaving: watch::Receiver<()>,
    (since, many): (Instant, bool),
) -> Result<()> {
    let mut connection = Connection::new(stream, &leader.env);
    if connection.peer_uid()? != rustix::process::geteuid().as_raw() {
        return Err(Error::new(Code::Denied, "a process of another user may not share the writer"));
    }
    if many {
        let reason = format!("{CONNECTIONS} processes share it already");
        return hello::refuse(&mut connection, reason).await.map(drop);
    }
    let hello = hello::receive(&mut connection, &leader.introduction, &leader.env).await?;
    let mut info = leader.info.clone();
    let info = loop {
        if let Some(info) = info.borrow().clone() {
            break info;
        }
        tokio::select! {
            biased;
            changed = info.changed() => changed.map_err(|_| Error::new(Code::Closed, "the writer has ended"))?,
            arrived = connection.next() => drop(arrived?),
            () = leader.env.sleep(BEAT) => {}
        }
        connection.beat(0);
    };
    let since_ms = millis(since, leader.env.monotonic());
    let born = leader.shared.newest();
    connection.send(&hello::welcome(&info, born, since_ms, &leader.introduction))?;
    connection.accept(LARGEST);
    tracing::info!(process = hello.process, "a process of this host shares this writer");
    leader.shared.joined_by(1);
    let served = Served::new(connection, leader, SessionId(hello.session), born).run(leaving).await;
    leader.shared.joined_by(-1);
    served
}

/// One connection of a session.
struct Served<'a> {
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
    ops: Vec<(u64, u64, Arc<Stage>)>,
    held_bytes: u64,
    /// Ops whose client knows that they wait for room.
    parked: Vec<u64>,
    trouble: Option<String>,
    leaving: Option<Instant>,
    /// When this side last left requests unread.
    deaf: Instant,
}

impl<'a> Served<'a> {
    fn new(connection: Connection, leader: &'a Arc<Leader>, session: SessionId, born: u64) -> Self {
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
            ops: vec![],
            held_bytes: 0,
            parked: vec![],
            trouble: None,
            leaving: None,
            deaf: leader.env.monotonic(),
        }
    }

    async fn run(mut self, mut leaving: watch::Receiver<()>) -> Result<()> {
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
                    if let Some(answer) = answer { self.connection.send(&answer)?; }
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
        self.ops.len() + self.asked.count() < 2 * CREDIT as usize
            && self.held_bytes < 2 * CREDIT_BYTES
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
        for (n, _, stage) in &self.ops {
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

    /// Sends this result, and all others of the same commit.
    fn reply(&mut self, first: Option<DeliveryResult>) -> Result<()> {
        let mut results: VecDeque<DeliveryResult> = first.into_iter().collect();
        while let Ok(result) = self.results.try_recv() {
            results.push_back(result);
        }
        let mut replies = Vec::with_capacity(results.len());
        for result in results {
            if let Some(at) = self.ops.iter().position(|(n, _, _)| *n == result.n) {
                self.held_bytes -= self.ops.swap_remove(at).1;
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
        self.ops.push((n, bytes, Arc::clone(&stage)));
        self.held_bytes += bytes;
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
