//! The commits of the log, newest first.

use bucketq::{Payload, Result};
use bucketq_tests::given::{inline, puppet};
use bucketq_tests::puppet::OnGet;

use crate::{grown, head, open};

#[tokio::test]
async fn the_history_reaches_from_the_newest_commit_to_the_start_of_the_log() -> Result<()> {
    let store = grown(260).await?;
    let head = head(&store).await?;
    assert!(head.base.seq > 0 && !head.segments.is_empty());
    let file = open(&store).await?;
    let commits = file.history(10_000).await?;
    let from = head.segments[0].from;
    let seqs: Vec<u64> = commits.iter().map(|c| c.commit_seq).collect();
    assert_eq!(seqs, (from..=head.commit_seq).rev().collect::<Vec<_>>());
    assert_eq!(commits[0].commit_id, file.stats(None).await?.commit_id);
    assert!(
        commits.iter().all(|c| c.pages_changed > 0 && c.bytes > 100 && c.ops == 1 && c.writer.len() == 16)
    );
    assert!(commits.windows(2).all(|w| w[0].commit_ms >= w[1].commit_ms));
    assert_eq!(file.history(5).await?, commits[..5]);
    assert!(file.history(0).await?.is_empty());
    file.close().await
}

#[tokio::test]
async fn the_history_tells_writers_apart_and_counts_their_ops() -> Result<()> {
    let store = grown(2).await?;
    let (one, two) = (open(&store).await?, open(&store).await?);
    one.queue("q")?.enqueue(Payload::text("a")).await?;
    let q = two.queue("q")?;
    let (a, b) = tokio::join!(q.enqueue(Payload::text("b")), q.enqueue(Payload::text("c")));
    assert_eq!(a?.commit_seq, b?.commit_seq, "they share a commit");
    let commits = one.history(2).await?;
    assert_eq!([commits[0].ops, commits[1].ops], [2, 1]);
    assert_ne!(commits[0].writer, commits[1].writer);
    one.close().await?;
    two.close().await
}

#[tokio::test(start_paused = true)]
async fn a_history_that_cannot_be_fetched_is_an_error_and_the_writer_goes_on() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    let q = file.queue("q")?;
    for i in 0..40 {
        q.enqueue(Payload::bytes(crate::noise(i, 3_000))).await?;
    }
    puppet.every_get(OnGet::Fail(bucketq::Code::Denied));
    assert!(file.history(1_000).await.is_err());
    puppet.every_get(OnGet::Pass);
    q.enqueue(Payload::text("on")).await?;
    assert_eq!(file.history(1_000).await?.len(), 42);
    file.close().await
}
