//! Decides by a read of HEAD what became of the bodies that may have been sent (P2, P5, P6, P20). Pure.

use super::Intent;
use crate::bucket::head::Head;

/// The outcome of the intents on one base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// HEAD is the base: any of them may still land.
    Open,
    /// The one with this commit id is in the chain.
    Ours([u8; 16]),
    /// Another writer's commit has their place.
    Lost,
    /// The outcome cannot be known.
    Unknowable,
}

/// Decides the outcome of all intents on the base `known` by a HEAD read afterwards. `logged` is the commit id after
/// the base, if the segments hold it.
pub(crate) fn judge(known: &Head, intents: &[Intent], now: &Head, logged: Option<[u8; 16]>) -> Fate {
    let k = known.commit_seq + 1;
    if now.commit_seq < k {
        return Fate::Open;
    }
    if let Some(id) = now.commit_id_at(k).or(logged) {
        let ours = intents.iter().any(|i| i.head.commit_id == id);
        return if ours { Fate::Ours(id) } else { Fate::Lost };
    }
    let mut fate = Fate::Lost;
    for intent in intents {
        match now.writer(&intent.writer) {
            Some(e) if e.commit_id == intent.head.commit_id => return Fate::Ours(e.commit_id),
            // That writer has committed at k or later, from the directory that this one is a copy of.
            Some(e) if e.seq >= k => fate = Fate::Unknowable,
            None if k <= now.forgotten_seq => fate = Fate::Unknowable,
            _ => {}
        }
    }
    fate
}
