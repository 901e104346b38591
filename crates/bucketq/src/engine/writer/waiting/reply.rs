//! Replies to the callers of a settled batch. Callers that wait for a job or for room are parked.
//!
//! Called when a batch is settled, and when it has failed. A caller that has left gets nothing, and jobs claimed for it are handed back.

use std::time::Duration;

use tokio::time::Instant;

use super::{Chain, Expected, WaitingRoom};
use crate::bytes::metrics::Counters;
use crate::door::{self, Done, Slot, Wait};
use crate::engine::time::Timekeeper;
use crate::engine::writer::Outcomes;
use crate::noun::error::{Code, Error, Kind, Result};
use crate::noun::op::{Claim, Held, Op, Outcome};

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
            if waits && matches!(&outcome, Ok(Outcome::Claimed(jobs)) if jobs.is_empty()) {
                // No body holds it: a caller that gives up now gets "surely not applied" (P7).
                slot.stage.unsend();
                self.parked.push_back(slot);
                continue;
            }
            // An archive object, or a job that is handed back, has no caller that comes back.
            let comes_back = slot.is(|work| !matches!(work, door::Work::Archive { .. }));
            released += usize::from(slot.reply.is_some() && comes_back);
            let done = match self.held_since(&slot, &outcome, began, time) {
                Some(began) => outcome.map(|outcome| Done { outcome, commit_seq, commit_ms, began }),
                None => Err(Error::new(
                    Code::LeaseLost,
                    "these jobs were claimed before this machine's clock began: their leases run out by themselves",
                )),
            };
            if let Some(Done { outcome: Outcome::Claimed(jobs), .. }) = respond(slot, done) {
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
        let is_again = |work: &_| matches!(work, door::Work::Op(Op::Claim(Claim { again: true, .. })));
        let Ok(Outcome::Claimed(jobs)) = outcome else { return Some(began) };
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

/// Returns until when an enqueue that found no room waits for some, by the policy of its queue.
fn room_until(slot: &Slot, outcome: &Result<Outcome>, chain: &mut Chain) -> Option<Instant> {
    let loaded = slot.work()?;
    let door::Work::Op(Op::Enqueue { queue, .. }) = &loaded.work else { return None };
    if outcome.as_ref().err().is_none_or(|e| e.code() != Code::Blocked) {
        return None;
    }
    let timeout = chain.db.block(queue).ok().flatten()?;
    slot.arrived.checked_add(timeout)
}

pub(in crate::engine::writer) fn fail(batch: Vec<Slot>, error: &Error) {
    for slot in batch {
        respond(slot, Err(error.clone()));
    }
}

/// Sends the reply. Returns it if it is no error and the caller has gone.
pub(in crate::engine::writer) fn respond(slot: Slot, answer: Result<Done>) -> Option<Done> {
    let Some(reply) = slot.reply else {
        // A job handed back may have finished or expired meanwhile, which is fine.
        if let Err(error) = answer
            && !matches!(error.kind(), Kind::LeaseLost | Kind::NotFound)
        {
            tracing::debug!(%error, "a job could not be handed back; its lease runs out instead");
        }
        return None;
    };
    reply.send(answer).err().and_then(Result::ok)
}
