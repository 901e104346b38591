//! Queues as a whole: created, deleted with what is in them, and refused when nobody created them.

use bucketq::error::Code;
use bucketq::job::{New, State};
use bucketq::op::{Op, Outcome};
use bucketq::policy::{Changes, Policy};
use bucketq::query::{Answer, Filter, Query};
use bucketq::schedule::{Missed, Schedule, Timing};
use bucketq_tests::queue_db::{World, claim, enqueue, grouped, held, job};

use crate::policies::configure;

fn create(queue: &str) -> Op {
    Op::CreateQueue { queue: queue.into() }
}

fn delete(queue: &str, limit: u32) -> Op {
    Op::DeleteQueue { queue: queue.into(), limit }
}

fn names(w: &mut World) -> Vec<String> {
    let Answer::Queues(queues) = w.query(&Query::Queues) else { panic!() };
    queues.into_iter().map(|q| q.name).collect()
}

fn hourly(queue: &str) -> Op {
    let timing = Timing::Every { every_ms: 3_600_000, from_ms: None };
    let schedule = Box::new(Schedule { timing, missed: Missed::Skip, job: job(99) });
    Op::Schedule { queue: queue.into(), name: "tick".into(), schedule }
}

#[test]
fn a_queue_is_created_once() {
    let mut w = World::default();
    assert_eq!(w.ok(&create("q")), Outcome::QueueCreated { is_new: true });
    assert_eq!(w.ok(&create("q")), Outcome::QueueCreated { is_new: false });
    assert_eq!(names(&mut w), ["q"]);
    assert_eq!(w.refused(&create("")).code(), Code::Argument);
}

#[test]
fn a_deleted_queue_is_gone_with_everything_in_it() {
    let mut w = World::default();
    w.ok(&configure("q", Changes { max_attempts: Some(3), ..Changes::default() }));
    w.ok(&enqueue("q", [job(1), grouped(2, "g"), grouped(3, "g")]));
    w.ok(&hourly("q"));
    w.claim(claim("q", 1, 1));
    let count = |count| Outcome::QueueDeleted { count, was_there: true, more: false };
    assert_eq!(w.ok(&delete("q", 9)), count(3));
    assert_eq!(w.ok(&delete("q", 9)), Outcome::QueueDeleted { count: 0, was_there: false, more: false });
    assert!(names(&mut w).is_empty());
    assert_eq!(w.refused(&Op::Ack { held: held(1, 1), result: None }).code(), Code::NoSuchJob);
    assert!(matches!(w.query(&Query::Schedules(None)), Answer::Schedules(all) if all.is_empty()));
    assert!(matches!(w.query(&Query::Policy("q".into())), Answer::Policy(p) if *p == Policy::default()));
    let purge = Op::Purge { queue: "q".into(), states: vec![State::Done] };
    assert_eq!(w.ok(&purge), Outcome::Purged { count: 0 });
    w.wait(7_200_000);
    assert!(w.claim(claim("q", 9, 2)).is_empty(), "its schedule is gone");
    // A new one of its name has nothing of it.
    w.ok(&enqueue("q", [job(4)]));
    assert_eq!(w.claim_numbers(claim("q", 9, 3)), [4]);
    assert_eq!(w.job(4).max_attempts, 10);
    assert_eq!(w.list(&Filter::default()).len(), 1);
}

#[test]
fn a_large_queue_is_deleted_in_steps_and_takes_no_jobs_meanwhile() {
    let mut w = World::default();
    w.ok(&enqueue("q", (1..6).map(job)));
    assert_eq!(w.ok(&delete("q", 3)), Outcome::QueueDeleted { count: 3, was_there: true, more: true });
    assert_eq!(w.refused(&enqueue("q", [job(9)])).code(), Code::Draining);
    assert!(w.claim(claim("q", 9, 1)).is_empty());
    assert_eq!(w.ok(&delete("q", 3)), Outcome::QueueDeleted { count: 2, was_there: true, more: false });
    w.ok(&enqueue("q", [job(9)]));
    assert_eq!(w.state(9), State::Ready);
}

#[test]
fn a_deleted_dead_letter_queue_comes_back_with_the_next_dead_letter() {
    let mut w = World::default();
    w.ok(&configure("q", Changes { dead_letter: Some(Some("dead".into())), ..Changes::default() }));
    w.ok(&enqueue("q", [job(1), job(2)]));
    w.claim(claim("q", 2, 1));
    w.ok(&Op::Reject { held: held(1, 1), error: None });
    w.ok(&delete("q", 9));
    assert_eq!(w.job(1).died.expect("it is a dead letter").queue, "q", "of a queue that is no more");
    w.ok(&configure("q", Changes { dead_letter: Some(Some("dead".into())), ..Changes::default() }));
    w.ok(&delete("dead", 9));
    w.ok(&enqueue("q", [job(3)]));
    w.claim(claim("q", 2, 2));
    w.ok(&Op::Reject { held: held(3, 2), error: None });
    assert_eq!(w.job(3).queue, "dead");
}

#[test]
fn an_atomic_that_fails_brings_a_deleted_queue_back() {
    let mut w = World::default();
    w.ok(&configure("q", Changes { max_attempts: Some(3), ..Changes::default() }));
    w.ok(&enqueue("q", [job(1)]));
    let fails = Op::Atomic(vec![
        delete("q", 9),
        Op::Resume { queue: "q".into() },
        enqueue("q", [job(2)]),
        Op::Requeue { id: bucketq_tests::queue_db::id(7), run: None },
    ]);
    assert_eq!(w.refused(&fails).code(), Code::NoSuchJob);
    w.ok(&enqueue("q", [New { max_attempts: None, ..job(3) }]));
    assert_eq!((w.state(1), w.job(3).max_attempts), (State::Ready, 3));
}

#[test]
fn a_strict_file_refuses_queues_that_nobody_created() {
    let mut w = World::default();
    w.ok(&enqueue("old", [job(1)]));
    w.ok(&Op::StrictQueues { strict: true });
    let to_new = Changes { dead_letter: Some(Some("new".into())), ..Changes::default() };
    for refused in [
        enqueue("new", [job(2)]),
        Op::Claim(claim("new", 1, 1)),
        Op::Pause { queue: "new".into() },
        Op::Move { id: bucketq_tests::queue_db::id(1), run: None, to: "new".into() },
        configure("new", Changes::default()),
        configure("old", to_new.clone()),
        hourly("new"),
    ] {
        assert_eq!(w.refused(&refused).code(), Code::NoSuchQueue, "{refused:?}");
    }
    w.ok(&enqueue("old", [job(3)]));
    w.ok(&create("new"));
    w.ok(&enqueue("new", [job(2)]));
    w.ok(&configure("old", to_new));
    w.ok(&delete("new", 9));
    assert_eq!(w.refused(&enqueue("new", [job(4)])).code(), Code::NoSuchQueue);
    w.claim(claim("old", 1, 2));
    w.ok(&Op::Reject { held: held(1, 2), error: None });
    assert_eq!(w.job(1).queue, "new", "no dead letter is lost for it");
    w.ok(&Op::StrictQueues { strict: false });
    w.ok(&enqueue("any", [job(5)]));
    let Answer::Stats(stats) = w.query(&Query::Stats) else { panic!() };
    assert!(!stats.strict_queues);
}
