//! The archive on every store: every run once whichever process archives, and the passes that Local mode leaves to
//! others.

use std::collections::BTreeSet;
use std::time::Duration;

use bucketq::policy::Changes;
use bucketq::{Code, Env, Mode, Options, Payload, QueueFile, Result, State, operate};
use bucketq_tests::given::{NAME, opened, refused};
use bucketq_tests::ground::Ground;
use futures_util::future::try_join_all;

use crate::kit::{Q, finish, keep, set, whole};

const LONG: Duration = Duration::from_mins(5);

bucketq_tests::on_every_store! {
    writers_that_finish_requeue_and_archive_together_list_every_life_once
    what_finished_in_local_mode_is_archived_by_the_next_durable_writer
    objects_that_are_too_old_are_given_up_and_collected
}

async fn writers_that_finish_requeue_and_archive_together_list_every_life_once(
    ground: &Ground,
) -> Result<()> {
    let (a, b) = (opened(ground.store()).await?, opened(ground.store()).await?);
    set(&a, keep(2)).await?;
    let work = |file: QueueFile| async move {
        let (queue, mut ended) = (file.queue(Q)?, vec![]);
        for _ in 0..4 {
            for n in 0..5 {
                queue.enqueue(Payload::text(n.to_string())).await?;
            }
            for (n, job) in queue.claim(5).lease(LONG).await?.into_iter().enumerate() {
                ended.push((job.job.id, job.job.run));
                if n == 0 {
                    file.reject(job.held(), Some("no".into())).await?;
                    file.requeue(job.job.id).await?;
                } else {
                    file.ack(job.held()).await?;
                }
            }
            file.archive().await?;
        }
        Ok::<_, bucketq::Error>(ended)
    };
    let ended = try_join_all([work(a.clone()), work(b.clone())]).await?.concat();
    a.archive().await?;
    let all = whole(&ground.store(), &a).await?;
    assert_eq!(all.keys().copied().collect::<BTreeSet<_>>(), ended.into_iter().collect());
    assert!(all.len() >= 20 && all.values().any(|life| life.state == State::Dead));
    a.collect(Duration::ZERO).await?;
    assert_eq!(whole(&ground.store(), &b).await?, all);
    let report = operate::check_with(ground.store(), NAME, Options::default()).await?;
    assert_eq!((report.problems, report.unreferenced.map(|tally| tally.count)), (vec![], Some(0)));
    b.close().await?;
    a.close().await
}

async fn what_finished_in_local_mode_is_archived_by_the_next_durable_writer(ground: &Ground) -> Result<()> {
    let disk = tempfile::tempdir().expect("a temporary directory can be made");
    let options = Options { mode: Mode::Local, cache: Some(disk.path().to_owned()), ..Options::default() };
    let local = QueueFile::open_with(ground.store(), NAME, options, Env::default()).await?;
    set(&local, keep(1)).await?;
    finish(&local, 5).await?;
    let error = refused(local.archive().await);
    assert!(error.code() == Code::Argument && error.message().contains("Durable mode"), "{error}");
    local.sync().await?;
    assert_eq!(local.lives(None, 0, u64::MAX, 100).await?.lives.len(), 5, "none has left");
    local.close().await?;

    let durable = opened(ground.store()).await?;
    assert_eq!(durable.archive().await?, 4);
    assert_eq!(whole(&ground.store(), &durable).await?.len(), 5);
    durable.close().await
}

async fn objects_that_are_too_old_are_given_up_and_collected(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    set(&file, Changes { archive_ms: Some(Some(30)), ..keep(0) }).await?;
    finish(&file, 3).await?;
    let last = file.lives(None, 0, u64::MAX, 10).await?.lives[2].finished_ms;
    file.archive().await?;
    while Env::default().wall_ms() < last + 31 {
        tokio::task::yield_now().await;
    }
    assert_eq!(file.archive().await?, 0, "it is asked, and has nothing else to do");
    assert_eq!(file.archives(None, 0).await?.objects, []);
    file.collect(Duration::ZERO).await?;
    let left = ground.store().list(&format!("{NAME}.arch-")).await?;
    assert_eq!(left, []);
    file.close().await
}
