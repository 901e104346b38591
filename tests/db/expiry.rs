//! Jobs that nobody claims in time: dead, or deleted.

use bucketq::error::Code;
use bucketq::job::{Ended, New, Reason, State, When};
use bucketq::op::{Op, Outcome};
use bucketq::policy::{Changes, OnExpiry};
use bucketq_tests::queue_db::{World, claim, enqueue, grouped, held, id, job};

use crate::policies::configure;

fn within(ms: i64, new: New) -> New {
    New { expires_ms: Some(ms), ..new }
}

fn policy(w: &mut World, queue: &str, ms: i64, on_expiry: OnExpiry) {
    let changes = Changes { expires_ms: Some(Some(ms)), on_expiry: Some(on_expiry), ..Changes::default() };
    w.ok(&configure(queue, changes));
}

#[test]
fn a_job_that_nobody_claims_in_time_is_dead() {
    let mut w = World::default();
    let later = New { when: When::In(60_000), ..job(2) };
    w.ok(&enqueue("q", [within(1_000, job(1)), within(1_000, later), job(3)]));
    w.wait(999);
    w.ok(&enqueue("p", [job(4)]));
    assert_eq!(w.state(1), State::Ready, "its time has not come");
    w.wait(1);
    assert_eq!(w.claim_numbers(claim("q", 9, 1)), [3]);
    let dead = w.job(1);
    let died = dead.died.expect("it is dead");
    assert_eq!(
        (dead.state, &*died.queue, died.reason, died.attempts),
        (State::Dead, "q", Reason::Expired, 0)
    );
    assert!(dead.last_error.is_some_and(|text| text.starts_with("expired")));
    assert_eq!(w.detail(1).expect("it is dead").attempts[0].ended, Ended::Unclaimed);
    assert_eq!(w.state(2), State::Dead, "a scheduled job expires too");
    w.ok(&Op::Requeue { id: id(1), run: None });
    w.wait(9_000);
    assert_eq!(w.claim_numbers(claim("q", 9, 2)), [1], "its new run has no time");
}

#[test]
fn a_claimed_job_does_not_expire() {
    let mut w = World::default();
    w.ok(&enqueue("q", [within(1_000, job(1)), within(1_000, job(2))]));
    assert_eq!(w.claim_numbers(claim("q", 9, 1)), [1, 2]);
    w.ok(&Op::Nack { held: held(2, 1), delay_ms: Some(0), error: None });
    w.wait(5_000);
    assert_eq!(w.claim_numbers(claim("q", 9, 2)), [2], "somebody has claimed it in time");
    w.ok(&Op::Ack { held: held(1, 1), result: None });
}

/// A world with jobs whose time is over after a second, claimed or not.
fn retained(on_expiry: OnExpiry) -> World {
    let mut w = World::default();
    let changes = Changes {
        expires_ms: Some(Some(1_000)),
        on_expiry: Some(on_expiry),
        expire_claimed: Some(true),
        ..Changes::default()
    };
    w.ok(&configure("q", changes));
    w
}

/// An op that ends the lease of a job.
type End = fn(u32) -> Op;

fn rows(w: &World) -> i64 {
    w.db.connection()
        .query_row("SELECT count(*) FROM expiries", [], |row| row.get(0))
        .expect("it can be read")
}

#[test]
fn a_claimed_job_expires_when_it_comes_back_if_its_queue_says_so() {
    let nack = |n, delay_ms| Op::Nack { held: held(n, 1), delay_ms, error: None };
    let ends: [(&str, End); 3] = [
        ("a nack", |n| Op::Nack { held: held(n, 1), delay_ms: Some(0), error: None }),
        ("a nack with a delay", |n| Op::Nack { held: held(n, 1), delay_ms: Some(9_000), error: None }),
        ("a release", |n| Op::Release { held: held(n, 1) }),
    ];
    for (what, end) in ends {
        // Before its time comes, and afterwards: a worker holds it then.
        for wait in [0, 2_000] {
            let mut w = retained(OnExpiry::Dead);
            w.ok(&enqueue("q", [job(1)]));
            assert_eq!(w.claim_numbers(claim("q", 1, 1)), [1]);
            w.wait(wait);
            w.ok(&enqueue("other", [job(2)]));
            assert_eq!(w.state(1), State::Leased);
            w.ok(&end(1));
            w.wait(2_000 - wait);
            assert_eq!(w.claim_numbers(claim("q", 1, 2)), [] as [u32; 0], "after {what}, {wait}");
            let dead = w.job(1);
            assert_eq!(dead.state, State::Dead, "after {what}, {wait}");
            assert_eq!(dead.last_error.as_deref(), Some("expired: it was not done in time"));
            assert_eq!(dead.died.expect("it is dead").reason, Reason::Expired);
            assert_eq!(rows(&w), 0);
        }
    }
    let mut w = retained(OnExpiry::Delete);
    w.ok(&enqueue("q", [job(1), job(2), job(3), job(4)]));
    w.claim(claim("q", 3, 1));
    w.wait(2_000);
    w.ok(&enqueue("other", [job(5)]));
    assert!(w.detail(4).is_none(), "nobody held it");
    assert_eq!(w.state(1), State::Leased);
    // One is done all the same, one is deleted, and the lease of the last one runs out.
    w.ok(&Op::Ack { held: held(1, 1), result: None });
    w.ok(&nack(2, Some(0)));
    w.wait(600_000);
    assert_eq!(w.claim_numbers(claim("q", 9, 2)), [] as [u32; 0]);
    assert_eq!(w.claim_numbers(claim("q", 9, 2)), [] as [u32; 0]);
    assert_eq!(w.state(1), State::Done);
    assert!(w.detail(2).is_none() && w.detail(3).is_none());
    assert_eq!(rows(&w), 0);
}

#[test]
fn no_row_stays_behind_when_an_overdue_job_is_deleted() {
    let mut w = retained(OnExpiry::Dead);
    w.ok(&enqueue("q", [job(1), job(2)]));
    w.claim(claim("q", 2, 1));
    w.wait(2_000);
    w.ok(&enqueue("other", [job(3)]));
    assert_eq!(rows(&w), 2);
    w.ok(&Op::Cancel { id: id(1), leased: true });
    w.ok(&Op::Delete { id: id(2), leased: true });
    assert_eq!(rows(&w), 0);
}

#[test]
fn a_queue_may_have_its_jobs_expire_and_deletes_them_if_it_says_so() {
    let mut w = World::default();
    policy(&mut w, "q", 1_000, OnExpiry::Delete);
    w.ok(&enqueue("q", [grouped(1, "g"), within(9_000, grouped(2, "g")), grouped(3, "g")]));
    w.wait(1_000);
    // An enqueue anywhere does it, because perhaps nobody claims.
    w.ok(&enqueue("p", [job(4)]));
    assert!(w.detail(1).is_none() && w.detail(3).is_none());
    let Outcome::Enqueued(all) = w.ok(&enqueue("q", [grouped(1, "g")])) else { panic!() };
    assert!(all[0].existing, "its id stays taken");
    assert_eq!(w.claim_numbers(claim("q", 9, 1)), [2]);
}

#[test]
fn an_expired_job_goes_to_the_dead_letter_queue_and_a_redrive_brings_it_back() {
    let mut w = World::default();
    w.ok(&configure("q", Changes { dead_letter: Some(Some("dead".into())), ..Changes::default() }));
    policy(&mut w, "dead", 5_000, OnExpiry::Delete);
    w.ok(&enqueue("q", [within(1_000, job(1)), within(1_000, job(2))]));
    w.wait(1_000);
    assert!(w.claim(claim("q", 9, 1)).is_empty());
    assert_eq!(w.job(1).died.expect("it is a dead letter").reason, Reason::Expired);
    let filter = bucketq::Filter { queue: Some("dead".into()), ..bucketq::Filter::default() };
    w.ok(&Op::MoveSome { filter, redrive: true, to: None, after: 0, before: None, limit: 1 });
    assert_eq!(w.job(1).queue, "q");
    w.wait(5_000);
    assert_eq!(w.claim_numbers(claim("q", 9, 2)), [1]);
    assert!(w.detail(2).is_none(), "nobody looked at the dead letter in time");
}

#[test]
fn what_expires_makes_room_in_a_full_queue() {
    let mut w = World::default();
    w.ok(&configure("q", Changes { max_pending: Some(Some(1)), ..Changes::default() }));
    w.ok(&enqueue("q", [within(1_000, job(1))]));
    assert_eq!(w.refused(&enqueue("q", [job(2)])).code(), Code::QueueFull);
    w.wait(1_000);
    w.ok(&enqueue("q", [job(2)]));
    assert_eq!((w.state(1), w.state(2)), (State::Dead, State::Ready));
}

#[test]
fn a_moved_job_keeps_its_time() {
    let mut w = World::default();
    w.ok(&enqueue("q", [within(1_000, job(1))]));
    w.ok(&Op::Move { id: id(1), run: None, to: "p".into() });
    w.wait(1_000);
    assert!(w.claim(claim("p", 9, 1)).is_empty());
    assert_eq!(w.state(1), State::Dead);
}

#[test]
fn none_of_very_many_overdue_jobs_is_handed_out() {
    let mut w = World::default();
    w.ok(&enqueue("q", (0..1_200).map(|n| within(1_000, job(n)))));
    w.wait(1_000);
    for t in 1..4 {
        assert!(w.claim(claim("q", 10, t)).is_empty());
    }
    assert_eq!(w.queue("q").counts[&State::Ready], 0);
}

#[test]
fn an_atomic_that_fails_leaves_expired_jobs_for_the_next_op() {
    let mut w = World::default();
    w.ok(&enqueue("q", [within(1_000, job(1))]));
    w.wait(1_000);
    let fails = Op::Atomic(vec![enqueue("q", [job(2)]), Op::Requeue { id: id(9), run: None }]);
    assert_eq!(w.refused(&fails).code(), Code::NoSuchJob);
    assert!(w.claim(claim("q", 9, 1)).is_empty());
    assert_eq!(w.state(1), State::Dead);
    let wrong = enqueue("q", [within(0, job(3))]);
    assert_eq!(w.refused(&wrong).code(), Code::Argument);
}
