//! Settling: whether a body whose answer was no answer is in the chain (P1 to P6), and whether a HEAD read from the
//! store continues what this writer knows (P21, P22, P25). Pure decisions; the writer acts on them.

use crate::broken::{self, Broken};
use crate::config::Options;
use crate::error::{Code, Error, Result};
use crate::head::Head;

/// What a look at HEAD says of a pending body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is in the chain.
    Ours,
    /// HEAD is as it was: the body may still land; send it again, byte for byte.
    Unchanged,
    /// Another commit stands at its number: surely not applied.
    Lost,
    /// It cannot be known (P5, P6).
    Unknowable,
}

/// The body that is waiting for its verdict.
#[derive(Clone, Copy, Debug)]
pub struct Pending<'a> {
    /// The body's HEAD.
    pub body: &'a Head,
    /// This writer.
    pub writer: [u8; 8],
    /// Commit ids this writer drew of late, the body's among them.
    pub drawn: &'a [[u8; 16]],
}

/// The commit id at seq k as far as `now` or the records of its segments (`logged`) tell it.
pub fn commit_id_at(now: &Head, logged: Option<[u8; 16]>, seq: u64) -> Option<[u8; 16]> {
    now.commit_id_at(seq).or(logged)
}

/// Judge the body by HEAD as read after the body's answer. `logged` is the commit id at the body's number if the
/// segments hold it.
pub fn judge(p: Pending<'_>, now: &Head, logged: Option<[u8; 16]>, options: &Options) -> Verdict {
    let k = p.body.commit_seq;
    if now.commit_seq < k {
        // Checked by `continues` already: it is exactly what was known.
        return Verdict::Unchanged;
    }
    if broken::is(options, Broken::NewestOnly) {
        return if now.commit_id == p.body.commit_id { Verdict::Ours } else { Verdict::Lost };
    }
    let entry = now.writer(&p.writer);
    if broken::is(options, Broken::SettleByAttempt) {
        let mine = p.body.writer(&p.writer).map(|e| e.attempt);
        return if entry.map(|e| e.attempt) >= mine { Verdict::Ours } else { Verdict::Lost };
    }
    if let Some(id) = commit_id_at(now, logged, k) {
        return if id == p.body.commit_id { Verdict::Ours } else { Verdict::Lost };
    }
    let forgotten = k <= now.forgotten_seq && !broken::is(options, Broken::PruneWithoutForgotten);
    match entry {
        Some(e) if e.commit_id == p.body.commit_id => Verdict::Ours,
        // The id is shared (P6), or the entry was pruned (P5).
        Some(e) if !p.drawn.contains(&e.commit_id) => Verdict::Unknowable,
        None if forgotten => Verdict::Unknowable,
        _ => Verdict::Lost,
    }
}

/// The newest HEAD that was read, whether or not it could be followed yet.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    file_id: [u8; 16],
    lineage_id: [u8; 16],
    commit_seq: u64,
    commit_id: [u8; 16],
}

impl Shown {
    pub fn by(head: &Head) -> Self {
        let Head { file_id, lineage_id, commit_seq, commit_id, .. } = *head;
        Self { file_id, lineage_id, commit_seq, commit_id }
    }

    pub fn commit_seq(&self) -> u64 {
        self.commit_seq
    }

    /// Refuse an older HEAD of the same lineage (P21). That of another file or lineage is not judged here.
    pub fn comes_before(&self, now: &Head) -> Result<()> {
        if (now.file_id, now.lineage_id) != (self.file_id, self.lineage_id) {
            return Ok(());
        }
        let other = now.commit_id_at(self.commit_seq).is_some_and(|id| id != self.commit_id);
        if now.commit_seq < self.commit_seq || other {
            return Err(rolled(&format!(
                "HEAD is at commit {} and was shown at {}: an old one was put back",
                now.commit_seq, self.commit_seq
            )));
        }
        Ok(())
    }
}

fn rolled(what: &str) -> Error {
    Error::new(
        Code::RolledBack,
        format!(
            "the queue file went back or was replaced: {what}; this process writes nothing more: open it again after a look"
        ),
    )
}

/// Refuse a HEAD that does not continue what is known (P21), or that misses this writer's own newest commit (P25).
/// `logged` is the commit id at `known.commit_seq` if the segments hold it.
pub fn continues(
    known: &Head,
    now: &Head,
    logged: Option<[u8; 16]>,
    mine: Option<(u64, [u8; 16])>,
    writer: [u8; 8],
    options: &Options,
) -> Result<()> {
    if now.file_id != known.file_id {
        return Err(rolled("HEAD belongs to another file"));
    }
    if now.lineage_id != known.lineage_id {
        return Err(rolled("HEAD belongs to another lineage, as after a restore"));
    }
    if now.commit_seq < known.commit_seq {
        return Err(rolled(&format!(
            "HEAD is at commit {} where {} was known",
            now.commit_seq, known.commit_seq
        )));
    }
    if broken::is(options, Broken::RollbackBySeqOnly) {
        return Ok(());
    }
    // One's own first: that the store acknowledged it says more than that it is gone (P25).
    if let Some((seq, id)) = mine {
        let lost = match commit_id_at(now, (seq == known.commit_seq).then_some(logged).flatten(), seq) {
            Some(there) => there != id,
            None => match now.writer(&writer) {
                Some(e) => e.seq < seq,
                None => seq > now.forgotten_seq,
            },
        };
        if lost {
            return Err(Error::new(
                Code::StoreBroken,
                format!(
                    "commit {seq} of this writer was acknowledged by the store and is not in the chain: the store has no working compare-and-swap, or an older HEAD was put back; this process writes nothing more"
                ),
            ));
        }
    }
    match commit_id_at(now, logged, known.commit_seq) {
        Some(id) if id != known.commit_id => {
            return Err(rolled(&format!("another commit stands at {}", known.commit_seq)));
        }
        _ => {}
    }
    Ok(())
}
