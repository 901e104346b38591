//! Every run exactly once, with several archiving processes, and with uploads and commits that are late or lost.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bucketq::internals::head::Head;
use bucketq::policy::Changes;
use bucketq::store::{Expect, Memory, Put, Store};
use bucketq::{Code, Error, Options, Payload, QueueFile, Result, State};
use bucketq_tests::clock::TestClock;
use bucketq_tests::given::{NAME, objects, on_puppet, puppet};
use bucketq_tests::puppet::OnPut;
use bytes::Bytes;
use tokio::sync::watch;

use crate::kit::{finish, keep, patient, reject, set, whole};

/// A store whose uploads of archive objects wait or fail, and whose large commits lose.
#[derive(Debug)]
struct Uploads {
    inner: Arc<dyn Store>,
    fail: AtomicBool,
    open: watch::Sender<bool>,
    held: watch::Sender<u64>,
    seen: AtomicU64,
    /// Commits before each large commit that comes through here, `races` more times.
    rival: OnceLock<QueueFile>,
    races: AtomicU64,
    raced: watch::Sender<u64>,
}

impl Uploads {
    fn over(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            fail: AtomicBool::new(false),
            open: watch::Sender::new(true),
            held: watch::Sender::new(0),
            seen: AtomicU64::new(0),
            rival: OnceLock::new(),
            races: AtomicU64::new(0),
            raced: watch::Sender::new(0),
        })
    }
}

#[async_trait]
impl Store for Uploads {
    async fn put_if(&self, key: &str, body: Bytes, expect: &Expect) -> Put {
        let large = || {
            let head = Head::decode(key, &body).expect("a HEAD is written");
            head.tail.last().is_none_or(|record| record.frame.len() > 1_500)
        };
        if let Some(rival) = self.rival.get()
            && self.races.load(Ordering::Relaxed) > 0
            && large()
        {
            self.races.fetch_sub(1, Ordering::Relaxed);
            let queue = rival.queue("other").expect("a name");
            queue.enqueue(Payload::text("faster")).await.expect("it is stored");
            self.raced.send_modify(|n| *n += 1);
        }
        self.inner.put_if(key, body, expect).await
    }

    async fn put_new(&self, key: &str, body: Bytes) -> Result<()> {
        if key.contains(".arch-") {
            self.seen.fetch_add(1, Ordering::Relaxed);
            self.held.send_modify(|n| *n += 1);
            let _ = self.open.subscribe().wait_for(|open| *open).await;
            if self.fail.load(Ordering::Relaxed) {
                return Err(Error::new(Code::Unreachable, "as told"));
            }
        }
        self.inner.put_new(key, body).await
    }

    fn default_max_skew(&self) -> Duration {
        Duration::ZERO
    }

    fn needs_probe(&self) -> bool {
        false
    }

    bucketq::forward_to_inner!(get delete list describe);
}

async fn on(store: Arc<dyn Store>) -> Result<QueueFile> {
    QueueFile::open_with(store, NAME, patient(), TestClock::start().env()).await
}

#[tokio::test(start_paused = true)]
async fn two_writers_that_archive_the_same_jobs_list_them_once() -> Result<()> {
    let memory: Arc<dyn Store> = Arc::new(Memory::new());
    let slow = Uploads::over(Arc::clone(&memory));
    let (a, b) = (on(slow.clone()).await?, on(slow.clone()).await?);
    set(&a, keep(1)).await?;
    finish(&a, 20).await?;
    slow.open.send_replace(false);
    let both = async { tokio::join!(a.archive(), b.archive()) };
    let released = async {
        let _ = slow.held.subscribe().wait_for(|n| *n == 2).await;
        slow.open.send_replace(true);
    };
    let ((x, y), ()) = tokio::join!(both, released);
    assert_eq!(x? + y?, 19);
    assert_eq!(a.archives(None, 0).await?.objects.len(), 1);
    assert_eq!(whole(&memory, &a).await?.len(), 20);
    let there = objects(&memory).await?.into_iter().filter(|(key, _)| key.contains(".arch-")).count();
    assert_eq!(there, 2, "the loser's object is garbage");
    finish(&a, 1).await?;
    a.collect(Duration::ZERO).await?;
    assert_eq!(whole(&memory, &a).await?.len(), 21);
    let there = objects(&memory).await?.into_iter().filter(|(key, _)| key.contains(".arch-")).count();
    assert_eq!(there, 1);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_object_whose_jobs_were_requeued_or_purged_meanwhile_is_dropped() -> Result<()> {
    let memory: Arc<dyn Store> = Arc::new(Memory::new());
    let slow = Uploads::over(Arc::clone(&memory));
    let file = on(slow.clone()).await?;
    set(&file, keep(0)).await?;
    let ids = finish(&file, 5).await?;
    slow.open.send_replace(false);
    let archived = file.archive();
    let meddled = async {
        let _ = slow.held.subscribe().wait_for(|n| *n == 1).await;
        file.requeue(ids[2]).await?;
        slow.open.send_replace(true);
        Ok::<(), Error>(())
    };
    let (jobs, meddled) = tokio::join!(archived, meddled);
    meddled?;
    assert_eq!(jobs?, 5, "the life that ended by it as well");
    assert_eq!(slow.seen.load(Ordering::Relaxed), 2, "one for nothing, and one with all");
    let all = whole(&memory, &file).await?;
    assert_eq!(all.len(), 5);
    assert_eq!(file.get(ids[2]).await?.expect("it lives again").job.state, State::Ready);
    finish(&file, 1).await?;
    file.archive().await?;
    let all = whole(&memory, &file).await?;
    assert_eq!(all[&(ids[2], 1)].run, 1, "its new life");
    assert_eq!(all.len(), 7);
    file.close().await
}

/// A file with five jobs that are to leave, over a store that holds their object.
async fn five_to_leave() -> Result<(Arc<dyn Store>, Arc<Uploads>, QueueFile)> {
    let memory: Arc<dyn Store> = Arc::new(Memory::new());
    let slow = Uploads::over(Arc::clone(&memory));
    let file = on(slow.clone()).await?;
    set(&file, keep(0)).await?;
    finish(&file, 5).await?;
    slow.open.send_replace(false);
    Ok((memory, slow, file))
}

#[tokio::test(start_paused = true)]
async fn jobs_that_finish_while_an_object_is_on_its_way_leave_with_the_next() -> Result<()> {
    let (memory, slow, file) = five_to_leave().await?;
    let archived = file.archive();
    let more = async {
        let _ = slow.held.subscribe().wait_for(|n| *n == 1).await;
        let ids = finish(&file, 3).await?;
        slow.open.send_replace(true);
        Ok::<_, Error>(ids)
    };
    let (jobs, more) = tokio::join!(archived, more);
    more?;
    assert_eq!(jobs?, 8);
    assert_eq!(file.archives(None, 0).await?.objects.iter().map(|o| o.jobs).collect::<Vec<_>>(), [5, 3]);
    assert_eq!(whole(&memory, &file).await?.len(), 8);
    file.close().await
}

/// Changes the policy after a pass has read the jobs for its object: the pass ends, and the policy decides how many
/// stay.
async fn meanwhile(changed: Changes, kept: usize) -> Result<()> {
    let (_, slow, file) = five_to_leave().await?;
    let archived = file.archive();
    let meddled = async {
        let _ = slow.held.subscribe().wait_for(|n| *n == 1).await;
        set(&file, changed).await?;
        slow.open.send_replace(true);
        Ok::<_, Error>(())
    };
    let (jobs, meddled) = tokio::join!(archived, meddled);
    meddled?;
    assert_eq!(jobs?, 5 - kept as u64);
    assert_eq!(file.lives(None, 0, u64::MAX, 10).await?.lives.len(), kept);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_changes_while_an_object_is_on_its_way_holds_for_it() -> Result<()> {
    meanwhile(keep(3), 3).await?;
    meanwhile(keep(1_000), 5).await?;
    meanwhile(Changes { archive: Some(false), ..keep(0) }, 5).await
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_the_archive_of_a_file_that_is_halted_is_told_why() -> Result<()> {
    let (memory, slow, file) = five_to_leave().await?;
    let archived = file.archive();
    let meddled = async {
        let _ = slow.held.subscribe().wait_for(|n| *n == 1).await;
        memory.delete("jobs.head").await?;
        let error = file.queue("q")?.enqueue(Payload::text("too late")).await.expect_err("HEAD is gone");
        slow.open.send_replace(true);
        Ok::<_, Error>(error)
    };
    let (jobs, halted) = tokio::join!(archived, meddled);
    assert_eq!(halted?.code(), Code::OutcomeUnknown, "its PUT was sent");
    assert_eq!(jobs.expect_err("it is halted").code(), Code::HeadMissing);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn while_nothing_can_be_uploaded_nothing_leaves() -> Result<()> {
    let memory: Arc<dyn Store> = Arc::new(Memory::new());
    let store = Uploads::over(Arc::clone(&memory));
    let file = on(store.clone()).await?;
    set(&file, keep(3)).await?;
    store.fail.store(true, Ordering::Relaxed);
    finish(&file, 200).await?;
    reject(&file, "bad").await?;
    let error = file.archive().await.expect_err("the store refuses");
    assert_eq!(error.code(), Code::Unreachable);
    assert_eq!(whole(&memory, &file).await?.len(), 201);
    assert_eq!(file.archives(None, 0).await?.objects, []);
    store.fail.store(false, Ordering::Relaxed);
    assert_eq!(file.archive().await?, 197);
    assert_eq!(whole(&memory, &file).await?.len(), 201);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_commit_whose_answer_is_lost_lists_the_object_once() -> Result<()> {
    for put in [OnPut::LoseAnswer, OnPut::LoseRequest, OnPut::FalseConflict, OnPut::Swallow, OnPut::Hang] {
        let (puppet, file) = puppet(patient()).await?;
        set(&file, keep(0)).await?;
        finish(&file, 6).await?;
        puppet.next_puts([put]);
        assert_eq!(file.archive().await?, 6, "{put:?}");
        assert_eq!(file.archives(None, 0).await?.objects.len(), 1, "{put:?}");
        assert_eq!(whole(puppet.beneath(), &file).await?.len(), 6, "{put:?}");
        file.close().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_listing_that_lost_the_race_runs_again_on_what_others_wrote() -> Result<()> {
    let (puppet, a) = puppet(patient()).await?;
    let b = on_puppet(&puppet, patient()).await?;
    set(&a, keep(0)).await?;
    finish(&a, 6).await?;
    puppet.hold();
    let archived = a.archive();
    let meddled = async {
        puppet.until_held(1).await;
        // Another writer's commit comes first, based on the same HEAD.
        let queue = b.queue("other")?;
        let other = queue.enqueue(bucketq::Payload::text("x"));
        let go = async {
            puppet.until_held(2).await;
            puppet.let_go();
        };
        let (other, ()) = tokio::join!(other, go);
        other.map(drop)
    };
    let (jobs, meddled) = tokio::join!(archived, meddled);
    meddled?;
    assert_eq!(jobs?, 6);
    assert_eq!(whole(puppet.beneath(), &a).await?.len(), 6);
    assert_eq!(b.archives(None, 0).await?.objects.len(), 1);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_a_listing_that_loses_one_race_after_the_other() -> Result<()> {
    let memory: Arc<dyn Store> = Arc::new(Memory::new());
    let store = Uploads::over(Arc::clone(&memory));
    store.rival.set(on(memory).await?).expect("it is the first");
    let file = on(store.clone()).await?;
    set(&file, keep(0)).await?;
    // Too few jobs for the other process to archive them by itself.
    finish(&file, 3_000).await?;
    store.races.store(30, Ordering::Relaxed);
    let archived = file.archive();
    let works = async {
        let queue = file.queue("urgent")?;
        let mut raced = store.raced.subscribe();
        for _ in 0..5 {
            let before = *raced.wait_for(|n| *n > 0).await.expect("it is there");
            queue.enqueue(Payload::text("now")).await?;
            let lost = *store.raced.borrow() - before;
            assert!(lost <= 3, "a call waits for {lost} lost races");
        }
        assert!(file.archives(None, 0).await?.objects.is_empty(), "the listing loses them all");
        Ok::<_, Error>(())
    };
    let (jobs, works) = tokio::join!(archived, works);
    works?;
    assert_eq!(jobs?, 3_000);
    assert_eq!(store.races.load(Ordering::Relaxed), 0);
    let there: u64 = file.archives(None, 0).await?.objects.iter().map(|o| o.jobs).sum();
    assert_eq!(there, 3_000);
    file.close().await
}

/// Only with real threads can a job finish between the first read of a state and its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_while_others_are_archiving_has_all_archived_that_has_finished() -> Result<()> {
    let memory: Arc<dyn Store> = Arc::new(Memory::new());
    let options = Options { archive_every: Duration::from_hours(1_000), ..Options::default() };
    let file = QueueFile::open_with(memory, NAME, options, bucketq::Env::default()).await?;
    set(&file, keep(0)).await?;
    let busy = {
        let file = file.clone();
        tokio::spawn(async move {
            loop {
                file.archive().await?;
            }
        })
    };
    for n in 1..=100 {
        finish(&file, 1).await?;
        file.archive().await?;
        let gone: u64 = file.archives(None, 0).await?.objects.iter().map(|o| o.jobs).sum();
        assert_eq!(gone, n);
    }
    busy.abort();
    let ended: std::result::Result<Result<()>, _> = busy.await;
    assert!(ended.is_err_and(|e| e.is_cancelled()));
    file.close().await
}
