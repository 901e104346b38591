//! Queue files to take apart: made by the engine with a fixed clock and seeded randomness, or built by hand.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bucketq::env::{Clock, Entropy};
use bucketq::internals::head::{BaseRef, FORMAT, Head, Retired, SegmentRef, WriterEntry};
use bucketq::internals::pages::{Image, Pages};
use bucketq::internals::record::{CODEC_NONE, Record};
use bucketq::internals::wire::hash;
use bucketq::internals::{keys, segment};
use bucketq::store::{Got, Memory, Store};
use bucketq::{Env, Error, Host, Kind, Options, Payload, QueueFile, Result};
use bytes::Bytes;

/// The time of all tests here.
pub const NOW_MS: i64 = 1_767_225_600_000;
/// Pages allowed where a test does not care.
pub const MAX_PAGES: u32 = 4096;

#[derive(Debug)]
struct Still(Env);

impl Clock for Still {
    fn wall_ms(&self) -> i64 {
        NOW_MS
    }

    fn monotonic(&self) -> tokio::time::Instant {
        self.0.monotonic()
    }
}

#[derive(Debug)]
struct Seeded(Mutex<u64>);

impl Entropy for Seeded {
    fn fill(&self, bytes: &mut [u8]) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        bytes.fill_with(|| next(&mut state));
    }
}

fn next(state: &mut u64) -> u8 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 24) as u8
}

/// Bytes that do not compress.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = (seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (0..len).map(|_| next(&mut state)).collect()
}

/// A clock that stands still and randomness from a seed: the same run gives the same bytes.
pub fn env(seed: u64) -> Env {
    let clock = Still(Env::default());
    Env::new(Arc::new(clock), Arc::new(Seeded(Mutex::new((seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)))))
}

/// Everything on one thread, in the order of the test.
pub fn options() -> Options {
    Options { host: Host::CurrentRuntime, ..Options::default() }
}

/// The queue file `jobs` in this store.
pub async fn open(store: &Arc<dyn Store>, options: Options, seed: u64) -> Result<QueueFile> {
    QueueFile::open_with(Arc::clone(store), "jobs", options, env(seed)).await
}

/// An existing object.
pub async fn object(store: &dyn Store, key: &str) -> Bytes {
    match store.get(key, None).await {
        Ok(Got::Object { bytes, .. }) => bytes,
        other => panic!("{key}: {other:?}"),
    }
}

/// A queue file in use: a base, segments and a tail of commits of about 5 KB. Commit n + 2 enqueues job n.
pub async fn used(commits: u64) -> Result<Arc<dyn Store>> {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let file = open(&store, options(), 1).await?;
    let queue = file.queue("emails")?;
    for i in 0..commits {
        queue.enqueue(Payload::bytes(noise(i, 5000))).await?;
    }
    file.close().await?;
    Ok(store)
}

/// HEAD as the engine reads it.
pub async fn head(store: &dyn Store) -> Head {
    Head::decode("jobs.head", &object(store, "jobs.head").await).expect("the engine reads what it wrote")
}

/// The segments HEAD refers to, with their keys and bytes.
pub async fn segments(store: &dyn Store, head: &Head) -> Vec<(SegmentRef, String, Bytes)> {
    let mut out = vec![];
    for s in &head.segments {
        let key = keys::segment("jobs", &head.file_id, s.from, s.to, &s.rand);
        let bytes = object(store, &key).await;
        out.push((*s, key, bytes));
    }
    out
}

/// The base HEAD refers to, with its key and bytes.
pub async fn base(store: &dyn Store, head: &Head) -> (BaseRef, String, Bytes) {
    let key = keys::base("jobs", &head.file_id, head.base.seq, &head.base.rand);
    let bytes = object(store, &key).await;
    (head.base, key, bytes)
}

/// Every record since the creation of a file without a base.
pub async fn log(store: &dyn Store, head: &Head) -> Vec<Record> {
    assert_eq!(head.base.len, 0);
    let mut records = vec![];
    for (s, key, bytes) in segments(store, head).await {
        let decoded = segment::decode(&key, &bytes, &s, &head.file_id, &head.lineage_id);
        records.extend(decoded.expect("the engine reads what it wrote"));
    }
    records.extend(head.tail.iter().cloned());
    records
}

/// The database that these records build from nothing.
pub fn replay(records: &[Record]) -> Pages {
    let mut pages = Pages::new();
    for r in records {
        let delta = r.delta(MAX_PAGES).expect("a delta the engine wrote");
        pages.apply(&delta).expect("it applies");
        assert_eq!((pages.page_count(), pages.checksum().0), (r.page_count, r.checksum), "commit {}", r.seq);
    }
    pages
}

/// The bytes of an image.
pub fn bytes_of(image: &Image) -> Vec<u8> {
    let mut out = vec![];
    image.write_to(&mut out).expect("memory takes it");
    out
}

/// Hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    let mut out = String::new();
    for b in bytes {
        write!(out, "{b:02x}").expect("a string takes it");
    }
    out
}

/// The same record with its frame not compressed.
pub fn plain(r: &Record) -> Record {
    let frame = if r.codec == CODEC_NONE {
        r.frame.clone()
    } else {
        zstd::bulk::decompress(&r.frame, r.raw_len as usize).expect("a frame the engine wrote").into()
    };
    Record { codec: CODEC_NONE, frame, ..r.clone() }
}

/// Put the right hash under bytes that were changed.
pub fn reseal(bytes: &mut [u8]) {
    let body = bytes.len() - 16;
    let sum = hash(&bytes[..body]);
    bytes[body..].copy_from_slice(&sum);
}

/// Returns the error of a damaged, foreign or newer object; panics on anything else.
pub fn refused<T: std::fmt::Debug>(result: Result<T>, what: impl std::fmt::Display) -> Error {
    let error = result.err().unwrap_or_else(|| panic!("{what}: accepted"));
    assert_eq!(error.kind(), Kind::Corrupt, "{what}: {error}");
    error
}

/// A file of this directory.
pub fn here(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("format").join(name)
}

/// Bytes that each rise by one: no two fields of [`by_hand`] look alike.
fn run<const N: usize>(from: u8) -> [u8; N] {
    std::array::from_fn(|i| from.wrapping_add(i as u8))
}

/// A record that changes nothing in a file of two pages, not compressed.
fn still(seq: u64, id: u8, prev: u8) -> Record {
    Record {
        seq,
        commit_id: run(id),
        prev_commit_id: run(prev),
        commit_ms: NOW_MS + seq as i64,
        writer: run(0xb0),
        ops: 3,
        page_count: 2,
        checksum: run(0x70),
        codec: CODEC_NONE,
        raw_len: 2,
        frame: Bytes::from_static(&[2, 0]),
    }
}

/// A HEAD written out by hand, each field with a value of its own.
pub fn by_hand() -> Head {
    Head {
        format: FORMAT,
        min_reader: 1,
        min_writer: 1,
        reader_features: 0,
        writer_features: 0,
        file_id: run(0x10),
        lineage_id: run(0x20),
        commit_seq: 0x0907,
        commit_id: run(0x50),
        prev_commit_id: run(0x40),
        commit_ms: NOW_MS + 0x0907,
        page_count: 2,
        max_skew_ms: 5000,
        checksum: run(0x70),
        gc_floor: 0x0201,
        floor_candidate: 0x0303,
        floor_candidate_ms: NOW_MS - 1000,
        forgotten_seq: 0x0101,
        base: BaseRef { seq: 0x0800, rand: run(0x80), codec: 1, len: 0x1234, hash: run(0x88) },
        segments: vec![
            SegmentRef { from: 0x0801, to: 0x0880, rand: run(0x98), codec: 0, len: 0x4321, hash: run(0xa0) },
            SegmentRef { from: 0x0881, to: 0x0905, rand: run(0x99), codec: 0, len: 0x2345, hash: run(0xa1) },
        ],
        writers: vec![
            WriterEntry { id: run(0xb0), attempt: 17, commit_id: run(0x50), seq: 0x0907 },
            WriterEntry { id: run(0xb8), attempt: 4, commit_id: run(0x33), seq: 0x0700 },
        ],
        retired: vec![
            Retired { kind: 1, from: 0, seq: 0x0400, rand: run(0xc0), at: 0x0801 },
            Retired { kind: 2, from: 0x0401, seq: 0x0500, rand: run(0xc8), at: 0x0802 },
        ],
        tail: vec![still(0x0906, 0x40, 0x30), still(0x0907, 0x50, 0x40)],
        extra: Bytes::new(),
    }
}
