//! What the writer does when a rule is broken on purpose (`broken`), kept out of the way of what it does right.
//! Nothing here happens in what ships.

use std::borrow::Cow;

use super::Writer;
use super::push::Pushed;
use crate::broken::{Broken, is};
use crate::config::Options;
use crate::db::{Db, Limits, Moment};
use crate::door::Question;
use crate::error::{Code, Error, Result};
use crate::gc::Order;
use crate::head::Head;
use crate::life::Listing;
use crate::op::Op;
use crate::pages::Changes;
use crate::record::Record;

impl Writer {
    /// P11: answer from what is not settled.
    pub(super) fn answer_too_early(&mut self, questions: &mut Vec<Question>) {
        if is(&self.options, Broken::DirtyRead) {
            for q in std::mem::take(questions) {
                let answer = self.look_up(&q);
                let _ = q.reply.send(answer);
            }
        }
    }

    /// P17: start a base of what is not settled.
    pub(super) fn start_base_too_early(&mut self, head: &Head) {
        if is(&self.options, Broken::BaseFromUnsettled) {
            self.uploads.start_base(self.chain.pages.with(|p| p.image()), head.commit_seq, head.file_id);
        }
    }

    /// P14: collect by the floor of a commit that is not stored.
    pub(super) fn collect_too_early(&mut self, head: &Head) {
        if is(&self.options, Broken::FloorBeforeStored) && head.gc_floor > self.chain.head.gc_floor {
            let (known, archives) = (self.chain.head.clone(), self.archives_kept());
            self.collector.order(Order { known, archives, too_early: Some(head.gc_floor), reply: None });
        }
    }

    /// P1: a resend that is another body. True if it is one now.
    pub(super) fn redraw(&mut self, head: &mut Head, record: &mut Record) -> bool {
        if !is(&self.options, Broken::NewIdOnResend) {
            return false;
        }
        self.attempt += 1;
        record.commit_id = self.draw_commit_id();
        head.commit_id = record.commit_id;
        if let Some(last) = head.tail.last_mut() {
            last.commit_id = record.commit_id;
        }
        if let Some(mine) = head.writers.iter_mut().find(|e| e.id == self.id) {
            mine.attempt = self.attempt;
            mine.commit_id = record.commit_id;
        }
        true
    }

    /// P3: tell callers that nothing was applied, without knowing.
    pub(super) async fn pretend_failed(&mut self, changes: Changes) -> Pushed {
        self.undo(changes);
        let _ = self.refresh().await;
        Pushed::NotApplied(Error::new(Code::Unreachable, "told as failed"))
    }
}

/// P3: whether this answer is told as a failure.
pub(super) fn told_failed(options: &Options, conflict: bool) -> bool {
    is(options, if conflict { Broken::ConflictIsFailure } else { Broken::TimeoutIsFailure })
}

/// Rules of the state layer are broken there.
#[cfg(feature = "broken")]
pub(super) fn hand_down(options: &Options, db: &mut Db) {
    db.break_rule(options.broken);
}

#[cfg(not(feature = "broken"))]
pub(super) const fn hand_down(_: &Options, _: &mut Db) {}

/// P27: the op with whatever token the job has now, as if tokens were not compared.
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

/// List an archive object and take its jobs out, or what is left of that with a rule broken.
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
