//! What groups, dedup keys and policies cost in the database. Databases that are compared take turns.

use std::time::Duration;

use bucketq::error::Result;
use bucketq::job::{Backoff, Dedup, DedupScope, New};
use bucketq::op::Op;
use bucketq::policy::{Changes, Overflow};
use serde_json::{Map, Value, json};

use crate::cost::{BATCH, Bench, acks, held};
use crate::load::{QUEUE, fresh_job};
use crate::stats::{median, micros, tidy};

/// Jobs in a queue whose claims are timed.
const JOBS: usize = 20_000;
const GROUPS: [usize; 3] = [1, 100, 10_000];

fn enqueue(jobs: Vec<New>) -> Op {
    Op::Enqueue { queue: QUEUE.to_owned(), jobs }
}

/// Jobs in as many groups as there are, one after another.
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

/// Microseconds a claim of one job, each a transaction of its own and followed by its ack, by number of groups; and the
/// greatest over that with one group.
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

/// Time of an enqueue with a dedup key beside `live` live keys, over one without beside as many jobs; 64 a transaction.
pub fn dedup(live: usize, rounds: usize) -> Result<(f64, Value)> {
    let job = |bench: &Bench, keyed: bool| {
        let key = || bucketq::keys::hex(&bench.env.bytes::<16>());
        let dedup = keyed.then(|| Dedup { key: key(), scope: DedupScope::Window(3_600_000) });
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

/// Everything a policy can switch on, with limits that are never reached.
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
        // How much history is kept is measured by the bin archive.
        ..Changes::default()
    })
}

/// Time of an op (enqueue, claim, ack in thirds, 64 a transaction) in a queue with every policy over one with none.
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
