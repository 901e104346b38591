//! Cancel, requeue, purge, pause, resume.

use bucketq::error::Code;
use bucketq::job::{New, Payload, State, When};
use bucketq::op::{Op, Outcome};
use bucketq_tests::queue_db::{World, claim, enqueue, held, id, job};

fn cancel(n: u32, leased: bool) -> Op {
    Op::Cancel { id: id(n), leased }
}

fn requeue(run: Option<u32>) -> Op {
    Op::Requeue { id: id(1), run }
}

fn purge(states: &[State]) -> Op {
    Op::Purge { queue: "q".into(), states: states.to_vec() }
}

/// Jobs 2 to 7, each in the state with its number.
fn one_in_each_state() -> World {
    let mut w = World::default();
    w.ok(&enqueue("q", [4, 5, 6].map(job)));
    w.claim(claim("q", 3, 1));
    w.ok(&Op::Ack { held: held(5, 1), result: Some(Payload::bytes(vec![0; 9000])) });
    w.ok(&Op::Reject { held: held(6, 1), error: Some("no".into()) });
    w.ok(&enqueue("q", [New { when: When::In(1000), ..job(2) }, job(3), job(7)]));
    w.ok(&cancel(7, false));
    for state in State::ALL {
        assert_eq!(w.state(state as u32), state);
    }
    w
}

#[test]
fn a_job_is_cancelled_before_it_is_finished() {
    let mut w = one_in_each_state();
    assert_eq!(w.ok(&cancel(2, false)), Outcome::Cancelled { was: State::Scheduled });
    assert_eq!(w.ok(&cancel(3, false)), Outcome::Cancelled { was: State::Ready });
    assert_eq!(w.refused(&cancel(4, false)).code(), Code::State);
    assert_eq!(w.ok(&cancel(4, true)), Outcome::Cancelled { was: State::Leased });
    assert_eq!(w.refused(&cancel(5, true)).code(), Code::State);
    assert_eq!(w.refused(&cancel(6, true)).code(), Code::State);
    assert_eq!(w.ok(&cancel(7, false)), Outcome::Cancelled { was: State::Cancelled });
    assert_eq!(w.refused(&cancel(8, false)).code(), Code::NoSuchJob);
    assert_eq!(w.refused(&Op::Ack { held: held(4, 1), result: None }).code(), Code::LeaseLost);
    assert_eq!(w.job(2).finished_ms, Some(w.now_ms));
    w.wait(100_000);
    assert!(w.claim(claim("q", 10, 2)).is_empty());
}

#[test]
fn a_requeued_job_has_a_fresh_life_at_the_end_of_the_line() {
    let mut w = World::default();
    w.ok(&enqueue("q", [New { payload: Payload::bytes(vec![3; 5000]), ..job(1) }, job(2)]));
    w.claim(claim("q", 1, 1));
    w.ok(&Op::Nack { held: held(1, 1), delay_ms: Some(0), error: Some("bad".into()) });
    w.claim(claim("q", 1, 1));
    w.ok(&Op::Ack { held: held(1, 1), result: Some(Payload::text("r")) });
    w.wait(10);
    let commit_seq = w.commit_seq;
    assert_eq!(w.ok(&requeue(None)), Outcome::Requeued { run: 1 });
    let detail = w.detail(1).expect("there");
    assert_eq!((detail.result, detail.payload.bytes.len()), (None, 5000));
    let j = detail.job;
    assert_eq!((j.run, j.attempt, j.state, j.commit_seq()), (1, 0, State::Ready, commit_seq));
    assert_eq!((j.enqueued_ms, j.run_at_ms), (w.now_ms, w.now_ms));
    assert_eq!((j.claimed_ms, j.finished_ms, j.fence, j.worker, j.last_error), Default::default());
    assert_eq!(w.claim_numbers(claim("q", 5, 2)), [2, 1]);
}

#[test]
fn a_requeue_of_a_named_life_happens_once() {
    let mut w = World::default();
    w.ok(&enqueue("q", [job(1)]));
    w.ok(&cancel(1, false));
    assert_eq!(w.refused(&requeue(Some(1))).code(), Code::State);
    assert_eq!(w.ok(&requeue(Some(0))), Outcome::Requeued { run: 1 });
    let place = w.job(1).seq;
    assert_eq!(w.ok(&requeue(Some(0))), Outcome::Requeued { run: 1 }, "repeated");
    assert_eq!(w.job(1).seq, place);
    assert_eq!(w.refused(&requeue(Some(1))).code(), Code::State, "it lives");
    assert_eq!(w.refused(&requeue(Some(u32::MAX))).code(), Code::State);
    assert_eq!(w.refused(&Op::Requeue { id: id(9), run: None }).code(), Code::NoSuchJob);
}

#[test]
fn only_finished_jobs_are_requeued() {
    for state in State::ALL {
        let mut w = one_in_each_state();
        let op = Op::Requeue { id: id(state as u32), run: None };
        if state.is_finished() {
            assert_eq!(w.ok(&op), Outcome::Requeued { run: 1 });
            w.refused(&Op::Ack { held: held(state as u32, 1), result: None });
        } else {
            assert_eq!(w.refused(&op).code(), Code::State);
        }
    }
}

#[test]
fn a_purge_deletes_the_states_named_and_no_others() {
    for state in State::ALL {
        let mut w = one_in_each_state();
        assert_eq!(w.ok(&purge(&[state, state])), Outcome::Purged { count: 1 });
        for other in State::ALL {
            assert_eq!(
                w.detail(other as u32).is_none(),
                other == state,
                "{other:?} after a purge of {state:?}"
            );
        }
    }
}

#[test]
fn a_purge_of_everything_leaves_an_empty_queue() {
    let mut w = one_in_each_state();
    w.ok(&enqueue("other", [job(50)]));
    assert_eq!(w.ok(&purge(&State::ALL)), Outcome::Purged { count: 6 });
    assert_eq!(w.ok(&purge(&State::ALL)), Outcome::Purged { count: 0 });
    assert_eq!(w.queue("q").counts.values().sum::<u64>(), 0);
    assert_eq!(w.state(50), State::Ready);
    assert_eq!(w.refused(&Op::Ack { held: held(4, 1), result: None }).code(), Code::NoSuchJob);
    let unknown = Op::Purge { queue: "unknown".into(), states: State::ALL.to_vec() };
    assert_eq!(w.ok(&unknown), Outcome::Purged { count: 0 }, "a queue that was never used has no jobs");
}

#[test]
fn pausing_makes_the_queue_and_can_be_repeated() {
    let mut w = World::default();
    let op = Op::Pause { queue: "q".into() };
    assert_eq!(w.ok(&op), Outcome::Paused);
    assert_eq!(w.ok(&op), Outcome::Paused);
    assert!(w.queue("q").paused);
    w.db.forget();
    assert!(w.queue("q").paused);
    assert_eq!(w.ok(&Op::Resume { queue: "q".into() }), Outcome::Resumed);
    assert!(!w.queue("q").paused);
}
