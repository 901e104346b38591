//! Enqueue: the fields of a new job, and which jobs are not new.

use bucketq::error::{Code, Kind};
use bucketq::job::{DedupScope, New, Payload, State, When};
use bucketq::op::{Enqueued, Op, Outcome};
use bucketq::policy::Changes;
use bucketq_tests::queue_db::{START_MS, World, claim, enqueue, held, id, job, keyed, number};

use crate::policies::configure;

fn entries(outcome: Outcome) -> Vec<Enqueued> {
    match outcome {
        Outcome::Enqueued(entries) => entries,
        other => panic!("an enqueue gave {other:?}"),
    }
}

#[test]
fn a_new_job_is_what_was_asked_for() {
    let mut w = World::default();
    let mut new = job(1);
    new.priority = -7;
    new.max_attempts = Some(3);
    new.group = Some("g".into());
    new.headers.insert("trace".into(), "\"é\0".into());
    let got = entries(w.ok(&enqueue("q", [new.clone()])));
    assert_eq!(
        got,
        [Enqueued {
            id: id(1),
            deduplicated: false,
            existing: false,
            commit_seq: 1,
            commit_ms: w.now_ms,
            dropped: vec![]
        }]
    );
    let detail = w.detail(1).expect("there");
    assert_eq!(detail.payload, new.payload);
    let j = detail.job;
    assert_eq!(
        (j.queue.as_str(), j.state, j.priority, j.attempt, j.max_attempts),
        ("q", State::Ready, -7, 0, 3)
    );
    assert_eq!(
        (j.seq, j.commit_seq(), j.enqueued_ms, j.run_at_ms, j.run),
        (1 << 24, 1, START_MS, START_MS, 0)
    );
    assert_eq!(
        (j.claimed_ms, j.finished_ms, j.expires_ms, j.fence, j.worker, j.last_error),
        Default::default()
    );
    assert_eq!((j.group.as_deref(), j.dedup, j.headers), (Some("g"), None, new.headers));
}

#[test]
fn jobs_of_one_commit_stand_in_the_order_given() {
    let mut w = World::default();
    w.db.begin().unwrap();
    w.apply(&enqueue("q", [job(5), job(3)])).unwrap();
    w.apply(&enqueue("q", [job(4)])).unwrap();
    w.db.commit().unwrap();
    assert_eq!(w.claim_numbers(claim("q", 10, 1)), [5, 3, 4]);
}

#[test]
fn a_time_in_the_future_means_scheduled_and_one_in_the_past_means_ready() {
    let mut w = World::default();
    let at = |n, when| New { when, ..job(n) };
    w.ok(&enqueue(
        "q",
        [at(1, When::In(10)), at(2, When::In(0)), at(3, When::At(5)), at(4, When::At(START_MS + 1))],
    ));
    let states = [1, 2, 3, 4].map(|n| w.state(n));
    assert_eq!(states, [State::Scheduled, State::Ready, State::Ready, State::Scheduled]);
    let times = [1, 2, 3, 4].map(|n| w.job(n).run_at_ms);
    assert_eq!(times, [START_MS + 10, START_MS, 5, START_MS + 1]);
}

#[test]
fn the_same_job_again_changes_nothing_and_says_so() {
    let mut w = World::default();
    w.ok(&enqueue("q", [job(1)]));
    let got = entries(w.ok(&enqueue("q", [job(1), job(2), job(2)])));
    let told: Vec<_> = got.iter().map(|e| (number(e.id), e.existing, e.deduplicated, e.commit_seq)).collect();
    assert_eq!(told, [(1, true, false, 1), (2, false, false, 2), (2, true, false, 2)]);
    // Delay, attempts and options beside the payload may differ: a caller computes those again.
    let mut later = New { when: When::In(50), max_attempts: Some(1), ..job(1) };
    later.headers.insert("traceparent".into(), "another".into());
    assert!(entries(w.ok(&enqueue("q", [later])))[0].existing);
    w.claim(claim("q", 1, 1));
    w.ok(&Op::Ack { held: held(1, 1), result: None });
    assert!(entries(w.ok(&enqueue("q", [job(1)])))[0].existing, "also when it is done");
}

#[test]
fn an_id_of_another_job_is_refused_with_what_differs() {
    let mut w = World::default();
    let large = New { payload: Payload::bytes(vec![1; 5000]), ..job(2) };
    w.ok(&enqueue("q", [job(1), large.clone(), keyed(3, "k", DedupScope::Unfinished)]));
    let other = |payload| New { payload, ..job(1) };
    let mut same_length = vec![1; 5000];
    same_length[4999] = 2;
    let all = [
        ("elsewhere", job(1), "queue"),
        ("q", other(Payload::text("payload 2")), "payload"),
        ("q", New { payload: Payload::bytes(same_length), ..large }, "payload"),
        ("q", other(Payload { content_type: "x/y".into(), ..job(1).payload }), "content type"),
        ("q", New { priority: 1, ..job(1) }, "priority"),
        ("q", New { group: Some("g".into()), ..job(1) }, "group"),
        ("q", keyed(1, "k2", DedupScope::Unfinished), "dedup key"),
        ("q", keyed(3, "k2", DedupScope::Unfinished), "dedup key"),
        ("q", New { dedup: None, ..keyed(3, "k", DedupScope::Unfinished) }, "dedup key"),
    ];
    for (queue, job, what) in all {
        let error = w.refused(&enqueue(queue, [job.clone()]));
        assert_eq!((error.kind(), error.code()), (Kind::Invalid, Code::IdTaken), "{error}");
        assert!(error.message().contains(&format!("its {what} is")), "{error}");
        let error = w.refused(&enqueue(queue, [self::job(100), job]));
        assert_eq!(error.code(), Code::IdTaken, "all of them or none: {error}");
    }
    assert_eq!(w.refused(&enqueue("q", [job(4), other(Payload::text("x")), job(4)])).code(), Code::IdTaken);
    let twice = [job(5), New { priority: 1, ..job(5) }];
    assert_eq!(w.refused(&enqueue("q", twice)).code(), Code::IdTaken);
    assert_eq!(w.claim_numbers(claim("q", 9, 1)), [1, 2, 3]);
}

#[test]
fn a_job_whose_key_came_from_its_content_is_known_after_the_policy_has_changed() {
    for (before, after) in [(true, false), (false, true)] {
        let mut w = World::default();
        for by_content in [before, after] {
            let changes = Changes { dedup_content: Some(by_content), ..Changes::default() };
            w.ok(&configure("q", changes));
            w.ok(&enqueue("q", [job(1)]));
        }
        assert!(entries(w.ok(&enqueue("q", [job(1)])))[0].existing);
        assert_eq!(w.claim_numbers(claim("q", 9, 1)), [1]);
    }
}

#[test]
fn a_job_that_went_to_a_dead_letter_queue_is_still_known() {
    let mut w = World::default();
    let changes = Changes { dead_letter: Some(Some("letters".into())), ..Changes::default() };
    w.ok(&configure("q", changes));
    w.ok(&enqueue("q", [job(1)]));
    w.claim(claim("q", 1, 1));
    w.ok(&Op::Reject { held: held(1, 1), error: None });
    assert_eq!(w.job(1).queue, "letters");
    assert!(entries(w.ok(&enqueue("q", [job(1)])))[0].existing);
}

#[test]
fn the_same_id_is_known_before_its_dedup_key() {
    let mut w = World::default();
    w.ok(&enqueue("q", [keyed(1, "k", DedupScope::Window(10))]));
    let got = entries(w.ok(&enqueue("q", [keyed(1, "k", DedupScope::Window(10))])));
    assert!(!got[0].deduplicated);
}

#[test]
fn a_window_counts_from_the_first_enqueue_and_outlives_the_job() {
    let mut w = World::default();
    let window = DedupScope::Window(100);
    let got = entries(w.ok(&enqueue("q", [keyed(1, "k", window), keyed(2, "k", window)])));
    assert_eq!((number(got[1].id), got[1].deduplicated, got[1].commit_seq), (1, true, 1));
    w.wait(99);
    w.ok(&Op::Purge { queue: "q".into(), states: State::ALL.to_vec() });
    let got = entries(w.ok(&enqueue("q", [keyed(3, "k", window)])));
    assert_eq!((number(got[0].id), got[0].deduplicated, got[0].commit_seq), (1, true, 1));
    let got = entries(w.ok(&enqueue("other", [keyed(4, "k", window)])));
    assert!(!got[0].deduplicated, "keys are per queue");
    w.wait(1);
    let got = entries(w.ok(&enqueue("q", [keyed(5, "k", window)])));
    assert_eq!((number(got[0].id), got[0].deduplicated), (5, false));
    assert_eq!(w.job(5).dedup.as_deref(), Some("k"));
}

#[test]
fn an_unfinished_job_keeps_its_key_until_it_is_finished() {
    let mut w = World::default();
    let scope = DedupScope::Unfinished;
    w.ok(&enqueue("q", [keyed(1, "k", scope)]));
    w.claim(claim("q", 1, 1));
    assert!(entries(w.ok(&enqueue("q", [keyed(2, "k", scope)])))[0].deduplicated);
    w.ok(&Op::Ack { held: held(1, 1), result: None });
    assert!(!entries(w.ok(&enqueue("q", [keyed(3, "k", scope)])))[0].deduplicated);
    w.ok(&Op::Purge { queue: "q".into(), states: vec![State::Ready] });
    assert!(!entries(w.ok(&enqueue("q", [keyed(4, "k", scope)])))[0].deduplicated);
    // The first one runs again, but the key belongs to another job now.
    w.ok(&Op::Requeue { id: id(1), run: None });
    assert_eq!(number(entries(w.ok(&enqueue("q", [keyed(5, "k", scope)])))[0].id), 4);
}

#[test]
fn a_requeued_job_answers_with_its_new_place() {
    let mut w = World::default();
    w.ok(&enqueue("q", [keyed(1, "k", DedupScope::Unfinished)]));
    w.ok(&Op::Cancel { id: id(1), leased: false });
    w.ok(&Op::Requeue { id: id(1), run: None });
    let got = entries(
        w.ok(&enqueue("q", [keyed(2, "k", DedupScope::Unfinished), keyed(1, "k", DedupScope::Unfinished)])),
    );
    assert_eq!(
        got,
        [
            Enqueued {
                id: id(1),
                deduplicated: true,
                existing: false,
                commit_seq: 3,
                commit_ms: w.now_ms,
                dropped: vec![]
            },
            Enqueued {
                id: id(1),
                deduplicated: false,
                existing: true,
                commit_seq: 3,
                commit_ms: w.now_ms,
                dropped: vec![]
            },
        ]
    );
}

#[test]
fn expired_keys_are_cleared_in_bounded_batches() {
    let mut w = World::default();
    w.ok(&enqueue("q", (0..250).map(|n| keyed(n, &format!("k{n}"), DedupScope::Window(50)))));
    w.ok(&enqueue("q", [keyed(900, "stays", DedupScope::Window(10_000))]));
    w.wait(50);
    let mut left = Vec::new();
    // Not cleared yet by its own enqueue, but no longer effective.
    let waiting = [keyed(1000, "k249", DedupScope::Window(10_000)), job(1001), job(1002), job(1003)];
    for new in waiting {
        assert!(!entries(w.ok(&enqueue("q", [new])))[0].deduplicated);
        left.push(
            w.db.connection().query_row("SELECT count(*) FROM dedup", [], |r| r.get::<_, i64>(0)).unwrap(),
        );
    }
    assert_eq!(left, [151, 51, 2, 2]);
}

#[test]
fn a_large_payload_lies_apart_and_comes_back_whole() {
    let mut w = World::default();
    let sizes = [0, 1, 1024, 1025, 5000, 256 * 1024];
    for (n, size) in sizes.into_iter().enumerate() {
        w.ok(&enqueue("q", [New { payload: Payload::bytes(vec![7; size]), ..job(n as u32) }]));
    }
    let bodies: i64 = w.db.connection().query_row("SELECT count(*) FROM bodies", [], |r| r.get(0)).unwrap();
    assert_eq!(bodies, 3);
    for (n, size) in sizes.into_iter().enumerate() {
        assert_eq!(w.job(n as u32).payload_len, size as u64);
        assert_eq!(w.claim(claim("q", 1, 1))[0].payload.bytes, vec![7; size]);
    }
}
