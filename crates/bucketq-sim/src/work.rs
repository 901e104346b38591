//! A worker: claims, works, and finishes in every way there is, well and badly.
//!
//! Spawned by workload.rs. A worker keeps to its deadlines (G4 holds for such workers), but it may be slow, forget a
//! job, drop its claim before the reply, or ack long after its deadline.

use std::time::Duration;

use bucketq::env::Clock;
use bucketq::job::Payload;
use bucketq::op::{Claim, ClaimWith, Held, Op, Outcome, Queues};
use bucketq::{ClaimedJob, Keeper, LeaseGuard};

use crate::clock::pause_ms;
use crate::history::{ClaimCall, Hold};
use crate::keeping;
use crate::policies::{TICK_PAYLOAD, TICKS, due_of};
use crate::store::Life;
use crate::variants::Variant;
use crate::workload::{Client, Halted, QUEUES, is_fatal, payload_of};

/// Claim and work until the clients stop.
pub async fn work(client: &Client, life: &Life) -> Halted {
    if !client.world.plan.keeper {
        return turns(client, life, None).await;
    }
    let Ok((keeper, task)) = Keeper::new(&client.file) else { return true };
    // Inside this client, so that it dies with the process.
    tokio::select! {
        biased;
        halted = turns(client, life, Some(&keeper)) => halted,
        () = task => true,
    }
}

async fn turns(client: &Client, life: &Life, keeper: Option<&Keeper>) -> Halted {
    while !client.world.is_over() && !life.is_over() {
        pause_ms(client.rng.spread(1, 300)).await;
        let (low, high) = client.world.plan.lease_ms;
        let lease_ms = client.rng.between(low, high);
        let (max, wait) = (client.rng.between(1, 4) as u32, client.rng.below(3) * client.rng.below(3_000));
        let patience = client.rng.one_in(8).then(|| client.rng.spread(1, 2_000));
        match claim(client, max, lease_ms, wait, patience).await {
            Err(halted) if halted => return true,
            Err(_) => pause_ms(client.rng.spread(10, 1_000)).await,
            Ok(jobs) => {
                for (n, taken) in jobs {
                    if handle(client, n, &taken, lease_ms, keeper).await {
                        return true;
                    }
                }
            }
        }
    }
    false
}

/// Claim up to `max` jobs and record them; `patience` is when the caller drops the request. Returns `Err(true)` when
/// the handle can no longer be used.
pub async fn claim(
    client: &Client,
    max: u32,
    lease_ms: u64,
    wait_ms: u64,
    patience: Option<u64>,
) -> Result<Vec<(usize, ClaimedJob)>, Halted> {
    let world = &client.world;
    pause_ms(world.stalled_for(client.who.node)).await;
    world.count_call();
    let at_ms = world.now_ms();
    let n = {
        let mut history = world.history();
        history.claims.push(ClaimCall { who: client.who, at_ms, wait_ms, reply: None, dropped: false });
        history.claims.len() - 1
    };
    world.note(|| format!("{} claim {n} of {max}, lease {lease_ms}, wait {wait_ms}", client.who));
    let queues = if client.rng.one_in(2) {
        Queues::Any
    } else {
        Queues::Named(vec![
            QUEUES[client.rng.below(3) as usize].to_owned(),
            QUEUES[0].to_owned(),
            TICKS.to_owned(),
        ])
    };
    let request = client
        .file
        .claim(max)
        .queues(queues)
        .lease(Duration::from_millis(lease_ms))
        .wait(Duration::from_millis(wait_ms))
        .worker(client.who.to_string());
    let answer = match patience {
        None => request.await,
        Some(ms) => {
            if let Ok(answer) = tokio::time::timeout(Duration::from_millis(ms), request.into_future()).await {
                answer
            } else {
                world.note(|| format!("{} drops claim {n}", client.who));
                world.history().claims[n].dropped = true;
                return Err(false);
            }
        }
    };
    record(client, n, lease_ms, answer)
}

fn record(
    client: &Client,
    n: usize,
    lease_ms: u64,
    answer: bucketq::Result<Vec<ClaimedJob>>,
) -> Result<Vec<(usize, ClaimedJob)>, Halted> {
    let world = &client.world;
    let at_ms = world.now_ms();
    let got = answer.as_ref().map(Vec::len).map_err(Clone::clone);
    world.note(|| format!("{} claim {n}: {got:?}", client.who));
    let mut history = world.history();
    history.claims[n].reply = Some((at_ms, got));
    let jobs = answer.map_err(|error| {
        history.told_error(client.who, &error);
        matches!(error.kind(), bucketq::error::Kind::Corrupt | bucketq::error::Kind::Closed)
    })?;
    drop(history);
    Ok(taken(client, lease_ms, jobs))
}

/// Records the jobs that a worker now holds.
fn taken(client: &Client, lease_ms: u64, jobs: Vec<ClaimedJob>) -> Vec<(usize, ClaimedJob)> {
    let world = &client.world;
    let at_ms = world.now_ms();
    let mut history = world.history();
    let mut held = Vec::new();
    let clock = &world.clocks[client.who.node];
    for taken in jobs {
        let until_ms = match world.variant {
            Some(Variant::LeaseFromAnswer) => at_ms + lease_ms - world.plan.max_skew_ms,
            Some(Variant::NoSkewMargin) => world.ms_of(taken.deadline) + world.plan.max_skew_ms,
            Some(Variant::SteadyClockStops) => {
                world.ms_of(taken.deadline) + clock.stood().1.as_millis() as u64
            }
            _ => world.ms_of(taken.deadline),
        };
        if until_ms < at_ms {
            history.odd.push(format!("P26: {} is handed {} after its deadline", client.who, taken.job.id));
        }
        let theirs = payload_of(taken.job.id, taken.job.payload_len as usize);
        let tick = due_of(&taken.job).is_some() && taken.payload.bytes == TICK_PAYLOAD;
        if taken.payload.bytes != theirs && !tick {
            history.odd.push(format!("{} is handed {} with another payload", client.who, taken.job.id));
        }
        history.holds.push(Hold {
            who: client.who,
            job: taken.job.id,
            run: taken.job.run,
            attempt: taken.job.attempt,
            token: taken.lease.token,
            fence: taken.lease.fence,
            from_ms: at_ms,
            until_ms,
            stopped_ms: None,
        });
        held.push((history.holds.len() - 1, taken));
    }
    held
}

/// Work on one job and finish it in one of the possible ways.
async fn handle(
    client: &Client,
    n: usize,
    taken: &ClaimedJob,
    lease_ms: u64,
    keeper: Option<&Keeper>,
) -> Halted {
    let rng = &client.rng;
    let kept = match keeper {
        Some(keeper) if rng.one_in(2) => match keeping::work(client, keeper, n, taken, lease_ms).await {
            Some(kept) => Some(kept),
            // The lease is lost: the worker drops its work.
            None => return false,
        },
        _ => None,
    };
    let proof = Held { id: taken.job.id, token: taken.lease.token };
    let choice = rng.below(100);
    let late = choice < 4;
    let time = if late { lease_ms + rng.spread(1, 10_000) } else { rng.spread(1, 400) };
    if choice >= 97 && kept.is_none() && extend(client, n, proof, lease_ms).await {
        return true;
    }
    pause_ms(time).await;
    pause_ms(client.world.stalled_for(client.who.node)).await;
    let clock = &client.world.clocks[client.who.node];
    if !late
        && kept.is_none()
        && taken.deadline <= clock.monotonic()
        && client.world.history().holds[n].until_ms <= client.world.now_ms()
    {
        // A worker that has missed its deadline drops the work.
        return false;
    }
    let op = match choice {
        4..=7 => return false,
        8..=17 => Op::Nack {
            held: proof,
            delay_ms: rng.one_in(2).then(|| rng.spread(1, 5_000).cast_signed()),
            error: Some("no luck".into()),
        },
        18..=22 => Op::Release { held: proof },
        23..=25 => Op::Reject { held: proof, error: Some("never".into()) },
        26..=32 => {
            let next = Op::Enqueue { queue: QUEUES[2].to_owned(), jobs: vec![client.job()] };
            let end = match rng.below(6) {
                0 => Op::Nack { held: proof, delay_ms: None, error: None },
                1 => Op::Release { held: proof },
                2 => Op::Reject { held: proof, error: None },
                _ => Op::Ack { held: proof, result: None },
            };
            Op::Atomic(vec![end, next])
        }
        33..=36 => Op::Ack { held: proof, result: Some(Payload::bytes(payload_of(taken.job.id, 40))) },
        _ => Op::Ack { held: proof, result: None },
    };
    let (fence, until) = {
        let mut history = client.world.history();
        history.stop(n, client.world.now_ms());
        (history.holds[n].fence, history.holds[n].until_ms)
    };
    if op.name() == "ack" && rng.one_in(3) {
        return ack_and_claim(client, op, (fence, until), lease_ms, keeper, kept).await;
    }
    let halted = client.insist(op, Some((fence, until))).await;
    if let Some(kept) = kept {
        kept.end();
    }
    halted
}

/// Acks a job, claims the next one in the same commit, and works on that.
async fn ack_and_claim(
    client: &Client,
    ack: Op,
    held: (u64, u64),
    lease_ms: u64,
    keeper: Option<&Keeper>,
    kept: Option<LeaseGuard>,
) -> Halted {
    let world = &client.world;
    let before = ack.held().expect("an ack names its job");
    let claim = Claim {
        queues: Queues::Any,
        max: 1,
        lease_ms: Some(lease_ms.cast_signed()),
        worker: client.who.to_string(),
        token: before.token.following(&before.id),
        again: false,
    };
    let ends = Some(Box::new(ack));
    let op = Op::ClaimWith(Box::new(ClaimWith { claim, ids: vec![], ends, done: false }));
    let ended = client.insist_since(op, Some(held)).await;
    if let Some(kept) = kept {
        kept.end();
    }
    let Some((call, began)) = ended else { return true };
    let (Some((.., Outcome::ClaimedNext(jobs))), Some(began)) = (call.commit(), began) else { return false };
    let lasts = Duration::from_millis(lease_ms);
    let deadline = began + lasts.saturating_sub(Duration::from_millis(world.plan.max_skew_ms));
    // A job that arrives after its deadline is nobody's (P26).
    if world.clocks[client.who.node].monotonic() >= deadline {
        return false;
    }
    let claimed = jobs.iter().map(|c| ClaimedJob {
        job: c.job.clone(),
        payload: c.payload.clone(),
        lease: c.lease,
        deadline,
        lasts: Some(lasts),
    });
    for (n, job) in taken(client, lease_ms, claimed.collect()) {
        if Box::pin(handle(client, n, &job, lease_ms, keeper)).await {
            return true;
        }
    }
    false
}

/// Extend the lease once or twice.
async fn extend(client: &Client, n: usize, proof: Held, lease_ms: u64) -> Halted {
    for _ in 0..2 {
        pause_ms(client.rng.below(lease_ms / 2)).await;
        let (fence, until) = {
            let history = client.world.history();
            (history.holds[n].fence, history.holds[n].until_ms)
        };
        if until <= client.world.now_ms() {
            return false;
        }
        let call = client
            .call(
                Op::Extend { held: proof, lease_ms: lease_ms.cast_signed(), at_least: false },
                false,
                Some((fence, until)),
            )
            .await;
        if call.commit().is_some() {
            // P26: counted from before the extend was sent.
            let mut history = client.world.history();
            let until = call.at_ms + lease_ms - client.world.plan.max_skew_ms;
            let hold = &mut history.holds[n];
            hold.until_ms = hold.until_ms.max(until);
        }
        if is_fatal(&call) {
            return true;
        }
    }
    false
}
