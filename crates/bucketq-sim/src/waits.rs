//! Callers that wait: for a job to claim and for a job to finish, in the same process and in another, and callers that
//! leave at the very moment of the reply.
//!
//! Called at the end of a seed, on a healthy store and an empty queue file. Then it is known how soon each must get its
//! reply (G5), and that the jobs of a caller that left go to the next caller at once.

use std::sync::Arc;
use std::time::Duration;

use bucketq::error::Kind;
use bucketq::job::{JobId, New};
use bucketq::op::Op;
use bucketq::{ClaimedJob, QueueFile};

use crate::bucket::Who;
use crate::clock::pause_ms;
use crate::node;
use crate::rng::Rng;
use crate::store::Life;
use crate::work;
use crate::workload::{Client, QUEUES};
use crate::world::World;

/// Callers that leave at the moment of the reply.
const LEAVERS: u64 = 12;
/// A lease longer than this story.
const LEASE_MS: u64 = 3_600_000;

/// Every waiting caller gets its reply in time.
pub async fn judge(world: &Arc<World>, here: &Client) -> Result<(), String> {
    let who = Who { node: world.plan.nodes, life: 3 };
    let life = Arc::new(Life::new(who));
    let file = node::open(world, &life).await.map_err(|e| format!("G7: it cannot be opened twice: {e:?}"))?;
    let there = Client { world: world.clone(), file, who, rng: Rng::new(world.rng.draw()) };
    let told = async {
        across(here, &there).await?;
        leavers(here).await
    };
    let told = told.await;
    let Client { file, .. } = there;
    file.close().await.map_err(|e| format!("it does not close at the end: {e:?}"))?;
    told
}

/// The longest time from a commit of another process until waiting callers get their reply: a poll and some round
/// trips.
fn soon_ms(world: &World) -> u64 {
    let poll = world.plan.options.poll_max.as_millis() as u64;
    poll + 20 * world.plan.latency_ms.1 + 1_000
}

/// A job of another process is claimed, and one that it finishes is noticed.
async fn across(here: &Client, there: &Client) -> Result<(), String> {
    let world = &here.world;
    // Long enough for the polls to reach their longest interval.
    let wait = 60_000;
    let (claimed, sent) = tokio::join!(work::claim(here, 1, LEASE_MS, wait, None), async {
        pause_ms(40_000).await;
        let job = enqueue(there).await?;
        Ok::<_, String>((job, world.now_ms()))
    });
    let (job, sent_ms) = sent?;
    let late_ms = world.now_ms().saturating_sub(sent_ms);
    let claimed = claimed.unwrap_or_default();
    let [(n, taken)] = &claimed[..] else {
        return Err(format!("G5: a waiting claim does not get {job}, which another process enqueued"));
    };
    if taken.job.id != job || late_ms > soon_ms(world) {
        return Err(format!(
            "G5: a waiting claim gets {} {late_ms} ms after {job} was enqueued",
            taken.job.id
        ));
    }
    let (finished, acked_ms) = tokio::join!(finished(&here.file, job, 60_000), async {
        pause_ms(40_000).await;
        ack(there, *n, taken).await;
        world.now_ms()
    });
    let late_ms = world.now_ms().saturating_sub(acked_ms);
    match finished {
        // It may have left for the archive.
        Err(e) if e.kind() == Kind::NotFound => {}
        Ok(true) if late_ms <= soon_ms(world) => {}
        other => {
            return Err(format!(
                "G5: a caller who waits for {job} gets {other:?} {late_ms} ms after it was finished elsewhere"
            ));
        }
    }
    Ok(())
}

async fn finished(file: &QueueFile, job: JobId, wait_ms: u64) -> bucketq::Result<bool> {
    Ok(file.finished(job, Some(Duration::from_millis(wait_ms))).await?.is_some())
}

/// Claims whose callers leave around the moment of the reply: the next caller gets their job at once and unharmed.
async fn leavers(here: &Client) -> Result<(), String> {
    let world = &here.world;
    for _ in 0..LEAVERS {
        let patience = 1_000 + here.rng.below(6 * world.plan.latency_ms.1);
        let (left, sent) = tokio::join!(work::claim(here, 1, LEASE_MS, 60_000, Some(patience)), async {
            pause_ms(1_000).await;
            enqueue(here).await
        });
        let job = sent?;
        let mut claimed = left.unwrap_or_default();
        if claimed.is_empty() {
            claimed = work::claim(here, 1, LEASE_MS, soon_ms(world), None).await.unwrap_or_default();
        }
        let [(n, taken)] = &claimed[..] else {
            return Err(format!("G5: {job}, claimed for a caller who had left, is not handed back"));
        };
        if taken.job.id != job || taken.job.attempt != 1 {
            return Err(format!(
                "G5: {job} is handed back as attempt {} of {}",
                taken.job.attempt, taken.job.id
            ));
        }
        ack(here, *n, taken).await;
    }
    Ok(())
}

/// One job that can be claimed at once.
async fn enqueue(client: &Client) -> Result<JobId, String> {
    let job = New { when: bucketq::job::When::Now, dedup: None, group: None, ..client.job() };
    let id = job.id;
    let call = client.call(Op::Enqueue { queue: QUEUES[0].to_owned(), jobs: vec![job] }, false, None).await;
    call.commit()
        .map(|_| id)
        .ok_or_else(|| format!("G5: {id} cannot be enqueued at the end: {:?}", call.reply))
}

/// The job of hold number `n` is done.
async fn ack(client: &Client, n: usize, taken: &ClaimedJob) {
    let (fence, until) = {
        let mut history = client.world.history();
        history.stop(n, client.world.now_ms());
        (history.holds[n].fence, history.holds[n].until_ms)
    };
    client.call(Op::Ack { held: taken.held(), result: None }, false, Some((fence, until))).await;
}
