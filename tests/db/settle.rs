//! Ack, nack, release, reject, extend: which caller may, the effect, and the reply to a repetition.

use bucketq::error::{Code, Kind};
use bucketq::job::{Backoff, New, Payload, State};
use bucketq::op::{Op, Outcome, Queues};
use bucketq::policy::Changes;
use bucketq_tests::queue_db::{START_MS, World, claim, enqueue, held, id, job};

fn leased(new: New) -> World {
    let mut w = World::default();
    w.ok(&enqueue("q", [new]));
    assert_eq!(w.claim(claim("q", 1, 1)).len(), 1);
    w
}

fn ack(t: u8) -> Op {
    Op::Ack { held: held(1, t), result: None }
}

fn nack(delay_ms: Option<i64>, error: Option<&str>) -> Op {
    Op::Nack { held: held(1, 1), delay_ms, error: error.map(str::to_owned) }
}

fn release(t: u8) -> Op {
    Op::Release { held: held(1, t) }
}

fn reject(t: u8) -> Op {
    Op::Reject { held: held(1, t), error: Some("never".into()) }
}

fn extend(t: u8, lease_ms: i64) -> Op {
    Op::Extend { held: held(1, t), lease_ms, at_least: false }
}

fn every(t: u8) -> [Op; 5] {
    [ack(t), Op::Nack { held: held(1, t), delay_ms: None, error: None }, release(t), reject(t), extend(t, 5)]
}

#[test]
fn an_acked_job_is_done_with_its_result() {
    let mut w = leased(job(1));
    w.wait(7);
    let result = Payload::json(&[1, 2]).unwrap();
    assert_eq!(w.ok(&Op::Ack { held: held(1, 1), result: Some(result.clone()) }), Outcome::Acked);
    let detail = w.detail(1).expect("there");
    assert_eq!((detail.job.state, detail.job.finished_ms), (State::Done, Some(START_MS + 7)));
    assert_eq!((detail.job.expires_ms, detail.job.fence), (None, Some(2)));
    assert_eq!(detail.result, Some(result));
    let again = Op::Ack { held: held(1, 1), result: Some(Payload::text("other")) };
    assert_eq!(w.ok(&again), Outcome::Acked, "a repeated ack is the same ack");
    assert_eq!(w.detail(1).expect("there").result, Some(Payload::json(&[1, 2]).unwrap()));
}

#[test]
fn a_wrong_token_changes_nothing() {
    let mut w = leased(job(1));
    for op in every(2) {
        assert_eq!(w.refused(&op).kind(), Kind::LeaseLost, "{op:?}");
    }
}

#[test]
fn an_unknown_job_is_not_found() {
    let mut w = World::default();
    for op in every(1) {
        assert_eq!(w.refused(&op).code(), Code::NoSuchJob, "{op:?}");
    }
}

#[test]
fn a_late_holder_still_counts_while_nobody_claimed_again() {
    for op in every(1) {
        let mut w = leased(job(1));
        w.wait(1_000_000);
        w.ok(&op);
    }
}

#[test]
fn a_holder_whose_job_was_claimed_again_has_lost_it() {
    let mut w = leased(job(1));
    w.wait(60_000);
    assert_eq!(w.claim(claim("q", 1, 2)).len(), 1);
    for op in every(1) {
        assert_eq!(w.refused(&op).code(), Code::LeaseLost, "{op:?}");
    }
    w.ok(&ack(2));
    for op in every(1) {
        assert_eq!(w.refused(&op).code(), Code::LeaseLost, "{op:?}");
    }
}

#[test]
fn a_holder_whose_lease_was_ended_by_a_claim_of_another_job_has_lost_it() {
    let mut w = leased(New { priority: 9, ..job(1) });
    w.ok(&enqueue("q", [job(2)]));
    w.wait(60_000);
    assert_eq!(w.claim_numbers(claim("q", 1, 2)), [2]);
    assert_eq!(w.state(1), State::Ready);
    for op in every(1) {
        assert_eq!(w.refused(&op).code(), Code::LeaseLost, "{op:?}");
    }
}

#[test]
fn a_nacked_job_waits_for_its_back_off() {
    let backoff = Backoff::Exponential { base_ms: 1000, max_ms: 3000, jitter_percent: 50 };
    let mut w = leased(New { backoff: Some(backoff.clone()), ..job(1) });
    for (attempt, full) in [(1, 1000), (2, 2000), (3, 3000), (4, 3000)] {
        let first = w.ok(&nack(None, Some("oops")));
        let Outcome::Nacked { state: State::Scheduled, run_at_ms } = first else { panic!("{first:?}") };
        let delay = run_at_ms - w.now_ms;
        assert!((full / 2..=full).contains(&delay), "attempt {attempt}: {delay} ms");
        let j = w.job(1);
        assert_eq!((j.state, j.attempt, j.last_error.as_deref()), (State::Scheduled, attempt, Some("oops")));
        assert_eq!(j.run_at_ms, run_at_ms);
        w.wait(1);
        assert_eq!(w.ok(&nack(None, None)), first, "a repeated nack is the same nack");
        assert_eq!(w.db.next_due_ms(&Queues::Any).unwrap(), Some(run_at_ms));
        w.now_ms = run_at_ms;
        let got = w.claim(claim("q", 1, 1));
        assert_eq!(got[0].job.last_error.as_deref(), Some("oops"), "the next worker sees what went wrong");
    }
}

#[test]
fn the_jitter_of_a_commit_built_again_is_the_same() {
    let mut w = leased(New { backoff: Some(Backoff::default()), ..job(1) });
    let outcomes = [0; 2].map(|_| {
        w.db.begin().unwrap();
        let outcome = w.apply(&nack(None, None)).unwrap();
        w.db.rollback().unwrap();
        outcome
    });
    assert_eq!(outcomes[0], outcomes[1]);
}

#[test]
fn a_delay_given_overrides_the_back_off() {
    let mut w = leased(job(1));
    assert_eq!(
        w.ok(&nack(Some(77), None)),
        Outcome::Nacked { state: State::Scheduled, run_at_ms: START_MS + 77 }
    );
    w.wait(77);
    w.claim(claim("q", 1, 1));
    assert_eq!(w.ok(&nack(Some(0), None)), Outcome::Nacked { state: State::Ready, run_at_ms: START_MS + 77 });
    assert_eq!(w.claim(claim("q", 1, 1)).len(), 1);
}

#[test]
fn a_nack_of_the_last_attempt_leaves_the_job_dead() {
    let mut w = leased(New { max_attempts: Some(1), ..job(1) });
    let dead = Outcome::Nacked { state: State::Dead, run_at_ms: START_MS };
    assert_eq!(w.ok(&nack(Some(5), Some("last"))), dead);
    assert_eq!(w.ok(&nack(Some(5), Some("last"))), dead);
    assert_eq!(w.job(1).last_error.as_deref(), Some("last"));
    assert_eq!(w.job(1).finished_ms, Some(START_MS));
}

#[test]
fn long_errors_are_cut_between_characters() {
    let mut w = leased(job(1));
    w.ok(&nack(Some(0), Some(&format!("a{}", "é".repeat(4096)))));
    let kept = w.job(1).last_error.expect("an error");
    assert_eq!(kept.len(), 4095);
    assert!(kept.ends_with('é'));
}

#[test]
fn a_released_job_is_unharmed() {
    let mut w = leased(job(1));
    w.wait(9);
    assert_eq!(w.ok(&release(1)), Outcome::Released);
    let j = w.job(1);
    assert_eq!(
        (j.state, j.attempt, j.run_at_ms, j.claimed_ms),
        (State::Ready, 0, START_MS + 9, Some(START_MS))
    );
    assert_eq!(w.ok(&release(1)), Outcome::Released, "a repeated release is the same release");
    assert_eq!(w.job(1).attempt, 0);
    assert_eq!(w.claim(claim("q", 1, 2))[0].job.attempt, 1);
    assert_eq!(w.refused(&release(1)).code(), Code::LeaseLost);
}

#[test]
fn a_rejected_job_is_dead() {
    let mut w = leased(job(1));
    assert_eq!(w.ok(&reject(1)), Outcome::Rejected);
    assert_eq!(w.ok(&reject(1)), Outcome::Rejected, "a repeated reject is the same reject");
    let j = w.job(1);
    assert_eq!((j.state, j.last_error.as_deref()), (State::Dead, Some("never")));
    assert_eq!(w.refused(&ack(1)).code(), Code::LeaseLost);
}

#[test]
fn an_extended_lease_runs_from_now() {
    let mut w = leased(job(1));
    w.wait(59_999);
    assert_eq!(w.ok(&extend(1, 100)), Outcome::Extended { expires_ms: START_MS + 60_099 });
    w.wait(99);
    assert!(w.claim(claim("q", 1, 2)).is_empty());
    assert_eq!(w.ok(&extend(1, 10)), Outcome::Extended { expires_ms: START_MS + 60_108 });
    w.wait(10);
    assert_eq!(w.claim(claim("q", 1, 2)).len(), 1, "a shorter one, too");
}

#[test]
fn an_extend_that_is_to_last_at_least_that_long_shortens_nothing() {
    let mut w = leased(job(1));
    let at_least = |lease_ms| Op::Extend { held: held(1, 1), lease_ms, at_least: true };
    assert_eq!(w.ok(&extend(1, 600_000)), Outcome::Extended { expires_ms: START_MS + 600_000 });
    w.wait(1_000);
    assert_eq!(w.ok(&at_least(60_000)), Outcome::Extended { expires_ms: START_MS + 600_000 });
    w.wait(598_999);
    assert!(w.claim(claim("q", 1, 2)).is_empty());
    assert_eq!(w.ok(&at_least(60_000)), Outcome::Extended { expires_ms: START_MS + 659_999 });
    assert_eq!(
        w.refused(&Op::Extend { held: held(1, 2), lease_ms: 1, at_least: true }).code(),
        Code::LeaseLost
    );
}

#[test]
fn after_its_own_end_of_the_lease_a_holder_has_no_other() {
    for (i, end) in every(1).iter().take(4).enumerate() {
        let mut w = leased(job(1));
        w.ok(end);
        w.refused(&extend(1, 5));
        if i != 0 {
            w.refused(&ack(1));
        }
    }
}

#[test]
fn finished_jobs_are_kept_to_the_newest_thousand_and_dead_ones_all() {
    let mut w = World::default();
    let new = |n| New { payload: Payload::bytes(vec![1; 1100]), ..job(n) };
    for first in (0..1400).step_by(100) {
        w.ok(&enqueue("q", (first..first + 100).map(new)));
        w.claim(claim("q", 100, 1));
        w.db.begin().unwrap();
        for n in first..first + 100 {
            let held = held(n, 1);
            let op = match n % 10 {
                0 => Op::Reject { held, error: Some("x".into()) },
                1 => Op::Cancel { id: id(n), leased: true },
                _ => Op::Ack { held, result: Some(Payload::text("r")) },
            };
            w.apply(&op).unwrap();
        }
        w.db.commit().unwrap();
        w.commit_seq += 1;
        w.wait(1);
        bucketq_tests::queue_db::check(w.db.connection());
    }
    let counts = w.queue("q").counts;
    let kept = counts[&State::Done];
    assert!((1000..=1062).contains(&kept), "{kept} kept");
    assert_eq!((counts[&State::Dead], counts[&State::Cancelled]), (140, 140));
    assert!(w.detail(2).is_none(), "the oldest went");
    assert!(w.detail(1399).is_some());
}

#[test]
fn an_ack_does_not_look_at_jobs_of_other_queues() {
    let mut w = leased(job(1));
    w.ok(&enqueue("other", [job(2)]));
    w.ok(&ack(1));
    assert_eq!(w.refused(&Op::Release { held: held(2, 1) }).code(), Code::LeaseLost);
    assert_eq!(w.state(2), State::Ready);
}

fn ack_late(run: u32) -> Op {
    Op::AckLate { id: id(1), run, result: Some(Payload::text("late")) }
}

#[test]
fn a_late_ack_ends_a_job_whoever_holds_it() {
    let before: [fn(&mut World); 4] = [
        |_| (),
        |w| drop(w.ok(&nack(Some(0), None))),
        |w| drop(w.ok(&nack(Some(100), None))),
        |w| {
            w.wait(60_000);
            assert_eq!(w.claim(claim("q", 1, 2)).len(), 1);
        },
    ];
    for before in before {
        let mut w = leased(job(1));
        before(&mut w);
        assert_eq!(w.ok(&ack_late(0)), Outcome::Acked);
        let detail = w.detail(1).expect("there");
        assert_eq!((detail.job.state, detail.result), (State::Done, Some(Payload::text("late"))));
        assert_eq!(w.ok(&ack_late(0)), Outcome::Acked, "a repeat has no other effect");
        for holder in [1, 2] {
            assert_eq!(w.refused(&ack(holder)).kind(), Kind::LeaseLost, "its result would be lost");
            assert_eq!(w.refused(&extend(holder, 5)).kind(), Kind::LeaseLost);
        }
        assert!(w.claim(claim("q", 1, 3)).is_empty());
    }
}

#[test]
fn a_late_ack_ends_no_other_run_and_no_job_that_failed() {
    let mut w = leased(job(1));
    w.ok(&reject(1));
    assert_eq!(w.refused(&ack_late(0)).code(), Code::State);
    w.ok(&Op::Requeue { id: id(1), run: None });
    let error = w.refused(&ack_late(0));
    assert!(error.message().contains("run 1 by now, not 0"), "{error}");
    w.ok(&ack_late(1));
    assert_eq!(w.refused(&Op::AckLate { id: id(2), run: 0, result: None }).code(), Code::NoSuchJob);
}

#[test]
fn a_late_ack_is_a_repeat_after_its_job_has_left_and_says_nothing_about_jobs_that_ended_otherwise() {
    type End = fn(&mut World);
    let ends: [(End, bool); 4] = [
        (|w| drop(w.ok(&ack_late(0))), true),
        (
            |w| {
                w.ok(&release(1));
                w.ok(&ack_late(0));
            },
            true,
        ),
        (|w| drop(w.ok(&ack(1))), false),
        (|w| drop(w.ok(&reject(1))), false),
    ];
    let purge = Op::Purge { queue: "q".into(), states: State::ALL.to_vec() };
    for (end, is_repeat) in ends {
        let mut w = leased(job(1));
        end(&mut w);
        w.ok(&purge);
        if is_repeat {
            assert_eq!(w.ok(&ack_late(0)), Outcome::Acked);
        } else {
            assert_eq!(w.refused(&ack_late(0)).code(), Code::NoSuchJob);
        }
    }
    let mut w = World::default();
    w.ok(&enqueue("q", [job(1)]));
    w.ok(&ack_late(0));
    w.ok(&purge);
    assert_eq!(w.ok(&ack_late(0)), Outcome::Acked, "it was never claimed");
}

#[test]
fn the_longest_run_of_a_job_comes_before_that_of_its_queue() {
    let mut w = World::default();
    let changes = Box::new(Changes { max_run_ms: Some(Some(9_000)), ..Changes::default() });
    w.ok(&Op::Configure { queue: "q".into(), changes });
    w.ok(&enqueue("q", [job(1), New { max_run_ms: Some(60_000), ..job(2) }, job(3)]));
    let most: Vec<_> = w.claim(claim("q", 3, 1)).iter().map(|c| c.lease.max_run_ms).collect();
    assert_eq!(most, [Some(9_000), Some(60_000), Some(9_000)]);
    assert_eq!(w.detail(2).expect("there").job.max_run_ms, Some(60_000));
    w.ok(&Op::Nack { held: held(2, 1), delay_ms: Some(0), error: None });
    w.ok(&Op::Move { id: id(2), run: None, to: "other".into() });
    assert_eq!(w.claim(claim("other", 1, 2))[0].lease.max_run_ms, Some(60_000), "it goes with the job");
    w.wait(60_000);
    w.claim(claim("other", 1, 3));
    assert_eq!(w.detail(2).expect("there").job.last_error.as_deref(), Some("timed out"));
}
