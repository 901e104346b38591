//! Building one attempt: the next HEAD from the one that is known, a record and what was uploaded meanwhile.
//!
//! Called by the writer. Pure: P1, P2, P4, P13, P15 and P17 are kept here, nothing is sent.

use crate::broken::{self, Broken};
use crate::config::Options;
use crate::error::{Code, Error, Result};
use crate::head::{BaseRef, Head, MAX_RETIRED, MAX_WRITERS, Retired, SegmentRef, WriterEntry};
use crate::pages::{Changes, Checksum};
use crate::record::{CODEC_NONE, CODEC_ZSTD, Record};

/// How long readers may hold on to what is no longer referred to (P14).
pub const GRACE_MS: i64 = 24 * 3_600_000;

const BASE: u8 = 1;
const SEGMENT: u8 = 2;

/// What identifies one attempt (P1).
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// The writer.
    pub writer: [u8; 8],
    /// Its next number.
    pub number: u64,
    /// Drawn for this body.
    pub commit_id: [u8; 16],
    /// The commit's time.
    pub commit_ms: i64,
}

/// Something uploaded, waiting to be referred to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fresh {
    /// A base of a settled commit.
    pub base: Option<BaseRef>,
    /// A segment whose newest commit is settled, or is this one.
    pub segment: Option<SegmentRef>,
}

/// The record of a commit with these changes.
pub fn record(
    known: &Head,
    a: &Attempt,
    changes: &Changes,
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

/// Whether HEAD may refer to this base for the first time (P13, P17).
pub fn base_fits(known: &Head, fresh: &BaseRef, options: &Options) -> bool {
    fresh.seq >= known.gc_floor
        && fresh.seq <= known.commit_seq
        && (fresh.seq > known.base.seq || broken::is(options, Broken::OlderBaseReplaces))
}

/// Whether HEAD may refer to this segment for the first time (P13, P17 as extended by decision 7): what it covers is
/// whole segments followed by inline records.
pub fn segment_fits(known: &Head, fresh: &SegmentRef, newest: u64, options: &Options) -> bool {
    if fresh.to < known.gc_floor || fresh.to > newest || fresh.to <= known.base.seq {
        return false;
    }
    if broken::is(options, Broken::MergeUnaligned) {
        return true;
    }
    let whole = known
        .segments
        .iter()
        .all(|s| s.to < fresh.from || s.from > fresh.to || (s.from >= fresh.from && s.to <= fresh.to));
    let starts = known.segments.iter().any(|s| s.from == fresh.from)
        || known.tail.first().map_or(known.commit_seq + 1, |r| r.seq) == fresh.from;
    // The record after the segment stays inline, so its last commit must be inline today, or the commit being built.
    let ends = fresh.to == newest || known.tail.iter().any(|r| r.seq == fresh.to);
    whole && starts && ends
}

/// The HEAD that `record` makes of `known`. `fresh` has been checked against `known`.
pub fn next(known: &Head, a: &Attempt, record: &Record, fresh: Fresh, options: &Options) -> Head {
    let seq = known.commit_seq + 1;
    let mut head = Head {
        format: crate::head::FORMAT,
        commit_seq: seq,
        commit_id: a.commit_id,
        prev_commit_id: known.commit_id,
        commit_ms: a.commit_ms,
        page_count: record.page_count,
        checksum: record.checksum,
        ..known.clone()
    };
    head.tail.push(record.clone());
    if let Some(s) = fresh.segment {
        adopt_segment(&mut head, s, seq);
    }
    if let Some(b) = fresh.base {
        adopt_base(&mut head, b, seq);
    }
    if head.retired.len() > MAX_RETIRED {
        head.retired.drain(..head.retired.len() - MAX_RETIRED);
    }
    remember(&mut head, a, seq, options);
    if a.commit_ms.saturating_sub(head.floor_candidate_ms) >= GRACE_MS {
        head.gc_floor = head.gc_floor.max(head.floor_candidate);
        head.floor_candidate = seq;
        head.floor_candidate_ms = a.commit_ms;
    }
    head
}

/// The HEAD that begins a new lineage: this base, which is above every commit known, and no log (P23).
pub fn restored(
    known: &Head,
    a: &Attempt,
    lineage_id: [u8; 16],
    base: BaseRef,
    after: (u32, Checksum),
) -> Head {
    let seq = base.seq;
    let mut head = Head {
        format: crate::head::FORMAT,
        lineage_id,
        commit_seq: seq,
        commit_id: a.commit_id,
        prev_commit_id: [0; 16],
        commit_ms: a.commit_ms,
        page_count: after.0,
        checksum: after.1.0,
        floor_candidate: seq,
        floor_candidate_ms: a.commit_ms,
        // Nothing of the old lineage can be told any more.
        forgotten_seq: seq - 1,
        writers: vec![WriterEntry { id: a.writer, attempt: a.number, commit_id: a.commit_id, seq }],
        tail: vec![],
        ..known.clone()
    };
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

/// Refer no longer to these segments (P15).
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

/// Put this attempt into the map of writers; the oldest others go when it is full (P4).
fn remember(head: &mut Head, a: &Attempt, seq: u64, options: &Options) {
    head.writers.retain(|e| e.id != a.writer);
    head.writers.push(WriterEntry { id: a.writer, attempt: a.number, commit_id: a.commit_id, seq });
    let cap = if broken::is(options, Broken::PruneWithoutForgotten) { 1 } else { MAX_WRITERS };
    while head.writers.len() > cap {
        let Some(oldest) = (0..head.writers.len())
            .filter(|&i| head.writers[i].id != a.writer)
            .min_by_key(|&i| head.writers[i].seq)
        else {
            break;
        };
        let gone = head.writers.remove(oldest);
        if !broken::is(options, Broken::PruneWithoutForgotten) {
            head.forgotten_seq = head.forgotten_seq.max(gone.seq);
        }
    }
    head.writers.sort_by_key(|e| e.id);
}
