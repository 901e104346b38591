//! Runs ops on the database: a batch in one transaction, whose pages are then changed and not committed.

use tokio::time::Instant;

use super::Chain;

use crate::door::{self, ExecutionEnd, OpFacts, SessionClock, SessionOp, Slot, Wait};
use crate::engine::writer::Outcomes;
use crate::noun::error::{Code, Error, Result};
use crate::noun::event::Happened;
use crate::noun::op::{Op, Outcome, Queues};
use crate::state::db::{Db, Delivered, Limits, Moment};
use crate::state::pages::{PageChanges, Pages};

/// Why a batch did not run.
pub(in crate::engine::writer) enum NotRun {
    /// Nothing has changed.
    Refused(Error),
    /// Its changes could not be undone: the pages may be those of no commit.
    Stuck(Error),
}

impl Chain {
    /// Runs the batch in one transaction. An op that fails does not affect the others; one that breaks the transaction
    /// is left out, and the others run again. With `watched`, the facts for listeners are collected too.
    pub fn execute(
        &mut self,
        batch: &[Slot],
        commit_ms: i64,
        watched: bool,
        now: Instant,
    ) -> Result<(Outcomes, PageChanges), NotRun> {
        let at = Moment { now_ms: commit_ms, commit_seq: self.head.commit_seq + 1 };
        let watched_elsewhere = || batch.iter().any(|slot| slot.session.as_ref().is_some_and(|s| s.watched));
        self.db.watch(watched || watched_elsewhere());
        let mut out: Vec<Option<Error>> = vec![None; batch.len()];
        loop {
            match self.attempt(batch, &at, now, &mut out) {
                Ok(outcomes) => {
                    return Ok((outcomes, self.pages.with(Pages::take_changes)));
                }
                Err(Some(culprit)) => {
                    tracing::debug!(op = culprit, "an op broke its batch and is left out");
                    self.abandon()?;
                }
                Err(None) => {
                    self.abandon()?;
                    let failed = out.iter().flatten().next().cloned();
                    return Err(NotRun::Refused(
                        failed.unwrap_or_else(|| Error::bug("the batch could not be committed locally")),
                    ));
                }
            }
        }
    }

    /// Tries the batch once. On an error the caller must abandon the transaction; `Some` is the index of an op now
    /// marked in `out`, `None` means that the transaction itself could not be begun or committed.
    fn attempt(
        &mut self,
        batch: &[Slot],
        at: &Moment,
        now: Instant,
        out: &mut [Option<Error>],
    ) -> Result<Outcomes, Option<usize>> {
        let loads: Vec<_> = batch.iter().map(Slot::work).collect();
        let db = &mut self.db;
        if let Err(error) = db.begin() {
            out[0] = Some(error);
            return Err(None);
        }
        let mut outcomes: Outcomes = Vec::with_capacity(batch.len());
        let mut empty: Vec<&Queues> = vec![];
        for (i, slot) in batch.iter().enumerate() {
            if let Some(session) = &slot.session {
                session.set_fate(ExecutionEnd::default());
            }
            if let Some(error) = &out[i] {
                outcomes.push(Err(error.clone()));
                continue;
            }
            let op = match loads[i].as_deref().map(|loaded| &loaded.work) {
                Some(door::Work::Op(op)) => op,
                // Its caller has left meanwhile.
                None => {
                    outcomes.push(Err(Error::new(Code::Timeout, "its caller no longer waits")));
                    continue;
                }
                Some(door::Work::Fence) => {
                    outcomes.push(Ok(Outcome::Atomic(vec![])));
                    continue;
                }
                Some(door::Work::Archive { listing, tidy }) => {
                    if !tidy {
                        db.move_few_pages();
                    }
                    let floor = self.head.gc_floor;
                    let done = db.archive(listing.as_deref(), at, floor, &self.limits);
                    if db.poisoned() {
                        out[i] = Some(done.err().unwrap_or_else(broke));
                        return Err(Some(i));
                    }
                    outcomes.push(done.map(|()| Outcome::Atomic(vec![])));
                    continue;
                }
            };
            // A hundred waiting claims on an empty queue cost one search.
            if let Op::Claim(claim) = op
                && slot.wait != Wait::No
                && slot.session.as_ref().is_none_or(|s| !s.delivery.again && !s.delivery.cancel)
                && empty.contains(&&claim.queues)
            {
                outcomes.push(Ok(Outcome::Claimed(vec![])));
                continue;
            }
            let outcome = match &slot.session {
                None => db.apply(op, at, &self.limits),
                Some(session) => {
                    let parks = session.delivery.again && may_park(db, slot, op, now);
                    deliver(db, session, op, parks, at, now, &self.limits)
                }
            };
            if db.poisoned() {
                out[i] = Some(outcome.err().unwrap_or_else(broke));
                return Err(Some(i));
            }
            if let (Op::Claim(claim), Ok(Outcome::Claimed(jobs))) = (op, &outcome)
                && jobs.is_empty()
            {
                empty.push(&claim.queues);
            }
            outcomes.push(outcome);
        }
        // No op succeeded, but a rolled-back savepoint leaves pages that look changed: they would cost a put.
        let refused = !outcomes.is_empty() && outcomes.iter().all(Result::is_err);
        if let Err(error) = if refused { db.rollback() } else { db.commit() } {
            out[0] = Some(error);
            return Err(None);
        }
        Ok(outcomes)
    }

    fn abandon(&mut self) -> Result<(), NotRun> {
        let rolled_back = self.db.rollback();
        // A commit that failed half-way may have written some pages.
        let changes = self.pages.with(Pages::take_changes);
        self.undo(changes).map_err(NotRun::Stuck)?;
        rolled_back.map_err(NotRun::Refused)
    }
}

/// Executes an op of a session, or finds its result.
fn deliver(
    db: &mut Db,
    session: &SessionOp,
    op: &Op,
    parks: bool,
    at: &Moment,
    now: Instant,
    limits: &Limits,
) -> Result<Outcome> {
    let (delivery, mark) = (session.stamped(now), db.reported_mark());
    let delivered = db.deliver(&delivery, op, parks, at, limits)?;
    let fate = ExecutionEnd { stamp: delivery.stamp, ..ExecutionEnd::default() };
    let (result, mut fate) = match delivered {
        Delivered::Executed { result, recorded } => (result, ExecutionEnd { recorded, ..fate }),
        Delivered::Recorded { result, commit_seq, commit_ms, stamp } => {
            let earlier = Some((commit_seq, commit_ms));
            (result, ExecutionEnd { recorded: true, earlier, stamp, ..fate })
        }
        Delivered::Forgotten => {
            let error = Error::new(Code::OutcomeUnknown, "the results of this session are not kept any more");
            (Err(error), ExecutionEnd { forgotten: true, ..fate })
        }
    };
    if let SessionClock::Brought(_) = session.clock {
        let (mut events, waits_ms, runs_ms) = db.take_reported_since(mark);
        if matches!(&result, Ok(Outcome::Claimed(jobs)) if jobs.is_empty()) {
            events.push(Happened::ClaimedNothing);
        }
        let events = if session.watched { events } else { vec![] };
        fate.report = OpFacts { events, waits_ms, runs_ms };
    }
    session.set_fate(fate);
    result
}

/// Returns whether the op continues to wait if it finds no job, or no room.
fn may_park(db: &mut Db, slot: &Slot, op: &Op, now: Instant) -> bool {
    match (op, slot.wait) {
        (Op::Enqueue { queue, .. }, _) => {
            let timeout = db.block(queue).ok().flatten();
            timeout.and_then(|timeout| slot.arrived.checked_add(timeout)).is_some_and(|end| now < end)
        }
        (_, Wait::No) => false,
        (_, Wait::Until(end)) => now < end,
        (_, Wait::Forever) => true,
    }
}

fn broke() -> Error {
    Error::bug("an op broke its transaction")
}
