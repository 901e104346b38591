//! The archive of a seed: each run of a job is in the file or in exactly one listed object.
//!
//! Called by nodes (each sets the retention), by run.rs at the end and by replay.rs at every commit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bucketq::error::{Code, Error, Kind, Result};
use bucketq::internals::archive::decode;
use bucketq::job::{Backoff, Job};
use bucketq::life::{Archived, Life};
use bucketq::policy::Changes;
use bucketq::{JobId, QueueFile};
use bytes::Bytes;

use crate::check::Jobs;
use crate::clock::pause_ms;
use crate::expired_archives::ExpiredArchives;
use crate::replay;
use crate::rng::Rng;
use crate::workload::QUEUES;
use crate::world::World;

/// The dead-letter queue of one queue in a seed with an archive.
pub const LETTERS: &str = "letters";

/// The retention in a seed with an archive: few jobs, or few seconds.
pub fn keep(rng: &Rng) -> Changes {
    let archive = Changes { archive: Some(true), ..Changes::default() };
    if rng.one_in(2) {
        Changes { keep: Some(rng.below(4)), ..archive }
    } else {
        Changes { keep_ms: Some(Some(rng.spread(100, 20_000).cast_signed())), ..archive }
    }
}

/// Set the retention; repeat until that succeeds or the handle can no longer be used.
pub async fn configure(world: Arc<World>, file: QueueFile) {
    let Some(keep) = &world.plan.keep else { return };
    for queue in QUEUES {
        while let Err(error) = set(&file, queue, keep).await {
            if matches!(error.kind(), Kind::Corrupt | Kind::Closed) || world.is_over() {
                return;
            }
            pause_ms(500).await;
        }
    }
}

async fn set(file: &QueueFile, queue: &str, keep: &Changes) -> Result<()> {
    let dead_letter = (queue == QUEUES[2]).then(|| Some(LETTERS.to_owned()));
    file.queue(queue)?.configure(Changes { dead_letter, ..keep.clone() }).await.map(drop)
}

/// All jobs at one commit.
pub struct Whole {
    /// Every job, in the file or in the archive.
    pub jobs: Jobs,
    /// Keys of the listed objects.
    pub listed: BTreeSet<String>,
    /// The jobs of which only earlier runs are left.
    pub left: BTreeSet<JobId>,
    /// The existing runs of each job, in the file or in the archive.
    pub lives: BTreeMap<JobId, BTreeSet<u32>>,
    /// The faults found in it.
    pub bad: Vec<String>,
}

/// Objects read earlier, by key.
pub type Read = BTreeMap<String, Vec<Life>>;

/// Collects every existing job: those in the file, in the objects that the file lists, and in objects that expired up
/// to this commit. `object` returns the bytes under a key.
pub async fn whole(
    file: &QueueFile,
    object: impl Fn(&str) -> Option<Bytes> + Send,
    (expired, upto): (&ExpiredArchives, u64),
    read: &mut Read,
) -> Result<Whole> {
    let jobs = replay::list_all(file).await?;
    let lives = jobs.values().map(|job| (job.id, [job.run].into())).collect();
    let mut out = Whole { jobs, listed: BTreeSet::new(), left: BTreeSet::new(), lives, bad: vec![] };
    let mut seen = BTreeSet::new();
    let in_file: BTreeSet<JobId> = out.jobs.keys().copied().collect();
    // Earlier runs of requeued jobs: a finished run is among the jobs already. A purge may have deleted the job itself.
    for life in here(file).await? {
        if out.jobs.get(&life.id).is_none_or(|job| job.seq != life.seq) {
            seen.insert((life.id, life.seq));
            out.has_been(&life, &in_file);
        }
    }
    for listed in file.archives(None, 0).await?.objects {
        let lives = match look(&listed, &object, read) {
            Ok(lives) => lives,
            Err(error) => {
                out.bad
                    .push(format!("G7: {} is listed by commit {}: {error}", listed.key, listed.listed_seq));
                continue;
            }
        };
        out.archived(lives, &in_file, &mut seen);
        out.listed.insert(listed.key);
    }
    for gone in expired.values().filter(|gone| gone.seq <= upto) {
        out.archived(&gone.lives, &in_file, &mut seen);
    }
    for (id, runs) in &out.lives {
        // Runs before the first one may have ended before there was an archive.
        if let (Some(first), Some(last)) = (runs.first(), runs.last())
            && runs.len() as u32 != last - first + 1
        {
            out.bad.push(format!("G6: of the lives of {id} there are {runs:?} only"));
        }
    }
    Ok(out)
}

impl Whole {
    /// Adds the runs of one archive object.
    fn archived(&mut self, lives: &[Life], in_file: &BTreeSet<JobId>, seen: &mut BTreeSet<(JobId, u64)>) {
        for life in lives {
            if !seen.insert((life.id, life.seq)) || !seen.insert((life.id, life.finish_seq)) {
                self.bad.push(format!("G6: life {} of {} is archived twice", life.run, life.id));
            }
            if self.jobs.get(&life.id).is_some_and(|job| job.seq == life.seq) {
                self.bad
                    .push(format!("G6: life {} of {} is archived and still in the file", life.run, life.id));
            }
            self.has_been(life, in_file);
        }
    }

    /// Adds a finished run. The newest run stands for a job that is not in the file.
    fn has_been(&mut self, life: &Life, in_file: &BTreeSet<JobId>) {
        self.lives.entry(life.id).or_default().insert(life.run);
        if in_file.contains(&life.id) {
            return;
        }
        self.left.insert(life.id);
        let newest = self.jobs.entry(life.id).or_insert_with(|| job_of(life));
        if newest.seq < life.seq {
            *newest = job_of(life);
        }
    }
}

/// The finished runs that are in the file.
async fn here(file: &QueueFile) -> Result<Vec<Life>> {
    let (mut lives, mut after) = (vec![], 0);
    loop {
        let page = file.lives(None, after, u64::MAX, 1_000).await?.lives;
        let Some(last) = page.last() else { return Ok(lives) };
        after = last.finish_seq;
        lives.extend(page);
    }
}

fn look<'a>(
    listed: &Archived,
    object: &impl Fn(&str) -> Option<Bytes>,
    read: &'a mut Read,
) -> Result<&'a Vec<Life>> {
    if !read.contains_key(&listed.key) {
        let bytes = object(&listed.key).ok_or_else(|| Error::new(Code::Corrupt, "it is not there"))?;
        let (_, lives) = decode(&listed.key, bytes)?;
        read.insert(listed.key.clone(), lives);
    }
    let lives = &read[&listed.key];
    if lives.len() as u64 != listed.jobs {
        return Err(Error::new(Code::Corrupt, "it holds another number of lives"));
    }
    Ok(lives)
}

/// The job as the checks need it, built from one of its runs.
fn job_of(life: &Life) -> Job {
    Job {
        id: life.id,
        run: life.run,
        queue: life.queue.to_string(),
        state: life.state,
        expired: false,
        priority: life.priority,
        attempt: life.attempts,
        max_attempts: life.max_attempts,
        backoff: Backoff::None,
        max_run_ms: None,
        group: life.group.as_deref().map(str::to_owned),
        dedup: None,
        headers: BTreeMap::new(),
        payload_len: life.payload_len,
        seq: life.seq,
        enqueued_ms: life.enqueued_ms,
        run_at_ms: life.run_at_ms,
        claimed_ms: life.claimed_ms,
        finished_ms: Some(life.finished_ms),
        expires_ms: None,
        fence: life.fence,
        worker: life.worker.as_deref().map(str::to_owned),
        died: None,
        last_error: life.last_error.clone(),
    }
}
