//! A store that loses a commit it acknowledged (P25): what its writer must do then, and what depended on that commit.
//!
//! Called by run.rs when a second winner was let in. Everything but the lost commit is judged as in any other seed:
//! [`without_lost`] removes the promises that no process could keep, [`judge`] checks how the losers behaved.

use bucketq::error::{Code, Error, Result};
use bucketq::op::Outcome;

use crate::bucket::{Betrayal, Bucket};
use crate::history::{History, Hold};
use crate::ops::{Effect, effects};

/// A process that saw that its own acknowledged commit is gone stops: nothing it sends succeeds any more.
pub fn goes_on(history: &History, bucket: &Bucket) -> Vec<String> {
    let mut bad = Vec::new();
    for (who, at) in &bucket.shown_loss {
        let calls = history.calls.iter().filter(|c| c.who == *who);
        for call in calls {
            if let Some(reply) = &call.reply
                && reply.at_ms > *at
                && reply.result.is_ok()
            {
                bad.push(format!(
                    "P25: {who} is shown at {at} ms that its own commit is gone, and {} is done at {} ms",
                    call.op.name(),
                    reply.at_ms
                ));
            }
        }
        let claims = history.claims.iter().filter(|c| c.who == *who);
        for (at_ms, got) in claims.filter_map(|c| c.reply.as_ref()) {
            if at_ms > at && got.as_ref().is_ok_and(|n| *n > 0) {
                bad.push(format!(
                    "P25: {who} is shown at {at} ms that its own commit is gone, and claims jobs"
                ));
            }
        }
    }
    bad
}

/// The losers halt with the right error, and no other process does.
pub fn judge(history: &History, bucket: &Bucket) -> Vec<String> {
    let Some(lost) = &bucket.betrayal else { return Vec::new() };
    let (broken, rolled) = (Code::StoreBroken.as_str(), Code::RolledBack.as_str());
    let mut bad = Vec::new();
    for (who, code) in &history.told {
        let right = match *code {
            c if c == broken => *who == lost.by,
            c if c == rolled => *who != lost.by && lost.knew.contains(who),
            _ => true,
        };
        if !right {
            bad.push(format!(
                "P25: {who} gets {code}, and the store lost commit {} of {}",
                lost.seq, lost.by
            ));
        }
    }
    if let Some(at) = bucket.shown_loss.get(&lost.by)
        && sent_and_answered_after(history, lost, *at)
        && !history.told.contains(&(lost.by, broken))
    {
        bad.push(format!("P25: {} never says that the store lost its commit {}", lost.by, lost.seq));
    }
    bad
}

fn sent_and_answered_after(history: &History, lost: &Betrayal, at: u64) -> bool {
    let later = |sent: u64, answered: Option<u64>| sent > at && answered.is_some();
    history.calls.iter().any(|c| c.who == lost.by && later(c.at_ms, c.reply.as_ref().map(|r| r.at_ms)))
        || history.claims.iter().any(|c| c.who == lost.by && later(c.at_ms, c.reply.as_ref().map(|r| r.0)))
}

/// The history as far as the checks can apply it: the effects of the lost commit may or may not have happened.
pub fn without_lost(history: &History, bucket: &Bucket) -> History {
    let mut out = history.clone();
    let Some(lost) = &bucket.betrayal else { return out };
    for call in out.calls.iter_mut().filter(|c| lost.knew.contains(&c.who)) {
        let Some(reply) = &mut call.reply else { continue };
        if !matches!(&reply.result, Ok((seq, ..)) if *seq == lost.seq) {
            continue;
        }
        reply.result = gone();
        // The extension is lost: the lease stays as it was.
        if let (Some(held), Some((_, until))) = (call.op.held(), call.held)
            && effects(&call.op).iter().any(|effect| matches!(effect, Effect::Extends))
        {
            let mine = |h: &&mut Hold| h.token == held.token && h.job == held.id;
            out.holds.iter_mut().filter(mine).for_each(|h| h.until_ms = h.until_ms.min(until));
        }
    }
    out.holds.retain(|h| !(h.fence == lost.seq && lost.knew.contains(&h.who)));
    out.seen.retain(|(_, _, seq)| seq >> 24 != lost.seq);
    out
}

fn gone() -> Result<(u64, i64, Outcome)> {
    Err(Error::new(Code::OutcomeUnknown, "the store lost this commit"))
}
