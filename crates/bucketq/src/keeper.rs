//! [`Keeper`]: keeps leases alive while jobs are worked on. One task per keeper extends what is held, says when a lease
//! is lost, and hands back what was never worked on.
//!
//! Called by whoever claims for somebody else to work: the Python package. Uses the public handle only.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::claim::Taken;
use crate::env::Env;
use crate::error::{Kind, Result};
use crate::file::QueueFile;
use crate::op::Held;

/// An extend that could not be tried is tried again after this share of the lease.
const RETRY_SHARE: u32 = 12;

/// The sending side of the task; clones talk to the same task.
#[derive(Clone, Debug)]
pub struct Keeper {
    tx: mpsc::UnboundedSender<Mail>,
    env: Env,
}

#[derive(Debug)]
enum Mail {
    Keep(Arc<Watched>),
    Forget(Held),
    GiveBack(Held),
    Flush(oneshot::Sender<()>),
}

/// What the task and the holder of a job share.
#[derive(Debug)]
struct Watched {
    held: Held,
    /// False: its lease runs out unless its holder extends it.
    is_extended: bool,
    stage: AtomicU8,
    times: Mutex<Times>,
}

#[derive(Clone, Copy, Debug)]
struct Times {
    lease: Duration,
    deadline: Instant,
}

/// Nobody has looked at the job yet.
const UNTOUCHED: u8 = 0;
/// Somebody works on it.
const WORKED_ON: u8 = 1;
/// The lease is surely somebody else's, or nobody's.
const LOST: u8 = 2;
/// Acked, nacked, released or rejected.
const ENDED: u8 = 3;

impl Watched {
    fn times(&self) -> Times {
        *self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, times: Times) {
        *self.times.lock().unwrap_or_else(PoisonError::into_inner) = times;
    }

    /// Move on to `stage`, unless the job has ended.
    fn go(&self, stage: u8) {
        let _ = self.stage.fetch_update(SeqCst, SeqCst, |now| (now != ENDED).then_some(stage));
    }
}

/// A job whose lease is kept alive until this is ended or dropped. Dropped before anybody has worked on it, the job is
/// handed back unharmed; dropped later, its lease runs out (G5).
#[derive(Debug)]
pub struct Kept {
    keeper: Keeper,
    watched: Arc<Watched>,
}

impl Keeper {
    /// A keeper, and the task that does its work: to be spawned. The task ends when the keeper, its clones and all it
    /// keeps are dropped.
    pub fn new(file: &QueueFile) -> Result<(Self, impl Future<Output = ()> + Send + use<>)> {
        let (tx, rx) = mpsc::unbounded_channel();
        let env = file.door()?.env.clone();
        let task = Task { file: file.clone(), env: env.clone(), kept: HashMap::new(), leaving: vec![] };
        Ok((Self { tx, env }, task.run(rx)))
    }

    /// Keep this job, claimed with this lease. One that never runs out is not extended.
    pub fn keep(&self, taken: &Taken, lease: Duration) -> Kept {
        self.watch(taken, lease, taken.lasts.is_some())
    }

    /// Watch over this job without extending its lease, for tests in which it runs out.
    pub fn watch_only(&self, taken: &Taken, lease: Duration) -> Kept {
        self.watch(taken, lease, false)
    }

    fn watch(&self, taken: &Taken, lease: Duration, is_extended: bool) -> Kept {
        let watched = Arc::new(Watched {
            held: taken.held(),
            is_extended,
            stage: AtomicU8::new(UNTOUCHED),
            times: Mutex::new(Times { lease, deadline: taken.deadline }),
        });
        if is_extended {
            self.send(Mail::Keep(Arc::clone(&watched)));
        }
        Kept { keeper: self.clone(), watched }
    }

    /// Wait until everything handed back so far is back, as far as the store lets it.
    pub async fn flush(&self) {
        let (tx, rx) = oneshot::channel();
        self.send(Mail::Flush(tx));
        let _ = rx.await;
    }

    fn send(&self, mail: Mail) {
        // Without the task, leases run out by themselves (G5).
        let _ = self.tx.send(mail);
    }
}

impl Kept {
    /// The job and the proof.
    pub fn held(&self) -> Held {
        self.watched.held
    }

    /// Somebody works on it from now on.
    pub fn work(&self) {
        let _ = self.watched.stage.compare_exchange(UNTOUCHED, WORKED_ON, SeqCst, SeqCst);
    }

    /// True while nobody has worked on it.
    pub fn is_untouched(&self) -> bool {
        self.watched.stage.load(SeqCst) == UNTOUCHED
    }

    /// It was acked, nacked, released or rejected: nothing is kept or handed back any more.
    pub fn end(&self) {
        if self.watched.stage.swap(ENDED, SeqCst) != ENDED {
            self.keeper.send(Mail::Forget(self.watched.held));
        }
    }

    /// Hand it back now if nobody has worked on it.
    pub fn give_back(&self) {
        if self.watched.stage.compare_exchange(UNTOUCHED, ENDED, SeqCst, SeqCst).is_ok() {
            self.keeper.send(Mail::GiveBack(self.watched.held));
        }
    }

    /// True after [`Kept::end`], and once it was handed back.
    pub fn is_ended(&self) -> bool {
        self.watched.stage.load(SeqCst) == ENDED
    }

    /// The lease is gone: stop working. Never true once the job has ended.
    pub fn is_lost(&self) -> bool {
        match self.watched.stage.load(SeqCst) {
            LOST => true,
            ENDED => false,
            _ => self.keeper.env.monotonic() >= self.watched.times().deadline,
        }
    }

    /// How long the lease surely holds yet.
    pub fn remaining(&self) -> Duration {
        self.watched.times().deadline.saturating_duration_since(self.keeper.env.monotonic())
    }

    /// Hold it until `lease` from now, and keep it with leases of this length.
    pub async fn extend(&self, file: &QueueFile, lease: Duration) -> Result<()> {
        let extended = file.extend(self.held(), lease).await;
        if matches!(&extended, Err(e) if e.kind() == Kind::LeaseLost) {
            self.watched.go(LOST);
        }
        self.watched.set(Times { lease, deadline: extended? });
        // Told anew: a longer lease is extended less often.
        if self.watched.is_extended {
            self.keeper.send(Mail::Keep(Arc::clone(&self.watched)));
        }
        Ok(())
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.give_back();
        self.end();
    }
}

/// One kept job, and when it is extended next; no time while an extend is under way.
#[derive(Debug)]
struct Entry {
    watched: Arc<Watched>,
    next: Option<Instant>,
}

type Extending = Pin<Box<dyn Future<Output = (Held, Duration, Result<Instant>)> + Send>>;
type Releasing = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Debug)]
struct Task {
    file: QueueFile,
    env: Env,
    kept: HashMap<Held, Entry>,
    /// Who waits for the releases under way.
    leaving: Vec<oneshot::Sender<()>>,
}

impl Task {
    async fn run(mut self, mut rx: mpsc::UnboundedReceiver<Mail>) {
        let mut extending: FuturesUnordered<Extending> = FuturesUnordered::new();
        let mut releasing: FuturesUnordered<Releasing> = FuturesUnordered::new();
        loop {
            let now = self.env.monotonic();
            extending.extend(self.due(now));
            if releasing.is_empty() {
                self.leaving.drain(..).for_each(|tx| _ = tx.send(()));
            }
            let pause = self.kept.values().filter_map(|e| e.next).min().map(|at| at - now);
            let sleep = async {
                match pause {
                    Some(time) => self.env.sleep(time).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                mail = rx.recv() => match mail {
                    None => break,
                    Some(Mail::Keep(watched)) => self.keep(watched),
                    Some(Mail::Forget(held)) => _ = self.kept.remove(&held),
                    Some(Mail::GiveBack(held)) => {
                        self.kept.remove(&held);
                        let file = self.file.clone();
                        // A job that cannot be handed back becomes claimable when its lease runs out.
                        releasing.push(Box::pin(async move { _ = file.release(held).await }));
                    }
                    Some(Mail::Flush(tx)) => self.leaving.push(tx),
                },
                Some((held, lease, extended)) = extending.next() => self.extended(held, lease, extended),
                Some(()) = releasing.next() => {}
                () = sleep => {}
            }
        }
        while releasing.next().await.is_some() {}
    }

    fn keep(&mut self, watched: Arc<Watched>) {
        let Times { lease, deadline } = watched.times();
        let now = self.env.monotonic();
        // The claim itself may have taken much of the lease already.
        let next = now + (lease / 3).min(deadline.saturating_duration_since(now) / 2);
        self.kept.insert(watched.held, Entry { watched, next: Some(next) });
    }

    /// The extends whose time has come; together they share a commit.
    fn due(&mut self, now: Instant) -> Vec<Extending> {
        let due = self.kept.values_mut().filter(|e| e.next.is_some_and(|at| at <= now));
        let start = |entry: &mut Entry| -> Extending {
            entry.next = None;
            let (file, held, lease) = (self.file.clone(), entry.watched.held, entry.watched.times().lease);
            Box::pin(async move { (held, lease, file.extend(held, lease).await) })
        };
        due.map(start).collect()
    }

    fn extended(&mut self, held: Held, lease: Duration, extended: Result<Instant>) {
        let Some(entry) = self.kept.get_mut(&held) else { return };
        let now = self.env.monotonic();
        match extended {
            // Another length was asked for meanwhile: that one counts.
            Ok(_) if entry.watched.times().lease != lease => {}
            Ok(deadline) => {
                entry.watched.set(Times { lease, deadline });
                entry.next = Some(now + lease / 3);
            }
            Err(e) if matches!(e.kind(), Kind::LeaseLost | Kind::NotFound | Kind::Invalid) => {
                entry.watched.go(LOST);
                self.kept.remove(&held);
            }
            Err(e) if e.kind() == Kind::Closed => _ = self.kept.remove(&held),
            Err(_) => entry.next = Some(now + lease / RETRY_SHARE),
        }
    }
}
