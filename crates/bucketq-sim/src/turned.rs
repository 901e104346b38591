//! A store that keeps its promises while a queue file is created and turns bad under it, or to which the objects were
//! copied: a process that starts then must read it and write nothing (G10).
//!
//! Called by run.rs instead of the ordinary story if the plan asks for it.

use std::sync::Arc;

use bucketq::QueueFile;
use bucketq::error::{Code, Error};
use bucketq::job::{JobId, Payload};

use crate::bucket::{Lie, Who};
use crate::clock::pause_ms;
use crate::node;
use crate::store::Life;
use crate::world::World;

/// Jobs before the store turns, and jobs that each process tries to enqueue afterwards.
const JOBS: usize = 5;

/// Returns the faults found.
pub async fn story(world: &Arc<World>, lie: Lie) -> Vec<String> {
    match lived(world, lie).await {
        Ok(bad) => bad,
        Err(error) => vec![format!("G10: the story ends with {error:?}")],
    }
}

async fn lived(world: &Arc<World>, lie: Lie) -> Result<Vec<String>, Error> {
    let mut promised = vec![];
    let file = begin(world, 0).await?;
    for _ in 0..JOBS {
        promised.push(enqueue(world, &file).await?);
    }
    // A process that opened the file before the store turned bad may continue: only P25 protects it.
    file.close().await?;
    world.note(|| format!("the store turns: {lie:?}"));
    let before = {
        let mut bucket = world.bucket();
        bucket.turn(lie);
        bucket.landed.len()
    };
    let mut bad = vec![];
    let mut files = vec![];
    for node in 0..world.plan.nodes {
        files.push(begin(world, node).await?);
    }
    for _ in 0..JOBS {
        let tried: Vec<_> = files.iter().map(|file| enqueue(world, file)).collect();
        for told in futures_util::future::join_all(tried).await {
            match told {
                Ok(id) => {
                    bad.push(format!("G10: a job is acknowledged by a store that lies: {lie:?}"));
                    promised.push(id);
                }
                Err(error) if error.code() == Code::NoCompareAndSwap => {
                    world.history().told_error(Who { node: 0, life: 0 }, &error);
                }
                Err(error) => bad.push(format!("G10: told {error:?} by a store that lies: {lie:?}")),
            }
        }
        pause_ms(1_000).await;
    }
    if world.bucket().landed.len() != before {
        bad.push("G10: HEAD is replaced in a store that does not keep its word".into());
    }
    // Readers continue, and find what was promised.
    let reader = begin(world, world.plan.nodes).await?;
    for id in promised {
        if reader.get(id).await?.is_none() {
            bad.push(format!("G1: the acknowledged job {id} is gone"));
        }
    }
    files.push(reader);
    for file in files {
        file.close().await?;
    }
    world.wait_arrived().await;
    let litter = world.bucket().list("").into_iter().filter(|(key, _)| key.contains(".probe-")).count();
    if litter > 0 {
        bad.push(format!("{litter} objects of probes are left"));
    }
    Ok(bad)
}

async fn begin(world: &Arc<World>, node: usize) -> Result<QueueFile, Error> {
    world.count_call();
    let life = u32::try_from(world.calls()).unwrap_or(u32::MAX);
    node::open(world, &Arc::new(Life::new(Who { node, life }))).await
}

async fn enqueue(world: &Arc<World>, file: &QueueFile) -> Result<JobId, Error> {
    world.count_call();
    Ok(file.queue("q")?.enqueue(Payload::text("x")).await?.id)
}
