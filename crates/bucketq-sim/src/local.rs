//! A process in Local mode whose clock is set again and again: its local commits are published once its clock is right,
//! at the right time, and none is lost (G1, G5, G8).
//!
//! Called by run.rs instead of the ordinary story if the plan asks for it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bucketq::config::Mode;
use bucketq::env::Env;
use bucketq::error::{Error, Kind};
use bucketq::internals::local::{Dir, Lock};
use bucketq::job::{JobId, Payload, State, When};
use bucketq::{New, QueueFile, Result};

use crate::bucket::Who;
use crate::clock::pause_ms;
use crate::node::{self, NAME};
use crate::rng::{Rng, SimEntropy};
use crate::store::{FaultyStore, Life};
use crate::workload::QUEUES;
use crate::world::World;

/// A disk that loses nothing; tests/local cuts the power.
#[derive(Debug, Default)]
struct Disk(Mutex<BTreeMap<String, Vec<u8>>>);

impl Disk {
    fn files(&self) -> MutexGuard<'_, BTreeMap<String, Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, name: &str, work: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        self.files().get_mut(name).map(work).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Dir for Disk {
    fn path(&self) -> PathBuf {
        PathBuf::from("disk")
    }

    fn lock(&self) -> Result<Lock> {
        Ok(Box::new(()))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.files().keys().cloned().collect())
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        self.files().get(name).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn create(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.files().insert(name.to_owned(), bytes.to_vec());
        Ok(())
    }

    fn append(&self, name: &str, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.change(name, |file| {
            file.truncate(at as usize);
            file.extend_from_slice(bytes);
        })
    }

    fn sync(&self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn cut(&self, name: &str, len: u64) -> io::Result<()> {
        self.change(name, |file| file.truncate(len as usize))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.files().remove(name);
        Ok(())
    }
}

/// The replies that the process got.
#[derive(Default)]
struct Replies {
    enqueued: BTreeSet<JobId>,
    done: BTreeSet<JobId>,
    bad: Vec<String>,
}

/// The process works, syncs, dies and comes back; then its clock is right, and another process finishes the jobs that
/// are left.
pub async fn story(world: &Arc<World>) -> Vec<String> {
    let rng = Rng::new(world.rng.draw());
    let (disk, mut replies) = (Arc::new(Disk::default()), Replies::default());
    let mut life = 0;
    while !world.is_over() {
        life += 1;
        let Some(file) = open(world, life, &disk, &mut replies).await else {
            pause_ms(rng.spread(100, 60_000)).await;
            world.count_call();
            set_clock(world, &rng);
            continue;
        };
        for _ in 0..rng.between(5, 40) {
            step(world, &file, &rng, &mut replies).await;
        }
        if let Err(error) = file.close().await {
            replies.bad.push(format!("G7: a Local handle does not close: {error:?}"));
        }
    }
    world.heal();
    world.clocks[0].set(world.plan.clocks[0].0);
    world.wait_arrived().await;
    if let Err(what) = publish(world, life + 1, &disk, &mut replies).await {
        replies.bad.push(what);
        return replies.bad;
    }
    if let Err(what) = finish(world, &mut replies).await {
        replies.bad.push(what);
    }
    replies.bad.extend(world.bucket().broken.iter().cloned());
    replies.bad
}

async fn open(world: &Arc<World>, life: u32, disk: &Arc<Disk>, replies: &mut Replies) -> Option<QueueFile> {
    let life = Arc::new(Life::new(Who { node: 0, life }));
    let store = Arc::new(FaultyStore::new(world.clone(), life));
    let env = Env::new(world.clocks[0].clone(), Arc::new(SimEntropy::new(world.rng.fork(), 0)));
    let mut options = world.plan.options.clone();
    options.mode = Mode::Local;
    match QueueFile::open_local(store, NAME, options, env, disk.clone()).await {
        Ok(file) => Some(file),
        Err(error) => {
            judge("opening", &error, replies);
            None
        }
    }
}

/// Records an error unless the store or a wrong clock explains it.
fn judge(what: &str, error: &Error, replies: &mut Replies) {
    let fine = matches!(error.kind(), Kind::Unavailable | Kind::Unknown | Kind::Contended);
    if !fine {
        replies.bad.push(format!("Local mode: {what} ends with {error:?}"));
    }
}

async fn step(world: &Arc<World>, file: &QueueFile, rng: &Rng, replies: &mut Replies) {
    world.count_call();
    pause_ms(rng.spread(1, 20_000)).await;
    let queue = QUEUES[rng.below(3) as usize];
    let done = match rng.below(10) {
        0..=3 => enqueue(file, queue, rng, replies).await,
        4 | 5 => work(file, rng, replies).await,
        6 | 7 => {
            set_clock(world, rng);
            Ok(())
        }
        _ => file.sync().await.map(|synced| world.note(|| format!("synced: {synced:?}"))),
    };
    if let Err(error) = done {
        world.note(|| format!("Local: {error}"));
        world.history().told_error(Who { node: 0, life: 0 }, &error);
        judge("a call", &error, replies);
    }
}

async fn enqueue(file: &QueueFile, queue: &str, rng: &Rng, replies: &mut Replies) -> Result<()> {
    let queue = file.queue(queue)?;
    let when = if rng.one_in(3) { When::In(rng.spread(1, 300_000).cast_signed()) } else { When::Now };
    let job = New { when, ..queue.new_job(Payload::text("x"))? };
    replies.enqueued.insert(queue.enqueue_job(job).await?.id);
    Ok(())
}

async fn work(file: &QueueFile, rng: &Rng, replies: &mut Replies) -> Result<()> {
    let lease = Duration::from_millis(rng.spread(11_000, 600_000));
    for taken in file.claim(rng.between(1, 3) as u32).lease(lease).await? {
        match rng.below(4) {
            0 => {}
            1 => {
                let delay = Duration::from_millis(rng.spread(1, 60_000));
                file.nack(taken.held(), Some(delay), None).await?;
            }
            2 => _ = file.extend(taken.held(), lease).await?,
            _ => {
                file.ack(taken.held()).await?;
                replies.done.insert(taken.job.id);
            }
        }
    }
    Ok(())
}

/// Sets the clock, wrong or right.
fn set_clock(world: &World, rng: &Rng) {
    let by = match rng.below(4) {
        0 | 1 => 0,
        2 => rng.spread(10_000, 7_200_000).cast_signed(),
        _ => 400 * 86_400_000,
    };
    let by = if rng.one_in(4) { -by } else { by };
    world.fault(|| format!("the clock of n0 is off by {by} ms from now on"));
    world.clocks[0].set(world.plan.clocks[0].0 + by);
}

/// With its clock right, the process publishes all its unpublished changes.
async fn publish(
    world: &Arc<World>,
    life: u32,
    disk: &Arc<Disk>,
    replies: &mut Replies,
) -> std::result::Result<(), String> {
    let file =
        open(world, life, disk, replies).await.ok_or("G7: the directory cannot be opened at the end")?;
    for _ in 0..20 {
        match file.sync().await {
            Ok(_) => break,
            Err(error) => judge("the last sync", &error, replies),
        }
        pause_ms(5_000).await;
    }
    let left = file.dirty().map_err(|e| format!("{e:?}"))?;
    file.close().await.map_err(|e| format!("{e:?}"))?;
    if left.commits > 0 {
        return Err(format!("G1: with a clock that is right again {left:?} cannot be published"));
    }
    Ok(())
}

/// Another process finds every job and finishes it within bounded time.
async fn finish(world: &Arc<World>, replies: &mut Replies) -> std::result::Result<(), String> {
    let life = Arc::new(Life::new(Who { node: world.plan.nodes, life: 1 }));
    let text = |e: Error| format!("G7: it cannot be finished: {e:?}");
    let file = node::open(world, &life).await.map_err(text)?;
    // Twice the longest delay or lease used here: back-offs and late claims included.
    let until = world.now_ms() + 2 * 900_000;
    loop {
        for taken in file.claim(100).await.map_err(text)? {
            file.ack(taken.held()).await.map_err(text)?;
        }
        let mut unfinished = 0;
        for queue in QUEUES {
            let queue = file.queue(queue).map_err(text)?;
            let states = [State::Scheduled, State::Ready, State::Leased];
            unfinished += queue.list(&states, None, 1_000).await.map_err(text)?.jobs.len();
        }
        if unfinished == 0 {
            break;
        }
        if world.now_ms() > until {
            return Err(format!("G5: {unfinished} jobs of a Local process cannot be claimed in time"));
        }
        pause_ms(10_000).await;
    }
    for id in &replies.enqueued {
        match file.get(*id).await.map_err(text)? {
            None => replies.bad.push(format!("G1: {id}, enqueued in Local mode, is gone")),
            Some(detail) if !detail.job.state.is_finished() => {
                replies.bad.push(format!("G5: {id} is {}", detail.job.state.as_str()));
            }
            Some(_) => {}
        }
    }
    let off = file.stats(None).await.map_err(text)?.commit_ms
        - crate::clock::EPOCH_MS
        - world.now_ms().cast_signed();
    if off.unsigned_abs() > world.plan.max_skew_ms + 12_000 {
        replies.bad.push(format!("G8: the newest commit is {off} ms off at the end"));
    }
    file.close().await.map_err(text)
}
