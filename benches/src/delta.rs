//! Bytes that a commit adds to HEAD: its record, as the writer stores it.
//!
//! To make a commit of an exact number of ops, they are sent while another commit is in flight: they wait together
//! and are committed together. A round in which they were split is repeated.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bucketq::env::Env;
use bucketq::error::{Code, Error, Result};
use bucketq::job::{New, Payload};
use bucketq::lease::Token;
use bucketq::op::{Claim, Held, Op, Outcome, Queues};
use bucketq::store::memory::Memory;
use futures_util::future::{join_all, try_join_all};
use serde_json::{Value, json};

use crate::load::{QUEUE, Subject, fresh_job};

/// Long enough for a hundred ops to reach the mailbox while a PUT is in flight.
const ROUND_TRIP: Duration = Duration::from_millis(20);
const LEASE_MS: i64 = 600_000;
/// Rounds repeated before the benchmark fails.
const TRIES: usize = 20;

/// Returns the mean bytes of a commit of 1, 10 and 100 ops, enqueue, claim and ack in equal parts.
pub async fn mix(backlog: usize, rounds: usize) -> Result<Value> {
    let subject = Subject::create(Arc::new(Memory::new()), "delta", backlog).await?;
    let mut mixer = Mixer { env: Env::default(), held: VecDeque::new(), turn: 0 };
    mixer.stock(&subject, 100).await?;
    subject.store.set_round_trip(ROUND_TRIP);
    let mut told = serde_json::Map::new();
    for size in [1_usize, 10, 100] {
        let mut bytes = 0;
        // Three rounds: with one op per commit, each kind has its turn once.
        for _ in 0..rounds.max(1) * 3 {
            bytes += together(&subject, || mixer.ops(size)).await.map(|(bytes, outcomes)| {
                mixer.keep(&outcomes);
                bytes
            })?;
        }
        told.insert(size.to_string(), json!(bytes / (rounds.max(1) as u64 * 3)));
    }
    Ok(Value::Object(told))
}

/// Returns the bytes of claiming and of extending a job of 256 KiB.
pub async fn large() -> Result<Value> {
    let subject = Subject::create(Arc::new(Memory::new()), "large", 10_000).await?;
    let env = Env::default();
    let body: Vec<u8> = (0..256 * 1024 / 64).flat_map(|_| env.bytes::<64>()).collect();
    // The first in line.
    let job = New { payload: Payload::bytes(body), priority: -1, ..fresh_job(&env) };
    subject.queue.enqueue_job(job).await?;
    let (claim, outcomes) = alone(&subject, claim(&env)).await?;
    let held = held(&outcomes).next().ok_or_else(|| Error::new(Code::Internal, "nothing was claimed"))?;
    let (extend, _) = alone(&subject, Op::Extend { held, lease_ms: LEASE_MS, at_least: false }).await?;
    Ok(json!({ "claim": claim, "extend": extend }))
}

/// Produces ops of the three kinds in turn, and keeps the jobs that can be acked.
struct Mixer {
    env: Env,
    held: VecDeque<Held>,
    turn: usize,
}

impl Mixer {
    /// Claims jobs to be acked later.
    async fn stock(&mut self, subject: &Subject, count: usize) -> Result<()> {
        let env = &self.env;
        let claims = (0..count).map(|_| subject.file.call(claim(env)));
        let outcomes: Vec<Outcome> =
            try_join_all(claims).await?.into_iter().map(|done| done.outcome).collect();
        self.keep(&outcomes);
        Ok(())
    }

    fn keep(&mut self, outcomes: &[Outcome]) {
        self.held.extend(held(outcomes));
    }

    fn ops(&mut self, count: usize) -> Vec<Op> {
        (0..count)
            .map(|_| {
                self.turn += 1;
                match (self.turn % 3, self.held.pop_front()) {
                    (0, Some(held)) => Op::Ack { held, result: None },
                    (1, kept) => {
                        self.held.extend(kept);
                        claim(&self.env)
                    }
                    (_, kept) => {
                        self.held.extend(kept);
                        enqueue(&self.env)
                    }
                }
            })
            .collect()
    }
}

fn enqueue(env: &Env) -> Op {
    Op::Enqueue { queue: QUEUE.to_owned(), jobs: vec![fresh_job(env)] }
}

fn claim(env: &Env) -> Op {
    Op::Claim(Claim {
        queues: Queues::Named(vec![QUEUE.to_owned()]),
        max: 1,
        lease_ms: Some(LEASE_MS),
        worker: "bench".to_owned(),
        token: Token(env.bytes()),
        again: false,
    })
}

fn held(outcomes: &[Outcome]) -> impl Iterator<Item = Held> {
    outcomes
        .iter()
        .flat_map(|outcome| match outcome {
            Outcome::Claimed(jobs) => jobs.as_slice(),
            _ => &[],
        })
        .map(|c| Held { id: c.job.id, token: c.lease.token })
}

/// Makes a commit of one op.
async fn alone(subject: &Subject, op: Op) -> Result<(u64, Vec<Outcome>)> {
    let before = subject.file.metrics()?;
    let done = subject.file.call(op).await?;
    let after = subject.file.metrics()?;
    Ok((after.delta_bytes - before.delta_bytes, vec![done.outcome]))
}

/// Makes one commit of these ops.
async fn together(subject: &Subject, mut ops: impl FnMut() -> Vec<Op>) -> Result<(u64, Vec<Outcome>)> {
    for _ in 0..TRIES {
        let batch = ops();
        let count = batch.len() as u64;
        let puts = subject.store.requests().puts;
        let blocker = async {
            subject.file.call(enqueue(&Env::default())).await?;
            // The batch takes one more round trip: it is not counted yet.
            subject.file.metrics()
        };
        let rest = async {
            while subject.store.requests().puts == puts {
                tokio::task::yield_now().await;
            }
            join_all(batch.into_iter().map(|op| subject.file.call(op))).await
        };
        let (before, done) = tokio::join!(blocker, rest);
        let (before, after) = (before?, subject.file.metrics()?);
        let outcomes: Vec<Outcome> = done.into_iter().map(|done| Ok(done?.outcome)).collect::<Result<_>>()?;
        if after.commits == before.commits + 1 && after.ops == before.ops + count {
            return Ok((after.delta_bytes - before.delta_bytes, outcomes));
        }
    }
    Err(Error::new(Code::Internal, "ops sent together never left in one commit"))
}
