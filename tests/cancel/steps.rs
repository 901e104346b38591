//! Driving a future by hand.

use std::future::{Future, IntoFuture, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use bucketq::{ClaimedJob, QueueFile, Result};
use bucketq_tests::clock::pass;
use bucketq_tests::given::{self, inline};
use bucketq_tests::puppet::{OnPut, Puppet};

/// The time between two polls; a request takes five of them.
pub const STEP: Duration = Duration::from_millis(1);
const REQUEST: Duration = Duration::from_millis(5);
/// More polls than any future here needs.
pub const MOST: usize = 20_000;

/// The fate of the put that carries the cancelled op, and of the later ones.
pub const COURSES: [&[OnPut]; 5] = [
    &[],
    &[OnPut::LoseAnswer],
    &[OnPut::LoseRequest],
    &[OnPut::FalseConflict],
    &[OnPut::LoseRequest, OnPut::LoseAnswer],
];

/// A queue file in a slow store.
pub async fn given() -> Result<(Puppet, QueueFile)> {
    let (puppet, file) = given::puppet(inline()).await?;
    puppet.takes(REQUEST);
    pass(STEP).await;
    Ok((puppet, file))
}

/// The result of one poll.
async fn once<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

/// Poll `future` this many times, one step apart, then drop it. Returns its output, if it completed.
pub async fn polled<F: IntoFuture>(future: F, times: usize) -> Option<F::Output> {
    let mut future = Box::pin(future.into_future());
    for poll in 0..times {
        if poll > 0 {
            pass(STEP).await;
        }
        if let Poll::Ready(output) = once(future.as_mut()).await {
            return Some(output);
        }
    }
    None
}

/// The same with drops between two steps of the writer where no time passes.
pub async fn polled_closely<F: IntoFuture>(future: F, times: usize) -> Option<F::Output> {
    let mut future = Box::pin(future.into_future());
    for _ in 0..times {
        if let Poll::Ready(output) = once(future.as_mut()).await {
            return Some(output);
        }
        tokio::task::yield_now().await;
    }
    None
}

/// Let everything under way end, without a lease expiring.
pub async fn quiet(file: &QueueFile) -> Result<()> {
    // The second call waits behind the hand-backs of the first one's commit.
    file.settle().await?;
    file.settle().await.map(drop)
}

/// The payloads of these jobs.
pub fn names(taken: &[ClaimedJob]) -> Vec<String> {
    taken.iter().map(|t| String::from_utf8_lossy(&t.payload.bytes).into_owned()).collect()
}
