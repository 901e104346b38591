//! Serves the mailbox of a process that has joined another one: its ops go to the leader, and the results come back.
//!
//! The session decides what is final (`link/client.rs`); this file keeps the callers of its ops. When the leader is
//! lost, they go to the next one, or to a writer of this process.

mod ops;
mod requests;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::hello::{BEAT, SILENCE};
use super::join::Joined;
use super::stream::Connection;
use crate::bytes::metrics::Counters;
use crate::door::{
    Begun, Collection, Export, HostPart, Inbox, Load, Mail, ReplyTo, SessionClock, SessionOp, Shared, Slot,
    Wait, Work, millis,
};
use crate::link::client::Session;
use crate::link::frame::Arrived;
use crate::link::message::{Reply, Request, WireError, decode};
use crate::noun::config::Options;
use crate::noun::env::Env;
use crate::noun::error::{Code, Error, Result};
use crate::noun::op::Op;
use requests::SentRequest;

/// Why a process that has lost its leader is alone for a moment.
const LOOKING: &str = "it is looking for the process that writes for this host";

/// Why a process is no longer joined.
pub(crate) enum Parted {
    /// Every handle of this process is gone.
    Closed,
    /// The leader has ended, or does not reply: find the next one.
    Lost(String),
}

/// Writes an export without the leader: it needs a path of this process.
pub(crate) type Exporter = Arc<dyn Fn(Export) + Send + Sync>;

/// The ops and requests of one process, across leaders.
pub(crate) struct Forwarder {
    inbox: Inbox,
    session: Session,
    /// When the session began, on this process's clock.
    epoch: Instant,
    ops: HashMap<u64, Slot>,
    asked: BTreeMap<u64, SentRequest>,
    next_id: u64,
    /// Flushes, each with the newest op and request before it.
    flushes: Vec<(u64, u64, oneshot::Sender<()>)>,
    /// The newest op that was sent.
    newest_op: u64,
    /// Most bytes of a message that the leader accepts.
    largest: u64,
    /// Ops to send again at the next tick.
    again: Vec<u64>,
    /// The session was dropped: begin another one once every op has its result.
    renew: bool,
    exporter: Exporter,
    options: Arc<Options>,
    shared: Arc<Shared>,
    env: Env,
}

impl Forwarder {
    pub fn new(
        inbox: Inbox,
        exporter: Exporter,
        options: Arc<Options>,
        shared: Arc<Shared>,
        env: Env,
        session: [u8; 16],
        born: u64,
    ) -> Self {
        Self {
            inbox,
            session: Session::new(session, born),
            epoch: env.monotonic(),
            ops: HashMap::new(),
            asked: BTreeMap::new(),
            next_id: 1,
            flushes: vec![],
            newest_op: 0,
            largest: u64::MAX,
            again: vec![],
            renew: false,
            exporter,
            options,
            shared,
            env,
        }
    }

    /// Returns the id of the session.
    pub fn session(&self) -> [u8; 16] {
        self.session.id()
    }

    fn stamp(&self) -> u64 {
        millis(self.epoch, self.env.monotonic())
    }

    /// Serves the mailbox through this leader until it is lost, or every handle is gone.
    pub async fn run(&mut self, joined: Joined) -> Parted {
        let Joined { mut connection, welcome } = joined;
        self.shared.set_newest(welcome.born);
        if self.session.pending() == 0 && self.renew {
            self.session = Session::new(self.env.bytes(), welcome.born);
            self.renew = false;
            return Parted::Lost("a new session begins".to_owned());
        }
        let credit = Credit { ops: welcome.credit as usize, bytes: welcome.credit_bytes };
        self.largest = welcome.largest;
        let parted = match self.resume(&mut connection) {
            Ok(()) => self.serve(&mut connection, &credit).await,
            Err(error) => Err(error),
        };
        self.shared.set_part(HostPart::Alone(Some(LOOKING.to_owned())));
        self.shared.trouble(None);
        match parted {
            Ok(parted) => parted,
            Err(error) => Parted::Lost(error.message().to_owned()),
        }
    }

    /// Sends everything without a final result over a new connection (P32).
    fn resume(&mut self, connection: &mut Connection) -> Result<()> {
        connection.beat(self.stamp());
        self.again.clear();
        for request in self.session.reconnect() {
            connection.send(&Request::Op(request))?;
        }
        for (id, asked) in &self.asked {
            connection.send(&self.request(*id, asked)?)?;
        }
        Ok(())
    }

    async fn serve(&mut self, connection: &mut Connection, credit: &Credit) -> Result<Parted> {
        let env = self.env.clone();
        let mut tick = env.monotonic() + BEAT;
        loop {
            let now = env.monotonic();
            if now >= tick {
                tick = now + BEAT;
                self.tick(connection)?;
            }
            if self.renew && self.ops.is_empty() {
                return Ok(Parted::Lost("its session was dropped".to_owned()));
            }
            self.end_flushes();
            let takes = !self.renew && self.has_credit(credit, connection);
            if takes && let Some(mail) = self.inbox.mail.pop_front() {
                self.take(mail, connection)?;
                continue;
            }
            let silent_at = connection.heard() + SILENCE;
            let waits = !self.ops.is_empty() || !self.asked.is_empty();
            let wake = if waits { tick.min(silent_at) } else { tick };
            tokio::select! {
                biased;
                arrived = connection.next() => {
                    if let Some(parted) = self.arrived(arrived?)? {
                        return Ok(parted);
                    }
                }
                mail = self.inbox.rx.recv(), if takes => match mail {
                    Some(mail) => {
                        self.inbox.mail.push_back(mail);
                        while let Ok(mail) = self.inbox.rx.try_recv() {
                            self.inbox.mail.push_back(mail);
                        }
                    }
                    // Jobs that were handed back just now still go out.
                    None if self.ops.is_empty() && connection.unsent() == 0 => return Ok(Parted::Closed),
                    None => self.finish(connection).await?,
                },
                // Nothing has arrived: a process that was itself stopped reads before it judges.
                () = env.sleep(wake.saturating_duration_since(now)) => {
                    if waits && env.monotonic() >= connection.heard() + SILENCE {
                        return Ok(Parted::Lost("it does not reply".to_owned()));
                    }
                }
            }
        }
    }

    /// Waits for the results of the last ops, when every handle is gone.
    async fn finish(&mut self, connection: &mut Connection) -> Result<()> {
        let env = self.env.clone();
        let until = env.monotonic() + self.options.deadline;
        let mut tick = env.monotonic() + BEAT;
        while !self.ops.is_empty() && env.monotonic() < until {
            if env.monotonic() >= tick {
                tick = env.monotonic() + BEAT;
                self.tick(connection)?;
            }
            let arrived = tokio::select! {
                biased;
                arrived = connection.next() => arrived?,
                () = env.sleep(tick.saturating_duration_since(env.monotonic())) => {
                    if env.monotonic() >= connection.heard() + SILENCE {
                        return Err(Error::new(Code::Closed, "it does not reply"));
                    }
                    continue;
                }
            };
            if let Some(Parted::Lost(reason)) = self.arrived(arrived)? {
                return Err(Error::new(Code::Closed, reason));
            }
        }
        self.ops.clear();
        connection.flush().await
    }

    /// Returns whether another op or request may be sent. The limit is above that of a mailbox: claims that wait, and
    /// waits for the end of a job, must not keep back the ops that end them.
    fn has_credit(&self, credit: &Credit, connection: &Connection) -> bool {
        self.ops.len() + self.asked.len() < credit.ops && (connection.unsent() as u64) < credit.bytes
    }

    /// Sends a heartbeat, and what is due.
    fn tick(&mut self, connection: &mut Connection) -> Result<()> {
        connection.beat(self.stamp());
        for n in std::mem::take(&mut self.again) {
            if let Some(request) = self.session.again(n) {
                connection.send(&Request::Op(request))?;
            }
        }
        self.give_up(connection)
    }

    /// Gives up the ops and requests whose callers have left (P39).
    fn give_up(&mut self, connection: &mut Connection) -> Result<()> {
        let left = self.ops.iter().filter(|(_, slot)| slot.is_gone());
        for n in left.map(|(n, _)| *n).collect::<Vec<_>>() {
            // The reply says what became of it; nobody waits for that, unless it is a claim with jobs.
            if let Some(slot) = self.ops.get_mut(&n)
                && !matches!(slot.reply, ReplyTo::Nobody)
            {
                slot.reply = ReplyTo::Nobody;
                slot.stage = Arc::default();
                if let Some(request) = self.session.give_up(n) {
                    connection.send(&Request::Op(request))?;
                }
            }
        }
        let left = self.asked.iter().filter(|(_, asked)| asked.is_left());
        for id in left.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.asked.remove(&id);
            connection.send(&Request::Leave { id })?;
        }
        Ok(())
    }

    fn end_flushes(&mut self) {
        if self.flushes.is_empty() {
            return;
        }
        // As with a writer of its own, a flush does not wait for callers that wait for a job.
        let at_once = self.ops.iter().filter(|(_, slot)| slot.wait == Wait::No);
        let op = at_once.map(|(n, _)| *n).min().unwrap_or(u64::MAX);
        let mut asked = self.asked.iter().filter(|(_, asked)| !matches!(asked, SentRequest::Job(_)));
        let id = asked.next().map_or(u64::MAX, |(id, _)| *id);
        let (done, wait) =
            std::mem::take(&mut self.flushes).into_iter().partition(|(n, i, _)| op > *n && id > *i);
        self.flushes = wait;
        let done: Vec<_> = done;
        for (_, _, done) in done {
            let _ = done.send(());
        }
    }

    fn take(&mut self, mail: Mail, connection: &mut Connection) -> Result<()> {
        match mail {
            Mail::Op(slot) => match slot.work().as_ref().map(|loaded| &loaded.work) {
                _ if slot.is_gone() => Ok(()),
                Some(Work::Op(op)) => self.send(op, slot, connection),
                Some(Work::Fence) => {
                    // An empty commit, which may have been made when its caller gives up.
                    slot.stage.send_elsewhere();
                    self.ask(SentRequest::Fence(slot), connection)
                }
                // Only a writer makes these, for itself.
                Some(Work::Archive { .. }) | None => Ok(()),
            },
            Mail::HandBack(jobs) => {
                let now = self.env.monotonic();
                Counters::add(&self.shared.counters.handed_back, jobs.len() as u64);
                jobs.into_iter().try_for_each(|held| {
                    self.send(&Op::Release { held }, Slot::release(held, now), connection)
                })
            }
            Mail::Ask(question) => self.ask(SentRequest::Query(question), connection),
            Mail::Await(job) => self.ask(SentRequest::Job(job), connection),
            Mail::Archive(reply) => self.ask(SentRequest::Archive(reply), connection),
            Mail::Collect(Collection { grace, begun, reply, .. }) => {
                // The leader does the whole; its own limits apply.
                let _ = begun.send(Ok(Begun::Deleting));
                self.ask(SentRequest::Collect(grace, reply), connection)
            }
            Mail::Task(queued) => self.task(queued, connection),
            Mail::Export(export) => {
                (self.exporter)(export);
                Ok(())
            }
            Mail::Flush(done) => {
                self.flushes.push((self.newest_op, self.next_id - 1, done));
                Ok(())
            }
            Mail::Left => self.give_up(connection),
            Mail::Wake | Mail::Resign => Ok(()),
        }
    }

    fn arrived(&mut self, arrived: Arrived) -> Result<Option<Parted>> {
        let bytes = match arrived {
            Arrived::Beat(_) => {
                self.shared.progress();
                return Ok(None);
            }
            Arrived::Message(bytes) => bytes,
        };
        match decode(&bytes)? {
            Reply::Ops(replies) => {
                for reply in replies {
                    self.op_reply(reply)?;
                }
                Ok(None)
            }
            Reply::Answer { id, result } => {
                if let Some(asked) = self.asked.remove(&id) {
                    Self::answer(asked, result.map_err(WireError::into_error));
                }
                Ok(None)
            }
            Reply::Parked { n } => {
                if let Some(slot) = self.ops.get(&n) {
                    slot.stage.park_elsewhere();
                }
                Ok(None)
            }
            Reply::Trouble(trouble) => {
                self.shared.trouble(trouble.map(WireError::into_error));
                Ok(None)
            }
            Reply::Moving => Ok(Some(Parted::Lost("it leaves".to_owned()))),
        }
    }

    /// Returns the mailbox for a writer of this process, with everything that has no final result as mail.
    pub fn into_inbox(mut self) -> Inbox {
        let mut numbers: Vec<u64> = self.ops.keys().copied().collect();
        numbers.sort_unstable();
        let mut mail = VecDeque::new();
        for n in numbers {
            let (Some(slot), Some(delivery)) = (self.ops.remove(&n), self.session.taken_over(n)) else {
                continue;
            };
            // When its caller leaves, or has left, the op is given up, which needs its work all the same.
            let load = slot.load.kept().or_else(|| {
                let op = self.session.call(n).and_then(|call| decode(&call.op).ok())?;
                Some(Load::new(Work::Op(op), None))
            });
            let Some(load) = load else { continue };
            let session = SessionOp::new(delivery, SessionClock::Own(self.epoch), false);
            mail.push_back(Mail::Op(Slot { load, session: Some(Box::new(session)), ..slot }));
        }
        for asked in std::mem::take(&mut self.asked).into_values() {
            mail.push_back(asked.into_mail(&self.env));
        }
        mail.append(&mut self.inbox.mail);
        for (_, _, done) in self.flushes {
            mail.push_back(Mail::Flush(done));
        }
        Inbox { rx: self.inbox.rx, mail }
    }
}

struct Credit {
    ops: usize,
    bytes: u64,
}
