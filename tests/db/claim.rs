//! Claim: which jobs, in which order, and what happens to expired leases.

use bucketq::job::{New, State, When};
use bucketq::op::{Claim, Op, Queues};
use bucketq_tests::queue_db::{START_MS, World, claim, dump, enqueue, grouped, held, id, job, number, token};

fn any(max: u32, t: u8) -> Claim {
    Claim { queues: Queues::Any, ..claim("q", max, t) }
}

fn with_priority(n: u32, priority: i32) -> New {
    New { priority, ..job(n) }
}

#[test]
fn a_claimed_job_is_leased_to_its_holder() {
    let mut w = World::default();
    w.ok(&enqueue("q", [job(1)]));
    w.wait(5);
    let got = w.claim(claim("q", 1, 9)).remove(0);
    assert_eq!(got.payload, job(1).payload);
    assert_eq!((got.lease.token, got.lease.expires_ms, got.lease.fence), (token(9), START_MS + 60_005, 2));
    assert_eq!(got.job, w.job(1), "the answer shows the job as it is stored");
    let j = got.job;
    assert_eq!(
        (j.state, j.attempt, j.claimed_ms, j.expires_ms, j.fence, j.worker.as_deref()),
        (State::Leased, 1, Some(START_MS + 5), Some(START_MS + 60_005), Some(2), Some("worker"))
    );
    assert!(w.claim(claim("q", 1, 8)).is_empty(), "a job has at most one live lease (G4)");
}

#[test]
fn a_nameless_worker_is_nobody() {
    let mut w = World::default();
    w.ok(&enqueue("q", [job(1)]));
    assert_eq!(w.claim(Claim { worker: String::new(), ..claim("q", 1, 1) })[0].job.worker, None);
    assert_eq!(w.job(1).worker, None);
    assert_eq!(w.job(1).fence, Some(2));
}

#[test]
fn lower_priorities_come_first_and_then_age() {
    let mut w = World::default();
    w.ok(&enqueue(
        "q",
        [(1, 5), (2, -1), (3, 5), (4, i32::MIN), (5, -1), (6, i32::MAX)].map(|(n, p)| with_priority(n, p)),
    ));
    assert_eq!(w.claim_numbers(claim("q", 3, 1)), [4, 2, 5]);
    assert_eq!(w.claim_numbers(claim("q", 10, 2)), [1, 3, 6]);
}

#[test]
fn several_queues_are_one_line_by_priority_and_age() {
    let mut w = World::default();
    w.ok(&enqueue("a", [with_priority(1, 1), with_priority(2, 3)]));
    w.ok(&enqueue("b", [with_priority(3, 1), with_priority(4, 0)]));
    w.ok(&enqueue("c", [with_priority(5, 1), with_priority(6, -9)]));
    let named = |names: &[&str], t| Claim {
        queues: Queues::Named(names.iter().map(|&n| n.to_owned()).collect()),
        ..any(1, t)
    };
    assert_eq!(w.claim_numbers(named(&["b", "a", "b", "unknown"], 1)), [4]);
    assert_eq!(w.claim_numbers(any(3, 2)), [6, 1, 3]);
    w.db.forget();
    assert_eq!(w.claim_numbers(any(10, 3)), [5, 2]);
    assert!(w.claim(any(1, 4)).is_empty());
}

#[test]
fn unknown_and_paused_queues_are_empty() {
    let mut w = World::default();
    assert!(w.claim(claim("nowhere", 1, 1)).is_empty());
    assert!(w.claim(any(1, 1)).is_empty());
    w.ok(&enqueue("q", [job(1)]));
    w.ok(&Op::Pause { queue: "q".into() });
    assert!(w.claim(any(1, 1)).is_empty());
    assert!(w.claim(claim("q", 1, 1)).is_empty());
    assert_eq!(w.db.next_due_ms(&Queues::Any).unwrap(), None);
    w.ok(&Op::Resume { queue: "q".into() });
    assert_eq!(w.claim_numbers(any(1, 1)), [1]);
}

#[test]
fn a_scheduled_job_is_claimable_at_its_time_and_not_before() {
    let mut w = World::default();
    w.ok(&enqueue("q", [New { when: When::In(100), ..job(1) }, job(2)]));
    assert_eq!(w.db.next_due_ms(&Queues::Any).unwrap(), Some(START_MS + 100));
    assert_eq!(w.claim_numbers(claim("q", 5, 1)), [2]);
    w.wait(99);
    assert!(w.claim(claim("q", 5, 1)).is_empty());
    w.wait(1);
    assert_eq!(w.claim_numbers(claim("q", 5, 2)), [1]);
    assert_eq!(w.db.next_due_ms(&Queues::Any).unwrap(), Some(START_MS + 60_000));
}

#[test]
fn due_jobs_come_in_bounded_batches_and_none_is_left_out() {
    let mut w = World::default();
    w.ok(&enqueue("q", (0..250).map(|n| New { when: When::In(1), ..job(n) })));
    w.wait(1);
    assert_eq!(w.claim(claim("q", 1, 1)).len(), 1);
    assert_eq!(w.queue("q").counts[&State::Scheduled], 150);
    assert_eq!(w.claim(claim("q", 240, 2)).len(), 240);
    assert_eq!(w.claim(claim("q", 240, 3)).len(), 9);
}

#[test]
fn an_expired_lease_gives_the_job_to_the_next_claim_and_its_attempt_counts() {
    let mut w = World::default();
    w.ok(&enqueue("q", [job(1)]));
    w.claim(claim("q", 1, 1));
    w.wait(59_999);
    assert!(w.claim(claim("q", 1, 2)).is_empty());
    w.wait(1);
    assert!(w.job(1).expired);
    let got = w.claim(claim("q", 1, 2)).remove(0);
    assert_eq!((got.job.attempt, got.lease.fence), (2, 4));
    assert_eq!(got.job.run_at_ms, START_MS + 60_000);
}

#[test]
fn a_lease_that_expires_after_the_last_attempt_leaves_the_job_dead() {
    let mut w = World::default();
    w.ok(&enqueue("q", [New { max_attempts: Some(1), ..job(1) }]));
    w.claim(claim("q", 1, 1));
    w.wait(60_000);
    assert!(w.claim(claim("q", 1, 2)).is_empty());
    let j = w.job(1);
    assert_eq!((j.state, j.finished_ms), (State::Dead, Some(w.now_ms)));
    assert!(j.last_error.expect("an error").starts_with("lease expired"));
    assert_eq!(j.worker.as_deref(), Some("worker"), "who had it last is still known");
}

#[test]
fn many_dead_leases_do_not_hide_a_live_one() {
    let mut w = World::default();
    w.ok(&enqueue("q", (0..300).map(|n| New { max_attempts: Some(1), ..job(n) })));
    w.ok(&enqueue("q", [job(900)]));
    w.claim(claim("q", 300, 1));
    w.wait(1);
    w.claim(claim("q", 1, 2));
    w.wait(60_000);
    assert_eq!(w.claim_numbers(claim("q", 1, 3)), [900]);
    assert_eq!(w.queue("q").counts[&State::Dead], 300);
}

#[test]
fn a_repeated_claim_gets_what_its_token_holds() {
    let mut w = World::default();
    w.ok(&enqueue("q", (1..6).map(job)));
    let first = w.claim(claim("q", 2, 1));
    w.wait(10);
    let again = |t| Claim { again: true, ..claim("q", 2, t) };
    assert_eq!(w.claim(again(1)), first);
    assert_eq!(w.claim_numbers(again(2)), [3, 4], "a first sending that never landed");
    w.ok(&Op::Ack { held: held(1, 1), result: None });
    assert_eq!(w.claim_numbers(again(1)), [2]);
    w.wait(60_000);
    let late = w.claim(again(1));
    assert_eq!(late.iter().map(|c| (number(c.job.id), c.job.attempt)).collect::<Vec<_>>(), [(2, 2), (3, 2)]);
}

#[test]
fn claims_and_their_fences_survive_a_rollback() {
    let mut w = World::default();
    w.ok(&enqueue("q", (1..4).map(job)));
    for _ in 0..3 {
        w.db.begin().unwrap();
        w.apply(&Op::Claim(claim("q", 2, 1))).unwrap();
        w.apply(&enqueue("new", [job(50)])).unwrap();
        w.db.rollback().unwrap();
    }
    assert_eq!(w.claim_numbers(claim("q", 2, 2)), [1, 2]);
    assert!(w.claim(claim("new", 2, 3)).is_empty());
}

#[test]
fn a_claim_that_gets_nothing_writes_nothing_whoever_asks() {
    let mut w = World::default();
    w.ok(&enqueue("q", [grouped(1, "g"), grouped(2, "g"), job(3)]));
    w.claim(claim("q", 2, 1));
    w.ok(&Op::Cancel { id: id(3), leased: true });
    for ready in [State::Ready, State::Leased] {
        let before = dump(w.db.connection());
        assert!(
            w.claim(Claim { worker: format!("nobody has seen {ready:?}"), ..claim("q", 1, 9) }).is_empty()
        );
        assert_eq!(dump(w.db.connection()), before);
        w.ok(&Op::Purge { queue: "q".into(), states: vec![ready] });
    }
    w.ok(&enqueue("q", [job(4)]));
    w.ok(&Op::Cancel { id: id(4), leased: false });
    let before = dump(w.db.connection());
    assert!(w.claim(Claim { worker: "a stranger".into(), ..claim("q", 1, 9) }).is_empty());
    assert_eq!(dump(w.db.connection()), before);
}
