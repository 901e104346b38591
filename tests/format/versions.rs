//! How an older version treats a newer file: it reads and writes only what it may, and reports the rest.

use std::sync::Arc;

use bucketq::internals::head::{FORMAT, Head, SegmentRef};
use bucketq::internals::segment;
use bucketq::internals::wire::hash;
use bucketq::store::{Memory, Store};
use bucketq::{Code, Payload, Result};

use crate::fixture::{self, by_hand, refused, reseal};

fn decode(change: impl Fn(&mut Head)) -> Result<Head> {
    let mut head = by_hand();
    change(&mut head);
    Head::decode("jobs.head", &head.encode())
}

#[test]
fn a_newer_format_that_asks_for_no_newer_reader_is_read() -> Result<()> {
    let head = decode(|h| h.format = FORMAT + 1)?;
    assert_eq!(head.format, FORMAT + 1);
    head.check_writable("jobs.head")
}

#[test]
fn a_head_that_needs_a_newer_reader_is_too_new() {
    let newer: [fn(&mut Head); 3] =
        [|h| h.min_reader = FORMAT + 1, |h| h.reader_features = 1, |h| h.reader_features = 1 << 31];
    for change in newer {
        let error = refused(decode(change), "a newer HEAD");
        assert_eq!(error.code(), Code::TooNew, "{error}");
        assert!(error.message().contains("upgrade"), "{error}");
    }
}

#[test]
fn a_head_that_needs_a_newer_writer_is_read_and_not_written() -> Result<()> {
    let newer: [fn(&mut Head); 3] =
        [|h| h.min_writer = FORMAT + 1, |h| h.writer_features = 1, |h| h.writer_features = 1 << 31];
    for change in newer {
        let head = decode(change)?;
        let error = refused(head.check_writable("jobs.head"), "a HEAD for newer writers");
        assert_eq!(error.code(), Code::TooNew, "{error}");
    }
    Ok(())
}

/// Any bytes that a newer format has after its first 24 bytes.
#[test]
fn a_newer_head_is_told_from_a_damaged_one_though_its_fields_mean_something_else() {
    let mut bytes = by_hand().encode();
    bytes[10] = 2;
    bytes.truncate(24);
    bytes.extend_from_slice(&[0xaa; 300]);
    reseal(&mut bytes);
    assert_eq!(refused(Head::decode("jobs.head", &bytes), "newer").code(), Code::TooNew);
}

#[test]
fn something_else_under_the_key_is_foreign() {
    for other in
        [&b"<html>404, but in a friendly way</html>"[..], b"SQLite format 3\0 and a database", &[0; 4096]]
    {
        assert_eq!(refused(Head::decode("jobs.head", other), "foreign").code(), Code::Foreign);
    }
}

#[test]
fn a_segment_that_needs_a_newer_reader_is_too_new() {
    let head = by_hand();
    let mut bytes = segment::encode(&head.file_id, &head.lineage_id, &head.tail);
    bytes[10] = 2;
    reseal(&mut bytes);
    let r = SegmentRef {
        from: 0x906,
        to: 0x907,
        rand: [0; 8],
        codec: 0,
        len: bytes.len() as u32,
        hash: hash(&bytes),
    };
    let error = refused(segment::decode("s", &bytes, &r, &head.file_id, &head.lineage_id), "a newer segment");
    assert_eq!(error.code(), Code::TooNew);
}

#[test]
fn a_segment_of_another_file_lineage_or_range_is_refused() -> Result<()> {
    let head = by_hand();
    let bytes = segment::encode(&head.file_id, &head.lineage_id, &head.tail);
    let r = SegmentRef {
        from: 0x906,
        to: 0x907,
        rand: [0; 8],
        codec: 0,
        len: bytes.len() as u32,
        hash: hash(&bytes),
    };
    let read = |r: &SegmentRef, file: &[u8; 16], lineage: &[u8; 16]| {
        segment::decode("a segment", &bytes, r, file, lineage)
    };
    assert_eq!(read(&r, &head.file_id, &head.lineage_id)?, head.tail);
    drop(refused(read(&r, &[9; 16], &head.lineage_id), "another file"));
    drop(refused(read(&r, &head.file_id, &[9; 16]), "another lineage"));
    for other in
        [SegmentRef { from: 0x905, ..r }, SegmentRef { to: 0x908, ..r }, SegmentRef { from: 0x907, ..r }]
    {
        drop(refused(read(&other, &head.file_id, &head.lineage_id), "another range"));
    }
    Ok(())
}

/// The file of a newer version, damaged files and foreign ones are left unchanged. (tests/operate covers what still
/// works on a file for newer writers.)
#[tokio::test(start_paused = true)]
async fn opening_a_file_that_must_not_be_written_writes_nothing() -> Result<()> {
    let made = fixture::used(1).await?;
    let good = fixture::head(&*made).await;
    let newer = Head { min_reader: FORMAT + 1, ..good.clone() }.encode();
    let mut damaged = good.encode();
    damaged[100] ^= 1;
    let foreign = b"this bucket was used for something else before".to_vec();
    for (bytes, code) in [(newer, Code::TooNew), (damaged, Code::Corrupt), (foreign, Code::Foreign)] {
        let store: Arc<dyn Store> = Arc::new(Memory::new());
        store.put_new("jobs.head", bytes.clone().into()).await?;
        let error = refused(fixture::open(&store, fixture::options(), 7).await, code.as_str());
        assert_eq!(error.code(), code, "{error}");
        assert_eq!(fixture::object(&*store, "jobs.head").await, bytes);
        assert_eq!(store.list("").await?.len(), 1);
    }
    Ok(())
}

/// A newer version's requirements for readers and writers outlive the commits of older ones.
#[tokio::test]
async fn a_commit_keeps_what_the_file_asks_of_readers_and_writers() -> Result<()> {
    let made = fixture::used(1).await?;
    let newer = Head { format: FORMAT + 1, min_reader: 0, min_writer: 0, ..fixture::head(&*made).await };
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    store.put_new("jobs.head", newer.encode().into()).await?;
    let file = fixture::open(&store, fixture::options(), 7).await?;
    file.queue("emails")?.enqueue(Payload::text("x")).await?;
    file.close().await?;
    let after = fixture::head(&*store).await;
    assert_eq!(after.commit_seq, newer.commit_seq + 1);
    assert_eq!((after.format, after.min_reader, after.min_writer), (FORMAT, 0, 0));
    Ok(())
}
