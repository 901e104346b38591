//! Decides which writer uploads the next segment or base, so that several writers do not upload the same one. Pure.
//!
//! All writers see the same HEADs. The writer whose commit crosses a step of size makes the upload; if it does not, the
//! one that crosses the next step does. Called by the writer once a commit is settled. Correctness does not depend on
//! it: a second upload is garbage, and a commit waits for an upload that no writer made in time.

use crate::bucket::head::{Head, MAX_SEGMENTS, WriterEntry};
use crate::bucket::record::Record;
use crate::noun::config::Options;
use crate::state::pages::PAGE;

/// A writer without a commit among this many newest ones is no longer active.
const LATELY: u64 = 64;
/// Records a tail should have room for, so that a segment is under way most of the time but not always.
const RECORDS: usize = 6;
/// A base this many times larger than the database is replaced by a new one: the queue file was drained.
const SHRUNK: u64 = 2;
/// From this number of segments a base is made although the log is short.
const SEGMENTS_HIGH: usize = MAX_SEGMENTS / 4 * 3;
/// After this many more segments another writer makes it.
const MORE_SEGMENTS: usize = 4;

/// Returns the active writers: those with a recent commit. The commit that created the queue file does not count.
fn about(head: &Head) -> impl Iterator<Item = &WriterEntry> {
    head.writers.iter().filter(|e| e.seq > 1 && e.seq + LATELY > head.commit_seq)
}

/// Returns whether no other writer than `writer` is active.
pub fn is_alone(head: &Head, writer: [u8; 8]) -> bool {
    about(head).all(|e| e.id == writer)
}

/// Returns the bytes of the records in HEAD itself.
pub fn tail_len(head: &Head) -> usize {
    head.tail.iter().map(Record::encoded_len).sum()
}

/// Returns whether the writer whose commit turned `before` into `after` moves the tail to a segment. Its next commit
/// refers to it: until every active writer has had a turn, no other writer starts one.
pub fn of_segment(before: &Head, after: &Head, options: &Options) -> bool {
    let tail = tail_len(after);
    let mean = tail / after.tail.len().max(1);
    let largest = after.tail.iter().map(Record::encoded_len).max().unwrap_or(0);
    let most = options.max_head.saturating_sub(after.fixed_len());
    let aim = (mean * RECORDS).clamp(options.tail.min(most), most) / 2;
    // The next commit must fit beside it, even if it is as large as the largest in the tail.
    let first = aim.min(most.saturating_sub(largest));
    let step = (first / 2).max(2 * about(after).count() * mean).min(most / 4).max(1);
    let steps = |len: usize| if len < first { 0 } else { 1 + (len - first) / step };
    let moved_some_out = after.segments != before.segments;
    steps(tail) > if moved_some_out { 0 } else { steps(tail_len(before)) }
}

/// Returns whether a base is due: the log has grown as long as the base, or has too many segments, or the base is much
/// larger than the database.
pub fn base_is_due(head: &Head, options: &Options) -> bool {
    head.log_len() > log_most(head, options)
        || head.segments.len() >= SEGMENTS_HIGH
        || has_shrunk(head, options)
}

/// Returns whether the writer whose commit turned `before` into `after` makes a base.
pub fn of_base(before: &Head, after: &Head, options: &Options) -> bool {
    let most = log_most(after, options);
    let longer = |len: u64| if len <= most { 0 } else { 1 + (len - most) / (most / 4).max(1) };
    let more = |n: usize| if n < SEGMENTS_HIGH { 0 } else { 1 + (n - SEGMENTS_HIGH) / MORE_SEGMENTS };
    let turn = after.commit_seq.is_multiple_of(LATELY) || !has_shrunk(before, options);
    longer(after.log_len()) > longer(before.log_len())
        || more(after.segments.len()) > more(before.segments.len())
        || has_shrunk(after, options) && turn
}

/// Returns how long a log may be before a base is due.
pub fn log_most(head: &Head, options: &Options) -> u64 {
    options.base_after.max(head.base.len)
}

fn has_shrunk(head: &Head, options: &Options) -> bool {
    head.base.len > options.base_after.max(SHRUNK * u64::from(head.page_count) * PAGE as u64)
}
