//! Builds one attempt at a commit: the next HEAD, from the known one, a record and finished uploads.
//!
//! Called by the writer. Pure: it ensures P1, P2, P4, P13, P15 and P17, and sends nothing.

use std::time::Duration;

use crate::bucket::head::{
    BASE, BaseRef, Head, MAX_RETIRED, MAX_WRITERS, Retired, SEGMENT, SegmentRef, WriterEntry,
};
use crate::bucket::record::{CODEC_NONE, CODEC_ZSTD, Record};
use crate::noun::error::{Code, Error, Result};
use crate::state::pages::{Checksum, PageChanges};

/// The identity of one attempt (P1).
#[derive(Clone, Copy, Debug)]
pub struct CommitAttempt {
    /// The writer.
    pub writer: [u8; 8],
    /// The number of this attempt.
    pub number: u64,
    /// Drawn for this body.
    pub commit_id: [u8; 16],
    /// The commit's time.
    pub commit_ms: i64,
}

/// Uploaded objects that HEAD does not refer to yet.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fresh {
    /// A base of a settled commit.
    pub base: Option<BaseRef>,
    /// A segment whose newest commit is settled, or is the one being built.
    pub segment: Option<SegmentRef>,
}

/// The maintenance that a commit does for collection (P15).
#[derive(Clone, Debug)]
pub struct Care {
    /// How long an object stays after HEAD has dropped it.
    pub grace: Duration,
    /// The floor must not pass this commit, whose base is being uploaded.
    pub below: u64,
    /// Retired objects that are deleted.
    pub gone: Vec<Retired>,
}

impl Care {
    /// Returns the values for a first commit, which needs no maintenance.
    pub fn none() -> Self {
        Self { grace: Duration::MAX, below: 0, gone: vec![] }
    }
}

/// Returns the record of a commit with these changes.
pub fn record(
    known: &Head,
    a: &CommitAttempt,
    changes: &PageChanges,
    after: (u32, Checksum),
    ops: u32,
    zstd: &mut zstd::bulk::Compressor<'_>,
) -> Result<Record> {
    let raw = changes.delta().encode();
    let raw_len = u32::try_from(raw.len())
        .map_err(|_| Error::new(Code::FileFull, "one commit cannot change 4 GiB of pages: split it"))?;
    let packed = zstd.compress(&raw).ok().filter(|p| p.len() < raw.len());
    Ok(Record {
        seq: known.commit_seq + 1,
        commit_id: a.commit_id,
        prev_commit_id: known.commit_id,
        commit_ms: a.commit_ms,
        writer: a.writer,
        ops,
        page_count: after.0,
        checksum: after.1.0,
        codec: if packed.is_some() { CODEC_ZSTD } else { CODEC_NONE },
        raw_len,
        frame: packed.unwrap_or(raw).into(),
    })
}

/// Returns whether an upload of commit `seq` is at or above the floor of the known HEAD: below it, it may have been
/// deleted since (P13).
fn above_floor(known: &Head, seq: u64) -> bool {
    seq >= known.gc_floor
}

/// Returns whether a commit at this time could raise the floor or its candidate, so that objects become collectable now
/// or a grace period later.
pub fn floor_can_rise(known: &Head, now_ms: i64, grace: Duration) -> bool {
    if grace.is_zero() {
        // Objects dropped by the commit that set the floor can be deleted only after the next commit.
        return known.gc_floor < known.commit_seq || known.retired.iter().any(|r| r.at >= known.gc_floor);
    }
    known.gc_floor < known.commit_seq && is_over(known, now_ms, grace)
}

fn is_over(head: &Head, now_ms: i64, grace: Duration) -> bool {
    let grace_ms = i64::try_from(grace.as_millis()).unwrap_or(i64::MAX);
    now_ms.saturating_sub(head.floor_candidate_ms) >= grace_ms
}

/// Returns whether HEAD may refer to this base for the first time (P13, P17).
pub fn base_fits(known: &Head, fresh: &BaseRef) -> bool {
    above_floor(known, fresh.seq) && fresh.seq <= known.commit_seq && fresh.seq > known.base.seq
}

/// Returns whether HEAD may refer to this segment for the first time (P13, P17 as extended by decision 7): it must
/// cover whole segments followed by inline records.
pub fn segment_fits(known: &Head, fresh: &SegmentRef, newest: u64) -> bool {
    if !above_floor(known, fresh.to) || fresh.to > newest || fresh.to <= known.base.seq {
        return false;
    }
    let whole = known
        .segments
        .iter()
        .all(|s| s.to < fresh.from || s.from > fresh.to || (s.from >= fresh.from && s.to <= fresh.to));
    let starts = known.segments.iter().any(|s| s.from == fresh.from)
        || known.tail.first().map_or(known.commit_seq + 1, |r| r.seq) == fresh.from;
    // The records after the segment stay inline: its last commit must be inline now, or be the one being built.
    let ends = fresh.to == newest || known.tail.iter().any(|r| r.seq == fresh.to);
    whole && starts && ends
}

/// Returns the HEAD that follows `known` with `record`. The caller has checked `fresh` against `known`.
pub fn next(known: &Head, a: &CommitAttempt, record: &Record, fresh: Fresh, care: &Care) -> Head {
    let seq = known.commit_seq + 1;
    let mut head = Head {
        format: crate::bucket::head::FORMAT,
        commit_seq: seq,
        commit_id: a.commit_id,
        prev_commit_id: known.commit_id,
        commit_ms: a.commit_ms,
        page_count: record.page_count,
        checksum: record.checksum,
        ..known.clone()
    };
    head.set_gap(None);
    head.tail.push(record.clone());
    head.retired.retain(|r| !care.gone.contains(r));
    if let Some(s) = fresh.segment {
        adopt_segment(&mut head, s, seq);
    }
    if let Some(b) = fresh.base {
        adopt_base(&mut head, b, seq);
    }
    if head.retired.len() > MAX_RETIRED {
        head.retired.drain(..head.retired.len() - MAX_RETIRED);
    }
    remember(&mut head, a, seq);
    rotate(&mut head, a.commit_ms, care);
    head
}

/// Raises the floor after the grace period (P15) to HEAD's commit at its beginning; without grace, to this commit.
fn rotate(head: &mut Head, commit_ms: i64, care: &Care) {
    if is_over(head, commit_ms, care.grace) {
        let floor = if care.grace.is_zero() { head.commit_seq } else { head.floor_candidate };
        head.gc_floor = head.gc_floor.max(floor.min(care.below));
        head.floor_candidate = head.commit_seq;
        head.floor_candidate_ms = commit_ms;
    }
}

/// Returns the HEAD that begins a new lineage: this base, whose number is above every known commit, and no log (P23).
pub fn restored(
    known: &Head,
    a: &CommitAttempt,
    lineage_id: [u8; 16],
    base: BaseRef,
    after: (u32, Checksum),
) -> Head {
    let seq = base.seq;
    let mut head = Head {
        format: crate::bucket::head::FORMAT,
        lineage_id,
        commit_seq: seq,
        commit_id: a.commit_id,
        prev_commit_id: [0; 16],
        commit_ms: a.commit_ms,
        page_count: after.0,
        checksum: after.1.0,
        floor_candidate: seq,
        floor_candidate_ms: a.commit_ms,
        // The outcome of commits of the old lineage can no longer be known.
        forgotten_seq: seq - 1,
        writers: vec![WriterEntry { id: a.writer, attempt: a.number, commit_id: a.commit_id, seq }],
        tail: vec![],
        ..known.clone()
    };
    head.set_gap(None);
    adopt_base(&mut head, base, seq);
    if head.retired.len() > MAX_RETIRED {
        head.retired.drain(..head.retired.len() - MAX_RETIRED);
    }
    head
}

fn adopt_segment(head: &mut Head, fresh: SegmentRef, at: u64) {
    retire_segments(head, at, |s| s.to >= fresh.from && s.from <= fresh.to);
    head.tail.retain(|r| r.seq > fresh.to);
    head.segments.push(fresh);
    head.segments.sort_by_key(|s| s.from);
}

fn adopt_base(head: &mut Head, fresh: BaseRef, at: u64) {
    if head.base.len > 0 {
        head.retired.push(Retired { kind: BASE, from: 0, seq: head.base.seq, rand: head.base.rand, at });
    }
    retire_segments(head, at, |s| s.to <= fresh.seq);
    head.base = fresh;
}

/// Drops references to these segments, which become retired (P15).
fn retire_segments(head: &mut Head, at: u64, gone: impl Fn(&SegmentRef) -> bool) {
    let dropped = head.segments.extract_if(.., |s| gone(s));
    head.retired.extend(dropped.map(|s| Retired {
        kind: SEGMENT,
        from: s.from,
        seq: s.to,
        rand: s.rand,
        at,
    }));
}

/// Puts this attempt into the map of writers. When it is full, the oldest entries of others are removed (P4).
fn remember(head: &mut Head, a: &CommitAttempt, seq: u64) {
    head.writers.retain(|e| e.id != a.writer);
    head.writers.push(WriterEntry { id: a.writer, attempt: a.number, commit_id: a.commit_id, seq });
    while head.writers.len() > MAX_WRITERS {
        let Some(oldest) = (0..head.writers.len())
            .filter(|&i| head.writers[i].id != a.writer)
            .min_by_key(|&i| head.writers[i].seq)
        else {
            break;
        };
        let gone = head.writers.remove(oldest);
        head.forgotten_seq = head.forgotten_seq.max(gone.seq);
    }
    head.writers.sort_by_key(|e| e.id);
}
