//! Calls that take many commits: other ops run in between, and an error tells that a part may be done.

use bucketq::{Changes, Code, Filter, Kind, Payload, QueueFile, Result, State};
use bucketq_tests::given::{inline, puppet, refused};
use bucketq_tests::puppet::{OnPut, Puppet};

/// More jobs than one commit deletes, requeues or unblocks.
const MANY: u32 = 5_001;

async fn many(file: &QueueFile, group: impl Fn(u32) -> Option<String>) -> Result<()> {
    let q = file.queue("q")?;
    let mut jobs = vec![];
    for n in 0..MANY {
        let mut job = q.new_job(Payload::text("x"))?;
        job.group = group(n);
        jobs.push(job);
    }
    q.enqueue_many(jobs).await.map(drop)
}

/// Lets one more commit through, and then none.
fn one_more_commit(puppet: &Puppet) {
    puppet.next_puts([OnPut::Pass]);
    puppet.every_put(OnPut::Refuse(Code::Denied));
}

#[tokio::test(start_paused = true)]
async fn a_purge_that_fails_on_its_way_does_not_say_that_nothing_was_applied() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    many(&file, |_| None).await?;
    one_more_commit(&puppet);
    let q = file.queue("q")?;
    let error = refused(q.purge(&[State::Ready]).await);
    assert_eq!(error.kind(), Kind::Unknown, "{error}");
    assert!(error.message().contains("5000 jobs"), "{error}");
    puppet.every_put(OnPut::Pass);
    assert_eq!(q.purge(&[State::Ready]).await?, 1);
    q.enqueue(Payload::text("x")).await?;
    puppet.every_put(OnPut::Refuse(Code::Denied));
    let error = refused(q.purge(&[State::Ready]).await);
    assert_eq!(error.kind(), Kind::Unavailable, "the first step was not applied: {error}");
    puppet.every_put(OnPut::Pass);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_requeue_of_many_that_fails_on_its_way_does_not_say_that_nothing_was_applied() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    many(&file, |_| None).await?;
    let changes = Changes { keep: Some(2_000), ..Changes::default() };
    file.queue("q")?.configure(changes).await?;
    for job in file.claim(2_000).await? {
        file.reject(job.held(), None).await?;
    }
    one_more_commit(&puppet);
    let error = refused(file.requeue_all(&Filter::default()).await);
    assert_eq!(error.kind(), Kind::Unknown, "{error}");
    assert!(error.message().contains("1000 jobs"), "{error}");
    puppet.every_put(OnPut::Pass);
    assert_eq!(file.requeue_all(&Filter::default()).await?, 1_000);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_raised_group_concurrency_unblocks_the_jobs_of_many_groups_in_several_commits() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    let q = file.queue("q")?;
    for _ in 0..2 {
        many(&file, |n| Some(n.to_string())).await?;
    }
    let changes = Changes { group_concurrency: Some(2), ..Changes::default() };
    let commits = file.metrics()?.commits;
    assert_eq!(q.configure(changes).await?.group_concurrency, 2);
    assert_eq!(file.metrics()?.commits - commits, 3, "the policy, then the groups in two steps");
    assert_eq!(file.claim(10_000).await?.len(), 10_000);
    // Fails on its way.
    for _ in 0..2 {
        many(&file, |n| Some(n.to_string())).await?;
    }
    puppet.next_puts([OnPut::Pass]);
    one_more_commit(&puppet);
    let changes = Changes { group_concurrency: Some(4), ..Changes::default() };
    let error = refused(q.configure(changes).await);
    assert_eq!(error.kind(), Kind::Unknown, "{error}");
    puppet.every_put(OnPut::Pass);
    assert_eq!(q.policy().await?.group_concurrency, 4);
    file.close().await
}
