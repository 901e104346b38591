//! Ops that arrive over a connection are executed once, however often they arrive (P29 to P33, P38, P39).

use bucketq::error::{Code, Result};
use bucketq::internals::db::{Db, Delivered};
use bucketq::internals::pages::{PageFile, Pages};
use bucketq::internals::session::{Delivery, SessionId};
use bucketq::job::State;
use bucketq::op::{Op, Outcome};
use bucketq_tests::queue_db::{START_MS, World, check, claim, dump, enqueue, held, id, job};

const DAY_MS: i64 = 24 * 3_600_000;

/// Number `n` of session `s`, sent once.
fn delivery(s: u8, n: u64) -> Delivery {
    Delivery {
        session: SessionId([s; 16]),
        born: 1,
        n,
        have: 0,
        again: false,
        cancel: false,
        last_ms: i64::MAX,
        stamp: 7,
    }
}

fn again(s: u8, n: u64) -> Delivery {
    Delivery { again: true, ..delivery(s, n) }
}

/// Deliver one op as a commit, then check every invariant.
fn deliver(w: &mut World, delivery: &Delivery, op: &Op) -> Delivered {
    deliver_all(w, &[(*delivery, op.clone())]).remove(0)
}

/// Deliver these ops in one commit.
fn deliver_all(w: &mut World, ops: &[(Delivery, Op)]) -> Vec<Delivered> {
    let (at, limits) = (w.at(), w.limits);
    w.db.begin().expect("begins");
    let found = ops.iter().map(|(delivery, op)| w.db.deliver(delivery, op, false, &at, &limits));
    let found: Result<Vec<_>> = found.collect();
    w.db.commit().expect("commits");
    w.commit_seq += 1;
    check(w.db.connection());
    found.expect("it is delivered")
}

fn outcome(delivered: &Delivered) -> Outcome {
    match delivered {
        Delivered::Executed { result, .. } | Delivered::Recorded { result, .. } => {
            result.clone().expect("it succeeded")
        }
        Delivered::Forgotten => panic!("it is forgotten"),
    }
}

fn failed(delivered: &Delivered) -> Code {
    match delivered {
        Delivered::Executed { result, .. } | Delivered::Recorded { result, .. } => {
            result.clone().expect_err("it failed").code()
        }
        Delivered::Forgotten => panic!("it is forgotten"),
    }
}

fn is_recorded(delivered: &Delivered) -> bool {
    matches!(delivered, Delivered::Executed { recorded: true, .. })
}

fn sessions(w: &World) -> i64 {
    w.db.connection().query_row("SELECT count(*) FROM sessions", [], |row| row.get(0)).expect("it is there")
}

#[test]
fn an_op_that_arrives_again_has_the_same_result_and_one_effect() {
    let mut w = World::default();
    let op = enqueue("q", [job(1), job(2)]);
    let first = deliver(&mut w, &delivery(1, 1), &op);
    assert!(is_recorded(&first));
    let before = dump(w.db.connection());
    w.wait(1_000);
    // Every writer looks it up, not only the one that executed it.
    w.db.forget();
    for _ in 0..2 {
        let found = deliver(&mut w, &again(1, 1), &op);
        let Delivered::Recorded { commit_seq, commit_ms, stamp, .. } = &found else { panic!("{found:?}") };
        assert_eq!((*commit_seq, *commit_ms, *stamp), (1, START_MS, 7));
        assert_eq!(outcome(&found), outcome(&first));
    }
    assert_eq!(before, dump(w.db.connection()));
    assert_eq!(w.queue("q").counts[&State::Ready], 2);
}

#[test]
fn two_deliveries_in_one_commit_are_one_effect() {
    let mut w = World::default();
    w.ok(&enqueue("q", [job(1)]));
    let purge = Op::Purge { queue: "q".into(), states: vec![State::Ready] };
    let found = deliver_all(&mut w, &[(delivery(1, 1), purge.clone()), (again(1, 1), purge)]);
    assert_eq!(found.iter().map(outcome).collect::<Vec<_>>(), vec![Outcome::Purged { count: 1 }; 2]);
}

#[test]
fn a_commit_that_loses_its_race_leaves_no_result() {
    let pages = PageFile::new(Pages::new());
    let mut w = World::on(pages.connect(10_000).expect("it connects"));
    w.ok(&enqueue("q", [job(1)]));
    drop(pages.with(Pages::take_changes));
    let ack = Op::Ack { held: held(1, 1), result: None };
    w.ok(&Op::Claim(claim("q", 1, 1)));
    drop(pages.with(Pages::take_changes));
    let commit_seq = w.commit_seq;
    assert!(is_recorded(&deliver(&mut w, &delivery(1, 1), &ack)));
    let lost = pages.with(Pages::take_changes);
    pages.with(|p| p.undo(lost)).expect("it is undone");
    w.db.rewind(commit_seq - 1);
    pages.reset_cache(w.db.connection()).expect("nothing is open");
    w.commit_seq = commit_seq;
    assert_eq!(w.state(1), State::Leased);
    assert!(is_recorded(&deliver(&mut w, &again(1, 1), &ack)), "it is executed again");
    assert_eq!(w.state(1), State::Done);
}

#[test]
fn a_claim_that_arrives_again_gets_the_same_jobs_with_their_payloads() {
    let mut w = World::default();
    w.ok(&enqueue("q", [job(1), job(2), job(3)]));
    let op = Op::Claim(claim("q", 2, 1));
    let first = outcome(&deliver(&mut w, &delivery(1, 1), &op));
    assert_eq!(outcome(&deliver(&mut w, &again(1, 1), &op)), first);
    // A job that its holder has lost since is no longer in it.
    w.ok(&Op::Cancel { id: id(1), leased: true });
    let Outcome::Claimed(left) = outcome(&deliver(&mut w, &again(1, 1), &op)) else {
        panic!("it is a claim")
    };
    assert_eq!(left.iter().map(|claimed| claimed.job.id).collect::<Vec<_>>(), [id(2)]);
    assert_eq!(w.queue("q").counts[&State::Ready], 1, "no other job is claimed");
}

#[test]
fn a_result_that_changed_nothing_is_recorded_only_for_a_repeat() {
    let mut w = World::default();
    w.ok(&enqueue("q", [job(1)]));
    let nobody = Op::Ack { held: held(1, 9), result: None };
    let before = dump(w.db.connection());
    let first = deliver(&mut w, &delivery(1, 1), &nobody);
    assert!(!is_recorded(&first));
    assert_eq!(before, dump(w.db.connection()), "it costs no commit");
    let second = deliver(&mut w, &again(1, 1), &nobody);
    assert!(is_recorded(&second));
    w.ok(&Op::Claim(claim("q", 1, 9)));
    // The first delivery, read late, has the result that its client was given.
    let late = deliver(&mut w, &delivery(1, 1), &nobody);
    assert_eq!(failed(&late), failed(&second));
    assert_eq!(w.state(1), State::Leased);
}

#[test]
fn a_waiting_claim_that_finds_nothing_is_not_recorded() {
    let mut w = World::default();
    w.ok(&enqueue("p", [job(1)]));
    let (at, limits) = (w.at(), w.limits);
    w.db.begin().expect("begins");
    let found =
        w.db.deliver(&again(1, 1), &Op::Claim(claim("q", 1, 1)), true, &at, &limits).expect("delivered");
    w.db.commit().expect("commits");
    assert_eq!(found, Delivered::Executed { result: Ok(Outcome::Claimed(vec![])), recorded: false });
}

#[test]
fn an_op_that_was_given_up_is_never_executed() {
    let mut w = World::default();
    let op = enqueue("q", [job(1)]);
    let given_up = deliver(&mut w, &Delivery { cancel: true, ..again(1, 1) }, &op);
    assert!(is_recorded(&given_up));
    assert_eq!(failed(&given_up), Code::Timeout);
    assert_eq!(failed(&deliver(&mut w, &delivery(1, 1), &op)), Code::Timeout);
    // An op that was executed is not given up: its result is returned.
    let op = enqueue("q", [job(2)]);
    let first = outcome(&deliver(&mut w, &delivery(1, 2), &op));
    assert_eq!(outcome(&deliver(&mut w, &Delivery { cancel: true, ..again(1, 2) }, &op)), first);
}

#[test]
fn no_commit_after_its_last_time_executes_an_op() {
    let mut w = World::default();
    let last = Delivery { last_ms: START_MS + 1_000, ..delivery(1, 1) };
    let op = enqueue("q", [job(1)]);
    w.wait(1_001);
    let late = deliver(&mut w, &last, &op);
    assert_eq!((failed(&late), is_recorded(&late)), (Code::Timeout, false));
    assert!(is_recorded(&deliver(&mut w, &Delivery { again: true, ..last }, &op)));
    // A writer with a slow clock finds the record.
    w.now_ms = START_MS;
    assert_eq!(failed(&deliver(&mut w, &last, &op)), Code::Timeout);
    // A recorded result is returned, however late.
    let op = enqueue("q", [job(2)]);
    let soon = Delivery { last_ms: START_MS + 2_000, ..delivery(1, 2) };
    let first = outcome(&deliver(&mut w, &soon, &op));
    w.wait(DAY_MS);
    assert_eq!(outcome(&deliver(&mut w, &Delivery { again: true, ..soon }, &op)), first);
}

#[test]
fn results_that_the_client_has_are_dropped_and_their_ops_never_executed() {
    let mut w = World::default();
    for n in 1..=50 {
        let op = enqueue("q", [job(n)]);
        deliver(&mut w, &Delivery { have: u64::from(n) - 1, ..delivery(1, n.into()) }, &op);
    }
    let size: i64 =
        w.db.connection()
            .query_row("SELECT length(results) FROM sessions", [], |row| row.get(0))
            .expect("there is one");
    assert!(size < 40, "{size} bytes for the one result that the client may lack");
    for forget in [false, true] {
        if forget {
            w.db.forget();
        }
        assert_eq!(deliver(&mut w, &again(1, 49), &enqueue("q", [job(99)])), Delivered::Forgotten);
        assert_eq!(outcome(&deliver(&mut w, &again(1, 50), &enqueue("q", [job(50)]))), {
            let Delivered::Recorded { result, .. } = deliver(&mut w, &again(1, 50), &enqueue("q", [job(50)]))
            else {
                panic!("it is recorded")
            };
            result.expect("it succeeded")
        });
    }
    assert_eq!(w.queue("q").counts[&State::Ready], 50);
}

#[test]
fn a_session_that_was_dropped_executes_nothing_more() {
    let mut w = World::default();
    let op = enqueue("q", [job(1)]);
    deliver(&mut w, &Delivery { born: 3, ..delivery(1, 1) }, &op);
    w.wait(DAY_MS);
    // The next new session drops it.
    deliver(&mut w, &Delivery { born: 5, ..delivery(2, 1) }, &enqueue("q", [job(2)]));
    assert_eq!(sessions(&w), 1);
    for forget in [false, true] {
        if forget {
            w.db.forget();
        }
        assert_eq!(deliver(&mut w, &Delivery { born: 3, ..again(1, 1) }, &op), Delivered::Forgotten);
        // Also another one, born before: nobody can know whether it had a row.
        assert_eq!(deliver(&mut w, &Delivery { born: 3, ..delivery(3, 1) }, &op), Delivered::Forgotten);
    }
    assert!(is_recorded(&deliver(&mut w, &Delivery { born: 4, ..delivery(4, 1) }, &enqueue("q", [job(3)]))));
    assert!(is_recorded(&deliver(&mut w, &Delivery { born: 5, ..delivery(2, 2) }, &enqueue("q", [job(4)]))));
}

#[test]
fn sessions_are_bounded_and_the_longest_unused_go_first() {
    let mut w = World::default();
    w.db.begin().expect("begins");
    w.db.connection()
        .execute_batch(&format!(
            "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 4200)
             INSERT INTO sessions SELECT CAST(printf('%016d', i) AS BLOB), i, 0, {START_MS} + i, x'' FROM n"
        ))
        .expect("rows are added");
    w.db.commit().expect("commits");
    w.wait(10_000);
    for n in 1..=4 {
        deliver(&mut w, &Delivery { born: 9_000, ..delivery(n, 1) }, &enqueue("q", [job(n.into())]));
    }
    assert_eq!(sessions(&w), 4_096);
    let conn = w.db.connection();
    let oldest: i64 = conn.query_row("SELECT min(born) FROM sessions", [], |row| row.get(0)).expect("one");
    let sql = "SELECT value FROM meta WHERE name = 'forgotten'";
    let forgotten: i64 = conn.query_row(sql, [], |row| row.get(0)).expect("it is there");
    assert_eq!((oldest, forgotten), (109, 108));
}

#[test]
fn a_restore_drops_every_session() {
    let mut w = World::default();
    let op = enqueue("q", [job(1)]);
    deliver(&mut w, &delivery(1, 1), &op);
    w.db.drop_sessions(40).expect("they are dropped");
    assert_eq!(sessions(&w), 0);
    assert_eq!(deliver(&mut w, &Delivery { born: 40, ..again(1, 1) }, &op), Delivered::Forgotten);
    assert!(is_recorded(&deliver(&mut w, &Delivery { born: 41, ..delivery(2, 1) }, &enqueue("q", [job(2)]))));
}

#[test]
fn damaged_results_are_corrupt_and_never_executed_past() {
    let mut w = World::default();
    let op = enqueue("q", [job(1)]);
    deliver(&mut w, &delivery(1, 1), &op);
    for bytes in ["x'ff'", "x'0101010109'", "x'0101010102ffffffffffffffff7f'", "x'01010101000a7b'"] {
        w.db.connection()
            .execute(&format!("UPDATE sessions SET results = {bytes}"), [])
            .expect("it is damaged");
        w.db.forget();
        let (at, limits) = (w.at(), w.limits);
        w.db.begin().expect("begins");
        let error = w.db.deliver(&again(1, 1), &op, false, &at, &limits).expect_err("it is damaged");
        assert_eq!((error.code(), w.db.poisoned()), (Code::Corrupt, true), "{bytes}");
        w.db.rollback().expect("it is rolled back");
    }
}

#[test]
fn numbers_out_of_range_are_refused() {
    let mut w = World::default();
    let (at, limits) = (w.at(), w.limits);
    w.db.begin().expect("begins");
    let bad = [delivery(1, 0), delivery(1, u64::MAX), Delivery { born: u64::MAX, ..delivery(1, 1) }];
    for delivery in bad {
        let refused = w.db.deliver(&delivery, &enqueue("q", [job(1)]), false, &at, &limits);
        assert_eq!(refused.expect_err("it is out of range").code(), Code::Argument);
        assert!(!w.db.poisoned(), "it has changed nothing");
    }
    w.db.rollback().expect("it is rolled back");
}

#[test]
fn an_op_that_is_invalid_is_refused_without_a_trace() {
    let mut w = World::default();
    let found = deliver(&mut w, &delivery(1, 1), &enqueue("", [job(1)]));
    assert_eq!((failed(&found), is_recorded(&found)), (Code::Argument, false));
    let _: Db = w.db;
}
