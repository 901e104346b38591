//! How many finished jobs a queue keeps, and for how long: those of each state by limits of their own.

use bucketq::error::Code;
use bucketq::job::State;
use bucketq::op::Op;
use bucketq::policy::Changes;
use bucketq_tests::queue_db::{World, claim, enqueue, held, id, job};

fn configure(changes: Changes) -> Op {
    Op::Configure { queue: "q".into(), changes: Box::new(changes) }
}

/// Ends ten jobs of each kind, one after another, and one more that makes the others leave.
fn finished(changes: Changes) -> World {
    let mut w = World::default();
    w.ok(&configure(changes));
    for n in 0..33 {
        w.ok(&enqueue("q", [job(n)]));
        end(&mut w, n);
        w.wait(1_000);
    }
    w
}

fn end(w: &mut World, n: u32) {
    if n % 3 < 2 {
        w.claim(claim("q", 1, 1));
    }
    w.ok(&match n % 3 {
        0 => Op::Ack { held: held(n, 1), result: None },
        1 => Op::Reject { held: held(n, 1), error: None },
        _ => Op::Cancel { id: id(n), leased: false },
    });
}

fn counts(w: &mut World) -> [u64; 3] {
    let counts = w.queue("q").counts;
    [State::Done, State::Dead, State::Cancelled].map(|state| counts.get(&state).copied().unwrap_or(0))
}

#[test]
fn each_state_keeps_as_many_as_the_queue_says_for_all() {
    let mut w = finished(Changes { keep: Some(4), ..Changes::default() });
    assert_eq!(counts(&mut w), [4, 4, 4]);
}

#[test]
fn each_state_has_a_number_of_its_own() {
    let changes = Changes {
        keep: Some(4),
        keep_done: Some(Some(2)),
        keep_dead: Some(Some(9)),
        keep_cancelled: Some(Some(0)),
        ..Changes::default()
    };
    let mut w = finished(changes);
    assert_eq!(counts(&mut w), [2, 9, 0]);
    assert!(w.detail(30).is_some() && w.detail(27).is_some() && w.detail(24).is_none(), "the newest stay");
    let as_keep = Changes { keep_dead: Some(None), ..Changes::default() };
    w.ok(&configure(as_keep));
    w.ok(&enqueue("q", [job(34)]));
    end(&mut w, 34);
    assert_eq!(counts(&mut w), [2, 4, 0]);
}

#[test]
fn each_state_has_an_age_of_its_own() {
    let changes = Changes {
        keep_ms: Some(Some(10_500)),
        keep_dead_ms: Some(Some(86_400_000)),
        keep_cancelled_ms: Some(Some(3_500)),
        ..Changes::default()
    };
    let mut w = finished(changes);
    assert_eq!(counts(&mut w), [3, 11, 2]);
}

#[test]
fn an_archive_must_last_longer_than_every_age() {
    let mut w = World::default();
    let with = |archive_ms, done_ms, dead_ms| Changes {
        archive: Some(true),
        archive_ms: Some(Some(archive_ms)),
        keep_ms: Some(Some(50)),
        keep_done_ms: Some(Some(done_ms)),
        keep_dead_ms: Some(Some(dead_ms)),
        ..Changes::default()
    };
    assert_eq!(w.refused(&configure(with(60, 10, 60))).code(), Code::Policy);
    w.ok(&configure(with(60, 10, 59)));
    let overridden =
        Changes { keep_cancelled_ms: Some(Some(5)), keep_ms: Some(Some(99)), ..Changes::default() };
    w.ok(&configure(overridden));
}

#[test]
fn too_many_jobs_are_refused_by_the_name_of_the_field() {
    let mut w = World::default();
    let error = w.refused(&configure(Changes { keep_dead: Some(Some(10_000_001)), ..Changes::default() }));
    assert!(error.message().contains("keep_dead must be at most 10000000"), "{error}");
}

/// A policy is stored so that a library which does not know the newer fields can read it.
#[test]
fn fields_that_are_not_used_are_not_stored() {
    let mut w = World::default();
    let stored = |w: &World| -> String {
        let sql = "SELECT policy FROM policies";
        w.db.connection().query_row(sql, [], |row| row.get(0)).expect("one")
    };
    w.ok(&configure(Changes { keep: Some(5), ..Changes::default() }));
    let text = stored(&w);
    assert!(text.contains("\"keep\":5") && text.contains("\"archive\":false"), "{text}");
    assert!(
        !text.contains("keep_d")
            && !text.contains("keep_c")
            && !text.contains("group_batch")
            && !text.contains("max_run"),
        "{text}"
    );
    w.ok(&configure(Changes { keep_dead: Some(Some(7)), group_batch: Some(2), ..Changes::default() }));
    let text = stored(&w);
    assert!(text.contains("\"keep_dead\":7") && text.contains("\"group_batch\":2"), "{text}");
    assert!(!text.contains("keep_done") && !text.contains("max_run"), "{text}");
}

#[test]
fn a_job_that_is_kept_by_its_own_limit_can_still_be_purged() {
    let mut w = finished(Changes { keep_dead: Some(Some(100)), keep: Some(1), ..Changes::default() });
    assert_eq!(counts(&mut w), [1, 11, 1]);
    w.ok(&Op::Purge { queue: "q".into(), states: vec![State::Dead, State::Cancelled] });
    assert_eq!(counts(&mut w), [1, 0, 0]);
}
