//! Queue files with finished jobs, and readers of their archives.

use std::collections::BTreeMap;
use std::sync::Arc;

use bucketq::internals::archive;
use bucketq::job::JobId;
use bucketq::life::{Archived, Life};
use bucketq::policy::{Changes, Policy};
use bucketq::store::Store;
use bucketq::{New, Op, Options, Payload, QueueFile, Result, State};
use bucketq_tests::given::{inline, object};
use std::time::Duration;

/// The queue.
pub const Q: &str = "mail";

/// An engine that archives only on request.
pub fn patient() -> Options {
    Options { archive_every: Duration::from_hours(1_000), ..inline() }
}

/// Keep this number of jobs and archive the rest.
pub fn keep(jobs: u64) -> Changes {
    Changes { keep: Some(jobs), archive: Some(true), ..Changes::default() }
}

/// Change the policy of the queue.
pub async fn set(file: &QueueFile, changes: Changes) -> Result<Policy> {
    file.queue(Q)?.configure(changes).await
}

/// Enqueue and finish this number of jobs, each with a result.
pub async fn finish(file: &QueueFile, jobs: u64) -> Result<Vec<JobId>> {
    let queue = file.queue(Q)?;
    let mut ids = vec![];
    for n in 0..jobs {
        ids.push(queue.enqueue(Payload::text(format!("job {n}"))).await?.id);
    }
    let mut left = jobs;
    while left > 0 {
        let taken = queue.claim(100).worker("w1").await?;
        left = left.saturating_sub(taken.len() as u64);
        for job in taken {
            file.ack_with(job.held(), Payload::text("fine")).await?;
        }
    }
    Ok(ids)
}

/// Enqueue a job and reject it.
pub async fn reject(file: &QueueFile, why: &str) -> Result<JobId> {
    let queue = file.queue(Q)?;
    let id = queue.enqueue(Payload::text("bad")).await?.id;
    let taken = queue.claim(1).await?;
    file.reject(taken[0].held(), Some(why.to_owned())).await?;
    Ok(id)
}

/// Enqueue a job of this payload and cancel it.
pub async fn cancel(file: &QueueFile, payload: Payload) -> Result<JobId> {
    let new: New = file.new_job(payload)?;
    let id = new.id;
    file.call(Op::Enqueue { queue: Q.to_owned(), jobs: vec![new] }).await?;
    assert_eq!(file.cancel(id).await?, State::Ready);
    Ok(id)
}

/// The runs in an object; checks that the list describes them.
pub async fn read(store: &Arc<dyn Store>, listed: &Archived) -> Result<Vec<Life>> {
    let bytes = object(store, &listed.key).await?.unwrap_or_else(|| panic!("{} is gone", listed.key));
    assert_eq!(bytes.len() as u64, listed.bytes);
    assert_eq!(bucketq::internals::wire::hash(&bytes), listed.hash);
    let (about, lives) = archive::decode(&listed.key, bytes)?;
    assert_eq!((about.version, about.commit_seq), (archive::VERSION, listed.seq));
    assert_eq!(lives.len() as u64, listed.jobs);
    assert!(lives.is_sorted_by(|a, b| a.finish_seq < b.finish_seq && a.finished_ms <= b.finished_ms));
    assert_eq!(
        lives.first().map(|l| (l.finish_seq, l.finished_ms)),
        Some((listed.first_seq, listed.first_ms))
    );
    assert_eq!(lives.last().map(|l| (l.finish_seq, l.finished_ms)), Some((listed.last_seq, listed.last_ms)));
    assert!(lives.iter().all(|l| l.queue == listed.queue));
    Ok(lives)
}

/// Every existing finished run, archived or not, by job and run. Fails if a run exists twice.
pub async fn whole(store: &Arc<dyn Store>, file: &QueueFile) -> Result<BTreeMap<(JobId, u32), Life>> {
    let mut all = BTreeMap::new();
    let archives = file.archives(None, 0).await?;
    let mut lives = vec![];
    for listed in &archives.objects {
        lives.extend(read(store, listed).await?);
    }
    let here = file.lives(None, 0, u64::MAX, 1_000).await?;
    assert_eq!(here.commit_seq, archives.commit_seq, "nobody commits meanwhile");
    lives.extend(here.lives);
    for life in lives {
        let key = (life.id, life.run);
        assert!(all.insert(key, life).is_none(), "{key:?} is there twice");
    }
    Ok(all)
}
