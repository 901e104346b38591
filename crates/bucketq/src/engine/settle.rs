//! Settling: decides whether a body is in the chain when the store's reply left it open (P1 to P6), and whether a HEAD
//! read from the store continues the known one (P21, P22, P25). Pure; the writer acts on the decisions.

use tokio::time::Instant;

use crate::bucket::head::Head;
use crate::noun::error::{Code, Error, Result};

/// The outcome of an unsettled body, after a read of HEAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// The body is in the chain.
    Ours,
    /// HEAD is unchanged: the body may still land; send it again, byte for byte.
    Unchanged,
    /// Another commit has its number: surely not applied.
    Lost,
    /// The outcome cannot be known (P5, P6).
    Unknowable,
}

/// A body whose outcome is not known.
#[derive(Clone, Copy, Debug)]
pub struct UnsettledBody<'a> {
    /// The HEAD in the body.
    pub body: &'a Head,
    /// This writer.
    pub writer: [u8; 8],
    /// Commit ids this writer drew recently, including the body's, and that of its newest stored commit.
    pub drawn: &'a [[u8; 16]],
}

/// Returns the commit id at `seq`, if `now` or the records of its segments (`logged`) have it.
pub fn commit_id_at(now: &Head, logged: Option<[u8; 16]>, seq: u64) -> Option<[u8; 16]> {
    now.commit_id_at(seq).or(logged)
}

/// Decides the outcome of the body by a HEAD read after the store's reply. `logged` is the commit id at the body's
/// number if the segments hold it.
pub fn judge(p: UnsettledBody<'_>, now: &Head, logged: Option<[u8; 16]>) -> Settlement {
    let k = p.body.commit_seq;
    if now.commit_seq < k {
        // `continues` has checked it: HEAD is exactly the known one.
        return Settlement::Unchanged;
    }
    if let Some(id) = commit_id_at(now, logged, k) {
        return if id == p.body.commit_id { Settlement::Ours } else { Settlement::Lost };
    }
    match now.writer(&p.writer) {
        Some(e) if e.commit_id == p.body.commit_id => Settlement::Ours,
        // The writer id is shared (P6), or its entry was pruned (P5).
        Some(e) if !p.drawn.contains(&e.commit_id) => Settlement::Unknowable,
        None if k <= now.forgotten_seq => Settlement::Unknowable,
        _ => Settlement::Lost,
    }
}

/// The newest HEAD that was read, even if the writer could not follow it yet.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    file_id: [u8; 16],
    lineage_id: [u8; 16],
    commit_seq: u64,
    commit_id: [u8; 16],
    read: Instant,
}

impl Shown {
    /// Remembers this HEAD, whose reply was there at `read`.
    pub fn by(head: &Head, read: Instant) -> Self {
        let Head { file_id, lineage_id, commit_seq, commit_id, .. } = *head;
        Self { file_id, lineage_id, commit_seq, commit_id, read }
    }

    /// Returns the newest HEAD after another reply, requested at `asked` and there at `read`. Refuses an older HEAD, or
    /// another one, than a read has shown (P21); but several reads are under way at once, and their replies overtake one
    /// another.
    pub fn and_then(self, now: &Head, asked: Instant, read: Instant) -> Result<Self> {
        if asked < self.read && now.commit_seq < self.commit_seq {
            return Ok(self);
        }
        self.comes_before(now)?;
        Ok(Self::by(now, read))
    }

    /// Returns the number of its commit.
    pub fn commit_seq(&self) -> u64 {
        self.commit_seq
    }

    /// Refuses a HEAD of the same lineage that is older, or has another commit at this number (P21). Does not check a
    /// HEAD of another file or lineage.
    pub fn comes_before(&self, now: &Head) -> Result<()> {
        if (now.file_id, now.lineage_id) != (self.file_id, self.lineage_id) {
            return Ok(());
        }
        let other = now.commit_id_at(self.commit_seq).is_some_and(|id| id != self.commit_id);
        if now.commit_seq < self.commit_seq || other {
            return Err(rolled(&format!(
                "HEAD is at commit {} although a read has shown commit {}: an old HEAD was put back",
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
            "the queue file was rolled back or replaced: {what}; this process writes nothing more. Check the queue file, then open it again"
        ),
    )
}

/// Refuses a HEAD that does not continue the known one (P21), or that lacks this writer's own newest commit (P25).
/// `logged` is the commit id at `known.commit_seq` if the segments hold it.
pub fn continues(
    known: &Head,
    now: &Head,
    logged: Option<[u8; 16]>,
    mine: Option<(u64, [u8; 16])>,
    writer: [u8; 8],
) -> Result<()> {
    if now.file_id != known.file_id {
        return Err(rolled("HEAD belongs to another file"));
    }
    if now.lineage_id != known.lineage_id {
        return Err(rolled("HEAD belongs to another lineage, as after a restore"));
    }
    if now.commit_seq < known.commit_seq {
        return Err(rolled(&format!(
            "HEAD is at commit {}, and this process knows commit {}",
            now.commit_seq, known.commit_seq
        )));
    }
    // This writer's own commit first: that the store acknowledged it is the more precise error (P25).
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
            return Err(rolled(&format!("HEAD has another commit {}", known.commit_seq)));
        }
        _ => {}
    }
    Ok(())
}
