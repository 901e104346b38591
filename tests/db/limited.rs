//! Turns, caps and rates: which job is claimed when, and how many at a time.

use bucketq::job::{New, State};
use bucketq::op::{Claim, Op, Outcome, Queues};
use bucketq::policy::Changes;
use bucketq_tests::queue_db::{START_MS, World, claim, enqueue, grouped, held, job};

use crate::policies::configure;

fn ack(w: &mut World, n: u32) {
    w.ok(&Op::Ack { held: held(n, 1), result: None });
}

/// Claim and ack one job after another.
fn work(w: &mut World, times: usize) -> Vec<u32> {
    let mut done = Vec::new();
    for _ in 0..times {
        let got = w.claim_numbers(claim("q", 1, 1));
        done.extend(&got);
        for n in got {
            ack(w, n);
        }
    }
    done
}

#[test]
fn groups_take_turns_so_that_many_jobs_of_one_do_not_starve_another() {
    let mut w = World::default();
    w.ok(&enqueue("q", (0..50).map(|n| grouped(n, "many"))));
    w.ok(&enqueue("q", (100..103).map(|n| grouped(n, "few"))));
    assert_eq!(work(&mut w, 8), [0, 100, 1, 101, 2, 102, 3, 4]);
    // A later group waits for one round and no more; a group that just had its turn does not get another one first.
    w.ok(&enqueue("q", [grouped(200, "late")]));
    assert_eq!(work(&mut w, 2), [5, 200]);
    w.ok(&enqueue("q", [grouped(201, "late"), grouped(202, "late")]));
    assert_eq!(work(&mut w, 4), [6, 201, 7, 202]);
}

#[test]
fn a_stream_of_jobs_without_groups_does_not_starve_groups() {
    let mut w = World::default();
    w.ok(&enqueue("q", [grouped(0, "g"), grouped(1, "g"), grouped(2, "g")]));
    let mut order = Vec::new();
    for n in 10..40 {
        w.ok(&enqueue("q", [job(n), job(n + 100)]));
        order.extend(work(&mut w, 1));
    }
    assert!([0, 1, 2].iter().all(|n| order.contains(n)), "{order:?}");
}

#[test]
fn jobs_of_a_queue_that_has_no_groups_go_by_age() {
    let mut w = World::default();
    w.ok(&enqueue("q", (0..5).map(job)));
    assert_eq!(work(&mut w, 2), [0, 1]);
    w.ok(&enqueue("q", [job(9)]));
    assert_eq!(work(&mut w, 9), [2, 3, 4, 9]);
}

#[test]
fn priority_goes_before_turns() {
    let mut w = World::default();
    w.ok(&enqueue("q", [grouped(0, "a"), grouped(1, "a"), New { priority: 1, ..grouped(2, "b") }]));
    assert_eq!(work(&mut w, 3), [0, 1, 2]);
}

#[test]
fn as_many_of_a_group_are_leased_together_as_the_policy_says() {
    let mut w = World::default();
    w.ok(&configure("q", Changes { group_concurrency: Some(2), ..Changes::default() }));
    w.ok(&enqueue("q", (0..5).map(|n| grouped(n, "g"))));
    assert_eq!(w.claim_numbers(claim("q", 9, 1)), [0, 1]);
    ack(&mut w, 1);
    assert_eq!(w.claim_numbers(claim("q", 9, 1)), [2], "in order, and two at a time");
    w.ok(&configure("q", Changes { group_concurrency: Some(4), ..Changes::default() }));
    assert_eq!(w.claim_numbers(claim("q", 9, 1)), [3, 4], "more from now on");
}

#[test]
fn no_more_jobs_of_a_queue_are_leased_than_its_policy_allows() {
    let mut w = World::default();
    w.ok(&configure("q", Changes { concurrency: Some(Some(3)), ..Changes::default() }));
    w.ok(&enqueue("q", (0..9).map(job)));
    w.ok(&enqueue("p", [job(20)]));
    assert_eq!(w.claim_numbers(claim("q", 2, 1)), [0, 1]);
    let any = |t| Claim { queues: Queues::Any, ..claim("q", 9, t) };
    assert_eq!(w.claim_numbers(any(1)), [2, 20], "another queue is not limited by it");
    assert!(w.claim(any(1)).is_empty());
    ack(&mut w, 1);
    assert_eq!(w.claim_numbers(any(1)), [3]);
    w.ok(&Op::Nack { held: held(0, 1), delay_ms: Some(0), error: None });
    assert_eq!(w.claim_numbers(any(2)), [0]);
    w.wait(60_000);
    assert_eq!(w.claim_numbers(any(3)), [0, 2, 3, 20], "what has run out is no longer leased");
    assert_eq!(w.queue("q").counts[&State::Leased], 3);
    // After it is lowered, present holders may finish.
    w.ok(&configure("q", Changes { concurrency: Some(Some(1)), ..Changes::default() }));
    for n in [0, 2] {
        w.ok(&Op::Ack { held: held(n, 3), result: None });
        assert!(w.claim(claim("q", 9, 4)).is_empty());
    }
    w.ok(&Op::Ack { held: held(3, 3), result: None });
    assert_eq!(w.claim_numbers(claim("q", 9, 4)), [4]);
}

#[test]
fn claims_keep_to_the_rate_and_wait_for_it() {
    let mut w = World::default();
    w.ok(&configure(
        "q",
        Changes { rate: Some(Some("60/min burst 3".parse().unwrap())), ..Changes::default() },
    ));
    w.ok(&enqueue("q", (0..100).map(job)));
    let due = |w: &mut World| w.db.next_due_ms(&Queues::Any).unwrap().map(|ms| ms - START_MS);
    assert_eq!(w.claim(claim("q", 9, 1)).len(), 3, "the burst");
    assert!(w.claim(claim("q", 9, 2)).is_empty());
    assert_eq!(due(&mut w), Some(1_000), "a waiting claim wakes for the next one");
    w.wait(999);
    assert!(w.claim(claim("q", 9, 2)).is_empty());
    w.wait(1);
    assert_eq!(w.claim(claim("q", 9, 3)).len(), 1);
    w.db.forget();
    assert!(w.claim(claim("q", 9, 4)).is_empty(), "it is kept in the file");
    w.wait(2_500);
    assert_eq!(w.claim(claim("q", 9, 5)).len(), 2);
    w.wait(499);
    assert!(w.claim(claim("q", 9, 6)).is_empty());
    w.wait(1);
    assert_eq!(w.claim(claim("q", 9, 6)).len(), 1);
    w.wait(3_600_000);
    assert_eq!(w.claim(claim("q", 90, 7)).len(), 3, "a rest saves up the burst and no more");
}

#[test]
fn a_rate_that_does_not_divide_evenly_is_never_passed() {
    let mut w = World::default();
    w.ok(&configure("q", Changes { rate: Some(Some("7/s burst 1".parse().unwrap())), ..Changes::default() }));
    w.ok(&enqueue("q", (0..200).map(job)));
    let (mut claimed, mut times) = (0, Vec::new());
    while claimed < 100 {
        let n = w.claim(claim("q", 9, 1)).len();
        claimed += n;
        times.extend(std::iter::repeat_n(w.now_ms, n));
        w.wait(1);
    }
    for window in times.windows(8) {
        assert!(window[7] - window[0] >= 1_000, "eight within {} ms", window[7] - window[0]);
    }
    assert!(times[99] - times[0] <= 99 * 1_000 / 7 + 100, "and reached");
}

/// Raises the `group_concurrency` of "q" in steps; runs `between` after each one.
fn raise(w: &mut World, most: u32, mut between: impl FnMut(&mut World, u32)) -> u32 {
    let (mut after, mut raised, mut steps) = (0, None, 0);
    loop {
        let changes = Box::new(Changes { group_concurrency: Some(most), ..Changes::default() });
        match w.ok(&Op::ConfigureSome { queue: "q".into(), changes, after, raised, limit: 2 }) {
            Outcome::ConfiguredSome { after: next, raised: upto } => (after, raised) = (next, upto),
            Outcome::Configured(policy) => break assert_eq!(policy.group_concurrency, most),
            other => panic!("{other:?}"),
        }
        steps += 1;
        between(w, steps);
    }
    steps
}

#[test]
fn more_jobs_of_many_groups_are_unblocked_in_steps() {
    let mut w = World::default();
    w.ok(&enqueue("q", (0..20).map(|n| grouped(n, &(n % 5).to_string()))));
    assert_eq!(w.claim_numbers(claim("q", 20, 1)), [0, 1, 2, 3, 4]);
    let mut seen = vec![];
    let steps = raise(&mut w, 3, |w, _| seen.push(w.claim_numbers(claim("q", 20, 2)).len()));
    assert_eq!(steps, 3, "the policy, then two groups in each step but the last");
    assert_eq!(seen, [0, 4, 4]);
    assert_eq!(w.claim_numbers(claim("q", 20, 3)).len(), 2);
}

#[test]
fn groups_keep_their_order_while_more_of_their_jobs_are_unblocked() {
    let mut w = World::default();
    let group = |w: &mut World, name: &str, numbers: &[u32]| {
        w.ok(&enqueue("q", numbers.iter().map(|n| grouped(*n, name))));
    };
    for (at, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
        let at = at as u32 * 10;
        group(&mut w, name, &[at, at + 1]);
    }
    raise(&mut w, 9, |w, step| {
        if step == 1 {
            // The policy allows nine, and the second job of each group is still blocked.
            group(w, "d", &[38]);
            assert_eq!(w.claim_numbers(claim("q", 20, 1)), [0, 10, 20, 30]);
            // A job that leaves lets all those through that the new policy allows.
            w.ok(&Op::Ack { held: held(20, 1), result: None });
            assert_eq!(w.claim_numbers(claim("q", 20, 2)), [21]);
        }
        if step == 2 {
            group(w, "a", &[9]);
            assert_eq!(w.claim_numbers(claim("q", 20, 3)), [1, 11, 9]);
        }
    });
    assert_eq!(w.claim_numbers(claim("q", 20, 4)), [31, 38]);
}
