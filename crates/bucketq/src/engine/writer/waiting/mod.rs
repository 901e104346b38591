//! Callers and their mail: what has arrived, what has to wait, and when something is due without mail.
//!
//! `reply` replies to a settled batch and parks callers that wait for a job or for room; `awaited` has those that wait
//! until a job is finished. Knows nothing of the store.

mod awaited;
mod reply;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

pub(super) use reply::{BatchEnd, fail, respond};

use super::chain::Chain;
use crate::bytes::metrics::Counters;
use crate::door::{
    self, ArchiveStep, Collection, Export, Inbox, Mail, Question, QueuedTask, ReplyTo, Shared, Slot, Wait,
};
use crate::engine::time::Timekeeper;
use crate::noun::config::Options;
use crate::noun::env::Env;
use crate::noun::error::{Error, Result};
use crate::noun::op::Queues;
use awaited::Awaited;

/// Most ops in one batch; the rest wait for the next.
pub(super) const MAX_OPS: usize = 4_096;
/// Payload bytes after which a batch takes no more ops.
const MAX_BYTES: usize = 8 * 1024 * 1024;

/// On a fast store, a share of a put is too short for callers to come back. While callers come soon after one another,
/// a batch waits for them, until this long after the last reply, and never longer than a put takes.
const COMING: Duration = Duration::from_millis(4);
/// How soon after one another callers must come for that.
const SOON: Duration = Duration::from_millis(1);

/// The work of one round.
#[derive(Default)]
pub(super) struct RoundWork {
    pub slots: Vec<Slot>,
    pub questions: Vec<Question>,
    pub collections: Vec<Collection>,
    pub exports: Vec<Export>,
    pub archives: Vec<oneshot::Sender<Result<ArchiveStep>>>,
    pub flushes: Vec<oneshot::Sender<()>>,
    pub tasks: Vec<QueuedTask>,
    /// It is time to poll the store for waiting callers.
    pub poll: bool,
    /// A background task is done.
    pub wake: bool,
}

impl RoundWork {
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
            && self.questions.is_empty()
            && self.collections.is_empty()
            && self.exports.is_empty()
            && self.archives.is_empty()
            && self.flushes.is_empty()
            && self.tasks.is_empty()
            && !self.poll
            && !self.wake
    }
}

/// The callers that the last commit replied to, which are likely to come back.
struct Expected {
    ops: usize,
    /// Wait for all of them until then ...
    until: Instant,
    /// ... and while they keep coming, until then.
    latest: Instant,
}

impl Expected {
    fn back(ops: usize, now: Instant, put: Duration, options: &Options) -> Self {
        let share = put.mul_f64(f64::from(options.gather_percent) / 100.0).min(options.gather_max);
        // Timers are too coarse for a faster store.
        let slow_enough = !share.is_zero() && put >= SOON;
        let coming = if slow_enough { put.min(COMING).min(options.gather_max) } else { share };
        Self { ops, until: now + share, latest: now + share.max(coming) }
    }
}

/// Why a wait ended.
pub(super) enum WaitEnd {
    Mail(Mail),
    Closed,
    Time,
}

pub(super) struct WaitingRoom {
    rx: mpsc::UnboundedReceiver<Mail>,
    /// Mail that was taken out of `rx` and has to wait.
    mail: VecDeque<Mail>,
    parked: VecDeque<Slot>,
    /// Ops for the next batch.
    pub carry: Vec<Slot>,
    pub awaited: Awaited,
    expect: Option<Expected>,
    /// How long after the last read of HEAD the store is polled for waiting callers ...
    poll: Duration,
    /// ... and when it was last polled.
    polled: Instant,
    /// The commit time at which waiting claims last found no job.
    looked_ms: i64,
    /// Another process is to write for this one.
    resigns: bool,
    options: Arc<Options>,
    env: Env,
    shared: Arc<Shared>,
}

impl WaitingRoom {
    pub fn new(inbox: Inbox, read: Instant, options: &Arc<Options>, env: &Env, shared: &Arc<Shared>) -> Self {
        Self {
            rx: inbox.rx,
            mail: inbox.mail,
            parked: VecDeque::new(),
            carry: vec![],
            awaited: Awaited::new(env.monotonic()),
            expect: None,
            poll: options.poll_min,
            polled: read,
            looked_ms: 0,
            resigns: false,
            options: Arc::clone(options),
            env: env.clone(),
            shared: Arc::clone(shared),
        }
    }

    /// Waits for callers that work in a loop: without them, half of each batch would need a commit of its own.
    pub async fn wait_for_callers(&mut self, work: &mut RoundWork) {
        let Some(expected) = self.expect.take() else { return };
        let until = |now: Instant| expected.until.max((now + SOON).min(expected.latest));
        let mut end = until(self.env.monotonic());
        while work.slots.len() < expected.ops && self.wait_for_mail(work, end).await {
            end = until(self.env.monotonic());
        }
    }

    /// Takes one piece of mail if it comes before `until`; returns false if none does.
    pub async fn wait_for_mail(&mut self, work: &mut RoundWork, until: Instant) -> bool {
        if let Some(mail) = self.next_mail() {
            self.put(work, mail);
            return true;
        }
        match self.next_event(Some(until)).await {
            WaitEnd::Mail(mail) => {
                self.put(work, mail);
                true
            }
            WaitEnd::Closed | WaitEnd::Time => false,
        }
    }

    /// Returns mail that has already arrived.
    fn next_mail(&mut self) -> Option<Mail> {
        self.mail.pop_front().or_else(|| self.rx.try_recv().ok())
    }

    /// Waits for new mail, without that which has to wait; `None` once every handle is gone.
    pub async fn new_mail(&mut self) -> Option<Mail> {
        self.rx.recv().await
    }

    pub async fn next_event(&mut self, until: Option<Instant>) -> WaitEnd {
        if let Some(mail) = self.mail.pop_front() {
            return WaitEnd::Mail(mail);
        }
        let mail = self.rx.recv();
        let Some(until) = until else { return mail.await.map_or(WaitEnd::Closed, WaitEnd::Mail) };
        let time = until.saturating_duration_since(self.env.monotonic());
        if time.is_zero() {
            return WaitEnd::Time;
        }
        tokio::select! {
            biased;
            mail = mail => mail.map_or(WaitEnd::Closed, WaitEnd::Mail),
            () = self.env.sleep(time) => WaitEnd::Time,
        }
    }

    pub fn take_waiting(&mut self, work: &mut RoundWork) {
        let mut bytes = 0;
        while work.slots.len() < MAX_OPS && bytes < MAX_BYTES {
            let Some(mail) = self.next_mail() else { break };
            if let Mail::Op(slot) = &mail {
                bytes += payload_bytes(slot);
            }
            self.put(work, mail);
        }
    }

    pub fn put(&mut self, work: &mut RoundWork, mail: Mail) {
        match mail {
            Mail::Op(slot) => work.slots.push(slot),
            Mail::Ask(question) => work.questions.push(question),
            Mail::Collect(order) => work.collections.push(order),
            Mail::Export(export) => work.exports.push(export),
            Mail::Archive(order) => work.archives.push(order),
            Mail::Await(job) => {
                self.awaited.add(job);
                // The job was just looked up in the newest state: poll as soon as for a claim that begins to wait.
                self.poll = self.options.poll_min;
                work.wake = true;
            }
            Mail::Wake | Mail::Left => work.wake = true,
            Mail::Resign => {
                self.resigns = true;
                work.wake = true;
            }
            Mail::Flush(done) => work.flushes.push(done),
            Mail::Task(queued) => work.tasks.push(queued),
            Mail::HandBack(jobs) => {
                Counters::add(&self.shared.counters.handed_back, jobs.len() as u64);
                let now = self.env.monotonic();
                work.slots.extend(jobs.into_iter().map(|held| Slot::release(held, now)));
            }
        }
    }

    /// Drops ops that wait for a job, for room or for the next batch, and whose callers have left.
    pub fn drop_gone(&mut self) {
        self.drop_gone_parked();
        self.carry.retain_mut(|slot| !slot.is_to_drop());
    }

    /// Drops mail whose callers have left, during an outage: it would otherwise wait until the store is back.
    pub fn drop_gone_mail(&mut self) {
        self.mail.extend(std::iter::from_fn(|| self.rx.try_recv().ok()));
        self.mail.retain_mut(|mail| match mail {
            Mail::Op(slot) => !slot.is_to_drop(),
            Mail::Ask(question) => !question.reply.is_closed(),
            _ => true,
        });
    }

    /// Returns whether every handle is gone.
    pub fn is_closed(&self) -> bool {
        self.rx.is_closed()
    }

    /// Returns whether no caller waits for this batch any more, and every handle is gone.
    pub fn abandoned(&self, batch: &[Slot]) -> bool {
        self.rx.is_closed() && batch.iter().all(Slot::is_gone)
    }

    /// Returns whether a caller waits for something that a commit may bring.
    pub fn is_waited_on(&self) -> bool {
        !self.parked.is_empty() || self.awaited.is_waited_for()
    }

    /// Returns the earliest of: a waiting claim's end, a claimable job, a lookup of awaited jobs, the next poll of a
    /// HEAD that was read at `fresh`, if there are polls.
    pub fn timer(&mut self, fresh: Option<Instant>, chain: &mut Chain, time: &Timekeeper) -> Option<Instant> {
        if !self.is_waited_on() {
            return None;
        }
        let mut at = fresh.map(|fresh| self.next_poll(fresh));
        let sooner = |at: Option<Instant>, other: Instant| Some(at.map_or(other, |at| at.min(other)));
        for slot in &self.parked {
            if let Wait::Until(end) = slot.wait {
                at = sooner(at, end);
            }
        }
        for due in [self.next_due(chain, time), self.awaited.due()].into_iter().flatten() {
            at = sooner(at, due);
        }
        at
    }

    /// Drops ops that wait for a job or for room, and whose callers have left.
    pub fn drop_gone_parked(&mut self) {
        let is_gone = |slot: &Slot| slot.is_gone();
        if !self.parked.iter().any(is_gone) {
            return;
        }
        let (gone, wait): (VecDeque<Slot>, VecDeque<Slot>) = self.parked.drain(..).partition(is_gone);
        self.parked = wait;
        let given_up = gone.into_iter().filter_map(|mut slot| (!slot.is_to_drop()).then_some(slot));
        self.mail.extend(given_up.map(Mail::Op));
    }

    /// Returns when the known state has a job for a waiting claim, if it ever does.
    fn next_due(&self, chain: &mut Chain, time: &Timekeeper) -> Option<Instant> {
        let mut queues: Vec<Queues> = vec![];
        for loaded in self.parked.iter().filter_map(Slot::work) {
            if let door::Work::Op(op) = &loaded.work
                && let Some(claim) = op.claim()
                && !queues.contains(&claim.queues)
            {
                queues.push(claim.queues.clone());
            }
        }
        let now = time.now_ms();
        let due = queues.iter().filter_map(|q| chain.db.next_due_ms(q).ok().flatten()).min()?;
        // A job that was due at the last look and not claimable waits for something else; the poll looks again.
        let ms = u64::try_from(due - now).unwrap_or(0).max(1);
        (due > self.looked_ms).then(|| self.env.monotonic() + Duration::from_millis(ms))
    }

    /// Returns when the store is polled for waiting callers, if HEAD was last read at `fresh`.
    pub fn next_poll(&self, fresh: Instant) -> Instant {
        fresh.max(self.polled) + self.poll
    }

    /// Notes a poll of the store.
    pub fn polled(&mut self) {
        self.polled = self.env.monotonic();
    }

    /// Polls sooner after a poll that has found something, else later.
    pub fn pace_polls(&mut self, moved: bool) {
        self.poll =
            if moved { self.options.poll_min } else { (self.poll * 3 / 2).min(self.options.poll_max) };
    }

    /// Notes that waiting claims were run at this commit time.
    pub fn looked(&mut self, commit_ms: i64) {
        self.looked_ms = commit_ms;
    }

    /// Orders the batch. Claims run after ops that bring jobs, so that they find them; waiting claims run before new
    /// ones. Enqueues that wait for room run last, when claims may have made room.
    pub fn batch(&mut self, slots: Vec<Slot>, wake: bool) -> Vec<Slot> {
        // A claim that ends another job first runs with the ops that bring jobs: it may unblock some.
        let is_claim = |slot: &Slot| {
            slot.is(
                |work| matches!(work, door::Work::Op(op) if op.claim().is_some() && !op.ends_and_claims()),
            )
        };
        let (claims, mut batch): (Vec<Slot>, Vec<Slot>) = slots.into_iter().partition(is_claim);
        let mut waiting = vec![];
        if wake || !batch.is_empty() || !claims.is_empty() {
            let (claims, enqueues): (Vec<Slot>, Vec<Slot>) = self.parked.drain(..).partition(is_claim);
            batch.extend(claims);
            waiting = enqueues;
        }
        batch.extend(claims);
        batch.extend(waiting);
        batch
    }

    /// Returns whether another process is to write for this one. An op that was sent elsewhere before ends here first.
    pub fn resigns(&mut self) -> bool {
        let mail =
            self.mail.iter().filter_map(|mail| if let Mail::Op(slot) = mail { Some(slot) } else { None });
        self.resigns && !self.parked.iter().chain(&self.carry).chain(mail).any(Slot::was_elsewhere)
    }

    /// Returns the mailbox with everything that waits, for the process that writes from now on. Ops of other processes
    /// stay behind: their connections have ended.
    pub fn leave(self) -> Inbox {
        let own = |slot: &Slot| !matches!(slot.reply, ReplyTo::Connection(_));
        let waiting = self.carry.into_iter().chain(self.parked).filter(own).map(Mail::Op);
        let mail = waiting.chain(self.awaited.into_mail()).chain(self.mail).collect();
        Inbox { rx: self.rx, mail }
    }

    /// Fails these and all waiting callers with this error.
    pub fn refuse_all(&mut self, slots: Vec<Slot>, questions: Vec<Question>, error: &Error) {
        let parked: Vec<Slot> = self.parked.drain(..).collect();
        for slot in slots.into_iter().chain(parked) {
            respond(slot, Err(error.clone()));
        }
        for q in questions {
            let _ = q.reply.send(Err(error.clone()));
        }
        self.awaited.refuse(error);
    }
}

/// Returns the bytes of payload in a slot.
pub(super) fn payload_bytes(slot: &Slot) -> usize {
    slot.work().map_or(0, |loaded| loaded.work.payload_bytes())
}
