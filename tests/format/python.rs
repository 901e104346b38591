//! A second reader, written in Python from docs/format.md: it has to read what the engine reads.

use std::path::Path;
use std::process::Command;

use bucketq::Result;
use bucketq::internals::gap::Gap;
use bucketq::internals::head::Head;
use bucketq::internals::record::{CODEC_NONE, Record};
use bucketq::internals::segment;
use serde_json::{Value, json};

use crate::fixture::{self, by_hand, here, hex};

fn record(r: &Record) -> Value {
    json!({
        "seq": r.seq, "commit_id": hex(&r.commit_id), "prev_commit_id": hex(&r.prev_commit_id),
        "commit_ms": r.commit_ms, "writer": hex(&r.writer), "ops": r.ops, "page_count": r.page_count,
        "checksum": hex(&r.checksum), "codec": r.codec, "raw_len": r.raw_len, "frame": hex(&r.frame),
    })
}

/// HEAD as the engine decoded it.
fn head(h: &Head, bytes: &[u8]) -> Value {
    let segments = h.segments.iter().map(|s| {
        json!({ "from": s.from, "to": s.to, "rand": hex(&s.rand), "len": s.len, "codec": s.codec, "hash": hex(&s.hash) })
    });
    let writers = h.writers.iter().map(
        |w| json!({ "id": hex(&w.id), "attempt": w.attempt, "commit_id": hex(&w.commit_id), "seq": w.seq }),
    );
    let retired = h
        .retired
        .iter()
        .map(|r| json!({ "kind": r.kind, "from": r.from, "seq": r.seq, "rand": hex(&r.rand), "at": r.at }));
    let base = json!({
        "seq": h.base.seq, "rand": hex(&h.base.rand), "codec": h.base.codec, "len": h.base.len,
        "hash": hex(&h.base.hash),
    });
    json!({
        "format": h.format, "min_reader": h.min_reader, "min_writer": h.min_writer,
        "gap": h.gap().map(|gap| json!({ "writer": hex(&gap.writer), "ms": gap.ms })),
        "header_len": bucketq::internals::head::HEADER + h.extra.len(), "extra": hex(&h.extra),
        "reader_features": h.reader_features, "writer_features": h.writer_features,
        "file_id": hex(&h.file_id), "lineage_id": hex(&h.lineage_id), "commit_seq": h.commit_seq,
        "commit_id": hex(&h.commit_id), "prev_commit_id": hex(&h.prev_commit_id), "commit_ms": h.commit_ms,
        "page_count": h.page_count, "max_skew_ms": h.max_skew_ms, "checksum": hex(&h.checksum),
        "gc_floor": h.gc_floor, "floor_candidate": h.floor_candidate,
        "floor_candidate_ms": h.floor_candidate_ms, "forgotten_seq": h.forgotten_seq, "base": base,
        "segments": segments.collect::<Vec<_>>(), "writers": writers.collect::<Vec<_>>(),
        "retired": retired.collect::<Vec<_>>(), "tail": h.tail.iter().map(record).collect::<Vec<_>>(),
        "trailer": hex(&bytes[bytes.len() - 16..]),
    })
}

/// The Python reader's result for these bytes; with `image`, it writes the database there.
fn python(bytes: &[u8], image: Option<&Path>) -> Result<Value, String> {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("object");
    std::fs::write(&path, bytes).expect("room for it");
    let interpreter = std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
    let mut command = Command::new(interpreter);
    command.arg(here("read_head.py")).arg(&path);
    if let Some(image) = image {
        command.arg("--image").arg(image);
    }
    let out = command.output().expect("Python 3.11 or newer is there");
    if !out.status.success() {
        return Err(String::from_utf8_lossy(&out.stderr).into_owned());
    }
    Ok(serde_json::from_slice(&out.stdout).expect("it prints JSON"))
}

#[tokio::test]
async fn python_reads_the_head_and_segments_of_a_used_file_as_the_engine_does() -> Result<()> {
    let store = fixture::used(150).await?;
    let bytes = fixture::object(&*store, "jobs.head").await;
    let decoded = Head::decode("jobs.head", &bytes)?;
    assert!(decoded.base.len > 0 && !decoded.segments.is_empty() && !decoded.retired.is_empty());
    assert_eq!(python(&bytes, None), Ok(head(&decoded, &bytes)));

    for (r, key, bytes) in fixture::segments(&*store, &decoded).await {
        let records = segment::decode(&key, &bytes, &r, &decoded.file_id, &decoded.lineage_id)?;
        let wanted = json!({
            "format": 1, "min_reader": 1, "file_id": hex(&decoded.file_id),
            "lineage_id": hex(&decoded.lineage_id), "records": records.iter().map(record).collect::<Vec<_>>(),
            "trailer": hex(&bytes[bytes.len() - 16..]),
        });
        assert_eq!(python(&bytes, None), Ok(wanted));
    }
    Ok(())
}

#[test]
fn python_reads_a_head_with_a_value_of_its_own_in_each_field() -> Result<()> {
    for extra in [&[][..], b"what a later version added"] {
        let bytes = Head { extra: bytes::Bytes::from_static(extra), ..by_hand() }.encode();
        let decoded = Head::decode("jobs.head", &bytes)?;
        assert_eq!(decoded.extra, extra);
        assert_eq!(python(&bytes, None), Ok(head(&decoded, &bytes)));
    }
    Ok(())
}

#[test]
fn python_reads_the_gap_that_the_newest_commit_asks_for_and_no_older_one() -> Result<()> {
    let mut asking = by_hand();
    asking.set_gap(Some(Gap { writer: [7; 8], ms: 1_500 }));
    // The same, after the commit before requested the gap.
    let mut built_on = by_hand();
    built_on.commit_seq -= 1;
    built_on.set_gap(Some(Gap { writer: [7; 8], ms: 1_500 }));
    built_on.commit_seq += 1;
    for (head_of, asks) in [(asking, true), (built_on, false)] {
        let bytes = head_of.encode();
        let read = python(&bytes, None).expect("Python reads it");
        assert_eq!(read, head(&Head::decode("jobs.head", &bytes)?, &bytes));
        assert_eq!(!read["gap"].is_null(), asks);
    }
    Ok(())
}

#[tokio::test]
async fn python_rebuilds_the_database_out_of_the_deltas() -> Result<()> {
    let store = fixture::used(12).await?;
    let head = fixture::head(&*store).await;
    let log = fixture::log(&*store, &head).await;
    // Move all records back into the tail, not compressed: the standard library has no zstd.
    let tail: Vec<Record> = log.iter().map(fixture::plain).collect();
    assert!(tail.iter().all(|r| r.codec == CODEC_NONE));
    let whole = Head { segments: vec![], tail, ..head }.encode();
    Head::decode("jobs.head", &whole)?;
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("rebuilt.sqlite");
    python(&whole, Some(&path)).expect("Python reads it");
    let wanted = fixture::bytes_of(&fixture::replay(&log).image());
    assert!(std::fs::read(&path).expect("it was written") == wanted, "another database");
    Ok(())
}

#[test]
fn python_refuses_what_ends_early_or_is_no_head() {
    let bytes = by_hand().encode();
    assert!(python(&bytes[..bytes.len() - 1], None).is_err());
    assert!(python(&[&bytes[..], b"x"].concat(), None).is_err());
    assert!(python(b"something else under the key", None).is_err());
}
