//! Claims with more to do in their commit: the end of another job, certain jobs only, their end at once.

use bucketq::job::{JobId, State};
use bucketq::op::{Claim, ClaimWith, Op, Outcome};
use bucketq::{Code, Queues};
use bucketq_tests::queue_db::{World, claim, enqueue, grouped, held, id, job, number};

fn with(claim: Claim) -> ClaimWith {
    ClaimWith { claim, ids: vec![], ends: None, done: false }
}

fn after(ends: Op, claim: Claim) -> Op {
    Op::ClaimWith(Box::new(ClaimWith { ends: Some(Box::new(ends)), ..with(claim) }))
}

fn ack(n: u32, t: u8) -> Op {
    Op::Ack { held: held(n, t), result: None }
}

fn numbers(outcome: Outcome) -> Vec<u32> {
    let (Outcome::Claimed(jobs) | Outcome::ClaimedNext(jobs)) = outcome else {
        panic!("a claim gave {outcome:?}")
    };
    jobs.iter().map(|claimed| number(claimed.job.id)).collect()
}

/// A world in which token 1 holds job 1 of five.
fn begun() -> World {
    let mut w = World::default();
    w.ok(&enqueue("q", (1..6).map(job)));
    w.claim(claim("q", 1, 1));
    w
}

#[test]
fn an_end_and_a_claim_are_one_commit() {
    let ends = [
        (ack(1, 1), State::Done),
        (Op::Nack { held: held(1, 1), delay_ms: Some(9_000), error: None }, State::Scheduled),
        (Op::Reject { held: held(1, 1), error: None }, State::Dead),
    ];
    for (end, state) in ends {
        let mut w = begun();
        assert_eq!(numbers(w.ok(&after(end, claim("q", 2, 2)))), [2, 3]);
        assert_eq!((w.state(1), w.state(2)), (state, State::Leased));
    }
}

#[test]
fn a_repeat_returns_the_jobs_of_the_first_time_and_claims_no_others() {
    let mut w = begun();
    let op = after(ack(1, 1), claim("q", 1, 2));
    let first = w.ok(&op);
    w.wait(10);
    assert_eq!(w.ok(&op), first);
    w.ok(&ack(2, 2));
    assert_eq!(numbers(w.ok(&op)), [0; 0], "the job of the first time is done");
    assert_eq!(w.queue("q").counts[&State::Ready], 3);
    // Also when the job has left the file since.
    w.ok(&Op::Purge { queue: "q".into(), states: vec![State::Done] });
    assert_eq!(numbers(w.ok(&op)), [0; 0]);
}

#[test]
fn a_repeat_finds_the_job_that_it_gave_back_itself() {
    let mut w = World::default();
    w.ok(&enqueue("q", [job(1)]));
    w.claim(claim("q", 1, 1));
    let op = after(Op::Nack { held: held(1, 1), delay_ms: Some(0), error: None }, claim("q", 1, 2));
    let first = w.ok(&op);
    assert_eq!(numbers(first.clone()), [1]);
    assert_eq!(w.ok(&op), first);
}

#[test]
fn nothing_is_claimed_when_the_end_is_refused() {
    let mut w = begun();
    let error = w.refused(&after(ack(1, 9), claim("q", 1, 2)));
    assert_eq!(error.code(), Code::LeaseLost);
    assert_eq!(w.refused(&after(ack(77, 1), claim("q", 1, 2))).code(), Code::NoSuchJob);
    let both = Op::Atomic(vec![ack(1, 1), Op::Cancel { id: id(77), leased: false }]);
    assert_eq!(w.refused(&after(both, claim("q", 1, 2))).code(), Code::NoSuchJob);
    assert_eq!(w.state(1), State::Leased);
}

#[test]
fn only_an_end_of_a_job_can_come_before_a_claim() {
    let mut w = begun();
    for op in [enqueue("q", [job(9)]), Op::Atomic(vec![enqueue("q", [job(9)]), ack(1, 1)])] {
        assert_eq!(w.refused(&after(op, claim("q", 1, 2))).code(), Code::Argument);
    }
    let nested = after(ack(1, 1), claim("q", 1, 2));
    assert_eq!(w.refused(&after(nested.clone(), claim("q", 1, 3))).code(), Code::Argument);
    assert_eq!(w.refused(&Op::Atomic(vec![nested])).code(), Code::Argument);
}

#[test]
fn the_end_of_a_job_lets_the_next_of_its_group_be_claimed() {
    let mut w = World::default();
    w.ok(&enqueue("q", [grouped(1, "g"), grouped(2, "g")]));
    w.claim(claim("q", 9, 1));
    assert_eq!(numbers(w.ok(&after(ack(1, 1), claim("q", 9, 2)))), [2]);
}

fn only(ids: impl IntoIterator<Item = u32>, t: u8) -> Op {
    let ids: Vec<JobId> = ids.into_iter().map(id).collect();
    let max = ids.len() as u32;
    Op::ClaimWith(Box::new(ClaimWith { ids, ..with(claim("q", max, t)) }))
}

#[test]
fn a_claim_of_certain_jobs_gets_those_that_can_be_claimed() {
    let mut w = begun();
    w.ok(&enqueue("q", [grouped(6, "g"), grouped(7, "g")]));
    w.ok(&enqueue("other", [job(8)]));
    let later = bucketq::New { when: bucketq::When::In(1_000), ..job(9) };
    w.ok(&enqueue("q", [later]));
    assert_eq!(
        numbers(w.ok(&only([4, 1, 7, 8, 9, 99, 3], 2))),
        [4, 3],
        "the others are held, blocked or not there"
    );
    w.wait(1_000);
    assert_eq!(numbers(w.ok(&only([9], 3))), [9], "its time has come");
    w.wait(60_000);
    assert_eq!(numbers(w.ok(&only([1], 4))), [1], "its lease has run out");
    assert_eq!(w.detail(1).expect("there").job.attempt, 2);
    assert_eq!(w.claim_numbers(claim("q", 9, 5)), [2, 3, 4, 5, 6, 9], "the order of the others is as before");
}

#[test]
fn a_claim_of_certain_jobs_keeps_to_the_policy() {
    let mut w = begun();
    w.ok(&Op::Pause { queue: "q".into() });
    assert_eq!(numbers(w.ok(&only([2], 2))), [0; 0]);
    w.ok(&Op::Resume { queue: "q".into() });
    let one = bucketq::Changes { concurrency: Some(Some(1)), ..bucketq::Changes::default() };
    w.ok(&Op::Configure { queue: "q".into(), changes: Box::new(one) });
    assert_eq!(numbers(w.ok(&only([2], 2))), [0; 0]);
    w.ok(&ack(1, 1));
    assert_eq!(numbers(w.ok(&only([2], 2))), [2]);
}

#[test]
fn a_claim_can_end_its_jobs_at_once() {
    let mut w = World::default();
    w.ok(&enqueue("q", [grouped(1, "g"), grouped(2, "g"), job(3)]));
    let at_once = Op::ClaimWith(Box::new(ClaimWith { done: true, ..with(claim("q", 9, 1)) }));
    let Outcome::Claimed(jobs) = w.ok(&at_once) else { panic!("it is a claim") };
    assert_eq!(
        jobs.iter().map(|c| (number(c.job.id), c.job.state)).collect::<Vec<_>>(),
        [(1, State::Done), (3, State::Done)]
    );
    assert_eq!((w.state(1), w.state(2)), (State::Done, State::Ready));
    let any = ClaimWith { done: true, ..with(Claim { queues: Queues::Any, ..claim("q", 9, 2) }) };
    assert_eq!(numbers(w.ok(&Op::ClaimWith(Box::new(any)))), [2]);
    assert_eq!(w.queue("q").counts[&State::Done], 3);
}
