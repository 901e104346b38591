//! Dead letters and their way back, moves to other queues, and deletions of single jobs.

use bucketq::error::Code;
use bucketq::job::{DedupScope, Died, Ended, New, Reason, State, When};
use bucketq::op::{Op, Outcome};
use bucketq::policy::{Changes, Overflow};
use bucketq::query::Filter;
use bucketq_tests::queue_db::{START_MS, World, claim, enqueue, grouped, held, id, job, keyed};

use crate::policies::configure;

fn letters_go_to(w: &mut World, queue: &str, target: &str) {
    w.ok(&configure(queue, Changes { dead_letter: Some(Some(target.into())), ..Changes::default() }));
}

fn reject(n: u32, t: u8, error: &str) -> Op {
    Op::Reject { held: held(n, t), error: Some(error.into()) }
}

fn moved(n: u32, to: &str) -> Op {
    Op::Move { id: id(n), run: None, to: to.into() }
}

/// A step of a redrive from this queue.
fn redrive(from: &str, to: Option<&str>, limit: u32) -> Op {
    let filter = Filter { queue: Some(from.into()), ..Filter::default() };
    Op::MoveSome { filter, redrive: true, to: to.map(str::to_owned), after: 0, before: None, limit }
}

/// How many jobs a step moved, and whether there may be more.
fn step(w: &mut World, op: &Op) -> (u64, bool) {
    let Outcome::MovedSome { count, more, .. } = w.ok(op) else { panic!() };
    (count, more)
}

/// A file whose jobs of these numbers died in `q`, of a rejection, and are in `dead` now.
fn with_letters(numbers: impl IntoIterator<Item = u32>) -> World {
    let mut w = World::default();
    letters_go_to(&mut w, "q", "dead");
    for n in numbers {
        w.ok(&enqueue("q", [job(n)]));
        w.claim(claim("q", 1, 1));
        w.ok(&reject(n, 1, "no route"));
    }
    w
}

#[test]
fn a_dead_letter_says_where_and_why_it_died() {
    let mut w = World::default();
    letters_go_to(&mut w, "q", "dead");
    w.ok(&enqueue("q", (1..4).map(|n| New { max_attempts: Some(2), ..job(n) })));
    for t in [1, 2] {
        w.claim(claim("q", 2, t));
        for n in [1, 2] {
            let error = Some(format!("error {t}"));
            w.ok(&Op::Nack { held: held(n, t), delay_ms: Some(0), error });
        }
    }
    w.claim(claim("q", 1, 3));
    w.wait(5);
    w.ok(&reject(3, 3, "bad input"));
    let died = |reason, attempts, error: &str, at_ms| {
        Some(Died { queue: "q".into(), reason, attempts, error: Some(error.into()), at_ms })
    };
    let letters = w.list(&Filter { queue: Some("dead".into()), ..Filter::default() });
    let told: Vec<_> = letters.iter().map(|job| (job.state, job.died.clone())).collect();
    assert_eq!(
        told,
        [
            (State::Ready, died(Reason::Failed, 2, "error 2", START_MS)),
            (State::Ready, died(Reason::Failed, 2, "error 2", START_MS)),
            (State::Ready, died(Reason::Rejected, 1, "bad input", START_MS + 5)),
        ]
    );
    assert_eq!(letters[0].last_error.as_deref(), Some("error 2"));
    let claimed = w.claim(claim("dead", 1, 4));
    assert_eq!(claimed[0].job.died, letters[0].died, "its worker sees it too");
    // When it dies again, there, the first death is still the one that says where it is from.
    w.ok(&reject(1, 4, "hopeless"));
    let again = w.job(1);
    assert_eq!(
        (again.state, again.died, again.last_error.as_deref()),
        (State::Dead, letters[0].died.clone(), Some("hopeless"))
    );
}

#[test]
fn a_dead_job_that_stays_in_its_queue_says_why_too() {
    let mut w = World::default();
    w.ok(&enqueue("q", [New { max_attempts: Some(1), ..job(1) }]));
    w.claim(claim("q", 1, 1));
    w.wait(70_000);
    w.claim(claim("q", 1, 2));
    let died = w.job(1).died.expect("it is dead");
    assert_eq!((&*died.queue, died.reason, died.attempts), ("q", Reason::LeaseExpired, 1));
    assert_eq!(died.at_ms, START_MS + 60_000);
    w.ok(&Op::Requeue { id: id(1), run: None });
    assert_eq!(w.job(1).died, None, "it lives again");
}

#[test]
fn a_redrive_sends_dead_letters_back_in_bounded_steps() {
    let mut w = with_letters(1..6);
    w.ok(&enqueue("dead", [job(9)]));
    w.claim(claim("dead", 1, 2));
    assert_eq!(step(&mut w, &redrive("dead", None, 2)), (2, true));
    assert_eq!([2, 3, 4].map(|n| w.job(n).queue), ["q", "q", "dead"]);
    assert_eq!(step(&mut w, &redrive("dead", None, 9)), (2, false));
    let (first, held_one) = (w.job(2), w.job(1));
    assert_eq!((first.run, first.attempt, first.died, first.state), (2, 0, None, State::Ready));
    assert_eq!((&*held_one.queue, held_one.state), ("dead", State::Leased), "its worker keeps it");
    assert_eq!(w.job(9).queue, "dead", "it never died");
    let attempts = w.detail(2).expect("it is there").attempts;
    let told: Vec<_> = attempts.iter().map(|a| (a.run, &*a.queue, a.ended)).collect();
    assert_eq!(told, [(0, "q", Ended::Rejected), (1, "dead", Ended::Moved)]);
    // It dies again, comes again, and is sent elsewhere.
    w.claim(claim("q", 1, 3));
    w.ok(&reject(2, 3, "still none"));
    assert_eq!(w.job(2).died.expect("it died").error.as_deref(), Some("still none"));
    assert_eq!(step(&mut w, &redrive("dead", Some("other"), 9)), (1, false));
    assert_eq!((&*w.job(2).queue, w.job(2).died), ("other", None));
    assert_eq!(step(&mut w, &redrive("other", None, 9)), (0, false), "it is no dead letter there");
}

#[test]
fn a_redrive_takes_letters_that_died_again_and_those_that_were_moved_on() {
    let mut w = with_letters([1, 2, 3]);
    w.claim(claim("dead", 1, 2));
    w.ok(&reject(1, 2, "again"));
    w.ok(&moved(2, "triage"));
    let died = w.job(2).died.expect("it is a dead letter there as well");
    assert_eq!((&*died.queue, died.error.as_deref()), ("q", Some("no route")));
    assert_eq!(step(&mut w, &redrive("dead", None, 9)), (2, false));
    assert_eq!(step(&mut w, &redrive("triage", None, 9)), (1, false));
    assert_eq!(
        [1, 2, 3].map(|n| (w.job(n).queue, w.state(n))),
        [1, 2, 3].map(|_| ("q".to_owned(), State::Ready))
    );
}

#[test]
fn a_requeued_dead_letter_stays_one() {
    let mut w = with_letters([1, 2]);
    w.claim(claim("dead", 2, 2));
    w.ok(&Op::Ack { held: held(1, 2), result: None });
    w.ok(&reject(2, 2, "again"));
    for n in [1, 2] {
        w.ok(&Op::Requeue { id: id(n), run: None });
        assert_eq!(w.job(n).died.expect("it is still from q").queue, "q");
    }
}

#[test]
fn a_full_queue_takes_back_as_many_as_it_has_room_for() {
    let mut w = with_letters(1..5);
    w.ok(&configure("q", Changes { max_pending: Some(Some(2)), ..Changes::default() }));
    assert_eq!(step(&mut w, &redrive("dead", None, 9)), (2, true));
    assert_eq!(w.refused(&redrive("dead", None, 9)).code(), Code::QueueFull);
    w.ok(&Op::Drain { queue: "q".into() });
    assert_eq!(w.refused(&redrive("dead", None, 9)).code(), Code::Draining);
}

#[test]
fn a_redrive_leaves_letters_that_came_after_its_first_step() {
    let mut w = with_letters([1, 2]);
    let Outcome::MovedSome { after, before, .. } = w.ok(&redrive("dead", None, 1)) else { panic!() };
    w.claim(claim("q", 1, 2));
    w.ok(&reject(1, 2, "again"));
    let filter = Filter { queue: Some("dead".into()), ..Filter::default() };
    let next = Op::MoveSome { filter, redrive: true, to: None, after, before: Some(before), limit: 9 };
    assert_eq!(step(&mut w, &next), (1, false));
    assert_eq!(w.job(1).queue, "dead", "or a redrive of jobs that die at once would never end");
}

#[test]
fn a_moved_job_begins_a_new_run_and_keeps_its_time_group_and_history() {
    let mut w = World::default();
    let later = New { when: When::In(5_000), group: Some("g".into()), ..job(1) };
    w.ok(&enqueue("q", [later, grouped(2, "g"), New { priority: -3, ..job(3) }]));
    assert_eq!(w.claim_numbers(claim("q", 9, 1)), [3]);
    w.ok(&Op::Nack { held: held(3, 1), delay_ms: Some(0), error: Some("no route".into()) });
    for n in [1, 3] {
        assert_eq!(w.ok(&moved(n, "p")), Outcome::Moved { run: 1 });
        assert_eq!(w.ok(&moved(n, "p")), Outcome::Moved { run: 1 }, "once is enough");
    }
    let (first, third) = (w.job(1), w.job(3));
    assert_eq!((&*first.queue, first.state, first.run_at_ms), ("p", State::Scheduled, START_MS + 5_000));
    assert_eq!(
        (third.state, third.run, third.attempt, third.priority, third.died),
        (State::Ready, 1, 0, -3, None)
    );
    let told: Vec<_> = w.detail(3).expect("it moved").attempts.iter().map(|a| (a.run, a.ended)).collect();
    assert_eq!(told, [(0, Ended::Failed), (0, Ended::Moved)]);
    assert_eq!(w.claim_numbers(claim("q", 9, 2)), [2], "the next one of the group is first now");
    w.wait(5_000);
    assert_eq!(w.claim_numbers(claim("p", 9, 3)), [3, 1]);
    assert_eq!(w.refused(&moved(1, "q")).code(), Code::State, "a worker has it");
    assert_eq!(w.refused(&moved(7, "q")).code(), Code::NoSuchJob);
    let known = Op::Move { id: id(2), run: Some(4), to: "p".into() };
    assert_eq!(w.refused(&known).code(), Code::State);
    // A repeated enqueue finds the job, wherever it is.
    let Outcome::Enqueued(all) = w.ok(&enqueue("q", [New { priority: -3, ..job(3) }])) else { panic!() };
    assert!(all[0].existing);
}

#[test]
fn a_moved_job_frees_its_key_unless_the_key_has_a_window() {
    let mut w = World::default();
    w.ok(&enqueue("q", [keyed(1, "a", DedupScope::Unfinished), keyed(2, "b", DedupScope::Window(60_000))]));
    w.ok(&moved(1, "p"));
    w.ok(&moved(2, "p"));
    w.ok(&enqueue("q", [keyed(3, "a", DedupScope::Unfinished), keyed(4, "b", DedupScope::Window(60_000))]));
    assert!(w.detail(3).is_some(), "the key is free");
    assert!(w.detail(4).is_none(), "the key counts for its window");
}

#[test]
fn many_jobs_move_by_filter() {
    let mut w = World::default();
    w.ok(&enqueue(
        "q",
        [job(1), grouped(2, "g"), grouped(3, "g"), New { when: When::In(9), ..grouped(4, "g") }],
    ));
    w.claim(claim("q", 1, 1));
    w.ok(&Op::Ack { held: held(1, 1), result: None });
    let some = |states: &[State], group: Option<&str>, to: Option<&str>, limit| {
        let group = group.map(str::to_owned);
        let filter = Filter { queue: Some("q".into()), states: states.to_vec(), group, ..Filter::default() };
        let to = to.map(str::to_owned);
        Op::MoveSome { filter, redrive: false, to, after: 0, before: None, limit }
    };
    assert_eq!(step(&mut w, &some(&[], Some("g"), Some("p"), 2)), (2, true));
    assert_eq!(step(&mut w, &some(&[], Some("g"), Some("p"), 2)), (1, false));
    assert_eq!((w.state(4), &*w.job(4).queue), (State::Scheduled, "p"));
    assert_eq!(step(&mut w, &some(&[State::Done], None, Some("p"), 9)), (1, false));
    assert_eq!(w.state(1), State::Ready, "a finished job runs again there");
    w.ok(&configure(
        "full",
        Changes { max_pending: Some(Some(1)), overflow: Some(Overflow::DropOldest), ..Changes::default() },
    ));
    w.ok(&enqueue("q", [job(5)]));
    assert_eq!(step(&mut w, &some(&[], None, Some("full"), 9)), (1, false));
    w.ok(&enqueue("full", [job(6)]));
    assert_eq!(w.state(5), State::Cancelled, "it is the oldest there");
    for wrong in [
        some(&[State::Leased], None, Some("p"), 9),
        some(&[], None, None, 9),
        some(&[], None, Some("q"), 9),
        some(&[], None, Some("p"), 0),
    ] {
        assert_eq!(w.refused(&wrong).code(), Code::Argument, "{wrong:?}");
    }
}

#[test]
fn a_deleted_job_is_gone_and_its_id_stays_taken() {
    let mut w = World::default();
    w.ok(&enqueue("q", [grouped(1, "g"), grouped(2, "g"), keyed(3, "k", DedupScope::Unfinished)]));
    w.claim(claim("q", 1, 1));
    let delete = |n, leased| Op::Delete { id: id(n), leased };
    assert_eq!(w.refused(&delete(1, false)).code(), Code::State, "a worker has it");
    assert_eq!(w.ok(&delete(1, true)), Outcome::Deleted { was: Some(State::Leased) });
    assert_eq!(w.ok(&delete(1, true)), Outcome::Deleted { was: None }, "once is enough");
    assert_eq!(w.refused(&Op::Ack { held: held(1, 1), result: None }).code(), Code::NoSuchJob);
    assert_eq!(w.ok(&delete(3, false)), Outcome::Deleted { was: Some(State::Ready) });
    w.ok(&enqueue("q", [keyed(4, "k", DedupScope::Unfinished)]));
    assert_eq!(w.claim_numbers(claim("q", 9, 2)), [2, 4]);
    let Outcome::Enqueued(all) = w.ok(&enqueue("q", [grouped(1, "g")])) else { panic!() };
    assert!(all[0].existing && w.detail(1).is_none(), "a repeated enqueue does not bring it back");
}

#[test]
fn a_repeated_atomic_does_not_delete_what_it_enqueued() {
    let mut w = World::default();
    let both = Op::Atomic(vec![Op::Delete { id: id(1), leased: false }, enqueue("q", [job(1)])]);
    w.ok(&both);
    w.ok(&both);
    assert_eq!(w.state(1), State::Ready);
}
