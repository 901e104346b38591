//! Groups: one at a time, in the order of enqueues.

use bucketq::job::{New, State, When};
use bucketq::op::{Op, Queues};
use bucketq_tests::queue_db::{START_MS, World, claim, enqueue, grouped, held, id, job};

fn three() -> World {
    let mut w = World::default();
    w.ok(&enqueue("q", [grouped(1, "g"), grouped(2, "g"), grouped(3, "g")]));
    w
}

#[test]
fn only_the_head_can_be_claimed_and_the_next_one_after_it() {
    let mut w = three();
    for n in 1..=3 {
        assert_eq!(w.claim_numbers(claim("q", 10, 1)), [n]);
        assert!(w.claim(claim("q", 10, 2)).is_empty());
        w.ok(&Op::Ack { held: held(n, 1), result: None });
    }
}

#[test]
fn groups_do_not_wait_for_each_other_or_across_queues() {
    let mut w = three();
    w.ok(&enqueue("q", [grouped(4, "h"), job(5)]));
    w.ok(&enqueue("p", [grouped(6, "g")]));
    assert_eq!(
        w.claim_numbers(bucketq::op::Claim { queues: Queues::Any, ..claim("q", 10, 1) }),
        [1, 4, 5, 6]
    );
}

#[test]
fn priority_orders_heads_and_never_members() {
    let mut w = World::default();
    let at = |n, priority, g| New { priority, ..grouped(n, g) };
    w.ok(&enqueue("q", [at(1, 5, "g"), at(2, -5, "g"), at(3, 1, "h"), New { priority: 3, ..job(4) }]));
    assert_eq!(w.claim_numbers(claim("q", 10, 1)), [3, 4, 1]);
    w.ok(&Op::Ack { held: held(1, 1), result: None });
    assert_eq!(w.claim_numbers(claim("q", 10, 1)), [2]);
}

#[test]
fn a_head_that_waits_holds_back_those_behind_it() {
    let mut w = three();
    w.claim(claim("q", 1, 1));
    w.ok(&Op::Nack { held: held(1, 1), delay_ms: Some(100), error: None });
    assert!(w.claim(claim("q", 10, 2)).is_empty());
    w.wait(100);
    assert_eq!(w.claim_numbers(claim("q", 10, 1)), [1]);
    w.ok(&Op::Release { held: held(1, 1) });
    assert_eq!(w.claim_numbers(claim("q", 10, 1)), [1], "given back, it is still the first");
}

#[test]
fn every_way_of_leaving_lets_the_next_one_forward() {
    let leave: [fn(&mut World); 6] = [
        |w| drop(w.ok(&Op::Ack { held: held(1, 1), result: None })),
        |w| drop(w.ok(&Op::Reject { held: held(1, 1), error: None })),
        |w| drop(w.ok(&Op::Cancel { id: id(1), leased: true })),
        |w| drop(w.ok(&Op::Purge { queue: "q".into(), states: vec![State::Leased] })),
        |w| {
            for _ in 1..10 {
                w.ok(&Op::Nack { held: held(1, 1), delay_ms: Some(0), error: None });
                w.claim(claim("q", 1, 1));
            }
            w.ok(&Op::Nack { held: held(1, 1), delay_ms: Some(0), error: None });
        },
        |w| {
            for _ in 1..10 {
                w.wait(60_000);
                w.claim(claim("q", 1, 1));
            }
            w.wait(60_000);
        },
    ];
    for leave in leave {
        let mut w = three();
        w.claim(claim("q", 1, 1));
        w.wait(3);
        leave(&mut w);
        assert_eq!(w.claim_numbers(claim("q", 10, 2)), [2]);
    }
}

#[test]
fn a_member_that_leaves_from_the_middle_changes_nothing_for_the_others() {
    let mut w = three();
    w.ok(&Op::Cancel { id: id(2), leased: false });
    assert_eq!(w.claim_numbers(claim("q", 10, 1)), [1]);
    w.ok(&Op::Ack { held: held(1, 1), result: None });
    assert_eq!(w.claim_numbers(claim("q", 10, 1)), [3]);
}

#[test]
fn a_purged_head_and_second_let_the_third_forward() {
    let mut w = World::default();
    w.ok(&enqueue("q", [grouped(1, "g"), grouped(2, "g"), New { when: When::In(5), ..grouped(3, "g") }]));
    w.ok(&Op::Purge { queue: "q".into(), states: vec![State::Ready] });
    assert!(w.claim(claim("q", 10, 1)).is_empty());
    assert_eq!(w.db.next_due_ms(&Queues::Any).unwrap(), Some(START_MS + 5));
    w.wait(5);
    assert_eq!(w.claim_numbers(claim("q", 10, 1)), [3]);
}

#[test]
fn a_held_job_whose_time_has_come_is_claimable_once_it_is_first() {
    let mut w = World::default();
    w.ok(&enqueue("q", [grouped(1, "g"), New { when: When::In(5), ..grouped(2, "g") }]));
    w.claim(claim("q", 1, 1));
    w.wait(10);
    assert_eq!(w.queue("q").due, 1);
    assert_eq!(w.queue("q").oldest_ready_ms, None, "it has its time but not its turn");
    assert_eq!(w.db.next_due_ms(&Queues::Any).unwrap(), Some(START_MS + 60_000));
    w.ok(&Op::Ack { held: held(1, 1), result: None });
    assert_eq!(w.db.next_due_ms(&Queues::Any).unwrap(), Some(w.now_ms));
    assert_eq!(w.claim_numbers(claim("q", 1, 1)), [2]);
}

#[test]
fn a_claim_that_buries_a_head_finds_the_due_job_behind_it() {
    let mut w = World::default();
    w.ok(&enqueue(
        "q",
        [New { max_attempts: Some(1), ..grouped(1, "g") }, New { when: When::In(5), ..grouped(2, "g") }],
    ));
    w.claim(claim("q", 1, 1));
    w.wait(60_000);
    assert_eq!(w.claim_numbers(claim("q", 1, 2)), [2]);
}

#[test]
fn a_requeued_member_goes_to_the_end() {
    let mut w = three();
    w.claim(claim("q", 1, 1));
    w.ok(&Op::Reject { held: held(1, 1), error: None });
    w.ok(&Op::Requeue { id: id(1), run: None });
    for n in [2, 3, 1] {
        assert_eq!(w.claim_numbers(claim("q", 10, 1)), [n]);
        w.ok(&Op::Ack { held: held(n, 1), result: None });
    }
}
