//! The requests that a queue file sends to the store while idle, while a claim waits, and to see one commit.

use std::sync::Arc;
use std::time::Duration;

use bucketq::QueueFile;
use bucketq::config::Options;
use bucketq::env::Env;
use bucketq::error::{Code, Error, Result};
use bucketq::query::Query;
use bucketq::store::memory::Memory;
use serde_json::{Value, json};

use crate::delayed::{Delayed, Requests};
use crate::load::{QUEUE, Subject, fresh_job};
use crate::stats::{median, now};

/// Returns the requests of an open queue file in `time` without a call. The work before it leaves nothing pending.
pub async fn idle(time: Duration) -> Result<Value> {
    let subject = Subject::create(Arc::new(Memory::new()), "idle", 1_000).await?;
    let before = settled(&subject.store).await;
    tokio::time::sleep(time).await;
    Ok(told(&subject.store.requests().since(&before)))
}

/// Returns the requests while one claim waits for `time` on an empty queue, and gets no job.
pub async fn waiting(time: Duration) -> Result<Value> {
    let subject = Subject::create(Arc::new(Memory::new()), "waiting", 0).await?;
    let before = settled(&subject.store).await;
    let taken = subject.queue.claim(1).lease(Duration::from_mins(10)).wait(time).await?;
    if !taken.is_empty() {
        return Err(Error::new(Code::Internal, "a claim on an empty queue got a job"));
    }
    Ok(told(&subject.store.requests().since(&before)))
}

/// Returns the time of a durable read that finds one commit of another writer, the store without delay: GET, decode,
/// verify, apply, query. The median of `times`.
pub async fn catch_up(times: usize) -> Result<Duration> {
    let memory = Memory::new();
    let writer = Subject::create(Arc::new(memory.clone()), "shared", 10_000).await?;
    let follower =
        QueueFile::open_with(Arc::new(memory), "shared", Options::default(), Env::default()).await?;
    let env = Env::default();
    let mut samples = Vec::with_capacity(times);
    for _ in 0..times {
        let op = bucketq::op::Op::Enqueue { queue: QUEUE.to_owned(), jobs: vec![fresh_job(&env)] };
        let seq = writer.file.call(op).await?.commit_seq;
        let start = now();
        let answer = follower.ask(Query::Stats, None).await?;
        samples.push(now() - start);
        match answer {
            bucketq::query::Answer::Stats(stats) if stats.commit_seq >= seq => {}
            _ => return Err(Error::new(Code::Internal, "the follower did not see the commit")),
        }
    }
    Ok(median(&samples))
}

/// Returns the counters once no request was sent for half a second: earlier background work has ended.
async fn settled(store: &Delayed) -> Requests {
    loop {
        let before = store.requests();
        tokio::time::sleep(Duration::from_millis(500)).await;
        if store.requests() == before {
            return before;
        }
    }
}

fn told(requests: &Requests) -> Value {
    json!({ "PUT": requests.puts + requests.uploads, "LIST": requests.lists, "GET": requests.gets })
}
