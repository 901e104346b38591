//! The tables of docs/format.md against the code: each field is set alone, and the bytes that change are its row.

use bucketq::internals::head::{HEADER, Head, Retired, SegmentRef, WriterEntry};
use bucketq::internals::pages::Delta;
use bucketq::internals::record::Record;
use bucketq::internals::{keys, segment};
use bytes::Bytes;

use crate::fixture::{self, here};

const ONES: [u8; 16] = [0xff; 16];
const EIGHT: [u8; 8] = [0xff; 8];

/// The page under test.
pub fn page() -> String {
    let path = here("../../docs/format.md");
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[derive(Debug)]
struct Row {
    at: usize,
    len: usize,
    field: String,
}

/// The rows `| at | bytes | field | ...` of the section with this heading.
fn table(page: &str, heading: &str) -> Vec<Row> {
    let section = page.split_once(&format!("\n### {heading}\n")).unwrap_or_else(|| panic!("no {heading}")).1;
    let section = section.split("\n#").next().unwrap_or_default();
    let row = |line: &str| {
        let mut cells = line.split('|').skip(1).map(str::trim);
        let (at, len, field) = (cells.next()?.parse().ok()?, cells.next()?.parse().ok()?, cells.next()?);
        Some(Row { at, len, field: field.trim_matches('`').to_owned() })
    };
    section.lines().filter_map(row).collect()
}

/// Bytes with one field set to a value that it has not in the others; a count changes its lowest byte only.
type Set = (&'static str, Vec<u8>);

/// Every difference between these rows and these bytes: `zeros` has every field but `fixed` zero.
fn differences(rows: &[Row], size: usize, zeros: &[u8], sets: &[Set], fixed: &[&str]) -> Vec<String> {
    let mut findings = vec![];
    let mut end = 0;
    for row in rows {
        if row.at != end {
            findings.push(format!("{} is at {}, the row before ends at {end}", row.field, row.at));
        }
        end = row.at + row.len;
        let known = sets.iter().any(|s| s.0 == row.field) || fixed.contains(&row.field.as_str());
        if !known && row.field != "reserved" {
            findings.push(format!("{} is no field", row.field));
        }
    }
    if end != size {
        findings.push(format!("the rows end at {end} and not at {size}"));
    }
    for (field, bytes) in sets {
        let moved: Vec<usize> = (0..size).filter(|&i| bytes[i] != zeros[i]).collect();
        let (Some(first), Some(last)) = (moved.first(), moved.last()) else {
            findings.push(format!("{field} moves nothing"));
            continue;
        };
        let len = if COUNTS.contains(field) { 4 } else { last + 1 - first };
        if !rows.iter().any(|r| r.field == *field && r.at == *first && r.len == len) {
            findings.push(format!("{field} is {len} bytes at {first}"));
        }
    }
    for row in rows.iter().filter(|r| r.field == "reserved") {
        if sets.iter().any(|(_, bytes)| bytes[row.at..row.at + row.len].iter().any(|b| *b != 0)) {
            findings.push(format!("the reserved bytes at {} are not zero", row.at));
        }
    }
    findings
}

const COUNTS: [&str; 6] = ["segments", "writers", "retired", "tail", "frame_len", "records"];

fn assert_same(heading: &str, size: usize, zeros: &[u8], sets: &[Set], fixed: &[&str]) {
    let page = page();
    let rows = table(&page, heading);
    let findings = differences(&rows, size, zeros, sets, fixed);
    assert!(findings.is_empty(), "docs/format.md, {heading}:\n{}", findings.join("\n"));
    // The check can fail: no row may be moved, and none left out.
    for i in 0..rows.len() {
        let mut moved = table(&page, heading);
        moved[i].len += 1;
        assert!(!differences(&moved, size, zeros, sets, fixed).is_empty());
        moved.remove(i);
        assert!(!differences(&moved, size, zeros, sets, fixed).is_empty());
    }
}

fn zeros() -> Head {
    Head { format: 0, min_reader: 0, min_writer: 0, ..Head::nothing([0; 16], [0; 16], 0, 0) }
}

const SEGMENT: SegmentRef = SegmentRef { from: 0, to: 0, rand: [0; 8], codec: 0, len: 0, hash: [0; 16] };
const WRITER: WriterEntry = WriterEntry { id: [0; 8], attempt: 0, commit_id: [0; 16], seq: 0 };
const RETIRED: Retired = Retired { kind: 0, from: 0, seq: 0, rand: [0; 8], at: 0 };
const RECORD: Record = Record {
    seq: 0,
    commit_id: [0; 16],
    prev_commit_id: [0; 16],
    commit_ms: 0,
    writer: [0; 8],
    ops: 0,
    page_count: 0,
    checksum: [0; 16],
    codec: 0,
    raw_len: 0,
    frame: Bytes::new(),
};

#[test]
fn the_header_of_head_is_as_documented() {
    let set = |field: &'static str, change: fn(&mut Head)| -> Set {
        let mut head = zeros();
        change(&mut head);
        (field, head.encode())
    };
    let sets = [
        set("format", |h| h.format = u16::MAX),
        set("min_reader", |h| h.min_reader = u16::MAX),
        set("min_writer", |h| h.min_writer = u16::MAX),
        set("header_len", |h| h.extra = Bytes::from_static(&[0; 0x101])),
        set("reader_features", |h| h.reader_features = u32::MAX),
        set("writer_features", |h| h.writer_features = u32::MAX),
        set("file_id", |h| h.file_id = ONES),
        set("lineage_id", |h| h.lineage_id = ONES),
        set("commit_seq", |h| h.commit_seq = u64::MAX),
        set("commit_id", |h| h.commit_id = ONES),
        set("prev_commit_id", |h| h.prev_commit_id = ONES),
        set("commit_ms", |h| h.commit_ms = -1),
        set("page_count", |h| h.page_count = u32::MAX),
        set("max_skew_ms", |h| h.max_skew_ms = u32::MAX),
        set("checksum", |h| h.checksum = ONES),
        set("gc_floor", |h| h.gc_floor = u64::MAX),
        set("floor_candidate", |h| h.floor_candidate = u64::MAX),
        set("floor_candidate_ms", |h| h.floor_candidate_ms = -1),
        set("forgotten_seq", |h| h.forgotten_seq = u64::MAX),
        set("base.seq", |h| h.base.seq = u64::MAX),
        set("base.rand", |h| h.base.rand = EIGHT),
        set("base.codec", |h| h.base.codec = u8::MAX),
        set("base.len", |h| h.base.len = u64::MAX),
        set("base.hash", |h| h.base.hash = ONES),
        set("segments", |h| h.segments.push(SEGMENT)),
        set("writers", |h| h.writers.push(WRITER)),
        set("retired", |h| h.retired.push(RETIRED)),
        set("tail", |h| h.tail.push(RECORD)),
    ];
    let zeros = zeros().encode();
    assert_eq!((HEADER, zeros.len(), &zeros[..8]), (224, 240, &b"BUCKETQ\n"[..]));
    assert_same("Header", HEADER, &zeros, &sets, &["magic"]);
}

/// The bytes after the header in a HEAD with one entry of one list.
fn entry(change: impl Fn(&mut Head)) -> Vec<u8> {
    let mut head = zeros();
    change(&mut head);
    let bytes = head.encode();
    bytes[HEADER..bytes.len() - 16].to_vec()
}

#[test]
fn a_segment_reference_is_as_documented() {
    let of = |s: SegmentRef| entry(|h| h.segments.push(s));
    let sets = [
        ("from", of(SegmentRef { from: u64::MAX, ..SEGMENT })),
        ("to", of(SegmentRef { to: u64::MAX, ..SEGMENT })),
        ("rand", of(SegmentRef { rand: EIGHT, ..SEGMENT })),
        ("len", of(SegmentRef { len: u32::MAX, ..SEGMENT })),
        ("codec", of(SegmentRef { codec: u8::MAX, ..SEGMENT })),
        ("hash", of(SegmentRef { hash: ONES, ..SEGMENT })),
    ];
    assert_eq!(of(SEGMENT).len(), 48);
    assert_same("Segment reference", 48, &of(SEGMENT), &sets, &[]);
}

#[test]
fn a_writer_entry_is_as_documented() {
    let of = |w: WriterEntry| entry(|h| h.writers.push(w));
    let sets = [
        ("id", of(WriterEntry { id: EIGHT, ..WRITER })),
        ("attempt", of(WriterEntry { attempt: u64::MAX, ..WRITER })),
        ("commit_id", of(WriterEntry { commit_id: ONES, ..WRITER })),
        ("seq", of(WriterEntry { seq: u64::MAX, ..WRITER })),
    ];
    assert_eq!(of(WRITER).len(), 40);
    assert_same("Writer entry", 40, &of(WRITER), &sets, &[]);
}

#[test]
fn a_retired_key_is_as_documented() {
    let of = |r: Retired| entry(|h| h.retired.push(r));
    let sets = [
        ("kind", of(Retired { kind: u8::MAX, ..RETIRED })),
        ("from", of(Retired { from: u64::MAX, ..RETIRED })),
        ("seq", of(Retired { seq: u64::MAX, ..RETIRED })),
        ("rand", of(Retired { rand: EIGHT, ..RETIRED })),
        ("at", of(Retired { at: u64::MAX, ..RETIRED })),
    ];
    assert_eq!(of(RETIRED).len(), 40);
    assert_same("Retired key", 40, &of(RETIRED), &sets, &[]);
}

#[test]
fn a_record_is_as_documented() {
    let of = |r: Record| entry(|h| h.tail.push(r.clone()));
    let sets = [
        ("seq", of(Record { seq: u64::MAX, ..RECORD })),
        ("commit_id", of(Record { commit_id: ONES, ..RECORD })),
        ("prev_commit_id", of(Record { prev_commit_id: ONES, ..RECORD })),
        ("commit_ms", of(Record { commit_ms: -1, ..RECORD })),
        ("writer", of(Record { writer: EIGHT, ..RECORD })),
        ("ops", of(Record { ops: u32::MAX, ..RECORD })),
        ("page_count", of(Record { page_count: u32::MAX, ..RECORD })),
        ("checksum", of(Record { checksum: ONES, ..RECORD })),
        ("codec", of(Record { codec: u8::MAX, ..RECORD })),
        ("raw_len", of(Record { raw_len: u32::MAX, ..RECORD })),
        ("frame_len", of(Record { frame: Bytes::from_static(&[7]), ..RECORD })),
    ];
    assert_eq!(
        (of(RECORD).len(), of(Record { frame: Bytes::from_static(&[7]), ..RECORD }).pop()),
        (96, Some(7))
    );
    assert_same("Record", 96, &of(RECORD), &sets, &[]);
}

#[test]
fn the_header_of_a_segment_is_as_documented() {
    let of = |file: u8, lineage: u8, n: usize| segment::encode(&[file; 16], &[lineage; 16], &vec![RECORD; n]);
    let zeros = of(0, 0, 0);
    let sets = [("records", of(0, 0, 1)), ("file_id", of(0xff, 0, 0)), ("lineage_id", of(0, 0xff, 0))];
    assert_eq!((zeros.len(), &zeros[..12]), (48 + 16, &b"BUCKETQS\x01\0\x01\0"[..]));
    assert_same("Segment header", 48, &zeros, &sets, &["magic", "format", "min_reader"]);
}

/// The bytes of the page's fenced block after `mark`: hexadecimal, with a comment after each `;`.
fn dump(page: &str, mark: &str) -> Vec<u8> {
    let block = page.split_once(mark).unwrap_or_else(|| panic!("no {mark}")).1;
    let block = block.split("```").nth(1).expect("a fenced block");
    block
        .lines()
        .skip(1)
        .filter_map(|l| l.split(';').next())
        .flat_map(str::split_whitespace)
        .map(|byte| u8::from_str_radix(byte, 16).expect("two hexadecimal digits"))
        .collect()
}

/// The worked example does as the page says: one page becomes two.
#[test]
fn the_delta_spelt_out_on_the_page_is_one() -> bucketq::Result<()> {
    let bytes = dump(&page(), "<!-- the example -->");
    let delta = Delta::decode(&bytes, 2)?;
    assert_eq!((delta.page_count(), delta.patched(), delta.encode()), (2, 2, bytes));
    let before: Vec<u8> = (0..4096_usize).map(|i| i as u8).collect();
    let mut pages = bucketq::internals::pages::Pages::from_image(&before)?;
    pages.apply(&delta)?;
    let after = fixture::bytes_of(&pages.image());
    let mut wanted = [before, vec![0; 4096]].concat();
    wanted[10..13].copy_from_slice(b"abc");
    wanted[300..340].copy_from_slice(&(100..140).collect::<Vec<u8>>());
    wanted[4096] = b'z';
    assert_eq!(after, wanted);
    Ok(())
}

/// Numbers in the page against the code.
#[test]
fn numbers_in_the_text_of_the_page_are_those_of_the_code() {
    let page = page();
    for said in [
        format!("at most {} segments", bucketq::internals::head::MAX_SEGMENTS),
        format!("at most {} writers", bucketq::internals::head::MAX_WRITERS),
        format!("at most {} retired keys", bucketq::internals::head::MAX_RETIRED),
        format!("format {}", bucketq::internals::head::FORMAT),
        keys::base("jobs", &[0xab; 16], 0x12ab, &[0x0f; 8]),
        format!("`{:#010x}`", bucketq::internals::db::APPLICATION_ID),
    ] {
        assert!(page.contains(&said), "docs/format.md does not say: {said}");
    }
    let empty = fixture::hex(&bucketq::internals::wire::hash(b""));
    assert!(page.contains(&empty), "the hash of nothing is {empty}");
}
