//! When a batch is complete: what waits is taken, and after a put as many ops as it released are awaited for a moment,
//! so that callers who work in a loop share one commit (group commit).

use std::time::Duration;

use tokio::time::Instant;

use super::{Work, Writer};
use crate::config::Options;
use crate::door::{Mail, Slot, Wait};
use crate::metrics::Counters;
use crate::op::{Op, Queues};

/// Ops in one batch; the rest waits for the next.
const MAX_OPS: usize = 4_096;
/// Payload bytes in one batch.
const MAX_BYTES: usize = 8 * 1024 * 1024;

/// On a fast store a share of a put is less than callers need to come back. A batch waits for those who come one soon
/// after the other, so long after the last reply, and never longer than a put takes.
const COMING: Duration = Duration::from_millis(4);
/// How soon after one another that is.
const SOON: Duration = Duration::from_millis(1);

/// Those whom the last commit answered.
pub(super) struct Expected {
    ops: usize,
    /// All are awaited until then ...
    until: Instant,
    /// ... and while they come, until then.
    latest: Instant,
}

impl Expected {
    pub(super) fn back(ops: usize, now: Instant, put: Duration, options: &Options) -> Self {
        let share = put.mul_f64(f64::from(options.gather_percent) / 100.0).min(options.gather_max);
        // Timers are too coarse for anything faster.
        let slow_enough = !share.is_zero() && put >= SOON;
        let coming = if slow_enough { put.min(COMING).min(options.gather_max) } else { share };
        Self { ops, until: now + share, latest: now + share.max(coming) }
    }
}

/// What ended a wait.
enum Event {
    Mail(Mail),
    Closed,
    Time,
}

impl Writer {
    /// The next batch; none when every handle is gone and nothing is left to do.
    pub(super) async fn gather(&mut self) -> Option<Work> {
        self.keep_copy().await;
        let mut work = Work { slots: std::mem::take(&mut self.carry), ..Work::default() };
        for mail in self.stashed() {
            self.put(&mut work, mail);
        }
        self.take_waiting(&mut work);
        while work.is_empty() {
            let timer = self.timer();
            match self.next_event(timer).await {
                Event::Mail(mail) => self.put(&mut work, mail),
                Event::Closed => return None,
                Event::Time => {
                    self.keep_copy().await;
                    // Without waiting claims nobody asks the store.
                    work.poll = !self.parked.is_empty() || self.local.is_some();
                }
            }
        }
        if let Some(expected) = self.pace.expect.take() {
            self.wait_for_callers(&mut work, &expected).await;
        }
        self.keep_interval(&mut work).await;
        self.take_waiting(&mut work);
        self.leave_half(&mut work);
        Some(work)
    }

    /// Callers who work in a loop come back: without them half of each batch would be left to a commit of its own.
    async fn wait_for_callers(&mut self, work: &mut Work, expected: &Expected) {
        let until = |now: Instant| expected.until.max((now + SOON).min(expected.latest));
        let mut end = until(self.env.monotonic());
        while work.slots.len() < expected.ops && self.wait_for_mail(work, end).await {
            end = until(self.env.monotonic());
        }
    }

    /// A batch too large for HEAD, but not for two of them, is two: the first half is done after one round trip and
    /// the second after two, where together they would all wait for a segment and then for HEAD.
    fn leave_half(&mut self, work: &mut Work) {
        let room = self.options.max_head.saturating_sub(self.chain.head.fixed_len() + 4096) as f64;
        let record = |payload: usize| payload as f64 * self.pace.swell;
        let total: usize = work.slots.iter().map(payload_bytes).sum();
        if self.local.is_some() || record(total) <= room || record(total) > 2.0 * room {
            return;
        }
        let mut bytes = 0;
        let half = work.slots.iter().position(|slot| {
            bytes += payload_bytes(slot);
            bytes > total / 2
        });
        if let Some(at) = half.filter(|at| *at > 0) {
            self.carry = work.slots.split_off(at);
        }
    }

    /// Wait until the next commit is due, if there is something to commit. A read costs no put: it does not wait.
    async fn keep_interval(&mut self, work: &mut Work) {
        let interval = self.options.commit_interval;
        let due = self.pace.last_put.filter(|_| !interval.is_zero()).map(|last| last + interval);
        let due = due.max(self.pace.gap_until).filter(|due| *due > self.env.monotonic());
        let Some(due) = due.filter(|_| self.local.is_none()) else { return };
        while self.halted.is_none() {
            self.answer(std::mem::take(&mut work.questions)).await;
            let nothing_to_commit = work.slots.is_empty() && !work.poll;
            if nothing_to_commit || work.slots.len() >= MAX_OPS || !self.wait_for_mail(work, due).await {
                return;
            }
        }
    }

    /// Take one mail if it comes before `until`; false when it does not.
    async fn wait_for_mail(&mut self, work: &mut Work, until: Instant) -> bool {
        if let Ok(mail) = self.rx.try_recv() {
            self.put(work, mail);
            return true;
        }
        match self.next_event(Some(until)).await {
            Event::Mail(mail) => {
                self.put(work, mail);
                true
            }
            Event::Closed | Event::Time => false,
        }
    }

    async fn next_event(&mut self, until: Option<Instant>) -> Event {
        let mail = self.rx.recv();
        let Some(until) = until else { return mail.await.map_or(Event::Closed, Event::Mail) };
        let time = until.saturating_duration_since(self.env.monotonic());
        if time.is_zero() {
            return Event::Time;
        }
        tokio::select! {
            biased;
            mail = mail => mail.map_or(Event::Closed, Event::Mail),
            () = self.env.sleep(time) => Event::Time,
        }
    }

    pub(super) fn take_waiting(&mut self, work: &mut Work) {
        let mut bytes = 0;
        while work.slots.len() < MAX_OPS && bytes < MAX_BYTES {
            let Ok(mail) = self.rx.try_recv() else { break };
            if let Mail::Op(slot) = &mail {
                bytes += payload_bytes(slot);
            }
            self.put(work, mail);
        }
    }

    pub(super) fn put(&mut self, work: &mut Work, mail: Mail) {
        match mail {
            Mail::Op(slot) => work.slots.push(slot),
            Mail::Ask(question) => work.questions.push(question),
            Mail::Collect(order) => work.collections.push(order),
            Mail::Export(export) => work.exports.push(export),
            Mail::Archive(order) => work.archives.push(order),
            Mail::Wake => work.wake = true,
            Mail::Flush(done) => work.flushes.push(done),
            Mail::Task(task, reply) => work.tasks.push((task, reply)),
            Mail::HandBack(jobs) => {
                Counters::add(&self.shared.counters.handed_back, jobs.len() as u64);
                let now = self.env.monotonic();
                work.slots.extend(jobs.into_iter().map(|held| Slot::release(held, now)));
            }
        }
    }

    /// When something is due without mail: for those who wait, or for the disk.
    pub(super) fn timer(&mut self) -> Option<Instant> {
        let disk = self.local.as_ref().and_then(|l| l.log.due());
        let copy = self.copy.as_ref().and_then(|c| c.due(&self.chain.head));
        [self.waiters_timer(), disk, copy].into_iter().flatten().min()
    }

    /// A waiting claim's end, a job that becomes claimable, or the next poll.
    fn waiters_timer(&mut self) -> Option<Instant> {
        self.parked.retain(|slot| !slot.is_gone());
        if self.parked.is_empty() || self.halted.is_some() {
            return (!self.parked.is_empty()).then(|| self.env.monotonic());
        }
        // In Local mode nobody else's commits are seen before a snapshot.
        let mut at = self.local.is_none().then(|| self.chain.fresh.max(self.pace.polled) + self.pace.poll);
        let sooner = |at: Option<Instant>, other: Instant| Some(at.map_or(other, |at| at.min(other)));
        for slot in &self.parked {
            if let Wait::Until(end) = slot.wait {
                at = sooner(at, end);
            }
        }
        if let Some(due) = self.next_due() {
            at = sooner(at, due);
        }
        at
    }

    /// When the state known here has a job for a waiting claim, if it has one at all.
    fn next_due(&mut self) -> Option<Instant> {
        let mut queues: Vec<&Queues> = vec![];
        for slot in &self.parked {
            if let crate::door::Work::Op(Op::Claim(claim)) = &slot.work
                && !queues.contains(&&claim.queues)
            {
                queues.push(&claim.queues);
            }
        }
        let now = self.time.now_ms();
        let due = queues.into_iter().filter_map(|q| self.chain.db.next_due_ms(q).ok().flatten()).min()?;
        // What was due at the last look and was not claimable then waits for something else; the poll looks again.
        let ms = u64::try_from(due - now).unwrap_or(0).max(1);
        (due > self.pace.looked_ms).then(|| self.env.monotonic() + Duration::from_millis(ms))
    }
}

/// Bytes of payload that a slot brings.
pub(super) fn payload_bytes(slot: &Slot) -> usize {
    fn of(op: &Op) -> usize {
        match op {
            Op::Enqueue { jobs, .. } => jobs.iter().map(|j| j.payload.bytes.len()).sum(),
            Op::Ack { result: Some(result), .. } => result.bytes.len(),
            Op::Atomic(ops) => ops.iter().map(of).sum(),
            _ => 0,
        }
    }
    match &slot.work {
        crate::door::Work::Op(op) => of(op),
        crate::door::Work::Fence | crate::door::Work::Archive { .. } => 0,
    }
}
