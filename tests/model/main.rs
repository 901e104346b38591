//! Random ops against a plain model of the queue.
//!
//! A case is a list of steps: batches that are committed or rolled back, time that passes, caches that are dropped.
//! After each op the outcomes are compared, after each step the whole state; `queue_db` also checks every invariant of
//! the database.

mod acts;
mod atomic;
mod model;
mod runs;
mod steps;

use bucketq::error::Code;
use bucketq::job::{Job, State};
use bucketq::op::{Op, Outcome, Queues};
use bucketq::query::{Answer, Filter, Query};
use bucketq_tests::queue_db::{World, check, dump};
use model::{Act, Model};
use proptest::prelude::*;
use steps::{Step, op, queue_name, steps};

/// Compares the two results of an op in everything that must agree.
fn same(op: &Op, real: &Result<Outcome, Code>, model: &Result<Outcome, Code>) {
    assert_eq!(real, model, "database and model differ about {op:?}");
}

fn batch(w: &mut World, model: &mut Model, specs: &[steps::Spec], commit: bool) {
    let before = (!commit).then(|| dump(w.db.connection()));
    let mut next = model.clone();
    w.db.begin().expect("begins");
    for spec in specs {
        let op = op(spec, &next);
        let real = w.apply(&op);
        assert!(!w.db.poisoned(), "{op:?}: {real:?}");
        let real = real.map_err(|e| e.code());
        let act = Act { now_ms: w.now_ms, commit_seq: w.commit_seq };
        let expected = next.apply(&op, act, real.as_ref().ok());
        same(&op, &real, &expected);
    }
    if commit {
        w.db.commit().expect("commits");
        next.ordinal = 0;
        *model = next;
        w.commit_seq += 1;
    } else {
        w.db.rollback().expect("rolls back");
        assert_eq!(before, Some(dump(w.db.connection())), "a rollback left a trace");
    }
}

/// Compares the results of every query.
fn compare(w: &mut World, model: &Model) {
    check(w.db.connection());
    let now_ms = w.now_ms;
    let expected: Vec<Job> = model.jobs.values().map(|job| job.seen(now_ms)).collect();
    assert_eq!(w.list(&Filter::default()), expected);
    for state in State::ALL {
        let filter = Filter { states: vec![state], ..Filter::default() };
        let expected: Vec<_> =
            model.jobs.values().filter(|j| j.state == state).map(|j| j.seen(now_ms)).collect();
        assert_eq!(w.list(&filter), expected, "{filter:?}");
    }
    for job in model.jobs.values() {
        let Answer::Job(Some(detail)) = w.query(&Query::Get(job.new.id)) else {
            panic!("{:?} is gone", job.new.id)
        };
        assert_eq!((detail.job, detail.payload), (job.seen(now_ms), job.new.payload.clone()));
        assert_eq!(detail.result, job.result);
    }
    let Answer::Queues(queues) = w.query(&Query::Queues) else { panic!("not queues") };
    assert_eq!(queues, model.queues(now_ms));
    for queues in [Queues::Any, Queues::Named(vec![queue_name(0), queue_name(2)])] {
        assert_eq!(w.db.next_due_ms(&queues).expect("answers"), model.next_due(&queues), "{queues:?}");
    }
}

fn run(steps: &[Step]) {
    let mut w = World::default();
    let mut model = Model::default();
    for step in steps {
        match step {
            Step::Wait(ms) => w.wait(*ms),
            Step::Batch { specs, commit } => batch(&mut w, &mut model, specs, *commit),
            Step::Forget => w.db.forget(),
            Step::Rewind => w.db.rewind(w.commit_seq - 1),
            Step::Retain { queue, keep } => {
                let name = queue_name(*queue);
                w.db.connection()
                    .execute(
                        "INSERT OR REPLACE INTO policies SELECT id, ?2 FROM queues WHERE name = ?1",
                        (&name, format!("{{\"keep\": {keep}}}")),
                    )
                    .expect("updates");
                w.db.forget();
                if let Some(queue) = model.queues.get_mut(&name) {
                    queue.retain = *keep;
                }
            }
        }
        compare(&mut w, &model);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn the_database_does_what_the_model_does(steps in steps()) {
        run(&steps);
    }
}
