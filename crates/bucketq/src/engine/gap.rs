//! The gap that a writer asks for in HEAD: until its next commit, other writers send nothing (decision 29). Only its
//! bytes, as in docs/format.md. Called by commit, which ends a gap, and by the writer.

use bytes::Bytes;

use crate::bucket::head::Head;
use crate::bucket::wire::{ByteReader, ByteWriter};

/// A request of the newest commit's writer: until its next commit, for at most this time, other writers send nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The writer that asks.
    pub writer: [u8; 8],
    /// How long, in milliseconds from when another writer reads it.
    pub ms: u32,
}

/// Bytes after the header of format 1: commit, writer, milliseconds, four reserved bytes.
const LEN: usize = 24;

impl Head {
    /// Returns the gap that this commit asks for. A gap of an earlier commit, copied by a version that does not know
    /// gaps, does not count.
    pub fn gap(&self) -> Option<Gap> {
        let mut r = ByteReader::new("a gap", self.extra.get(..LEN)?);
        let seq = r.u64("commit").ok()?;
        let gap = Gap { writer: r.array("writer").ok()?, ms: r.u32("milliseconds").ok()? };
        (seq == self.commit_seq && gap.ms > 0).then_some(gap)
    }

    /// Sets this gap, or removes it. Fields of later versions stay where they are.
    pub fn set_gap(&mut self, gap: Option<Gap>) {
        let later = self.extra.get(LEN..).unwrap_or_default();
        if gap.is_none() && later.is_empty() {
            if self.extra.len() == LEN {
                self.extra = Bytes::new();
            }
            return;
        }
        let mut w = ByteWriter(Vec::with_capacity(LEN + later.len()));
        if let Some(Gap { writer, ms }) = gap {
            w.u64(self.commit_seq);
            w.raw(&writer);
            w.u32(ms);
        }
        w.0.resize(LEN, 0);
        w.raw(later);
        self.extra = w.0.into();
    }
}
