//! Writers that compete, on a store without faults: one that never rests, one that enqueues now and then, and one with
//! very large commits. No call of theirs waits for too many commits of the others (decisions 29 and 32).
//!
//! Called by run.rs instead of the ordinary story if the plan asks for it.

use std::sync::Arc;

use bucketq::QueueFile;
use bucketq::error::Error;
use bucketq::job::Payload;
use bucketq::op::Op;

use crate::bucket::Who;
use crate::clock::pause_ms;
use crate::node;
use crate::rng::Rng;
use crate::store::Life;
use crate::workload::{QUEUES, payload_of};
use crate::world::World;

/// How long the story takes.
const TIME_MS: u64 = 60_000;
/// Commits of others that a small call may wait for: eight of the writer that never rests, and eight more where the gap
/// of a large commit comes in between.
const SMALL: usize = 16;
/// The node with large commits.
pub const LARGE: usize = 2;
/// The duration of one of its uploads: no commit that needs a segment is built between two commits of the others.
pub const UPLOAD_MS: u64 = 1_500;
/// The most time for a large call: an upload that is wasted, one in its gap, and one of another writer in between.
const LARGE_MS: u64 = 4 * UPLOAD_MS;
/// Jobs of a large call: too many for HEAD.
const JOBS: usize = 1_200;

struct Writer {
    world: Arc<World>,
    file: QueueFile,
    who: Who,
    rng: Rng,
}

/// Returns the faults found.
pub async fn story(world: &Arc<World>) -> Vec<String> {
    let mut writers = Vec::new();
    for node in 0..3 {
        let who = Who { node, life: 1 };
        match node::open(world, &Arc::new(Life::new(who))).await {
            Ok(file) => {
                let rng = Rng::new(world.rng.draw());
                writers.push(Arc::new(Writer { world: world.clone(), file, who, rng }));
            }
            Err(error) => return vec![format!("{who} cannot open: {error:?}")],
        }
    }
    let [busy, rare, large] = [0, 1, LARGE].map(|n| Arc::clone(&writers[n]));
    let busy = tokio::spawn(async move { busy.work((0, 0), 1, usize::MAX).await });
    let rare = tokio::spawn(async move { rare.work((300, 1_500), 1, SMALL).await });
    let large = tokio::spawn(async move { large.work((4_000, 12_000), JOBS, usize::MAX).await });
    let mut bad = Vec::new();
    for ended in [busy, rare, large] {
        bad.extend(ended.await.unwrap_or_else(|_| vec!["a writer panics".into()]));
    }
    for writer in writers {
        if let Err(error) = writer.file.clone().close().await {
            bad.push(format!("{} cannot close: {error:?}", writer.who));
        }
    }
    bad.extend(world.bucket().broken.clone());
    bad
}

impl Writer {
    /// Enqueue `jobs` jobs again and again, with a pause within these bounds. No call may wait for more than `most`
    /// commits of others.
    async fn work(&self, pause: (u64, u64), jobs: usize, most: usize) -> Vec<String> {
        let mut bad = Vec::new();
        while self.world.now_ms() < TIME_MS {
            pause_ms(self.rng.spread(pause.0, pause.1)).await;
            let (began, before) = (self.world.now_ms(), self.world.bucket().landed.len());
            let result = self.enqueue(jobs).await;
            self.world.count_call();
            let commit = match result {
                Ok(commit) => commit,
                Err(error) => {
                    bad.push(format!("turns: {} gets {error:?} for {jobs} jobs", self.who));
                    continue;
                }
            };
            let sat = {
                let bucket = self.world.bucket();
                let before_its = bucket.landed[before..].iter().filter(|l| l.head.commit_seq < commit);
                before_its.filter(|l| l.by != self.who).count()
            };
            self.world.note(|| format!("{} sat through {sat} commits of others", self.who));
            let took = self.world.now_ms() - began;
            if jobs > 1 && took > LARGE_MS {
                bad.push(format!("turns: {} with {jobs} jobs takes {took} ms", self.who));
            }
            if sat > most {
                bad.push(format!(
                    "turns: {} with {jobs} jobs sits through {sat} commits in {took} ms",
                    self.who
                ));
            }
        }
        bad
    }

    async fn enqueue(&self, jobs: usize) -> Result<u64, Error> {
        let job = || {
            let mut job = self.file.new_job(Payload::text(""))?;
            job.payload = Payload::bytes(payload_of(job.id, 200));
            Ok(job)
        };
        let jobs = (0..jobs).map(|_| job()).collect::<Result<Vec<_>, Error>>()?;
        let done = self.file.call(Op::Enqueue { queue: QUEUES[0].to_owned(), jobs }).await?;
        Ok(done.commit_seq)
    }
}
