//! The cost of groups, dedup keys, policies and listeners, in the database alone and in the whole engine. Both sides of
//! a ratio take turns.

use std::sync::Arc;
use std::time::Duration;

use bucketq::error::{Code, Error, Result};
use bucketq::job::{Backoff, Dedup, DedupScope, New};
use bucketq::op::Op;
use bucketq::policy::{Changes, Overflow};
use bucketq::store::Memory;
use bucketq::{Env, Options, Queue, QueueFile};
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

use crate::cost::{BATCH, Bench, acks, held};
use crate::load::{QUEUE, fresh_job};
use crate::stats::{median, micros, now, tidy};

/// Jobs in a queue whose claims are timed.
const JOBS: usize = 20_000;
const GROUPS: [usize; 3] = [1, 100, 10_000];

fn enqueue(jobs: Vec<New>) -> Op {
    Op::Enqueue { queue: QUEUE.to_owned(), jobs }
}

/// Returns a database with this number of jobs, spread evenly over the groups.
fn grouped(groups: usize, jobs: usize) -> Result<Bench> {
    let mut bench = Bench::new()?;
    for chunk in 0..jobs / 1_000 {
        let jobs = (0..1_000)
            .map(|n| New {
                group: Some(format!("group-{}", (chunk * 1_000 + n) % groups)),
                ..fresh_job(&bench.env)
            })
            .collect();
        bench.commit(&[enqueue(jobs)])?;
    }
    bench.forget_changes();
    Ok(bench)
}

/// Returns the microseconds per claim of one job, in a transaction of its own and followed by its ack, by number of
/// groups; and the slowest over the one with a single group.
pub fn claims(rounds: usize) -> Result<(Value, f64)> {
    let mut benches = GROUPS.iter().map(|groups| grouped(*groups, JOBS)).collect::<Result<Vec<_>>>()?;
    let mut times = vec![Vec::new(); GROUPS.len()];
    for _ in 0..rounds {
        for (bench, times) in benches.iter_mut().zip(&mut times) {
            let claim = bench.claim();
            let (outcomes, took) = bench.commit(&[claim])?;
            times.push(took);
            bench.commit(&acks(&held(&outcomes)?))?;
            bench.forget_changes();
        }
    }
    let middle: Vec<Duration> = times.iter().map(|t| median(t)).collect();
    let told: Map<String, Value> =
        GROUPS.iter().zip(&middle).map(|(groups, time)| (groups.to_string(), json!(micros(*time)))).collect();
    let most = middle.iter().max().copied().unwrap_or_default();
    let ratio = most.as_secs_f64() / middle.first().map_or(1.0, Duration::as_secs_f64);
    Ok((Value::Object(told), tidy(ratio, 3)))
}

/// Returns the time of an enqueue with a dedup key beside `live` live keys over one without a key; 64 per transaction.
pub fn dedup(live: usize, rounds: usize) -> Result<(f64, Value)> {
    let job = |bench: &Bench, keyed: bool| {
        let key = bucketq::internals::keys::hex(&bench.env.bytes::<16>());
        let dedup = keyed.then_some(Dedup { key, scope: DedupScope::Window(3_600_000) });
        New { dedup, ..fresh_job(&bench.env) }
    };
    let mut benches = [Bench::new()?, Bench::new()?];
    let mut times = [vec![], vec![]];
    for (bench, keyed) in benches.iter_mut().zip([true, false]) {
        for _ in 0..live / 1_000 {
            let jobs = (0..1_000).map(|_| job(bench, keyed)).collect();
            bench.commit(&[enqueue(jobs)])?;
            bench.forget_changes();
        }
    }
    for _ in 0..rounds {
        for ((bench, keyed), times) in benches.iter_mut().zip([true, false]).zip(&mut times) {
            let ops: Vec<Op> = (0..BATCH).map(|_| enqueue(vec![job(bench, keyed)])).collect();
            times.push(bench.commit(&ops)?.1);
            bench.forget_changes();
        }
    }
    let [with, without] = times.map(|t| median(&t) / BATCH as u32);
    let ratio = with.as_secs_f64() / without.as_secs_f64();
    Ok((tidy(ratio, 3), json!({ "with": micros(with), "without": micros(without) })))
}

/// Callers of the engine, and their turns per round.
const CALLERS: usize = 64;
const TURNS: usize = 40;
/// Events that may wait for their listener.
const EVENTS: usize = 10_000;

/// Makes a queue file in memory, with this policy and these jobs in it.
async fn engine(
    changes: Option<Changes>,
    jobs: usize,
    make: impl Fn(&Queue) -> Result<New>,
) -> Result<Queue> {
    let store = Arc::new(Memory::new());
    let file = QueueFile::open_with(store, "jobs", Options::default(), Env::default()).await?;
    let queue = file.queue(QUEUE)?;
    if let Some(changes) = changes {
        queue.configure(changes).await?;
    }
    for _ in 0..jobs / 1_000 {
        let jobs: Result<Vec<_>> = (0..1_000).map(|_| make(&queue)).collect();
        queue.enqueue_many(jobs?).await?;
    }
    Ok(queue)
}

/// Returns the time of a round in which all callers repeat this.
async fn round<F, T>(turn: F) -> Result<Duration>
where
    F: Fn() -> T + Clone + Send + 'static,
    T: Future<Output = Result<()>> + Send,
{
    let (began, mut callers) = (now(), JoinSet::new());
    for _ in 0..CALLERS {
        let turn = turn.clone();
        callers.spawn(async move {
            for _ in 0..TURNS {
                turn().await?;
            }
            Ok::<_, Error>(())
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended.map_err(|e| Error::new(Code::Internal, "a caller panicked").because(e))??;
    }
    Ok(now() - began)
}

/// Makes a job with a key or without; both generate the key, because that is the caller's cost.
fn keyed(queue: &Queue, is_keyed: bool) -> Result<New> {
    let env = Env::default();
    let key = bucketq::internals::keys::hex(&env.bytes::<16>());
    let dedup = is_keyed.then_some(Dedup { key, scope: DedupScope::Window(3_600_000) });
    Ok(New { dedup, ..queue.new_job(fresh_job(&env).payload)? })
}

/// Returns the ratio of [`dedup`] in the whole engine on a store without delay, with 64 callers: time of an enqueue
/// with a key over one without.
pub async fn dedup_engine(live: usize, rounds: usize) -> Result<f64> {
    let with = engine(None, live, |q| keyed(q, true)).await?;
    let without = engine(None, live, |q| keyed(q, false)).await?;
    let mut times = [vec![], vec![]];
    for _ in 0..rounds {
        for ((queue, is_keyed), times) in [(&with, true), (&without, false)].into_iter().zip(&mut times) {
            let queue = queue.clone();
            let turn = move || {
                let queue = queue.clone();
                async move { queue.enqueue_job(keyed(&queue, is_keyed)?).await.map(drop) }
            };
            times.push(round(turn).await?);
        }
    }
    let [with, without] = times.map(|t| median(&t).as_secs_f64());
    Ok(tidy(with / without, 3))
}

/// Returns the ratio for policies in the whole engine: time of enqueue, claim and ack with every policy over that with
/// none. With `dedup` false, every policy but `dedup_content`.
pub async fn policies_engine(backlog: usize, rounds: usize, dedup: bool) -> Result<f64> {
    let changes = Changes { dedup_content: Some(dedup), ..everything()? };
    let on = engine(Some(changes), backlog, |q| keyed(q, false)).await?;
    let off = engine(None, backlog, |q| keyed(q, false)).await?;
    whole_lives(&on, &off, rounds).await
}

/// Returns the ratio for a listener that counts events over none. Fails if it misses an event, since then its cost was
/// not measured.
pub async fn events_engine(backlog: usize, rounds: usize) -> Result<f64> {
    let on = engine(None, backlog, |q| keyed(q, false)).await?;
    let off = engine(None, backlog, |q| keyed(q, false)).await?;
    let mut events = on.file().events(EVENTS)?;
    let counting = tokio::spawn(async move {
        let mut count = 0;
        while events.next().await.is_some() {
            count += 1;
        }
        (count, events.missed())
    });
    let ratio = whole_lives(&on, &off, rounds).await?;
    on.file().clone().close().await?;
    drop(on);
    let (count, missed) =
        counting.await.map_err(|e| Error::new(Code::Internal, "the listener panicked").because(e))?;
    let ops = rounds * CALLERS * TURNS * 3;
    if count < ops || missed > 0 {
        return Err(Error::new(Code::Internal, format!("{count} events of {ops} ops, {missed} missed")));
    }
    Ok(ratio)
}

/// Returns enqueues per second while this number of callers wait for jobs that no worker claims, over those without.
pub async fn waiters_engine(waiters: usize, rounds: usize) -> Result<f64> {
    let on = engine(None, 0, |q| keyed(q, false)).await?;
    let off = engine(None, 0, |q| keyed(q, false)).await?;
    let waited_for = on.file().queue("waited-for")?;
    let mut waiting = JoinSet::new();
    for _ in 0..waiters.div_ceil(1_000) {
        let jobs = (0..waiters.min(1_000)).map(|_| keyed(&waited_for, false)).collect::<Result<Vec<_>>>()?;
        let ids: Vec<_> = jobs.iter().map(|job| job.id).collect();
        // The same backlog on both sides: only the waiting callers differ.
        off.file().queue("waited-for")?.enqueue_many(jobs.clone()).await?;
        waited_for.enqueue_many(jobs).await?;
        for id in ids {
            let file = on.file().clone();
            waiting.spawn(async move { file.finished(id, None).await.map(drop) });
        }
    }
    let mut times = [vec![], vec![]];
    for _ in 0..rounds {
        for (queue, times) in [&on, &off].into_iter().zip(&mut times) {
            let queue = queue.clone();
            let turn = move || {
                let queue = queue.clone();
                async move { queue.enqueue_job(keyed(&queue, false)?).await.map(drop) }
            };
            times.push(round(turn).await?);
        }
    }
    if waiting.try_join_next().is_some() {
        return Err(Error::new(Code::Internal, "a caller no longer waits"));
    }
    let [on, off] = times.map(|t| median(&t).as_secs_f64());
    Ok(tidy(off / on, 3))
}

/// Returns the time of a round of enqueue, claim and ack in one queue over that in another.
async fn whole_lives(on: &Queue, off: &Queue, rounds: usize) -> Result<f64> {
    let mut times = [vec![], vec![]];
    for _ in 0..rounds {
        for (queue, times) in [on, off].into_iter().zip(&mut times) {
            let queue = queue.clone();
            let turn = move || {
                let queue = queue.clone();
                async move {
                    queue.enqueue_job(keyed(&queue, false)?).await?;
                    for taken in queue.claim(1).await? {
                        queue.file().ack(taken.held()).await?;
                    }
                    Ok(())
                }
            };
            times.push(round(turn).await?);
        }
    }
    let [on, off] = times.map(|t| median(&t).as_secs_f64());
    Ok(tidy(on / off, 3))
}

/// Returns a policy with everything switched on, with limits that are never reached.
fn everything() -> Result<Changes> {
    Ok(Changes {
        max_attempts: Some(5),
        backoff: Some(Backoff::Linear { base_ms: 1_000, max_ms: 60_000 }),
        lease_ms: Some(Some(600_000)),
        dead_letter: Some(Some("dead".into())),
        dedup_content: Some(true),
        dedup_window_ms: Some(Some(60_000)),
        max_pending: Some(Some(1_000_000)),
        overflow: Some(Overflow::DropOldest),
        group_concurrency: Some(2),
        concurrency: Some(Some(100_000)),
        rate: Some(Some("1000000/s".parse()?)),
        // The cost of retention is measured by the program archive.
        ..Changes::default()
    })
}

/// Returns the time of an op (enqueue, claim, ack in thirds, 64 per transaction) with every policy over that with none.
pub fn policies(backlog: usize, rounds: usize) -> Result<(f64, Value)> {
    let mut benches = [Bench::new()?, Bench::new()?];
    let changes = Box::new(everything()?);
    benches[0].commit(&[Op::Configure { queue: QUEUE.to_owned(), changes }])?;
    for bench in &mut benches {
        for _ in 0..backlog / 1_000 {
            let jobs = (0..1_000).map(|_| fresh_job(&bench.env)).collect();
            bench.commit(&[enqueue(jobs)])?;
            bench.forget_changes();
        }
    }
    let mut times = [[vec![], vec![], vec![]], [vec![], vec![], vec![]]];
    for _ in 0..rounds {
        for (bench, times) in benches.iter_mut().zip(&mut times) {
            let ops: Vec<Op> = (0..BATCH).map(|_| enqueue(vec![fresh_job(&bench.env)])).collect();
            times[0].push(bench.commit(&ops)?.1);
            let ops: Vec<Op> = (0..BATCH).map(|_| bench.claim()).collect();
            let (outcomes, took) = bench.commit(&ops)?;
            times[1].push(took);
            times[2].push(bench.commit(&acks(&held(&outcomes)?))?.1);
            bench.forget_changes();
        }
    }
    let [on, off] = times.map(|kinds| kinds.map(|t| median(&t) / BATCH as u32));
    let told = |times: [Duration; 3]| json!({ "enqueue": micros(times[0]), "claim": micros(times[1]), "ack": micros(times[2]) });
    let all = |times: [Duration; 3]| times.iter().sum::<Duration>().as_secs_f64();
    Ok((tidy(all(on) / all(off), 3), json!({ "on": told(on), "off": told(off) })))
}
