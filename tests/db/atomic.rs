//! Atomic: all or nothing, and the writer's memory is undone too.

use bucketq::error::Code;
use bucketq::job::{DedupScope, State};
use bucketq::op::{Op, Outcome, Queues};
use bucketq_tests::queue_db::{World, claim, dump, enqueue, grouped, held, id, job, keyed};

#[test]
fn an_ack_and_its_next_steps_are_one() {
    let mut w = World::default();
    w.ok(&enqueue("q", [job(1)]));
    w.claim(claim("q", 1, 1));
    let op = Op::Atomic(vec![Op::Ack { held: held(1, 1), result: None }, enqueue("next", [job(2), job(3)])]);
    let Outcome::Atomic(outcomes) = w.ok(&op) else { panic!("not an atomic") };
    assert_eq!(outcomes[0], Outcome::Acked);
    assert_eq!(w.claim_numbers(claim("next", 5, 2)), [2, 3]);
}

#[test]
fn one_refusal_undoes_all_and_the_rest_of_the_batch_stays() {
    let mut w = World::default();
    w.ok(&enqueue("q", [job(1), grouped(2, "g"), grouped(3, "g"), keyed(9, "old", DedupScope::Window(1))]));
    w.claim(claim("q", 2, 1));
    w.wait(5);
    w.db.begin().unwrap();
    w.apply(&enqueue("q", [job(4)])).unwrap();
    let before = dump(w.db.connection());
    let failing = Op::Atomic(vec![
        Op::Ack { held: held(2, 1), result: None },
        enqueue("new", [keyed(5, "k", DedupScope::Window(1000))]),
        Op::Pause { queue: "q".into() },
        Op::Cancel { id: id(4), leased: false },
        Op::Nack { held: held(1, 7), delay_ms: None, error: None },
    ]);
    let error = w.apply(&failing).unwrap_err();
    assert_eq!(error.code(), Code::LeaseLost);
    assert!(error.message().starts_with("op 4 of the atomic, nack: "), "{error}");
    assert!(!w.db.poisoned());
    assert_eq!(dump(w.db.connection()), before);
    w.apply(&enqueue("new", [job(6)])).unwrap();
    w.db.commit().unwrap();
    w.commit_seq += 1;
    bucketq_tests::queue_db::check(w.db.connection());
    assert_eq!(w.job(6).seq, w.job(4).seq + 1, "ordinals are used again");
    assert_eq!(w.claim_numbers(claim("q", 9, 2)), [9, 4]);
    assert_eq!(w.db.next_due_ms(&Queues::Any).unwrap(), Some(w.now_ms - 5 + 60_000));
    assert_eq!(w.state(3), State::Ready);
}

#[test]
fn an_error_of_one_op_reaches_no_other() {
    let mut w = World::default();
    w.db.begin().unwrap();
    w.apply(&enqueue("q", [job(1)])).unwrap();
    assert!(w.apply(&Op::Ack { held: held(1, 1), result: None }).is_err());
    assert!(w.apply(&enqueue("", [job(2)])).is_err());
    w.apply(&enqueue("q", [job(3)])).unwrap();
    w.db.commit().unwrap();
    assert_eq!(w.claim_numbers(claim("q", 5, 1)), [1, 3]);
}

/// The ways to end a job.
fn ends(n: u32, t: u8) -> [Op; 4] {
    let held = held(n, t);
    [
        Op::Ack { held, result: None },
        Op::Nack { held, delay_ms: Some(60_000), error: None },
        Op::Release { held },
        Op::Reject { held, error: None },
    ]
}

#[test]
fn an_atomic_that_ends_a_job_which_was_ended_before_adds_nothing_new() {
    for n in 0..4 {
        let mut w = World::default();
        w.ok(&enqueue("q", [job(1), job(2), job(3)]));
        w.claim(claim("q", 1, 1));
        w.ok(&Op::Cancel { id: id(2), leased: false });
        // The caller repeats its code, which enqueues first and draws another id.
        let call = |next: u32| Op::Atomic(vec![enqueue("next", [job(next)]), ends(1, 1)[n].clone()]);
        w.ok(&call(10));
        let error = w.refused(&call(11));
        assert_eq!(error.code(), Code::LeaseLost, "{error}");
        assert!(error.message().contains("ended by an earlier call"), "{error}");
        let end = &ends(1, 1)[n];
        for change in [
            Op::Requeue { id: id(2), run: None },
            Op::Cancel { id: id(3), leased: false },
            Op::Purge { queue: "q".into(), states: vec![State::Cancelled] },
        ] {
            assert_eq!(w.refused(&Op::Atomic(vec![end.clone(), change])).code(), Code::LeaseLost);
        }
        // Without other effects a repeat is one, and so is one with the same ids.
        w.ok(&call(10));
        w.ok(&Op::Atomic(vec![end.clone(), Op::Cancel { id: id(2), leased: false }]));
        assert_eq!(w.claim_numbers(claim("next", 9, 2)), [10]);
    }
}

#[test]
fn an_atomic_that_ends_one_more_job_was_not_executed_before() {
    let mut w = World::default();
    w.ok(&enqueue("q", [job(1), job(2)]));
    w.claim(claim("q", 2, 1));
    w.ok(&Op::Ack { held: held(1, 1), result: None });
    let both = [1, 2].map(|n| Op::Ack { held: held(n, 1), result: None });
    w.ok(&Op::Atomic([&both[..], &[enqueue("next", [job(10)])]].concat()));
    assert_eq!(w.claim_numbers(claim("next", 9, 2)), [10]);
}

#[test]
fn an_atomic_that_cancels_a_job_and_requeues_it_after_that_run_is_repeated_without_effect() {
    let mut w = World::default();
    w.ok(&enqueue("q", [job(1)]));
    let again =
        Op::Atomic(vec![Op::Cancel { id: id(1), leased: true }, Op::Requeue { id: id(1), run: Some(0) }]);
    w.ok(&again);
    let before = dump(w.db.connection());
    w.ok(&again);
    assert_eq!(dump(w.db.connection()), before);
    assert_eq!(w.claim_numbers(claim("q", 9, 1)), [1]);
    w.ok(&again);
    assert_eq!(w.state(1), State::Leased, "its new run goes on");
}
