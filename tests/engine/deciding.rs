//! The decisions of the commit protocol as pure functions: a body's outcome, a HEAD that continues the known one, the
//! uploads that a commit may refer to, and the writers that HEAD remembers.

use std::time::Duration;

use bucketq::Code;
use bucketq::internals::commit::{self, Care, CommitAttempt, Fresh, base_fits, next, segment_fits};
use bucketq::internals::head::{BaseRef, Head, MAX_WRITERS, SegmentRef};
use bucketq::internals::record::Record;
use bucketq::internals::settle::{Settlement, Shown, UnsettledBody, continues, judge};
use bucketq_tests::clock::now;

const ME: [u8; 8] = [1; 8];
const OTHER: [u8; 8] = [2; 8];

/// The commit id of this attempt of a writer.
fn id(writer: [u8; 8], number: u64) -> [u8; 16] {
    let mut id = [writer[0]; 16];
    id[8..].copy_from_slice(&number.to_le_bytes());
    id
}

/// The HEAD of this writer's attempt on top of `known`.
fn after(known: &Head, writer: [u8; 8], number: u64, care: &Care) -> Head {
    let commit_ms = known.commit_ms + 1;
    let a = CommitAttempt { writer, number, commit_id: id(writer, number), commit_ms };
    let record = Record {
        seq: known.commit_seq + 1,
        commit_id: a.commit_id,
        prev_commit_id: known.commit_id,
        commit_ms,
        writer,
        ops: 1,
        page_count: 1,
        checksum: [0; 16],
        codec: 0,
        raw_len: 0,
        frame: [].as_slice().into(),
    };
    next(known, &a, &record, Fresh::default(), care)
}

/// A HEAD after these writers have committed, one after the other.
fn head(writers: &[[u8; 8]]) -> Head {
    let numbered = writers.iter().zip(1..);
    numbered
        .fold(Head::nothing([9; 16], [8; 16], 0, 500), |known, (w, n)| after(&known, *w, n, &Care::none()))
}

/// Moves all records out of HEAD, as a segment does.
fn moved_out(mut head: Head) -> Head {
    head.tail.clear();
    head
}

fn outcome(body: &Head, now: &Head, logged: Option<[u8; 16]>, drawn: &[[u8; 16]]) -> Settlement {
    judge(UnsettledBody { body, writer: ME, drawn }, now, logged)
}

#[test]
fn a_body_is_settled_by_the_commit_at_its_own_number() {
    let known = head(&[OTHER]);
    let body = after(&known, ME, 7, &Care::none());
    assert_eq!(outcome(&body, &known, None, &[]), Settlement::Unchanged, "it may still land");
    assert_eq!(outcome(&body, &body, None, &[]), Settlement::Ours);
    let built_on = after(&body, OTHER, 8, &Care::none());
    assert_eq!(outcome(&body, &built_on, None, &[]), Settlement::Ours, "another writer built on it");
    let lost = after(&after(&known, OTHER, 8, &Care::none()), OTHER, 9, &Care::none());
    assert_eq!(outcome(&body, &lost, None, &[]), Settlement::Lost);
}

#[test]
fn without_a_record_of_its_number_the_writers_entry_decides() {
    let known = head(&[OTHER]);
    let body = after(&known, ME, 7, &Care::none());
    let later = |from: &Head| {
        let twice = after(&after(from, OTHER, 8, &Care::none()), OTHER, 9, &Care::none());
        moved_out(after(&twice, OTHER, 10, &Care::none()))
    };
    assert_eq!(outcome(&body, &later(&body), None, &[]), Settlement::Ours);
    assert_eq!(outcome(&body, &later(&known), None, &[]), Settlement::Lost, "no entry, and none was dropped");
    assert_eq!(
        outcome(&body, &later(&known), Some(body.commit_id), &[]),
        Settlement::Ours,
        "a segment has it"
    );
    let mut forgot = later(&known);
    forgot.forgotten_seq = body.commit_seq;
    assert_eq!(outcome(&body, &forgot, None, &[]), Settlement::Unknowable, "its entry may have been dropped");
    let shared = later(&after(&known, ME, 6, &Care::none()));
    assert_eq!(outcome(&body, &shared, None, &[]), Settlement::Unknowable, "this writer never drew that id");
    assert_eq!(outcome(&body, &shared, None, &[id(ME, 6)]), Settlement::Lost, "an earlier commit of its own");
}

#[test]
fn a_head_that_does_not_continue_the_known_one_is_refused() {
    let known = head(&[OTHER, ME]);
    let mine = Some((known.commit_seq, known.commit_id));
    let check = |now: &Head, mine| continues(&known, now, None, mine, ME);
    let code = |now: &Head, mine| check(now, mine).expect_err("it does not continue").code();
    assert_eq!(check(&known, mine), Ok(()));
    assert_eq!(check(&after(&known, OTHER, 8, &Care::none()), mine), Ok(()));
    assert_eq!(code(&Head { file_id: [0; 16], ..known.clone() }, mine), Code::RolledBack);
    assert_eq!(code(&Head { lineage_id: [0; 16], ..known.clone() }, mine), Code::RolledBack);
    assert_eq!(code(&head(&[OTHER]), mine), Code::RolledBack, "a smaller number");
    let elsewhere = head(&[OTHER, OTHER]);
    assert_eq!(code(&elsewhere, None), Code::RolledBack, "another commit has its number");
    assert_eq!(code(&elsewhere, mine), Code::StoreBroken, "the store acknowledged that one");
    assert!(Shown::by(&known, now()).comes_before(&head(&[OTHER])).is_err(), "an old HEAD was put back");
}

/// Several reads are under way at once: one that was sent before another one's reply may show an older HEAD.
#[test]
fn an_older_head_was_put_back_only_if_it_was_requested_after_the_newer_one_was_read() {
    let [begin, read, later, end] = [0, 1, 2, 3].map(|s| now() + Duration::from_secs(s));
    let (older, newest) = (head(&[OTHER]), head(&[OTHER, ME]));
    let shown = Shown::by(&newest, read);
    let overtaken = shown.and_then(&older, begin, later).expect("its reply came late");
    assert_eq!(overtaken.commit_seq(), newest.commit_seq, "the newer one stays known");
    let code = |head: &Head, asked| shown.and_then(head, asked, end).expect_err("it is refused").code();
    assert_eq!(code(&older, read), Code::RolledBack);
    assert_eq!(code(&older, later), Code::RolledBack);
    assert_eq!(code(&head(&[OTHER, OTHER]), begin), Code::RolledBack, "another commit has its number");
    let continued = after(&newest, OTHER, 8, &Care::none());
    let shown = shown.and_then(&continued, begin, end).expect("it continues");
    assert!(shown.and_then(&newest, later, end).is_ok(), "that one was requested before");
}

#[test]
fn a_commit_refers_only_to_uploads_that_fit_and_are_not_below_the_floor() {
    let mut known = head(&[OTHER, OTHER, OTHER, OTHER]);
    let base = |seq| BaseRef { seq, len: 1, ..BaseRef::default() };
    let segment = |from, to| SegmentRef { from, to, rand: [0; 8], codec: 0, len: 1, hash: [0; 16] };
    let newest = known.commit_seq + 1;
    assert!(base_fits(&known, &base(3)));
    assert!(!base_fits(&known, &base(newest)), "of a commit that is not settled");
    for (from, to, fits) in [(1, 3, true), (1, newest, true), (2, 3, false), (1, newest + 1, false)] {
        assert_eq!(segment_fits(&known, &segment(from, to), newest), fits, "{from} to {to}");
    }
    known.base = base(3);
    assert!(!base_fits(&known, &base(3)), "no newer than the present one");
    assert!(!segment_fits(&known, &segment(1, 3), newest), "the base has all of it");
    known.gc_floor = 5;
    assert!(!base_fits(&known, &base(4)), "it may be deleted by now");
    assert!(!segment_fits(&known, &segment(1, 4), newest), "it may be deleted by now");
}

#[test]
fn head_forgets_the_oldest_writer_and_says_up_to_which_commit() {
    let writers: Vec<[u8; 8]> = (0..=MAX_WRITERS as u64).map(u64::to_le_bytes).collect();
    let full = head(&writers[..MAX_WRITERS]);
    assert_eq!((full.writers.len(), full.forgotten_seq), (MAX_WRITERS, 0));
    let over = head(&writers);
    assert_eq!((over.writers.len(), over.forgotten_seq), (MAX_WRITERS, 1));
    assert!(over.writer(&writers[0]).is_none());
}

#[test]
fn the_floor_follows_in_two_steps_and_stays_below_a_base_under_way() {
    let care = |below| Care { grace: Duration::from_millis(1), below, gone: vec![] };
    let known = head(&[OTHER]);
    assert!(commit::floor_can_rise(&known, 10, Duration::from_millis(1)));
    let noted = after(&known, ME, 7, &care(u64::MAX));
    assert_eq!((noted.gc_floor, noted.floor_candidate), (0, noted.commit_seq));
    let raised = after(&noted, ME, 8, &care(u64::MAX));
    assert_eq!(raised.gc_floor, noted.commit_seq);
    assert_eq!(after(&noted, ME, 8, &care(1)).gc_floor, 1, "a higher one would waste the base of commit 1");
}
