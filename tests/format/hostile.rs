//! Hostile objects: counts and lengths larger than the data, with right hashes.

use std::process::Command;

use bucketq::internals::head::{BaseRef, Head, SegmentRef};
use bucketq::internals::pages::Delta;
use bucketq::internals::record::{CODEC_NONE, CODEC_ZSTD, Record};
use bucketq::internals::wire::hash;
use bucketq::internals::{base, segment};
use bytes::Bytes;

use crate::fixture::{by_hand, refused, reseal};

/// Pages of a file at the default size limit: the most that a hostile object may claim.
const MOST: u32 = 262_144;

/// By hand, with a little-endian number at `at` replaced.
fn with_u32(at: usize, n: u32) -> Vec<u8> {
    let mut bytes = by_hand().encode();
    bytes[at..at + 4].copy_from_slice(&n.to_le_bytes());
    reseal(&mut bytes);
    bytes
}

fn with_frame(codec: u8, raw_len: u32, frame: Vec<u8>) -> Record {
    Record { codec, raw_len, frame: Bytes::from(frame), ..by_hand().tail.remove(0) }
}

/// A zstd frame that claims this number of bytes, and one block of one byte repeated 128 KiB times.
fn zstd_frame(claimed: u64) -> Vec<u8> {
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0xe0];
    frame.extend_from_slice(&claimed.to_le_bytes());
    frame.extend_from_slice(&[0x03, 0x00, 0x10, 0x00]);
    frame
}

fn claims() {
    for count in [208, 212, 216, 220] {
        for n in [u32::MAX, 1 << 31, 1_000_000] {
            refused(Head::decode("jobs.head", &with_u32(count, n)), format!("count at {count} is {n}"));
        }
    }
    let first = by_hand().encode().len() - 16 - by_hand().tail.iter().map(Record::encoded_len).sum::<usize>();
    refused(Head::decode("jobs.head", &with_u32(first + 92, u32::MAX)), "the length of a frame");

    let head = by_hand();
    let mut bytes = segment::encode(&head.file_id, &head.lineage_id, &head.tail);
    bytes[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    reseal(&mut bytes);
    let r = SegmentRef {
        from: 0x906,
        to: 0x907,
        rand: [0; 8],
        codec: 0,
        len: bytes.len() as u32,
        hash: hash(&bytes),
    };
    refused(segment::decode("s", &bytes, &r, &head.file_id, &head.lineage_id), "the count of a segment");

    let allowed = MOST * 4000;
    for raw_len in [u32::MAX, allowed, 1 << 20] {
        refused(with_frame(CODEC_NONE, raw_len, vec![0; 20]).delta(MOST), format!("{raw_len} in 20 bytes"));
        for claimed in [u64::MAX, u64::from(u32::MAX), u64::from(raw_len), 4096] {
            let what = format!("a delta of {raw_len} bytes in a frame of {claimed}");
            refused(with_frame(CODEC_ZSTD, raw_len, zstd_frame(claimed)).delta(MOST), what);
        }
    }
    for claimed in [u64::MAX, 1 << 40, u64::from(MOST) * 4096, 1 << 20] {
        for cut in [0, 4] {
            let mut frame = zstd_frame(claimed);
            frame.truncate(frame.len() - cut);
            let r = BaseRef { seq: 1, rand: [0; 8], codec: 1, len: frame.len() as u64, hash: hash(&frame) };
            refused(base::decode("the base", &frame, &r, MOST), format!("a base that claims {claimed}"));
        }
    }
    // Page count, patches, runs of the first patch.
    let huge = [0xff, 0xff, 0xff, 0xff, 0x0f];
    for before in [&[][..], &[4], &[4, 1, 1]] {
        let mut bytes = [before, &huge[..]].concat();
        bytes.resize(1 << 20, 1);
        refused(Delta::decode(&bytes, MOST), format!("a delta that goes on {before:?} and a huge number"));
    }
}

/// Runs itself again in an address space smaller than the sizes that the objects claim.
#[test]
fn claims_beyond_what_is_there_are_refused_without_the_memory_for_them() {
    const LITTLE: &str = "BUCKETQ_TEST_LITTLE_MEMORY";
    if std::env::var_os(LITTLE).is_some() || cfg!(not(target_os = "linux")) {
        return claims();
    }
    let this = std::env::current_exe().expect("this test has a path");
    let name =
        concat!(module_path!(), "::claims_beyond_what_is_there_are_refused_without_the_memory_for_them");
    let name = name.split_once("::").expect("a module of this crate").1;
    let out = Command::new("sh")
        .args(["-c", r#"ulimit -v 700000 && exec "$0" --exact "$1" --test-threads=1"#])
        .arg(this)
        .arg(name)
        .env(LITTLE, "1")
        .output()
        .expect("sh runs");
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(
        out.status.success() && said.contains("1 passed"),
        "{said}\n{}",
        String::from_utf8_lossy(&out.stderr)
    );
}

#[test]
fn numbers_at_their_end_are_refused_without_overflow() {
    let last = u64::MAX;
    let one = |seq: u64| {
        let mut head = by_hand();
        head.segments.clear();
        head.tail.remove(0);
        (head.commit_seq, head.base.seq, head.tail[0].seq) = (seq, seq, seq);
        head
    };
    assert!(Head::decode("jobs.head", &one(0x907).encode()).is_ok());
    for seq in [last, last - 1, 1 << 63, 1 << 39] {
        refused(Head::decode("jobs.head", &one(seq).encode()), format!("commit {seq}"));
    }
    let head = by_hand();
    let mut records = head.tail.clone();
    (records[0].seq, records[1].seq) = (last, last);
    let bytes = segment::encode(&head.file_id, &head.lineage_id, &records);
    let r = SegmentRef {
        from: last,
        to: last,
        rand: [0; 8],
        codec: 0,
        len: bytes.len() as u32,
        hash: hash(&bytes),
    };
    refused(
        segment::decode("s", &bytes, &r, &head.file_id, &head.lineage_id),
        "a segment at the end of numbers",
    );
}

type Case = (&'static str, fn(&mut Head));

#[test]
fn heads_whose_parts_disagree_are_refused() {
    let cases: [Case; 29] = [
        ("a hole between segments", |h| h.segments[1].from += 1),
        ("segments that overlap", |h| h.segments[1].from -= 1),
        ("a segment that ends before it begins", |h| h.segments[0].to = h.segments[0].from - 1),
        ("a hole before the tail", |h| drop(h.tail.remove(0))),
        ("a missing segment", |h| h.segments.truncate(1)),
        ("no newest commit", |h| drop(h.tail.pop())),
        ("a tail in another order", |h| h.tail.swap(0, 1)),
        ("a commit of another chain", |h| h.tail[0].commit_id[0] ^= 1),
        ("another newest commit id", |h| h.commit_id[0] ^= 1),
        ("another commit before the newest", |h| h.prev_commit_id[0] ^= 1),
        ("another checksum", |h| h.checksum[0] ^= 1),
        ("another page count", |h| h.page_count += 1),
        ("another number", |h| h.commit_seq += 1),
        ("another time", |h| h.commit_ms += 1),
        ("commit 0", |h| h.commit_seq = 0),
        ("a base of the future", |h| h.base.seq = h.commit_seq + 1),
        ("a base before the log", |h| h.base.seq = 0x7ff),
        ("an unknown codec of the base", |h| h.base.codec = 2),
        ("an empty base that is not at the start", |h| h.base.len = 0),
        ("a floor of the future", |h| h.gc_floor = h.commit_seq + 1),
        ("a floor candidate of the future", |h| h.floor_candidate = h.commit_seq + 1),
        ("outcomes forgotten before they were", |h| h.forgotten_seq = h.commit_seq + 1),
        ("a writer of the future", |h| h.writers[1].seq = h.commit_seq + 1),
        ("writers in another order", |h| h.writers.swap(0, 1)),
        ("a writer twice", |h| h.writers[1].id = h.writers[0].id),
        ("a key retired in the future", |h| h.retired[0].at = h.commit_seq + 1),
        ("too many segments", |h| h.segments = vec![h.segments[0]; 65]),
        ("too many retired keys", |h| h.retired = vec![h.retired[0]; 65]),
        ("too many writers", |h| {
            h.writers = (0..258_u64)
                .map(|i| bucketq::internals::head::WriterEntry { id: i.to_be_bytes(), ..h.writers[0] })
                .collect();
        }),
    ];
    assert!(Head::decode("jobs.head", &by_hand().encode()).is_ok());
    for (what, change) in cases {
        let mut head = by_hand();
        change(&mut head);
        refused(Head::decode("jobs.head", &head.encode()), what);
    }
}
