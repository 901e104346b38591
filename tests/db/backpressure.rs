//! Backpressure and drain: enqueues to a queue that is full or closed.

use bucketq::error::{Code, Kind};
use bucketq::job::{DedupScope, Ended, New, State, When};
use bucketq::op::{Op, Outcome};
use bucketq::policy::{Changes, Overflow};
use bucketq::query::Filter;
use bucketq_tests::queue_db::{World, claim, enqueue, grouped, held, id, job, keyed};

use crate::policies::configure;

fn capped(most: u64, overflow: Overflow) -> World {
    let mut w = World::default();
    let changes = Changes { max_pending: Some(Some(most)), overflow: Some(overflow), ..Changes::default() };
    w.ok(&configure("q", changes));
    w
}

#[test]
fn a_full_queue_refuses_and_takes_again_when_a_job_is_claimed() {
    for (overflow, code) in
        [(Overflow::Raise, Code::QueueFull), (Overflow::Block { timeout_ms: 5 }, Code::Blocked)]
    {
        let mut w = capped(3, overflow);
        w.ok(&enqueue("q", [job(1), New { when: When::In(99), ..job(2) }]));
        let error = w.refused(&enqueue("q", [job(3), job(4)]));
        assert_eq!((error.code(), error.kind()), (code, Kind::Full), "all of them or none");
        w.ok(&enqueue("q", [job(3)]));
        assert_eq!(w.refused(&enqueue("q", [job(4)])).code(), code);
        assert_eq!(w.claim(claim("q", 1, 1)).len(), 1);
        w.ok(&enqueue("q", [job(4)]));
        // A returned job is let in, even above the cap.
        w.ok(&Op::Nack { held: held(1, 1), delay_ms: Some(0), error: None });
        assert_eq!(w.refused(&enqueue("q", [job(5)])).code(), code);
        let error = w.refused(&enqueue("q", (10..14).map(job)));
        assert!(error.message().contains("fewer"), "{error}");
    }
}

#[test]
fn what_is_there_already_needs_no_room() {
    let mut w = capped(2, Overflow::Raise);
    w.ok(&enqueue("q", [job(1), keyed(2, "k", DedupScope::Unfinished)]));
    let done = w.ok(&enqueue("q", [job(1), keyed(3, "k", DedupScope::Unfinished)]));
    let Outcome::Enqueued(done) = done else { panic!() };
    assert_eq!(
        done.iter().map(|d| (d.id, d.deduplicated)).collect::<Vec<_>>(),
        [(id(1), false), (id(2), true)]
    );
    let mut w = capped(2, Overflow::Raise);
    let twice =
        [keyed(1, "k", DedupScope::Unfinished), keyed(2, "k", DedupScope::Unfinished), job(3), job(3)];
    w.ok(&enqueue("q", twice));
    assert_eq!(w.queue("q").counts[&State::Ready], 2);
}

#[test]
fn the_oldest_jobs_make_room_and_are_told_and_counted() {
    let mut w = capped(3, Overflow::DropOldest);
    w.ok(&enqueue("q", [New { when: When::In(99), ..job(1) }, grouped(2, "g"), grouped(3, "g")]));
    let Outcome::Enqueued(done) = w.ok(&enqueue("q", [job(4), job(5)])) else { panic!() };
    assert_eq!((&done[0].dropped, &done[1].dropped), (&vec![id(1), id(2)], &vec![]));
    assert_eq!([1, 2].map(|n| w.state(n)), [State::Cancelled; 2]);
    assert_eq!(w.queue("q").dropped, 2);
    let attempt = w.detail(1).unwrap().attempts.remove(0);
    assert_eq!((attempt.ended, attempt.worker), (Ended::Dropped, None));
    assert_eq!(w.claim_numbers(claim("q", 9, 1)), [3, 4, 5], "the second of its group is free");
    w.ok(&enqueue("q", (6..9).map(job)));
    w.ok(&Op::Nack { held: held(3, 1), delay_ms: Some(0), error: None });
    let Outcome::Enqueued(done) = w.ok(&enqueue("q", [job(9)])) else { panic!() };
    assert_eq!(done[0].dropped, [id(3), id(6)], "one too many had come back");
    assert_eq!(w.refused(&enqueue("q", (20..24).map(job))).code(), Code::QueueFull);
}

#[test]
fn a_dropped_job_frees_its_dedup_key() {
    for scope in [DedupScope::Window(60_000), DedupScope::Unfinished, DedupScope::Policy] {
        let mut w = capped(2, Overflow::DropOldest);
        w.ok(&enqueue("q", [keyed(1, "k", scope), job(2)]));
        let Outcome::Enqueued(done) = w.ok(&enqueue("q", [job(3)])) else { panic!() };
        assert_eq!(done[0].dropped, [id(1)]);
        let Outcome::Enqueued(done) = w.ok(&enqueue("q", [keyed(4, "k", scope)])) else { panic!() };
        assert_eq!((done[0].id, done[0].deduplicated), (id(4), false), "{scope:?}");
        assert_eq!(done[0].dropped, [id(2)]);
        let Outcome::Enqueued(done) = w.ok(&enqueue("q", [keyed(5, "k", scope)])) else { panic!() };
        assert_eq!((done[0].id, done[0].deduplicated), (id(4), true), "the key is that of the new one");
        assert_eq!(w.queue("q").counts[&State::Ready], 2);
    }
}

#[test]
fn a_job_whose_key_is_freed_by_its_own_op_has_room_made_for_it_too() {
    let window = DedupScope::Window(60_000);
    let mut w = capped(2, Overflow::DropOldest);
    w.ok(&enqueue("q", [keyed(1, "k", window), job(2)]));
    let Outcome::Enqueued(done) = w.ok(&enqueue("q", [job(3), keyed(4, "k", window)])) else { panic!() };
    assert_eq!((&done[0].dropped[..], done[1].id), (&[id(1), id(2)][..], id(4)));
    assert_eq!(w.claim_numbers(claim("q", 9, 1)), [3, 4], "never more than the cap");
    let mut w = capped(2, Overflow::DropOldest);
    w.ok(&enqueue("q", [keyed(1, "k", window), job(2)]));
    // With the key free there are three of them, and the queue has room for two.
    assert_eq!(w.refused(&enqueue("q", [job(3), job(5), keyed(4, "k", window)])).code(), Code::QueueFull);
    assert_eq!(w.claim_numbers(claim("q", 9, 1)), [1, 2]);
}

#[test]
fn jobs_that_were_there_before_make_room_too() {
    let mut w = World::default();
    w.ok(&enqueue("q", [job(1), job(2)]));
    let drops =
        |overflow| Changes { max_pending: Some(Some(2)), overflow: Some(overflow), ..Changes::default() };
    w.ok(&configure("q", drops(Overflow::DropOldest)));
    w.ok(&enqueue("q", [job(3)]));
    assert_eq!(w.state(1), State::Cancelled);
    w.ok(&configure("q", drops(Overflow::Raise)));
    assert_eq!(w.refused(&enqueue("q", [job(4)])).code(), Code::QueueFull);
}

#[test]
fn new_lives_need_room_like_new_jobs() {
    let mut w = capped(2, Overflow::Raise);
    w.ok(&enqueue("q", [job(1), job(2)]));
    w.claim(claim("q", 2, 1));
    for n in [1, 2] {
        w.ok(&Op::Reject { held: held(n, 1), error: None });
    }
    w.ok(&enqueue("q", [job(3)]));
    let many = Op::RequeueMany { filter: Filter::default(), limit: 10 };
    assert_eq!(w.ok(&many), Outcome::RequeuedMany { count: 1, more: true });
    assert_eq!(w.refused(&many).code(), Code::QueueFull);
    assert_eq!(w.refused(&Op::Requeue { id: id(2), run: None }).code(), Code::QueueFull);
}

#[test]
fn a_draining_queue_gives_nothing_out_and_takes_nothing_in() {
    let mut w = World::default();
    w.ok(&enqueue("q", [job(1), job(2)]));
    w.claim(claim("q", 1, 1));
    assert_eq!(w.ok(&Op::Drain { queue: "q".into() }), Outcome::Draining { leased: 1 });
    assert!(w.queue("q").draining && !w.queue("q").paused);
    assert!(w.claim(claim("q", 9, 2)).is_empty());
    let error = w.refused(&enqueue("q", [job(3)]));
    assert_eq!((error.code(), error.kind()), (Code::Draining, Kind::Closed));
    w.ok(&enqueue("q", [job(1)]));
    w.ok(&Op::Ack { held: held(1, 1), result: None });
    assert_eq!(w.refused(&Op::Requeue { id: id(1), run: None }).code(), Code::Draining);
    w.db.forget();
    assert!(w.claim(claim("q", 9, 2)).is_empty());
    w.ok(&Op::Resume { queue: "q".into() });
    assert_eq!(w.claim_numbers(claim("q", 9, 2)), [2]);
    w.ok(&enqueue("q", [job(3)]));
}

#[test]
fn a_new_cap_marks_the_jobs_there_are_in_steps_and_comes_with_the_last() {
    let mut w = World::default();
    w.ok(&enqueue("q", (0..10).map(job)));
    w.ok(&enqueue("other", (20..24).map(job)));
    let leased = w.claim_numbers(claim("q", 2, 1));
    let changes =
        Changes { max_pending: Some(Some(9)), overflow: Some(Overflow::DropOldest), ..Changes::default() };
    let (mut after, mut steps) = (0, 0);
    loop {
        let changes = Box::new(changes.clone());
        match w.ok(&Op::ConfigureSome { queue: "q".into(), changes, after, raised: None, limit: 4 }) {
            Outcome::ConfiguredSome { after: upto, raised: None } => after = upto,
            Outcome::Configured(policy) => break assert_eq!(policy.max_pending, Some(9)),
            other => panic!("{other:?}"),
        }
        // Other commits come in between, and their jobs are counted.
        w.ok(&enqueue("q", [job(100 + steps)]));
        assert_eq!(w.claim_numbers(claim("q", 1, 2 + steps as u8)).len(), 1);
        steps += 1;
    }
    assert!(steps >= 3, "{steps}");
    // A job that was claimed meanwhile and came back can be dropped like any other.
    w.ok(&Op::Nack { held: held(leased[0], 1), delay_ms: Some(0), error: None });
    let pending = w.queue("q").counts[&State::Ready];
    let Outcome::Enqueued(done) = w.ok(&enqueue("q", (200..205).map(job))) else { panic!() };
    assert_eq!(done[0].dropped.len() as u64, pending + 5 - 9);
    assert_eq!(done[0].dropped[0], id(leased[0]));
    w.ok(&configure("q", Changes { overflow: Some(Overflow::Raise), ..Changes::default() }));
    w.ok(&configure("q", Changes { overflow: Some(Overflow::DropOldest), ..Changes::default() }));
    w.ok(&enqueue("q", [job(300)]));
}
