//! Groups: one at a time, in the order of enqueues.

use bucketq::job::{New, State, When};
use bucketq::op::{Op, Queues};
use bucketq::policy::Changes;
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

/// A queue whose claims get up to three jobs of a group.
fn batches(jobs: impl IntoIterator<Item = New>) -> World {
    let mut w = World::default();
    let changes = Box::new(Changes { group_batch: Some(3), ..Changes::default() });
    w.ok(&Op::Configure { queue: "q".into(), changes });
    w.ok(&enqueue("q", jobs));
    w
}

fn ack(n: u32, token: u8) -> Op {
    Op::Ack { held: held(n, token), result: None }
}

#[test]
fn a_claim_gets_several_jobs_of_a_group_in_order_and_the_group_waits_for_all_of_them() {
    let mut w = batches((1..=5).map(|n| grouped(n, "g")));
    assert_eq!(w.claim_numbers(claim("q", 10, 1)), [1, 2, 3], "no more than the policy says");
    assert!(w.claim(claim("q", 10, 2)).is_empty());
    w.ok(&ack(2, 1));
    w.ok(&ack(1, 1));
    assert!(w.claim(claim("q", 10, 2)).is_empty(), "one of them is still leased");
    w.ok(&ack(3, 1));
    assert_eq!(w.claim_numbers(claim("q", 10, 2)), [4, 5]);
}

#[test]
fn a_job_that_comes_back_from_a_batch_waits_for_the_others_and_is_then_first() {
    let back: [fn(&mut World); 3] = [
        |w| drop(w.ok(&Op::Nack { held: held(1, 1), delay_ms: Some(0), error: None })),
        |w| drop(w.ok(&Op::Release { held: held(1, 1) })),
        |w| {
            // The leases of the others are extended, and this one runs out.
            for n in [2, 3] {
                w.ok(&Op::Extend { held: held(n, 1), lease_ms: 600_000, at_least: false });
            }
            w.wait(60_000);
            assert!(w.claim(claim("q", 10, 2)).is_empty());
        },
    ];
    for back in back {
        let mut w = batches((1..=4).map(|n| grouped(n, "g")));
        w.claim(claim("q", 10, 1));
        back(&mut w);
        assert!(w.claim(claim("q", 10, 2)).is_empty());
        w.ok(&ack(2, 1));
        assert!(w.claim(claim("q", 10, 2)).is_empty());
        w.ok(&ack(3, 1));
        assert_eq!(w.claim_numbers(claim("q", 10, 2)), [1, 4]);
    }
}

#[test]
fn a_batch_whose_leases_run_out_together_comes_back_together() {
    let mut w = batches((1..=4).map(|n| grouped(n, "g")));
    w.claim(claim("q", 10, 1));
    w.wait(60_000);
    assert_eq!(w.claim_numbers(claim("q", 1, 2)), [1], "also for a claim of one job");
    w.ok(&ack(1, 2));
    assert_eq!(w.claim_numbers(claim("q", 10, 2)), [2, 3, 4]);
}

#[test]
fn a_batch_ends_before_a_job_that_has_to_wait() {
    let mut w = batches([
        grouped(1, "g"),
        New { when: When::In(5), ..grouped(2, "g") },
        New { when: When::In(500), ..grouped(3, "g") },
        grouped(4, "g"),
    ]);
    assert_eq!(w.claim_numbers(claim("q", 10, 1)), [1]);
    w.ok(&Op::Release { held: held(1, 1) });
    w.wait(10);
    assert_eq!(w.claim_numbers(claim("q", 10, 2)), [1, 2], "the second is due, the third is not");
    w.ok(&ack(1, 2));
    w.ok(&ack(2, 2));
    assert!(w.claim(claim("q", 10, 3)).is_empty());
    w.wait(500);
    assert_eq!(w.claim_numbers(claim("q", 10, 3)), [3, 4]);
}

#[test]
fn the_heads_of_all_groups_come_before_the_jobs_behind_them() {
    let mut w = batches([grouped(1, "g"), grouped(2, "g"), grouped(3, "h"), grouped(4, "h"), job(5)]);
    assert_eq!(w.claim_numbers(claim("q", 4, 1)), [1, 3, 5, 2]);
    assert!(w.claim(claim("q", 4, 2)).is_empty());
    w.ok(&ack(3, 1));
    assert_eq!(w.claim_numbers(claim("q", 4, 2)), [4]);
}

#[test]
fn a_batch_keeps_to_the_limits_of_its_queue() {
    let mut w = batches((1..=4).map(|n| grouped(n, "g")));
    let changes = Box::new(Changes { concurrency: Some(Some(2)), ..Changes::default() });
    w.ok(&Op::Configure { queue: "q".into(), changes });
    assert_eq!(w.claim_numbers(claim("q", 10, 1)), [1, 2]);
}

#[test]
fn a_smaller_batch_is_refused_while_jobs_of_groups_are_in_the_queue() {
    let mut w = batches([grouped(1, "g")]);
    let one = Op::Configure {
        queue: "q".into(),
        changes: Box::new(Changes { group_batch: Some(1), ..Changes::default() }),
    };
    let error = w.refused(&one);
    assert!(error.message().contains("group_batch of \"q\" can be lowered from 3 to 1 only"), "{error}");
    w.claim(claim("q", 1, 1));
    w.ok(&ack(1, 1));
    w.ok(&one);
    let both = Changes { group_batch: Some(2), group_concurrency: Some(2), ..Changes::default() };
    let error = w.refused(&Op::Configure { queue: "q".into(), changes: Box::new(both) });
    assert!(error.message().contains("group_batch 2 needs group_concurrency 1"), "{error}");
}

/// A dead-letter queue and a deletion take members out of the middle and the front of a batch.
#[test]
fn a_member_that_leaves_a_batch_in_another_way_lets_the_group_forward_with_the_last_one() {
    let mut w = batches((1..=4).map(|n| grouped(n, "g")));
    w.claim(claim("q", 10, 1));
    w.ok(&Op::Reject { held: held(1, 1), error: None });
    w.ok(&Op::Delete { id: id(2), leased: true });
    assert!(w.claim(claim("q", 10, 2)).is_empty());
    w.ok(&Op::AckLate { id: id(3), run: 0, result: None });
    assert_eq!(w.claim_numbers(claim("q", 10, 2)), [4]);
}
