//! HEAD: the one object under compare-and-swap. Encode, decode, verify; docs/format.md has every byte.
//!
//! Called by commit (builds the next one), settle and catchup (read the current one). Does no I/O and decides nothing.

use bytes::Bytes;

use crate::bucket::record::Record;
use crate::bucket::wire::{ByteReader, ByteWriter};
use crate::noun::error::{Code, Error, Result};

/// The first bytes of every HEAD.
pub const MAGIC: &[u8; 8] = b"BUCKETQ\n";
/// The format that this version writes, and the newest that it reads.
pub const FORMAT: u16 = 1;
/// Bytes of the header of format 1, up to the lists; a later one may be longer.
pub const HEADER: usize = 224;
/// Most commits of a queue file: a job's place is the commit's number plus 24 bits for the place within it.
pub const MAX_SEQ: u64 = (1 << 39) - 1;
/// Feature bits that this version knows.
pub const KNOWN_FEATURES: u32 = 0;
/// Most references to segments in HEAD.
pub const MAX_SEGMENTS: usize = 64;
/// Most writers in HEAD (P4).
pub const MAX_WRITERS: usize = 256;
/// Most retired keys in HEAD (P15); older ones are found as orphans.
pub const MAX_RETIRED: usize = 64;
/// [`Retired::kind`] of a base.
pub const BASE: u8 = 1;
/// [`Retired::kind`] of a segment.
pub const SEGMENT: u8 = 2;

/// A reference to a base. `len` 0 means the empty database, which has no object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BaseRef {
    /// The commit of the image.
    pub seq: u64,
    /// The random part of its key.
    pub rand: [u8; 8],
    /// 0 plain, 1 zstd.
    pub codec: u8,
    /// Bytes of the object.
    pub len: u64,
    /// Hash of the object.
    pub hash: [u8; 16],
}

/// A reference to the deltas of a range of commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentRef {
    /// First commit.
    pub from: u64,
    /// Last commit.
    pub to: u64,
    /// The random part of its key.
    pub rand: [u8; 8],
    /// The codec of the whole object; 0 for none, the only one so far.
    pub codec: u8,
    /// Bytes of the object.
    pub len: u32,
    /// Hash of the object.
    pub hash: [u8; 16],
}

/// A writer's newest commit (P2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterEntry {
    /// Drawn at each open.
    pub id: [u8; 8],
    /// The writer's own number of the body.
    pub attempt: u64,
    /// The body's commit id.
    pub commit_id: [u8; 16],
    /// The number of the commit.
    pub seq: u64,
}

/// A key that HEAD no longer refers to, with the commit that dropped it (P15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retired {
    /// [`BASE`] or [`SEGMENT`].
    pub kind: u8,
    /// First commit of a segment; 0 for a base.
    pub from: u64,
    /// The commit of a base, the last commit of a segment.
    pub seq: u64,
    /// The random part of its key.
    pub rand: [u8; 8],
    /// The commit that dropped it.
    pub at: u64,
}

/// The content of HEAD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Format that the writer used.
    pub format: u16,
    /// Oldest format a reader must know.
    pub min_reader: u16,
    /// Oldest format a writer must know.
    pub min_writer: u16,
    /// Bits a reader must know.
    pub reader_features: u32,
    /// Bits a writer must know.
    pub writer_features: u32,
    /// Drawn at creation.
    pub file_id: [u8; 16],
    /// Drawn at creation and at each restore.
    pub lineage_id: [u8; 16],
    /// Number of the newest commit, from 1.
    pub commit_seq: u64,
    /// Its id.
    pub commit_id: [u8; 16],
    /// The id of the previous commit; zeros at commit 1.
    pub prev_commit_id: [u8; 16],
    /// Its time; never goes backwards.
    pub commit_ms: i64,
    /// Pages of the database.
    pub page_count: u32,
    /// Largest clock difference between two writers.
    pub max_skew_ms: u32,
    /// Checksum of the database.
    pub checksum: [u8; 16],
    /// Collection floor (P13).
    pub gc_floor: u64,
    /// The next floor ...
    pub floor_candidate: u64,
    /// ... and when it was noted.
    pub floor_candidate_ms: i64,
    /// Outcomes of writers not listed are unknown up to this commit (P4, P5).
    pub forgotten_seq: u64,
    /// The base.
    pub base: BaseRef,
    /// Older deltas, in order, without gaps.
    pub segments: Vec<SegmentRef>,
    /// The writers' newest commits, in order of their ids.
    pub writers: Vec<WriterEntry>,
    /// Keys dropped recently.
    pub retired: Vec<Retired>,
    /// The newest deltas, in order, ending with this commit.
    pub tail: Vec<Record>,
    /// Header fields of later versions, preserved unchanged.
    pub extra: Bytes,
}

impl Head {
    /// Returns the state before commit 1: an empty database without writers.
    pub fn nothing(file_id: [u8; 16], lineage_id: [u8; 16], now_ms: i64, max_skew_ms: u32) -> Self {
        Self {
            format: FORMAT,
            min_reader: 1,
            min_writer: 1,
            reader_features: 0,
            writer_features: 0,
            file_id,
            lineage_id,
            commit_seq: 0,
            commit_id: [0; 16],
            prev_commit_id: [0; 16],
            commit_ms: now_ms,
            page_count: 0,
            max_skew_ms,
            checksum: [0; 16],
            gc_floor: 0,
            floor_candidate: 0,
            floor_candidate_ms: now_ms,
            forgotten_seq: 0,
            base: BaseRef::default(),
            segments: vec![],
            writers: vec![],
            retired: vec![],
            tail: vec![],
            extra: Bytes::new(),
        }
    }

    /// Returns the bytes of this HEAD.
    pub fn encode(&self) -> Vec<u8> {
        let mut w =
            ByteWriter(Vec::with_capacity(1024 + self.tail.iter().map(Record::encoded_len).sum::<usize>()));
        w.raw(MAGIC);
        w.u16(self.format);
        w.u16(self.min_reader);
        w.u16(self.min_writer);
        w.u16((HEADER + self.extra.len()) as u16);
        w.u32(self.reader_features);
        w.u32(self.writer_features);
        w.raw(&self.file_id);
        w.raw(&self.lineage_id);
        w.u64(self.commit_seq);
        w.raw(&self.commit_id);
        w.raw(&self.prev_commit_id);
        w.i64(self.commit_ms);
        w.u32(self.page_count);
        w.u32(self.max_skew_ms);
        w.raw(&self.checksum);
        w.u64(self.gc_floor);
        w.u64(self.floor_candidate);
        w.i64(self.floor_candidate_ms);
        w.u64(self.forgotten_seq);
        w.u64(self.base.seq);
        w.raw(&self.base.rand);
        w.u8(self.base.codec);
        w.raw(&[0; 7]);
        w.u64(self.base.len);
        w.raw(&self.base.hash);
        for n in [self.segments.len(), self.writers.len(), self.retired.len(), self.tail.len()] {
            w.u32(n as u32);
        }
        w.raw(&self.extra);
        for s in &self.segments {
            w.u64(s.from);
            w.u64(s.to);
            w.raw(&s.rand);
            w.u32(s.len);
            w.u8(s.codec);
            w.raw(&[0; 3]);
            w.raw(&s.hash);
        }
        for e in &self.writers {
            w.raw(&e.id);
            w.u64(e.attempt);
            w.raw(&e.commit_id);
            w.u64(e.seq);
        }
        for r in &self.retired {
            w.u8(r.kind);
            w.raw(&[0; 7]);
            w.u64(r.from);
            w.u64(r.seq);
            w.raw(&r.rand);
            w.u64(r.at);
        }
        for r in &self.tail {
            r.encode(&mut w);
        }
        w.seal()
    }

    /// Decodes and verifies a HEAD; `what` names it in errors. Foreign, newer and damaged HEADs have different errors.
    pub fn decode(what: &str, bytes: &[u8]) -> Result<Self> {
        if bytes.len() < 24 || &bytes[..8] != MAGIC {
            return Err(Error::new(
                Code::Foreign,
                format!(
                    "{what} is not the HEAD of a queue file: its first bytes are not `{}`",
                    MAGIC.escape_ascii()
                ),
            ));
        }
        // The magic, the fields that show whether this version can read the rest, and the hash at the end stay in place
        // in every format. So damage is distinguishable from a newer version.
        let mut r = ByteReader::sealed(what, bytes)?;
        r.raw(8, "magic")?;
        let format = r.u16("format")?;
        let min_reader = r.u16("min_reader")?;
        let _ = r.u16("min_writer")?;
        r.u16("reserved")?;
        let reader_features = r.u32("reader features")?;
        if min_reader > FORMAT || reader_features & !KNOWN_FEATURES != 0 {
            return Err(Error::new(
                Code::TooNew,
                format!(
                    "{what} has format {format} and needs a reader of format {min_reader} with features {reader_features:#x}; this version reads format {FORMAT} with features {KNOWN_FEATURES:#x}: upgrade bucketq"
                ),
            ));
        }
        let mut r = ByteReader::sealed(what, bytes)?;
        let head = Self::fields(&mut r)?;
        r.end()?;
        head.verify(what)?;
        Ok(head)
    }

    fn fields(r: &mut ByteReader<'_>) -> Result<Self> {
        let header_len;
        r.raw(8, "magic")?;
        let mut head = Self {
            format: r.u16("format")?,
            min_reader: r.u16("min_reader")?,
            min_writer: r.u16("min_writer")?,
            reader_features: {
                header_len = r.u16("header length")?;
                r.u32("reader features")?
            },
            writer_features: r.u32("writer features")?,
            file_id: r.array("file id")?,
            lineage_id: r.array("lineage id")?,
            commit_seq: r.u64("commit_seq")?,
            commit_id: r.array("commit id")?,
            prev_commit_id: r.array("previous commit id")?,
            commit_ms: r.i64("commit time")?,
            page_count: r.u32("page count")?,
            max_skew_ms: r.u32("max skew")?,
            checksum: r.array("checksum")?,
            gc_floor: r.u64("collection floor")?,
            floor_candidate: r.u64("floor candidate")?,
            floor_candidate_ms: r.i64("floor candidate time")?,
            forgotten_seq: r.u64("forgotten seq")?,
            base: BaseRef {
                seq: r.u64("base seq")?,
                rand: r.array("base key")?,
                codec: r.u8("base codec")?,
                len: {
                    r.raw(7, "reserved")?;
                    r.u64("base length")?
                },
                hash: r.array("base hash")?,
            },
            segments: vec![],
            writers: vec![],
            retired: vec![],
            tail: vec![],
            extra: Bytes::new(),
        };
        let counts =
            [r.u32("segment count")?, r.u32("writer count")?, r.u32("retired count")?, r.u32("tail count")?];
        let more = usize::from(header_len)
            .checked_sub(HEADER)
            .ok_or_else(|| r.bad("its header is shorter than that of format 1"))?;
        head.extra = Bytes::copy_from_slice(r.raw(more, "header")?);
        for _ in 0..counts[0] {
            head.segments.push(SegmentRef {
                from: r.u64("segment")?,
                to: r.u64("segment")?,
                rand: r.array("segment")?,
                len: r.u32("segment")?,
                codec: {
                    let codec = r.u8("segment")?;
                    r.raw(3, "reserved")?;
                    codec
                },
                hash: r.array("segment")?,
            });
        }
        for _ in 0..counts[1] {
            head.writers.push(WriterEntry {
                id: r.array("writer")?,
                attempt: r.u64("writer")?,
                commit_id: r.array("writer")?,
                seq: r.u64("writer")?,
            });
        }
        for _ in 0..counts[2] {
            head.retired.push(Retired {
                kind: r.u8("retired key")?,
                from: {
                    r.raw(7, "reserved")?;
                    r.u64("retired key")?
                },
                seq: r.u64("retired key")?,
                rand: r.array("retired key")?,
                at: r.u64("retired key")?,
            });
        }
        for _ in 0..counts[3] {
            head.tail.push(Record::decode(r)?);
        }
        Ok(head)
    }

    /// Checks that the parts agree: every commit after the base is present, once, in a chain.
    fn verify(&self, what: &str) -> Result<()> {
        let bad = |check: &str| Err(crate::bucket::wire::corrupt(what, check));
        if self.segments.len() > MAX_SEGMENTS
            || self.writers.len() > MAX_WRITERS + 1
            || self.retired.len() > MAX_RETIRED
        {
            return bad("it lists more segments, writers or retired keys than the format allows");
        }
        if self.commit_seq == 0 || self.commit_seq > MAX_SEQ {
            return bad("the number of its newest commit is out of range");
        }
        if self.base.seq > self.commit_seq
            || self.base.codec > 1
            || (self.base.len == 0) != (self.base.seq == 0)
        {
            return bad(
                "its base is impossible: of a later commit, of an unknown codec, or empty and not at the start",
            );
        }
        let seqs = [self.gc_floor, self.floor_candidate, self.forgotten_seq];
        let known = |seq: u64| seq <= self.commit_seq;
        if !seqs.into_iter().all(known)
            || !self.writers.iter().all(|e| known(e.seq))
            || !self.retired.iter().all(|r| known(r.at))
        {
            return bad("it mentions commits after its newest one");
        }
        if !self.writers.is_sorted_by(|a, b| a.id < b.id) {
            return bad("its writers are not in order, or one is listed twice");
        }
        let mut next: Option<u64> = None;
        for s in &self.segments {
            if s.from > s.to || next.is_some_and(|n| n != s.from) {
                return bad("its segments do not form one chain");
            }
            next = s.to.checked_add(1);
        }
        let mut id: Option<[u8; 16]> = None;
        for r in &self.tail {
            if next.is_some_and(|n| n != r.seq) || id.is_some_and(|i| i != r.prev_commit_id) {
                return bad("its tail does not form one chain");
            }
            next = r.seq.checked_add(1);
            id = Some(r.commit_id);
        }
        let first = self.segments.first().map_or_else(|| self.tail.first().map(|r| r.seq), |s| Some(s.from));
        if next.is_some_and(|n| n != self.commit_seq.wrapping_add(1))
            || first.map_or(self.base.seq < self.commit_seq, |f| f > self.base.seq + 1)
        {
            return bad("it does not hold every commit after its base");
        }
        if let Some(last) = self.tail.last()
            && (last.commit_id != self.commit_id
                || last.prev_commit_id != self.prev_commit_id
                || last.checksum != self.checksum
                || last.page_count != self.page_count
                || last.commit_ms != self.commit_ms)
        {
            return bad("its newest delta is not its newest commit");
        }
        Ok(())
    }

    /// Fails unless this version may write to the file.
    pub fn check_writable(&self, what: &str) -> Result<()> {
        if self.min_writer > FORMAT || self.writer_features & !KNOWN_FEATURES != 0 {
            return Err(Error::new(
                Code::TooNew,
                format!(
                    "{what} needs a writer of format {} with features {:#x}; this version writes format {FORMAT}: upgrade bucketq, or only read",
                    self.min_writer, self.writer_features
                ),
            ));
        }
        Ok(())
    }

    /// Returns the entry of this writer.
    pub fn writer(&self, id: &[u8; 8]) -> Option<&WriterEntry> {
        self.writers.iter().find(|e| e.id == *id)
    }

    /// Returns the commit id at `seq`, if HEAD has it (the newest commit, the tail, and the commit before the tail).
    pub fn commit_id_at(&self, seq: u64) -> Option<[u8; 16]> {
        if seq == self.commit_seq {
            return Some(self.commit_id);
        }
        if seq + 1 == self.commit_seq {
            return Some(self.prev_commit_id);
        }
        self.tail.iter().find_map(|r| {
            if r.seq == seq {
                Some(r.commit_id)
            } else if r.seq == seq + 1 {
                Some(r.prev_commit_id)
            } else {
                None
            }
        })
    }

    /// Returns the size of this HEAD without its tail.
    pub fn fixed_len(&self) -> usize {
        HEADER
            + 16
            + self.extra.len()
            + self.segments.len() * 48
            + self.writers.len() * 40
            + self.retired.len() * 40
    }

    /// Returns the bytes of the log since the base: what a new base would save a reader.
    pub fn log_len(&self) -> u64 {
        self.segments.iter().map(|s| u64::from(s.len)).sum::<u64>()
            + self.tail.iter().filter(|r| r.seq > self.base.seq).map(|r| r.encoded_len() as u64).sum::<u64>()
    }
}
