//! The writer's behaviour when a rule is broken on purpose (`broken`), kept apart from its correct code. Nothing here
//! happens in what ships.

use std::borrow::Cow;

use super::durable::{Durable, Pushed};
use super::{Actor, Home};
use crate::broken::{Broken, is};
use crate::bucket::head::Head;
use crate::bucket::record::Record;
use crate::door::Question;
use crate::engine::gc::CollectOrder;
use crate::noun::config::Options;
use crate::noun::error::{Code, Error, Result};
use crate::noun::life::Listing;
use crate::noun::op::Op;
use crate::state::db::{Db, Limits, Moment};
use crate::state::pages::PageChanges;

impl<H: Home> Actor<H> {
    /// P17: starts a base of unsettled state.
    pub(super) fn start_base_too_early(&mut self, head: &Head) {
        if is(&self.options, Broken::BaseFromUnsettled) {
            self.chores.uploads.start_base(self.chain.image(), head.commit_seq, head.file_id);
        }
    }

    /// P14: collects by the floor of a commit that is not stored.
    pub(super) fn collect_too_early(&mut self, head: &Head) {
        if is(&self.options, Broken::FloorBeforeStored) && head.gc_floor > self.chain.head().gc_floor {
            let (known, archives) = (self.chain.head().clone(), self.chain.live_archives());
            self.chores.collector.order(CollectOrder {
                known,
                archives,
                too_early: Some(head.gc_floor),
                reply: None,
            });
        }
    }

    /// P1: makes a resend another body. Returns true if it did.
    pub(super) fn redraw(&mut self, head: &mut Head, record: &mut Record) -> bool {
        if !is(&self.options, Broken::NewIdOnResend) {
            return false;
        }
        let attempt = self.identity.next_attempt(record.commit_ms);
        record.commit_id = attempt.commit_id;
        head.commit_id = record.commit_id;
        if let Some(last) = head.tail.last_mut() {
            last.commit_id = record.commit_id;
        }
        if let Some(mine) = head.writers.iter_mut().find(|e| e.id == attempt.writer) {
            mine.attempt = attempt.number;
            mine.commit_id = record.commit_id;
        }
        true
    }
}

impl Actor<Durable> {
    /// P11: replies to queries from unsettled state.
    pub(super) fn answer_too_early(&mut self, questions: &mut Vec<Question>) {
        if is(&self.options, Broken::DirtyRead) {
            for q in std::mem::take(questions) {
                let answer = self.look_up(&q.query);
                let _ = q.reply.send(answer);
            }
        }
    }

    /// P9, P10: returns whether `settle()` makes no commit.
    pub(super) fn settles_by_reading(&self) -> bool {
        let options = &self.options;
        let opened = is(options, Broken::OpeningSettles) && !self.identity.has_stored();
        opened || is(options, Broken::SettleOnlyReads)
    }

    /// P3: returns "not applied" to callers without knowing it.
    pub(super) async fn pretend_failed(&mut self, changes: PageChanges) -> Pushed {
        self.undo(changes);
        let _ = self.refresh().await;
        Pushed::NotApplied(Error::new(Code::Unreachable, "told as failed"))
    }
}

/// P3: returns whether this reply of the store counts as a failure.
pub(super) fn told_failed(options: &Options, conflict: bool) -> bool {
    is(options, if conflict { Broken::ConflictIsFailure } else { Broken::TimeoutIsFailure })
}

/// Passes broken rules of the state layer on to it.
pub(super) fn hand_down(options: &Options, db: &mut Db) {
    db.break_rule(options.broken);
}

/// P27: returns the op with the job's current token, as if tokens were not compared.
pub(super) fn with_current_token<'a>(options: &Options, db: &Db, op: &'a Op) -> Cow<'a, Op> {
    if !is(options, Broken::TokenNotCompared) {
        return Cow::Borrowed(op);
    }
    let mut op = op.clone();
    if let Op::Ack { held, .. }
    | Op::Nack { held, .. }
    | Op::Release { held }
    | Op::Reject { held, .. }
    | Op::Extend { held, .. } = &mut op
        && let Some(token) = db.current_token(held.id)
    {
        held.token = token;
    }
    Cow::Owned(op)
}

/// Lists an archive object and removes its jobs; with a rule broken, only a part of that.
pub(super) fn archive(
    options: &Options,
    db: &mut Db,
    listing: Option<&Listing>,
    at: &Moment,
    floor: u64,
    limits: &Limits,
) -> Result<()> {
    let known = if is(options, Broken::ListBelowFloor) { 0 } else { floor };
    if let Some(listing) = listing
        && is(options, Broken::LeaveBeforeListed)
        && db.as_if_there(listing).is_none()
    {
        return db.only_leave(listing, at, limits);
    }
    let left = listing
        .filter(|_| is(options, Broken::ListTwice) || is(options, Broken::LeaveBeforeListed))
        .and_then(|l| db.as_if_there(l));
    db.archive(left.as_ref().or(listing), at, known, limits)
}
