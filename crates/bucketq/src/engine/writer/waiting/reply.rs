//! Replies to the callers of a settled batch. Callers that wait for a job or for room are parked.
//!
//! Called when a batch is settled, and when it has failed. A caller that has left gets nothing, and jobs claimed for it
//! are handed back, unless it is in another process.

use std::time::Duration;

use tokio::time::Instant;

use super::{Chain, Expected, WaitingRoom};
use crate::bytes::metrics::Counters;
use crate::door::{
    self, DeliveryResult, Done, ExecutionEnd, ReplyTo, SessionClock, Slot, Wait, millis, perhaps_elsewhere,
};
use crate::engine::time::Timekeeper;
use crate::engine::writer::Outcomes;
use crate::noun::error::{Code, Error, Kind, Result};
use crate::noun::op::{Held, Op, Outcome};

/// The end of a settled batch.
pub(in crate::engine::writer) struct BatchEnd {
    pub outcomes: Outcomes,
    /// The number and the time of its commit.
    pub commit: (u64, i64),
    /// Taken before the time of the commit (P26).
    pub began: Instant,
}

impl WaitingRoom {
    /// Replies to a settled batch; claims without a job and enqueues without room are parked if they may wait. `put` is
    /// how long a commit usually takes.
    pub fn reply(
        &mut self,
        batch: Vec<Slot>,
        end: BatchEnd,
        chain: &mut Chain,
        time: &Timekeeper,
        put: Duration,
    ) {
        let BatchEnd { outcomes, commit: (commit_seq, commit_ms), began } = end;
        let now = self.env.monotonic();
        let mut released = 0;
        for (mut slot, outcome) in batch.into_iter().zip(outcomes) {
            if let Some(end) = room_until(&slot, &outcome, chain).filter(|end| now < *end) {
                slot.wait = Wait::Until(end);
                slot.stage.park();
                self.parked.push_back(slot);
                continue;
            }
            let waits = match slot.wait {
                Wait::No => false,
                Wait::Until(end) => now < end,
                Wait::Forever => true,
            };
            let waits = waits && !slot.session.as_ref().is_some_and(|session| session.is_recorded());
            let is_empty = matches!(&outcome, Ok(Outcome::Claimed(jobs)) if jobs.is_empty());
            if waits && is_empty && !is_drained(&slot, chain) {
                // No body holds it: a caller that gives up now gets "surely not applied" (P7).
                slot.stage.unsend();
                self.parked.push_back(slot);
                continue;
            }
            // An archive object, or a job that is handed back, has no caller that comes back.
            let comes_back = slot.is(|work| !matches!(work, door::Work::Archive { .. }));
            released += usize::from(!matches!(slot.reply, ReplyTo::Nobody) && comes_back);
            let since = self.held_since(&slot, &outcome, began, time);
            let end = SlotEnd { outcome, since, commit: (commit_seq, commit_ms), began, now };
            if let Some(Done { outcome: Outcome::Claimed(jobs), .. }) = respond_settled(slot, end) {
                Counters::add(&self.shared.counters.handed_back, jobs.len() as u64);
                let held = jobs.iter().map(|c| Held { id: c.job.id, token: c.lease.token });
                self.carry.extend(held.map(|held| Slot::release(held, now)));
            }
        }
        self.expect = Some(Expected::back(released, now, put, &self.options));
    }

    /// Returns the time from which leases count. For a repeated claim whose caller already holds jobs, that is when the
    /// first of them was claimed (P26); `None` if the monotonic clock does not reach back so far.
    fn held_since(
        &self,
        slot: &Slot,
        outcome: &Result<Outcome>,
        began: Instant,
        time: &Timekeeper,
    ) -> Option<Instant> {
        // The end of a job and a claim may be a repeat that does not know it.
        let may_repeat = |op: &Op| op.ends_and_claims() || op.claim().is_some_and(|claim| claim.again);
        let is_again = |work: &_| matches!(work, door::Work::Op(op) if may_repeat(op));
        let Ok(Outcome::Claimed(jobs) | Outcome::ClaimedNext(jobs)) = outcome else { return Some(began) };
        if !slot.is(is_again) {
            return Some(began);
        }
        let Some(first_ms) = jobs.iter().filter_map(|c| c.job.claimed_ms).min() else { return Some(began) };
        // In this order, so that time in between makes it earlier.
        let now = self.env.monotonic();
        let ago = Duration::from_millis(u64::try_from(time.now_ms() - first_ms).unwrap_or(0));
        now.checked_sub(ago).map(|since| since.min(began))
    }
}

/// The end of one op of a settled batch.
struct SlotEnd {
    outcome: Result<Outcome>,
    /// See [`WaitingRoom::held_since`].
    since: Option<Instant>,
    commit: (u64, i64),
    began: Instant,
    now: Instant,
}

/// Replies to one op of a settled batch. Returns the reply if it is no error and its caller has gone.
fn respond_settled(slot: Slot, end: SlotEnd) -> Option<Done> {
    let SlotEnd { outcome, since, commit, began, now } = end;
    let Some(session) = &slot.session else {
        let (commit_seq, commit_ms) = commit;
        let done = match since {
            Some(began) => outcome.map(|outcome| Done { outcome, commit_seq, commit_ms, began }),
            None => Err(before_the_clock()),
        };
        return respond(slot, done);
    };
    let mut fate = session.fate();
    let commit = fate.earlier.unwrap_or(commit);
    if let SessionClock::Own(epoch) = session.clock {
        let began = if fate.earlier.is_some() { epoch + Duration::from_millis(fate.stamp) } else { began };
        let done = match since.map(|since| since.min(began)) {
            // An earlier delivery may have been applied: only a recorded result is final (P38).
            _ if fate.forgotten || (!fate.recorded && outcome.is_err()) => {
                Err(perhaps_elsewhere(outcome.err()))
            }
            Some(began) => {
                outcome.map(|outcome| Done { outcome, commit_seq: commit.0, commit_ms: commit.1, began })
            }
            None => Err(before_the_clock()),
        };
        // Without a caller, jobs that it had claimed are handed back.
        let ReplyTo::Caller(reply) = slot.reply else { return done.ok() };
        return reply.send(done).err().and_then(Result::ok);
    }
    match since {
        // A claim repeated by its caller: its jobs are held since it was sent first.
        Some(since) if since < began => {
            let ago = millis(since, now);
            fate.stamp = fate.stamp.min(session.clock.newest(now).saturating_sub(ago));
        }
        Some(_) => {}
        None => fate.stamp = 0,
    }
    let n = session.delivery.n;
    // The client claims the jobs, or releases them: a connection that ended says nothing about it (P40).
    if let ReplyTo::Connection(replies) = &slot.reply {
        let _ = replies.send(DeliveryResult { n, result: outcome, commit, fate });
    }
    None
}

fn before_the_clock() -> Error {
    Error::new(
        Code::LeaseLost,
        "these jobs were claimed before this machine's clock began: their leases run out by themselves",
    )
}

/// Returns until when an enqueue that found no room waits for some, by the policy of its queue.
fn room_until(slot: &Slot, outcome: &Result<Outcome>, chain: &mut Chain) -> Option<Instant> {
    let loaded = slot.work()?;
    let door::Work::Op(Op::Enqueue { queue, .. }) = &loaded.work else { return None };
    let recorded = slot.session.as_ref().is_some_and(|session| session.is_recorded());
    if recorded || outcome.as_ref().err().is_none_or(|e| e.code() != Code::Blocked) {
        return None;
    }
    let timeout = chain.db.block(queue).ok().flatten()?;
    slot.arrived.checked_add(timeout)
}

/// Returns whether a claim waits in vain, because all its queues are drained.
fn is_drained(slot: &Slot, chain: &mut Chain) -> bool {
    let Some(loaded) = slot.work() else { return false };
    let door::Work::Op(op) = &loaded.work else { return false };
    op.claim().is_some_and(|claim| chain.db.are_drained(&claim.queues).unwrap_or(false))
}

pub(in crate::engine::writer) fn fail(batch: Vec<Slot>, error: &Error) {
    for slot in batch {
        respond(slot, Err(error.clone()));
    }
}

/// Sends the reply. Returns it if it is no error and the caller has gone.
pub(in crate::engine::writer) fn respond(slot: Slot, answer: Result<Done>) -> Option<Done> {
    match slot.reply {
        ReplyTo::Caller(reply) => {
            let answer = match answer {
                Err(error) if slot.session.is_some() => Err(perhaps_elsewhere(Some(error))),
                answer => answer,
            };
            reply.send(answer).err().and_then(Result::ok)
        }
        ReplyTo::Connection(replies) => {
            // Not settled, so nothing is recorded.
            if let (Some(session), Err(error)) = (slot.session, answer) {
                let n = session.delivery.n;
                let _ = replies.send(DeliveryResult {
                    n,
                    result: Err(error),
                    commit: (0, 0),
                    fate: ExecutionEnd::default(),
                });
            }
            None
        }
        ReplyTo::Nobody => {
            // A job handed back may have finished or expired meanwhile, which is fine.
            if let Err(error) = answer
                && !matches!(error.kind(), Kind::LeaseLost | Kind::NotFound)
            {
                tracing::debug!(%error, "a job could not be handed back; its lease runs out instead");
            }
            None
        }
    }
}
