//! Failure: the record of every attempt, where dead jobs go, and how they run again.

use bucketq::error::Code;
use bucketq::job::{Attempt, DedupScope, Ended, New, State};
use bucketq::lease::FOREVER_MS;
use bucketq::op::{Claim, Op, Outcome};
use bucketq::policy::Changes;
use bucketq::query::Filter;
use bucketq_tests::queue_db::{START_MS, World, claim, enqueue, grouped, held, id, job, keyed};

use crate::policies::configure;

fn nack(n: u32, t: u8, error: &str) -> Op {
    Op::Nack { held: held(n, t), delay_ms: Some(0), error: Some(error.into()) }
}

fn attempts(w: &mut World, n: u32) -> Vec<Attempt> {
    w.detail(n).expect("it is there").attempts
}

fn as_(worker: &str, t: u8) -> Claim {
    Claim { worker: worker.into(), ..claim("q", 1, t) }
}

#[test]
fn a_dead_job_keeps_the_error_worker_and_times_of_every_attempt() {
    let mut w = World::default();
    w.ok(&enqueue("q", [New { max_attempts: Some(3), ..job(1) }]));
    w.wait(10);
    w.claim(as_("ann", 1));
    w.wait(5);
    w.ok(&nack(1, 1, "no route"));
    w.wait(5);
    w.claim(as_("bob", 2));
    w.wait(70_000);
    w.claim(as_("cid", 3));
    w.wait(1);
    w.ok(&Op::Reject { held: held(1, 3), error: None });
    let found = attempts(&mut w, 1);
    let told: Vec<_> = found
        .iter()
        .map(|a| {
            (
                a.attempt,
                a.ended,
                a.worker.as_deref().unwrap(),
                a.claimed_ms.unwrap() - START_MS,
                a.ended_ms - START_MS,
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            (1, Ended::Failed, "ann", 10, 15),
            (2, Ended::Expired, "bob", 20, 60_020),
            (3, Ended::Rejected, "cid", 70_020, 70_021)
        ]
    );
    assert_eq!(found[0].error.as_deref(), Some("no route"));
    assert!(found.iter().all(|a| a.run == 0 && a.queue == "q"));
    let dead = w.job(1);
    assert_eq!((dead.state, dead.last_error.as_deref()), (State::Dead, Some("no route")));
}

#[test]
fn a_released_attempt_does_not_count_and_is_not_kept() {
    let mut w = World::default();
    w.ok(&enqueue("q", [job(1)]));
    w.claim(as_("ann", 1));
    w.ok(&Op::Release { held: held(1, 1) });
    assert!(attempts(&mut w, 1).is_empty());
}

#[test]
fn the_newest_hundred_attempts_of_a_job_are_kept() {
    let mut w = World::default();
    w.ok(&enqueue("q", [New { max_attempts: Some(1_000), ..job(1) }]));
    for n in 0..130 {
        w.claim(as_("ann", 1));
        w.ok(&nack(1, 1, &format!("error {n}")));
    }
    let found = attempts(&mut w, 1);
    assert_eq!((found.len(), found[0].attempt, found[99].attempt), (100, 31, 130));
}

#[test]
fn a_requeued_job_starts_anew_and_remembers_its_old_lives() {
    let mut w = World::default();
    w.ok(&enqueue("q", [New { max_attempts: Some(1), ..job(1) }]));
    w.claim(as_("ann", 1));
    w.ok(&nack(1, 1, "no route"));
    w.ok(&Op::Requeue { id: id(1), run: None });
    let job = w.job(1);
    assert_eq!((job.state, job.run, job.attempt, job.last_error), (State::Ready, 1, 0, None));
    w.wait(9);
    w.claim(as_("bob", 2));
    w.ok(&Op::Ack { held: held(1, 2), result: None });
    w.wait(9);
    w.ok(&Op::Requeue { id: id(1), run: None });
    w.ok(&Op::Cancel { id: id(1), leased: false });
    w.ok(&Op::Requeue { id: id(1), run: None });
    let told: Vec<_> =
        attempts(&mut w, 1).into_iter().map(|a| (a.run, a.attempt, a.ended, a.worker)).collect();
    assert_eq!(
        told,
        [
            (0, 1, Ended::Failed, Some("ann".to_owned())),
            (1, 1, Ended::Done, Some("bob".to_owned())),
            (2, 0, Ended::Cancelled, None)
        ]
    );
}

#[test]
fn dead_jobs_move_to_the_dead_letter_queue_as_ready_jobs_of_a_new_life() {
    let mut w = World::default();
    w.ok(&configure("q", Changes { dead_letter: Some(Some("morgue".into())), ..Changes::default() }));
    w.ok(&enqueue(
        "q",
        [
            New { max_attempts: Some(1), ..keyed(1, "k", DedupScope::Unfinished) },
            New { max_attempts: Some(1), ..grouped(2, "g") },
            grouped(3, "g"),
        ],
    ));
    w.claim(claim("q", 2, 1));
    let outcome = w.ok(&nack(1, 1, "no route"));
    assert!(matches!(outcome, Outcome::Nacked { state: State::Dead, .. }), "{outcome:?}");
    assert_eq!(w.refused(&nack(1, 1, "no route")).code(), Code::LeaseLost);
    let job = w.job(1);
    assert_eq!((&*job.queue, job.state, job.run, job.attempt), ("morgue", State::Ready, 1, 0));
    let old = &attempts(&mut w, 1)[0];
    assert_eq!((&*old.queue, old.run, old.error.as_deref()), ("q", 0, Some("no route")));
    w.ok(&enqueue("q", [keyed(4, "k", DedupScope::Unfinished)]));
    assert!(w.detail(4).is_some(), "the key is free again");
    // The next one of the group can be claimed, also when the lease of the first has expired.
    w.wait(60_000);
    assert_eq!(w.claim_numbers(claim("q", 9, 2)), [3, 4]);
    assert_eq!(w.job(2).queue, "morgue");
    assert_eq!(w.claim_numbers(claim("morgue", 9, 3)), [1, 2]);
    w.ok(&Op::Reject { held: held(1, 3), error: None });
    assert_eq!((&*w.job(1).queue, w.state(1)), ("morgue", State::Dead), "there it stays");
}

#[test]
fn many_dead_jobs_are_requeued_by_filter_oldest_first() {
    let mut w = World::default();
    w.ok(&enqueue("q", (0..6).map(|n| New { max_attempts: Some(1), ..job(n) })));
    w.ok(&enqueue("p", [New { max_attempts: Some(1), ..job(9) }]));
    w.claim(claim("q", 6, 1));
    w.claim(claim("p", 1, 1));
    for n in [0, 1, 2, 3, 4, 9] {
        w.ok(&nack(n, 1, if n % 2 == 0 { "no route to host" } else { "bad input" }));
    }
    let many = |filter: Filter, limit| Op::RequeueMany { filter, limit };
    let route = Filter { queue: Some("q".into()), error: Some("route".into()), ..Filter::default() };
    assert_eq!(w.ok(&many(route.clone(), 2)), Outcome::RequeuedMany { count: 2, more: true });
    assert_eq!([0, 2, 4].map(|n| w.state(n)), [State::Ready, State::Ready, State::Dead]);
    assert_eq!(w.ok(&many(route.clone(), 2)), Outcome::RequeuedMany { count: 1, more: false });
    assert_eq!(w.ok(&many(route, 2)), Outcome::RequeuedMany { count: 0, more: false });
    assert_eq!(w.ok(&many(Filter::default(), 100)), Outcome::RequeuedMany { count: 3, more: false });
    assert_eq!(w.claim_numbers(claim("q", 9, 2)), [0, 2, 4, 1, 3]);
    assert_eq!(w.state(5), State::Leased, "what is not finished stays as it is");
    let live = Filter { states: vec![State::Leased], ..Filter::default() };
    assert_eq!(w.refused(&many(live, 1)).code(), Code::Argument);
    assert_eq!(w.refused(&many(Filter::default(), 0)).code(), Code::Argument);
}

#[test]
fn a_lease_without_end_is_at_most_once() {
    let mut w = World::default();
    w.ok(&configure("q", Changes { lease_ms: Some(None), ..Changes::default() }));
    w.ok(&enqueue("q", [job(1), job(2), job(3)]));
    let forever = |t| Claim { lease_ms: None, ..claim("q", 1, t) };
    let taken = w.claim(forever(1));
    assert_eq!((taken[0].lease.expires_ms, taken[0].job.expires_ms), (FOREVER_MS, None));
    w.claim(Claim { lease_ms: Some(FOREVER_MS), ..claim("q", 1, 2) });
    assert_eq!(w.db.next_due_ms(&bucketq::Queues::Any).unwrap(), None, "nothing will run out");
    w.wait(100 * 366 * 86_400_000);
    assert_eq!(w.claim_numbers(forever(3)), [3], "the others are never handed out again");
    assert!(!w.job(1).expired);
    let far = w.ok(&Op::Extend { held: held(1, 1), lease_ms: 1, at_least: false });
    assert_eq!(far, Outcome::Extended { expires_ms: FOREVER_MS });
    w.ok(&Op::Ack { held: held(1, 1), result: None });
    assert!(
        matches!(w.ok(&nack(2, 2, "broken")), Outcome::Nacked { state: State::Dead, .. }),
        "no second time"
    );
    w.ok(&Op::Release { held: held(3, 3) });
    assert_eq!(w.claim_numbers(forever(4)), [3], "unless nobody has worked on it");
}
