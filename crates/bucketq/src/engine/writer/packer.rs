//! Packs the changes of a commit into its record, and learns from its size how large the next ones are.

use crate::bucket::head::Head;
use crate::bucket::record::Record;
use crate::engine::commit::{self, CommitAttempt};
use crate::engine::duty::tail_len;
use crate::noun::config::Options;
use crate::noun::error::{Error, Result};
use crate::state::pages::PageChanges;

/// Bytes of payload from which a record's size shows how payloads compress.
const TELLING: usize = 16 * 1024;
/// The size that the first record is expected to have.
const A_RECORD: usize = 1024;

pub(super) struct Packer {
    zstd: zstd::bulk::Compressor<'static>,
    /// Moving average of a record's size.
    record: usize,
    /// The largest recent record.
    largest: usize,
    /// Bytes of record for each byte of payload, from batches with enough payload to tell.
    swell: f64,
}

impl Packer {
    /// Expects records like the newest of `head`.
    pub fn new(head: &Head) -> Result<Self> {
        let zstd =
            zstd::bulk::Compressor::new(1).map_err(|e| Error::bug("zstd cannot be set up").because(e))?;
        let record = head.tail.last().map_or(A_RECORD, Record::encoded_len);
        Ok(Self { zstd, record, largest: record, swell: 1.0 })
    }

    /// Returns the record of a commit of `ops` ops with these changes, which carry this much payload.
    pub fn pack(
        &mut self,
        known: &Head,
        attempt: &CommitAttempt,
        changes: &PageChanges,
        ops: u32,
        payload: usize,
    ) -> Result<Record> {
        let after = (changes.new_count(), changes.new_checksum());
        let record = commit::record(known, attempt, changes, after, ops, &mut self.zstd)?;
        let len = record.encoded_len();
        self.record = (self.record * 7 + len) / 8;
        self.largest = len.max(self.largest / 16 * 15);
        if payload >= TELLING {
            self.swell = self.swell.mul_add(0.75, 0.25 * len as f64 / payload as f64);
        }
        Ok(record)
    }

    /// Returns how long a record with this much payload will be.
    pub fn expected(&self, payload: usize) -> f64 {
        payload as f64 * self.swell
    }

    /// Returns whether a segment should start while the commit of `head`, which follows `known`, is sent: the tail is
    /// long enough, or a next commit as large as the largest recent one would not fit beside it.
    pub fn should_move_out(&self, known: &Head, head: &Head, options: &Options) -> bool {
        let tail = tail_len(head);
        tail >= self.tail_aim(known, options) / 2 || head.fixed_len() + tail + self.largest > options.max_head
    }

    /// Returns the target size of the tail: some commits, so that a segment is often but not always under way.
    fn tail_aim(&self, known: &Head, options: &Options) -> usize {
        let most = options.max_head.saturating_sub(known.fixed_len());
        (self.record * 6).clamp(options.tail.min(most), most)
    }
}
