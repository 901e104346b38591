//! One commit of very many jobs, as from a bulk load.

use std::sync::Arc;

use bucketq::op::Op;
use bucketq::store::{Memory, Store};
use bucketq::{Changes, Code, Options, Overflow, Payload, QueueFile, Result, State};
use bucketq_tests::given::{inline, opened, puppet, refused};

use crate::kit::{garbage, head, noise};

const JOBS: u64 = 100_000;

fn load(file: &QueueFile, jobs: u64) -> Result<Op> {
    let jobs = (0..jobs).map(|i| file.new_job(noise(i, 200)));
    Ok(Op::Enqueue { queue: "q".into(), jobs: jobs.collect::<Result<_>>()? })
}

#[tokio::test]
async fn a_hundred_thousand_jobs_are_one_commit_and_everybody_sees_them() -> Result<()> {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let (file, other) = (opened(Arc::clone(&store)).await?, opened(Arc::clone(&store)).await?);
    let before = file.metrics()?.commits;
    file.call(load(&file, JOBS)?).await?;
    assert_eq!(file.metrics()?.commits, before + 1);
    let now = head(&store).await?;
    assert!(now.encode().len() < 16 * 1024, "HEAD has {} bytes", now.encode().len());

    for reader in [&other, &opened(Arc::clone(&store)).await?] {
        assert_eq!(reader.stats(None).await?.queues[0].counts[&State::Ready], JOBS);
    }
    // And smaller commits follow as usual.
    file.call(load(&file, 10)?).await?;
    let taken = other.claim(10).await?;
    assert_eq!(taken.len(), 10);
    for job in taken {
        other.ack(job.held()).await?;
    }
    other.collect(std::time::Duration::ZERO).await?;
    assert_eq!(garbage(&store).await?, [""; 0]);
    other.close().await?;
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn what_would_stop_the_writer_for_seconds_is_refused_in_one_commit_and_done_in_steps() -> Result<()> {
    const MOST: u64 = 50_000;
    let (_, file) = puppet(inline()).await?;
    let q = file.queue("q")?;
    file.call(load(&file, MOST)?).await?;
    let mut grouped = q.new_job(Payload::text("x"))?;
    grouped.group = Some("g".into());
    q.enqueue_job(grouped).await?;
    let purge = Op::Purge { queue: "q".into(), states: vec![State::Done, State::Ready, State::Ready] };
    let error = refused(file.atomic(vec![Op::Pause { queue: "q".into() }, purge]).await);
    assert_eq!(error.code(), Code::State, "{error}");
    let drop_oldest = Changes {
        max_pending: Some(Some(MOST + 1)),
        overflow: Some(Overflow::DropOldest),
        ..Changes::default()
    };
    let together = Changes { group_concurrency: Some(2), ..Changes::default() };
    for changes in [drop_oldest, together] {
        let configure = Op::Configure { queue: "q".into(), changes: Box::new(changes.clone()) };
        let error = refused(file.atomic(vec![configure]).await);
        assert_eq!(error.code(), Code::Policy, "{error}");
        q.configure(changes).await?;
    }
    let other = Changes { max_attempts: Some(2), ..Changes::default() };
    file.atomic(vec![Op::Configure { queue: "q".into(), changes: Box::new(other) }]).await?;
    assert_eq!(q.purge(&[State::Ready]).await?, MOST + 1);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn more_than_the_file_may_hold_is_full_and_leaves_nothing() -> Result<()> {
    let (_, file) = puppet(Options { max_file: 8 * 1024 * 1024, ..inline() }).await?;
    let error = refused(file.call(load(&file, JOBS)?).await);
    assert_eq!(error.code(), Code::FileFull, "{error}");
    assert!(file.stats(None).await?.queues.is_empty());
    file.call(load(&file, 1_000)?).await?;
    assert_eq!(file.claim(2_000).await?.len(), 1_000);
    file.close().await
}
