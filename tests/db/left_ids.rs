//! Jobs that have left: their ids stay taken for an hour after their enqueue, and a repeated finish is recognized.

use bucketq::config::REMEMBERED_MS;
use bucketq::error::Code;
use bucketq::job::{JobId, New, Payload, State};
use bucketq::op::{Enqueued, Op, Outcome};
use bucketq::policy::Changes;
use bucketq_tests::queue_db::{World, claim, dump, enqueue, held, id, job};

use crate::policies::configure;

fn again(w: &mut World, new: New) -> Enqueued {
    match w.ok(&enqueue("q", [new])) {
        Outcome::Enqueued(mut all) => all.remove(0),
        other => panic!("an enqueue gave {other:?}"),
    }
}

fn keeping(keep: u64) -> World {
    let mut w = World::default();
    w.ok(&configure("q", Changes { keep: Some(keep), ..Changes::default() }));
    w
}

fn done(w: &mut World, jobs: std::ops::Range<u32>) {
    w.ok(&enqueue("q", jobs.clone().map(job)));
    w.claim(claim("q", jobs.len() as u32, 1));
    w.ok(&Op::Atomic(jobs.map(|n| Op::Ack { held: held(n, 1), result: None }).collect()));
}

fn rows(w: &World) -> (i64, i64) {
    let sql = "SELECT count(*), ifnull(sum(length(ids)), 0) / 15 FROM left_ids";
    w.db.connection().query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
}

#[test]
fn a_repeated_enqueue_of_a_job_that_retention_has_deleted_makes_no_second_one() {
    let mut w = keeping(0);
    done(&mut w, 0..1);
    assert!(w.detail(0).is_none(), "it has left");
    w.wait(REMEMBERED_MS - 1);
    let told = again(&mut w, job(0));
    assert_eq!((told.id, told.existing, told.deduplicated, told.commit_seq), (id(0), true, false, 0));
    w.db.forget();
    assert!(again(&mut w, job(0)).existing, "and a writer that remembers nothing finds it in the file");
    assert!(w.claim(claim("q", 9, 2)).is_empty());
    w.wait(1);
    assert!(!again(&mut w, job(0)).existing, "an hour after its enqueue it is forgotten");
    assert_eq!(w.claim_numbers(claim("q", 9, 2)), [0]);
}

#[test]
fn purged_jobs_are_remembered_in_whichever_state_they_were() {
    let mut w = World::default();
    w.ok(&enqueue("q", (0..6).map(job)));
    w.claim(claim("q", 2, 1));
    w.ok(&Op::Reject { held: held(1, 1), error: None });
    w.ok(&Op::Cancel { id: id(2), leased: false });
    w.ok(&Op::Purge { queue: "q".into(), states: State::ALL.to_vec() });
    assert_eq!(rows(&w), (1, 6), "six of the same moment take one row");
    for n in 0..6 {
        assert!(again(&mut w, job(n)).existing, "{n}");
    }
    assert!(!again(&mut w, job(6)).existing);
    w.ok(&Op::Purge { queue: "q".into(), states: vec![State::Ready] });
    let mixed = w.ok(&enqueue("q", [job(7), job(6), job(8)]));
    let Outcome::Enqueued(all) = mixed else { panic!() };
    assert_eq!(all.iter().map(|e| e.existing).collect::<Vec<_>>(), [false, true, false]);
}

#[test]
fn ids_that_are_no_times_are_remembered_too() {
    let mut w = keeping(0);
    let odd = |n: u8| {
        let id: JobId = format!("{n:02x}").repeat(16).parse().expect("32 digits");
        New::new(id, Payload::text("x"))
    };
    for n in [0, 7, 128, 255] {
        w.ok(&enqueue("q", [odd(n)]));
        w.ok(&Op::Cancel { id: odd(n).id, leased: false });
    }
    assert_eq!(rows(&w), (4, 4));
    for n in [0, 7, 128, 255] {
        assert!(again(&mut w, odd(n)).existing, "{n}");
    }
    assert!(!again(&mut w, odd(9)).existing);
}

#[test]
fn what_the_holder_repeats_is_answered_as_it_was_after_the_job_has_left() {
    let mut w = keeping(0);
    let last = |n| New { max_attempts: Some(1), ..job(n) };
    w.ok(&enqueue("q", (0..3).map(last)));
    w.claim(claim("q", 3, 1));
    let next = |n| enqueue("next", [job(10 + n)]);
    let ends = |n, t| {
        let held = held(n, t);
        [
            Op::Ack { held, result: None },
            Op::Nack { held, delay_ms: None, error: None },
            Op::Reject { held, error: None },
        ][n as usize]
            .clone()
    };
    for n in 0..3 {
        w.ok(&Op::Atomic(vec![ends(n, 1), next(n)]));
        assert!(w.detail(n).is_none(), "{n} has left");
    }
    assert_eq!(w.claim_numbers(claim("next", 9, 2)), [10, 11, 12]);
    for n in 0..3 {
        let before = dump(w.db.connection());
        w.ok(&ends(n, 1));
        w.ok(&Op::Atomic(vec![ends(n, 1), next(n)]));
        assert_eq!(before, dump(w.db.connection()), "a repeat changes nothing");
        // The token still proves it, and the kind of finish counts.
        assert_eq!(w.refused(&ends(n, 2)).code(), Code::NoSuchJob);
        let other = Op::Release { held: held(n, 1) };
        assert_eq!(w.refused(&other).code(), Code::NoSuchJob);
    }
    assert_eq!(w.refused(&Op::Reject { held: held(0, 1), error: None }).code(), Code::NoSuchJob);
}

#[test]
fn an_atomic_that_purges_first_spares_what_its_first_sending_enqueued() {
    let mut w = World::default();
    w.ok(&enqueue("q", [job(1)]));
    let all = Op::Atomic(vec![
        Op::Purge { queue: "q".into(), states: State::ALL.to_vec() },
        enqueue("q", [job(2)]),
    ]);
    w.ok(&all);
    let Outcome::Atomic(told) = w.ok(&all) else { panic!() };
    assert_eq!(told[0], Outcome::Purged { count: 0 });
    assert_eq!(w.claim_numbers(claim("q", 9, 1)), [2]);
}

#[test]
fn old_ids_are_forgotten_in_bounded_batches() {
    let mut w = keeping(0);
    for n in 0..250 {
        done(&mut w, n..n + 1);
        w.wait(1);
    }
    assert_eq!(rows(&w).1, 250);
    w.wait(REMEMBERED_MS);
    let mut left = vec![];
    for n in 1000..1004 {
        w.ok(&enqueue("q", [job(n)]));
        left.push(rows(&w).1);
    }
    assert_eq!(left, [150, 50, 0, 0]);
}

#[test]
fn jobs_that_live_for_longer_leave_nothing_behind() {
    let mut w = keeping(0);
    w.ok(&enqueue("q", [job(0)]));
    w.wait(REMEMBERED_MS);
    w.claim(claim("q", 1, 1));
    w.ok(&Op::Ack { held: held(0, 1), result: None });
    assert_eq!((w.detail(0).is_none(), rows(&w)), (true, (0, 0)));
}

#[test]
fn many_jobs_of_one_moment_take_rows_that_fit_into_a_page() {
    let mut w = World::default();
    w.ok(&enqueue("q", (0..1_000).map(job)));
    w.ok(&Op::Purge { queue: "q".into(), states: vec![State::Ready] });
    assert_eq!(rows(&w), (4, 1_000));
    let overflow: i64 =
        w.db.connection().query_row("SELECT max(length(ids)) FROM left_ids", [], |row| row.get(0)).unwrap();
    assert!(overflow < 4_000, "{overflow}");
    assert!([0, 249, 250, 999].into_iter().all(|n| again(&mut w, job(n)).existing));
}

#[test]
fn ids_remembered_by_a_clock_that_was_ahead_are_forgotten_an_hour_after_the_time_is_fixed() {
    let mut w = keeping(0);
    let day = 24 * 3_600_000;
    w.wait(400 * day);
    done(&mut w, 0..1);
    w.wait(-400 * day);
    w.db.bring_back(w.now_ms, 400 * day, &w.limits).unwrap();
    done(&mut w, 1..3);
    assert!(again(&mut w, job(0)).existing);
    w.wait(REMEMBERED_MS);
    w.ok(&enqueue("q", [job(3)]));
    assert_eq!(rows(&w), (0, 0));
    assert!(!again(&mut w, job(0)).existing);
}

#[test]
fn what_was_rolled_back_is_not_remembered() {
    let mut w = keeping(0);
    w.ok(&enqueue("q", [job(0)]));
    assert!(!again(&mut w, job(1)).existing);
    w.db.begin().unwrap();
    w.apply(&Op::Purge { queue: "q".into(), states: vec![State::Ready] }).unwrap();
    w.db.rollback().unwrap();
    assert_eq!(rows(&w), (0, 0));
    let refused = Op::Atomic(vec![
        Op::Purge { queue: "q".into(), states: vec![State::Ready] },
        Op::Cancel { id: id(99), leased: false },
    ]);
    assert_eq!(w.refused(&refused).code(), Code::NoSuchJob);
    assert_eq!(w.claim_numbers(claim("q", 9, 1)), [0, 1]);
}

#[test]
fn a_purge_in_steps_deletes_what_was_there_when_it_began() {
    let mut w = World::default();
    let grouped = |n| New { group: Some("g".into()), ..job(n) };
    w.ok(&enqueue("q", (0..10).map(job).chain((10..14).map(grouped))));
    w.claim(claim("q", 3, 1));
    let step = |before| Op::PurgeSome {
        queue: "q".into(),
        states: vec![State::Ready, State::Leased],
        before,
        limit: 5,
    };
    let (mut counts, mut place) = (vec![], None);
    loop {
        let Outcome::PurgedSome { count, before, more } = w.ok(&step(place)) else { panic!() };
        counts.push(count);
        place = Some(before);
        // Jobs enqueued meanwhile stay.
        w.ok(&enqueue("q", [job(100 + counts.len() as u32)]));
        if !more {
            break;
        }
    }
    assert_eq!(counts, [5, 5, 4]);
    assert_eq!(w.claim_numbers(claim("q", 9, 2)), [101, 102, 103]);
}
