//! The promises to operators: checks, exports, restores, the history, read-only access, and upgrades one by one.

mod check;
mod export;
mod fix_time;
mod history;
mod looking;
mod max_skew;
mod pinned;
mod restore;
mod upgrade;

use std::sync::Arc;

use bucketq::internals::head::Head;
use bucketq::store::{Memory, Store};
use bucketq::{Options, Payload, QueueFile, Result};
use bucketq_tests::clock::TestClock;
use bucketq_tests::given::{HEAD, NAME, inline, noise, object};

/// A queue file with its own clock.
async fn open(store: &Arc<dyn Store>) -> Result<QueueFile> {
    open_as(store, inline()).await
}

/// The same with these options.
async fn open_as(store: &Arc<dyn Store>, options: Options) -> Result<QueueFile> {
    QueueFile::open_with(Arc::clone(store), NAME, options, TestClock::start().env()).await
}

/// A queue file of this number of jobs of 3 KB, one a commit, with some of each state; from 260 on it has a base.
async fn grown(jobs: u64) -> Result<Arc<dyn Store>> {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let file = open(&store).await?;
    let q = file.queue("q")?;
    for i in 0..jobs {
        q.enqueue(Payload::bytes(noise(i, 3_000))).await?;
    }
    let taken = q.claim(3).await?;
    file.ack_with(taken[0].held(), Payload::text("done")).await?;
    file.reject(taken[1].held(), Some("no".into())).await?;
    file.close().await?;
    Ok(store)
}

/// The current HEAD.
async fn head(store: &Arc<dyn Store>) -> Result<Head> {
    Head::decode(HEAD, &object(store, HEAD).await?.expect("there is a HEAD"))
}

/// `restore::a_running_process_notices_and_a_fresh_opening_continues` notices a restore within the old lineage: the running process
/// continues without the jobs that it has acknowledged.
#[cfg(feature = "mutants")]
#[allow(non_snake_case, reason = "a test has the name of its variant")]
mod mutants {
    use bucketq::broken::Broken;
    use bucketq::{Options, Result, State};
    use bucketq_tests::given::inline;

    use crate::restore::{dir, given, put_back_as};

    #[tokio::test]
    async fn RestoreKeepsLineage() -> Result<()> {
        let dir = dir();
        let (store, file, image) = given(&dir).await?;
        put_back_as(&store, &image, Options { broken: Some(Broken::RestoreKeepsLineage), ..inline() })
            .await?;
        let jobs = file.stats(None).await?.queues[0].counts[&State::Ready];
        println!("caught RestoreKeepsLineage: {jobs} jobs where 3 were acknowledged, and no error");
        assert_eq!(jobs, 2);
        file.close().await
    }
}
