//! The promises to operators: checks, exports, restores, the history, read-only access, and upgrades one by one.

mod check;
mod export;
mod fix_time;
mod history;
mod looking;
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
