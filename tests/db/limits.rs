//! Ops that are refused before anything is written, and a full file.

use bucketq::error::{Code, Kind};
use bucketq::internals::db::{Limits, check};
use bucketq::job::{Backoff, Dedup, DedupScope, New, Payload, State, When};
use bucketq::lease::Token;
use bucketq::op::{Claim, Held, Op, Outcome, Queues};
use bucketq_tests::queue_db::{World, claim, enqueue, held, id, job};

const LIMITS: Limits = Limits { max_payload: 100, max_pages: 1000 };
const CENTURY: i64 = 100 * 366 * 24 * 3_600_000;

fn put(change: impl FnOnce(&mut New)) -> Op {
    let mut new = job(1);
    change(&mut new);
    enqueue("q", [new])
}

fn take(change: impl FnOnce(&mut Claim)) -> Op {
    let mut c = claim("q", 1, 1);
    change(&mut c);
    Op::Claim(c)
}

fn exponential(base_ms: i64, max_ms: i64, jitter_percent: u8) -> Backoff {
    Backoff::Exponential { base_ms, max_ms, jitter_percent }
}

#[test]
fn what_makes_no_sense_is_invalid() {
    let long = "x".repeat(201);
    let dedup = |key: &str, scope| Some(Dedup { key: key.to_owned(), scope });
    let nobody = Held { id: id(1), token: Token([0; 16]) };
    let bad = [
        enqueue("", [job(1)]),
        enqueue(&long, [job(1)]),
        enqueue("q", []),
        put(|j| j.when = When::In(-1)),
        put(|j| j.when = When::In(CENTURY + 1)),
        put(|j| j.when = When::At(-1)),
        put(|j| j.when = When::At(i64::MAX)),
        put(|j| j.max_attempts = Some(0)),
        put(|j| j.backoff = Some(exponential(-1, 1, 0))),
        put(|j| j.backoff = Some(exponential(1, -1, 0))),
        put(|j| j.backoff = Some(exponential(1, CENTURY + 1, 0))),
        put(|j| j.backoff = Some(exponential(1, 1, 101))),
        put(|j| j.dedup = dedup("", DedupScope::Unfinished)),
        put(|j| j.dedup = dedup(&long, DedupScope::Unfinished)),
        put(|j| j.dedup = dedup("k", DedupScope::Window(0))),
        put(|j| j.dedup = dedup("k", DedupScope::Window(CENTURY + 1))),
        put(|j| j.group = Some(String::new())),
        put(|j| j.group = Some(long.clone())),
        put(|j| drop(j.headers.insert("k".into(), "v".repeat(256 * 1024)))),
        put(|j| j.payload.content_type = "x".repeat(101)),
        take(|c| c.max = 0),
        take(|c| c.max = 10_001),
        take(|c| c.lease_ms = Some(0)),
        take(|c| c.lease_ms = Some(CENTURY + 1)),
        take(|c| c.worker.clone_from(&long)),
        take(|c| c.token = Token([0; 16])),
        take(|c| c.queues = Queues::Named(vec![])),
        take(|c| c.queues = Queues::Named(vec![String::new()])),
        Op::Ack { held: nobody, result: None },
        Op::Nack { held: nobody, delay_ms: None, error: None },
        Op::Nack { held: held(1, 1), delay_ms: Some(-1), error: None },
        Op::Release { held: nobody },
        Op::Reject { held: nobody, error: None },
        Op::Extend { held: nobody, lease_ms: 5, at_least: false },
        Op::Extend { held: held(1, 1), lease_ms: 0, at_least: true },
        Op::Purge { queue: "q".into(), states: vec![] },
        Op::Purge { queue: String::new(), states: vec![State::Done] },
        Op::Pause { queue: String::new() },
        Op::Resume { queue: long.clone() },
        Op::Atomic(vec![]),
        Op::Atomic(vec![take(|_| ())]),
        Op::Atomic(vec![Op::Atomic(vec![put(|_| ())])]),
        Op::Atomic(vec![put(|_| ()), enqueue("", [job(1)])]),
    ];
    let mut w = World::default();
    for op in &bad {
        assert_eq!(check(op, &LIMITS).expect_err(op.name()).code(), Code::Argument, "{}", op.name());
        assert_eq!(w.refused(op).kind(), Kind::Invalid, "{op:?}");
    }
}

#[test]
fn what_is_just_within_bounds_is_accepted() {
    let name = "x".repeat(200);
    let good = [
        enqueue(&name, [job(1)]),
        put(|j| j.payload = Payload::bytes(vec![0; 100])),
        put(|j| j.when = When::In(CENTURY)),
        put(|j| j.when = When::At(0)),
        put(|j| drop(j.headers.insert(String::new(), "v".repeat(256 * 1024)))),
        put(|j| j.backoff = Some(exponential(0, 0, 100))),
        put(|j| j.payload.content_type = String::new()),
        take(|c| c.max = 10_000),
        take(|c| c.worker = name.clone()),
        Op::Extend { held: held(1, 1), lease_ms: 1, at_least: false },
        Op::Atomic(vec![put(|_| ())]),
    ];
    for op in good {
        check(&op, &LIMITS).unwrap_or_else(|e| panic!("{op:?}: {e}"));
    }
}

#[test]
fn too_large_a_payload_or_result_says_so() {
    let big = Payload::bytes(vec![0; 101]);
    let ops = [put(|j| j.payload = big.clone()), Op::Ack { held: held(1, 1), result: Some(big.clone()) }];
    for op in ops {
        assert_eq!(check(&op, &LIMITS).unwrap_err().code(), Code::PayloadTooLarge);
        assert_eq!(check(&Op::Atomic(vec![op]), &LIMITS).unwrap_err().code(), Code::PayloadTooLarge);
    }
}

/// A file of 64 pages, filled until it refuses; returns how many jobs it took.
fn full(payload: usize) -> (World, u32) {
    let mut w = World::default();
    w.limits.max_pages = 64;
    for n in 0.. {
        let op = enqueue("q", [New { payload: Payload::bytes(vec![1; payload]), ..job(n) }]);
        if let Err(e) = w.run(&op) {
            assert_eq!((e.kind(), e.code()), (Kind::Full, Code::FileFull));
            return (w, n);
        }
    }
    unreachable!()
}

#[test]
fn a_full_file_still_lets_jobs_out() {
    for payload in [0, 200, 1024, 3000, 20_000] {
        let (mut w, n) = full(payload);
        assert!(n > 0, "{payload}");
        assert!(w.queue("q").counts[&State::Ready] == u64::from(n));
        assert_eq!(w.claim(claim("q", 10_000, 1)).len() as u32, n);
        for i in 0..n {
            match i % 3 {
                0 => w.ok(&Op::Ack { held: held(i, 1), result: None }),
                1 => w.ok(&Op::Nack { held: held(i, 1), delay_ms: Some(1), error: None }),
                _ => w.ok(&Op::Cancel { id: id(i), leased: true }),
            };
        }
        let purged = w.ok(&Op::Purge { queue: "q".into(), states: State::ALL.to_vec() });
        assert_eq!(purged, Outcome::Purged { count: u64::from(n) });
        w.ok(&enqueue("q", [job(5000)]));
    }
}

#[test]
fn a_full_file_still_takes_what_came_of_its_jobs() {
    for payload in [0, 200, 1024, 3000, 20_000] {
        let (mut w, _) = full(payload);
        w.claim(claim("q", 3, 1));
        w.ok(&Op::Nack { held: held(0, 1), delay_ms: Some(1), error: Some("e".repeat(4096)) });
        w.ok(&Op::Ack { held: held(1, 1), result: Some(Payload::bytes(vec![3; 8192])) });
        w.ok(&Op::Reject { held: held(2, 1), error: Some("e".repeat(4096)) });
    }
}

#[test]
fn a_file_that_overflows_in_the_middle_of_an_op_is_poisoned_until_rolled_back() {
    let (mut w, _) = full(200);
    w.claim(claim("q", 1, 1));
    let before = dump(&mut w);
    w.db.begin().unwrap();
    w.apply(&Op::Nack { held: held(0, 1), delay_ms: Some(9), error: Some("kept?".into()) }).unwrap();
    let op = Op::Ack { held: held(0, 1), result: None };
    assert!(w.apply(&op).is_err(), "nacked before");
    w.apply(&Op::Claim(claim("q", 1, 2))).unwrap();
    let result = Some(Payload::bytes(vec![5; 250_000]));
    let error = w.apply(&Op::Ack { held: held(1, 2), result }).unwrap_err();
    assert_eq!(error.code(), Code::FileFull);
    assert!(w.db.poisoned());
    assert!(w.apply(&Op::Claim(claim("q", 1, 2))).is_err());
    assert!(w.db.commit().is_err());
    w.db.rollback().unwrap();
    assert!(!w.db.poisoned());
    assert_eq!(dump(&mut w), before);
    w.ok(&Op::Ack { held: held(0, 1), result: None });
}

fn dump(w: &mut World) -> std::collections::BTreeMap<String, Vec<String>> {
    bucketq_tests::queue_db::dump(w.db.connection())
}
