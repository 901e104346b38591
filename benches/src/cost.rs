//! The cost of an op in the database alone: SQL on pages in memory as the writer runs it, without store or task.

use std::time::Duration;

use bucketq::env::Env;
use bucketq::error::{Code, Error, Result};
use bucketq::internals::db::{Db, Limits, Moment};
use bucketq::internals::pages::{PageFile, Pages};
use bucketq::job::{Claimed, New, When};
use bucketq::lease::Token;
use bucketq::op::{Claim, Held, Op, Outcome, Queues};
use serde_json::{Value, json};

use crate::load::{QUEUE, fresh_job};
use crate::stats::{mean, micros, now};

const LIMITS: Limits = Limits { max_payload: 1024 * 1024, max_pages: 262_144 };
/// Ops per timed transaction: the usual commit of 64 callers.
pub(crate) const BATCH: usize = 64;
const LEASE_MS: i64 = 600_000;
/// The first value of the database's time; any would do.
const START_MS: i64 = 1_700_000_000_000;

/// A database with its pages and its own time, which advances one millisecond per commit.
#[derive(Debug)]
pub(crate) struct Bench {
    file: PageFile,
    db: Db,
    pub env: Env,
    seq: u64,
}

impl Bench {
    pub fn new() -> Result<Self> {
        let file = PageFile::new(Pages::new());
        let db = Db::create(file.connect(LIMITS.max_pages)?, START_MS)?;
        let bench = Self { file, db, env: Env::default(), seq: 0 };
        bench.file.with(|pages| drop(pages.take_changes()));
        Ok(bench)
    }

    /// Carries the ops out in one transaction. Returns their outcomes and the time it took.
    pub fn commit(&mut self, ops: &[Op]) -> Result<(Vec<Outcome>, Duration)> {
        self.seq += 1;
        let at = Moment { now_ms: START_MS + self.seq.cast_signed(), commit_seq: self.seq };
        let start = now();
        self.db.begin()?;
        let outcomes: Result<Vec<_>> = ops.iter().map(|op| self.db.apply(op, &at, &LIMITS)).collect();
        let outcomes = outcomes?;
        self.db.commit()?;
        Ok((outcomes, now() - start))
    }

    /// Drops the changes of the last commits, so that the next delta has only its own.
    pub fn forget_changes(&mut self) {
        self.file.with(|pages| drop(pages.take_changes()));
    }

    fn fill(&mut self, jobs: usize, when: When) -> Result<()> {
        for _ in 0..jobs / 1_000 {
            let jobs: Vec<New> = (0..1_000).map(|_| New { when, ..fresh_job(&self.env) }).collect();
            self.commit(&[Op::Enqueue { queue: QUEUE.to_owned(), jobs }])?;
        }
        self.forget_changes();
        Ok(())
    }

    fn enqueue(&self) -> Op {
        Op::Enqueue { queue: QUEUE.to_owned(), jobs: vec![fresh_job(&self.env)] }
    }

    pub fn claim(&self) -> Op {
        Op::Claim(Claim {
            queues: Queues::Named(vec![QUEUE.to_owned()]),
            max: 1,
            lease_ms: Some(LEASE_MS),
            worker: "bench".to_owned(),
            token: Token(self.env.bytes()),
            again: false,
        })
    }
}

pub(crate) fn held(outcomes: &[Outcome]) -> Result<Vec<Held>> {
    let one = |outcome: &Outcome| match outcome {
        Outcome::Claimed(jobs) => match jobs.as_slice() {
            [Claimed { job, lease, .. }] => Ok(Held { id: job.id, token: lease.token }),
            other => Err(Error::new(Code::Internal, format!("a claim got {} jobs", other.len()))),
        },
        other => Err(Error::new(Code::Internal, format!("a claim was answered with {other:?}"))),
    };
    outcomes.iter().map(one).collect()
}

pub(crate) fn acks(held: &[Held]) -> Vec<Op> {
    held.iter().map(|&held| Op::Ack { held, result: None }).collect()
}

/// Returns the microseconds per op at `backlog` jobs, and those of a claim with 10,000 scheduled jobs beside as many
/// ready ones. `rounds` transactions of each kind take turns.
pub fn us_per_op(backlog: usize, rounds: usize) -> Result<Value> {
    let mut bench = Bench::new()?;
    bench.fill(backlog, When::Now)?;
    let (mut enqueue, mut claim, mut ack) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let ops: Vec<Op> = (0..BATCH).map(|_| bench.enqueue()).collect();
        enqueue.push(bench.commit(&ops)?.1);
        let ops: Vec<Op> = (0..BATCH).map(|_| bench.claim()).collect();
        let (outcomes, took) = bench.commit(&ops)?;
        claim.push(took);
        ack.push(bench.commit(&acks(&held(&outcomes)?))?.1);
        bench.forget_changes();
    }

    let mut behind = Bench::new()?;
    behind.fill(10_000, When::In(86_400_000))?;
    behind.fill(10_000, When::Now)?;
    let mut claim_behind = Vec::new();
    for _ in 0..rounds.min(10_000 / BATCH) {
        let ops: Vec<Op> = (0..BATCH).map(|_| behind.claim()).collect();
        let (outcomes, took) = behind.commit(&ops)?;
        held(&outcomes)?;
        claim_behind.push(took);
        behind.forget_changes();
    }
    let each = |times: &[Duration]| micros(mean(times) / BATCH as u32);
    Ok(json!({
        "enqueue": each(&enqueue),
        "claim": each(&claim),
        "ack": each(&ack),
        "claim_behind_10000_scheduled": each(&claim_behind),
    }))
}
