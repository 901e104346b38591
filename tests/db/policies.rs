//! The policy of a queue: valid values, refused values, and the effect on jobs without values of their own.

use bucketq::error::Code;
use bucketq::job::{Backoff, Dedup, DedupScope, New, Payload};
use bucketq::op::{Claim, Op, Outcome};
use bucketq::policy::{Changes, Overflow, Policy, Rate};
use bucketq::query::{Answer, Query};
use bucketq_tests::queue_db::{START_MS, World, claim, enqueue, grouped, held, id, job, keyed};

pub fn configure(queue: &str, changes: Changes) -> Op {
    Op::Configure { queue: queue.into(), changes: Box::new(changes) }
}

pub fn policy(w: &mut World, queue: &str) -> Policy {
    match w.query(&Query::Policy(queue.into())) {
        Answer::Policy(policy) => *policy,
        other => panic!("a policy is {other:?}"),
    }
}

#[test]
fn a_policy_changes_by_what_is_named_and_is_read_back() {
    let mut w = World::default();
    assert_eq!(policy(&mut w, "q"), Policy::default(), "of a queue that does not exist");
    let changes = Changes { max_attempts: Some(3), concurrency: Some(Some(7)), ..Changes::default() };
    let Outcome::Configured(now) = w.ok(&configure("q", changes)) else { panic!("another outcome") };
    assert_eq!((now.max_attempts, now.concurrency, now.lease_ms), (3, Some(7), Some(60_000)));
    w.ok(&configure("q", Changes { lease_ms: Some(None), concurrency: Some(None), ..Changes::default() }));
    for _ in 0..2 {
        let now = policy(&mut w, "q");
        assert_eq!((now.max_attempts, now.concurrency, now.lease_ms), (3, None, None));
        w.db.forget();
    }
    assert_eq!(policy(&mut w, "other"), Policy::default());
}

#[test]
fn changes_in_json_tell_nothing_from_named_as_nothing() {
    let read = |text: &str| serde_json::from_str::<Changes>(text);
    assert_eq!(read("{}").unwrap(), Changes::default());
    assert_eq!(read(r#"{"lease_ms":null}"#).unwrap(), Changes { lease_ms: Some(None), ..Changes::default() });
    let rate = Rate { count: 100, per_ms: 60_000, burst: 100 };
    let all = Changes { rate: Some(Some(rate)), overflow: Some(Overflow::DropOldest), ..Changes::default() };
    assert_eq!(read(r#"{"rate":"100/min","overflow":"drop_oldest"}"#).unwrap(), all);
    assert_eq!(read(&serde_json::to_string(&all).unwrap()).unwrap(), all);
    let error = read(r#"{"max_trials":3}"#).unwrap_err().to_string();
    assert!(error.contains("max_attempts"), "{error}");
    let error = read(r#"{"rate":"fast"}"#).unwrap_err().to_string();
    assert!(error.contains("100/min"), "{error}");
}

#[test]
fn rates_are_read_and_written_the_same() {
    for text in ["100/min", "5/s", "10/30s", "1/d", "3/250ms", "100/min burst 20", "1/h burst 5"] {
        assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
    }
    assert_eq!(" 7 / 2 s ".parse::<Rate>().unwrap(), Rate { count: 7, per_ms: 2_000, burst: 7 });
    for text in
        ["", "5", "0/s", "5/0s", "-1/s", "5/week", "5/s burst 0", "5/31d", "x/s", "5/99999999999999999999s"]
    {
        let error = text.parse::<Rate>().unwrap_err();
        assert_eq!(error.code(), Code::Argument, "{text}");
    }
}

#[test]
fn a_policy_that_makes_no_sense_is_refused_and_nothing_is_written() {
    let wrong: [fn(&mut Changes); 18] = [
        |c| c.max_attempts = Some(0),
        |c| c.backoff = Some(Backoff::List { delays_ms: vec![] }),
        |c| c.backoff = Some(Backoff::List { delays_ms: vec![5, -1] }),
        |c| c.backoff = Some(Backoff::Fixed { delay_ms: -1 }),
        |c| c.backoff = Some(Backoff::Linear { base_ms: 1, max_ms: -1 }),
        |c| c.backoff = Some(Backoff::Linear { base_ms: 2, max_ms: 1 }),
        |c| c.backoff = Some(Backoff::Exponential { base_ms: 2, max_ms: 1, jitter_percent: 0 }),
        |c| (c.archive, c.keep_ms, c.archive_ms) = (Some(true), Some(Some(5)), Some(Some(5))),
        |c| c.lease_ms = Some(Some(0)),
        |c| c.dedup_window_ms = Some(Some(0)),
        |c| c.max_pending = Some(Some(0)),
        |c| c.overflow = Some(Overflow::DropOldest),
        |c| (c.max_pending, c.overflow) = (Some(Some(1)), Some(Overflow::Block { timeout_ms: -1 })),
        |c| c.group_concurrency = Some(0),
        |c| c.concurrency = Some(Some(0)),
        |c| (c.group_concurrency, c.concurrency) = (Some(3), Some(Some(2))),
        |c| c.rate = Some(Some(Rate { count: 0, per_ms: 1, burst: 1 })),
        |c| c.dead_letter = Some(Some(String::new())),
    ];
    for (i, change) in wrong.into_iter().enumerate() {
        let mut w = World::default();
        let mut changes = Changes::default();
        change(&mut changes);
        let error = w.refused(&configure("q", changes));
        assert!(matches!(error.code(), Code::Policy | Code::Argument), "{i}: {error}");
    }
}

#[test]
fn what_would_harm_a_live_queue_is_refused_and_told_what_would_be_right() {
    let mut w = World::default();
    w.ok(&enqueue("q", (0..8).map(job)));
    let cap = |n| Changes { max_pending: Some(Some(n)), ..Changes::default() };
    let error = w.refused(&configure("q", cap(7)));
    assert!(error.message().contains("at least 8"), "{error}");
    w.ok(&configure("q", cap(8)));

    let together = |n| Changes { group_concurrency: Some(n), ..Changes::default() };
    w.ok(&configure("g", together(3)));
    w.ok(&enqueue("g", [grouped(20, "a")]));
    assert_eq!(w.refused(&configure("g", together(2))).code(), Code::Policy);
    w.claim(claim("g", 1, 1));
    w.ok(&Op::Ack { held: held(20, 1), result: None });
    w.ok(&configure("g", together(1)));
}

#[test]
fn dead_letters_that_go_round_are_refused() {
    let mut w = World::default();
    let to = |name: &str| Changes { dead_letter: Some(Some(name.into())), ..Changes::default() };
    assert_eq!(w.refused(&configure("a", to("a"))).code(), Code::Policy);
    w.ok(&configure("a", to("b")));
    w.ok(&configure("b", to("c")));
    let error = w.refused(&configure("c", to("a")));
    assert!(error.message().contains("c -> a -> b -> c"), "{error}");
}

#[test]
fn a_policy_of_a_newer_library_is_too_new_and_not_ignored() {
    let mut w = World::default();
    w.ok(&enqueue("q", [job(1)]));
    w.db.connection().execute_batch(r#"INSERT INTO policies VALUES (1, '{"colour":"red"}')"#).unwrap();
    w.db.forget();
    w.db.begin().unwrap();
    assert_eq!(w.apply(&Op::Claim(claim("q", 1, 1))).unwrap_err().code(), Code::TooNew);
    w.db.rollback().unwrap();
}

#[test]
fn an_atomic_that_fails_takes_its_policies_back() {
    let mut w = World::default();
    w.ok(&enqueue("q", [job(1)]));
    let changes = Changes { max_attempts: Some(3), ..Changes::default() };
    let gone = Op::Cancel { id: id(99), leased: false };
    w.refused(&Op::Atomic(vec![configure("q", changes.clone()), configure("new", changes), gone]));
    assert_eq!(policy(&mut w, "q"), Policy::default());
    assert_eq!(policy(&mut w, "new"), Policy::default());
    w.ok(&enqueue("q", [job(2)]));
    assert_eq!(w.job(2).max_attempts, 10);
}

#[test]
fn a_job_that_says_nothing_gets_what_the_policy_says_at_its_enqueue() {
    let mut w = World::default();
    let backoff = Backoff::Fixed { delay_ms: 500 };
    let changes = Changes { max_attempts: Some(3), backoff: Some(backoff.clone()), ..Changes::default() };
    w.ok(&configure("q", changes));
    w.ok(&enqueue("q", [job(1), New { max_attempts: Some(5), backoff: Some(Backoff::None), ..job(2) }]));
    w.ok(&configure("q", Changes { max_attempts: Some(9), ..Changes::default() }));
    assert_eq!((w.job(1).max_attempts, w.job(1).backoff), (3, backoff));
    assert_eq!((w.job(2).max_attempts, w.job(2).backoff), (5, Backoff::None));
    w.claim(claim("q", 1, 1));
    w.ok(&Op::Nack { held: held(1, 1), delay_ms: None, error: None });
    assert_eq!(w.job(1).run_at_ms, START_MS + 500);
}

#[test]
fn back_offs_wait_as_they_say() {
    let delays = |backoff: &Backoff| (1..=5).map(|n| backoff.delay_ms(n, 0)).collect::<Vec<_>>();
    assert_eq!(delays(&Backoff::None), [0; 5]);
    assert_eq!(delays(&Backoff::Fixed { delay_ms: 7 }), [7; 5]);
    assert_eq!(delays(&Backoff::Linear { base_ms: 10, max_ms: 35 }), [10, 20, 30, 35, 35]);
    assert_eq!(delays(&Backoff::List { delays_ms: vec![1, 5, 2] }), [1, 5, 2, 2, 2]);
    let exponential = Backoff::Exponential { base_ms: 100, max_ms: 900, jitter_percent: 50 };
    assert_eq!(delays(&exponential), [50, 100, 200, 400, 450], "without luck");
    let far = u64::MAX;
    assert!((1..60).all(|n| (50..=900).contains(&exponential.delay_ms(n, far))));
}

#[test]
fn a_claim_that_says_no_lease_holds_its_jobs_as_long_as_the_policy_of_each_queue_says() {
    let mut w = World::default();
    w.ok(&configure("long", Changes { lease_ms: Some(Some(90_000)), ..Changes::default() }));
    w.ok(&enqueue("long", [job(1)]));
    w.ok(&enqueue("other", [job(2)]));
    let any = Claim { queues: bucketq::Queues::Any, lease_ms: None, ..claim("q", 9, 1) };
    let ends: Vec<_> = w.claim(any).iter().map(|c| c.lease.expires_ms - START_MS).collect();
    assert_eq!(ends, [90_000, 60_000]);
}

#[test]
fn a_key_counts_for_the_window_of_the_policy_to_the_millisecond() {
    for (window, last) in [(None, 3_600_000), (Some(500), 500)] {
        let mut w = World::default();
        if let Some(ms) = window {
            w.ok(&configure("q", Changes { dedup_window_ms: Some(Some(ms)), ..Changes::default() }));
        }
        w.ok(&enqueue("q", [keyed(1, "k", DedupScope::Policy)]));
        w.wait(last - 1);
        let Outcome::Enqueued(done) = w.ok(&enqueue("q", [keyed(2, "k", DedupScope::Policy)])) else {
            panic!()
        };
        assert!(done[0].deduplicated && done[0].id == id(1), "just before its end");
        w.wait(1);
        let Outcome::Enqueued(done) = w.ok(&enqueue("q", [keyed(3, "k", DedupScope::Policy)])) else {
            panic!()
        };
        assert!(!done[0].deduplicated && done[0].id == id(3), "at its end");
    }
}

#[test]
fn a_policy_without_a_window_lets_a_key_count_while_the_job_is_unfinished() {
    let mut w = World::default();
    w.ok(&configure("q", Changes { dedup_window_ms: Some(None), ..Changes::default() }));
    w.ok(&enqueue("q", [keyed(1, "k", DedupScope::Policy)]));
    w.wait(1_000_000_000);
    w.ok(&enqueue("q", [keyed(2, "k", DedupScope::Policy)]));
    assert!(w.detail(2).is_none());
    w.claim(claim("q", 1, 1));
    w.ok(&Op::Ack { held: held(1, 1), result: None });
    w.ok(&enqueue("q", [keyed(3, "k", DedupScope::Policy)]));
    assert!(w.detail(3).is_some());
}

#[test]
fn the_same_content_is_enqueued_once_where_the_policy_says_so() {
    let mut w = World::default();
    let json = |n, text: &str| New {
        payload: Payload { bytes: text.to_owned().into(), content_type: "application/json".into() },
        ..job(n)
    };
    w.ok(&enqueue("q", [json(1, "{}"), json(2, "{}")]));
    assert!(w.detail(2).is_some(), "not unless asked");
    w.ok(&configure("c", Changes { dedup_content: Some(true), ..Changes::default() }));
    w.ok(&enqueue("c", [json(11, r#"{"to":"ada","n":1}"#)]));
    w.ok(&enqueue("c", [json(12, r#" { "n": 1.0, "to" : "ada" } "#), json(13, r#"{"to":"bob","n":1}"#)]));
    assert!(w.detail(12).is_none(), "spaces and order do not matter");
    assert!(w.detail(13).is_some());
    w.ok(&enqueue(
        "c",
        [New { dedup: keyed(1, "mine", DedupScope::Policy).dedup, ..json(14, r#"{"to":"ada","n":1}"#) }],
    ));
    assert!(w.detail(14).is_some(), "a key of its own goes before");
    w.wait(3_600_000);
    w.ok(&enqueue("c", [json(15, r#"{"to":"ada","n":1}"#)]));
    assert!(w.detail(15).is_some(), "the window is over");
}

#[test]
fn the_key_of_a_content_is_the_sha_256_of_its_canonical_form() {
    let key = |content_type: &str, text: &str| {
        let payload = Payload { bytes: text.to_owned().into(), content_type: content_type.into() };
        Dedup::of_content(&payload, DedupScope::Policy).key
    };
    // printf 'application/json\0{"a":[1,true,null],"b":"x"}' | sha256sum
    let known = "sha256:8795138883199a02d54c074ced8d854466aecff233436bdd166ee18f2347a172";
    let json = |text| key("application/json", text);
    assert_eq!(json(r#"{"a":[1,true,null],"b":"x"}"#), known);
    assert_eq!(known, json("{\"b\": \"x\",\n \"a\": [1.0, true, null]}"));
    assert_eq!(json(r#""\u0061""#), json(r#""a""#));
    assert_ne!(json("1.5"), json("1"));
    assert_ne!(json("[1,2]"), json("[2,1]"));
    assert_ne!(json("[]"), json("{}"));
    assert_ne!(key("text/plain", "a b"), key("text/plain", "a  b"), "other texts are bytes");
    assert_ne!(key("text/plain", "{}"), json("{}"), "of another type");
    assert_eq!(key("application/json; charset=utf-8", "{}"), json("{}"));
    assert_ne!(json("{not json"), json("{not  json"), "what is no JSON is bytes");
    assert_eq!(key("application/vnd.x+json", "{ }"), key("application/vnd.x+json", "{}"));
}

/// The JSON of ops only gains fields: ops of older callers keep their meaning.
#[test]
fn ops_of_before_mean_what_they_meant() {
    let id = id(1);
    let enqueue: Op = serde_json::from_value(serde_json::json!({ "enqueue": { "queue": "q", "jobs": [{
        "id": id, "payload": { "bytes": [120], "content_type": "text/plain" }, "priority": 1, "when": { "in": 5 },
        "max_attempts": 4, "backoff": { "kind": "exponential", "base_ms": 1, "max_ms": 2, "jitter_percent": 0 },
        "dedup": { "key": "k", "scope": { "window": 9 } }, "group": null, "headers": {}
    }] } }))
    .unwrap();
    let mut w = World::default();
    w.ok(&enqueue);
    let backoff = Backoff::Exponential { base_ms: 1, max_ms: 2, jitter_percent: 0 };
    assert_eq!((w.job(1).max_attempts, w.job(1).backoff), (4, backoff));
    let claim: Op = serde_json::from_value(serde_json::json!({ "claim": {
        "queues": { "named": ["q"] }, "max": 1, "lease_ms": 5, "worker": "w", "token": vec![1; 16]
    } }))
    .unwrap();
    w.wait(5);
    let Outcome::Claimed(got) = w.ok(&claim) else { panic!("another outcome") };
    assert_eq!(got[0].lease.expires_ms, w.now_ms + 5);
    let told: Outcome = serde_json::from_value(serde_json::json!({
        "enqueued": [{ "id": id, "deduplicated": false, "commit_seq": 1 }]
    }))
    .unwrap();
    assert!(matches!(told, Outcome::Enqueued(done) if done[0].dropped.is_empty()));
    let filter = serde_json::json!({ "queue": null, "states": [], "group": null, "expired": false });
    let filter: bucketq::Filter = serde_json::from_value(filter).unwrap();
    assert_eq!(filter, bucketq::Filter::default());
}
