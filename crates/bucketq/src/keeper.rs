//! [`Keeper`]: keeps leases alive while jobs are worked on. One task per keeper extends what is held, says when a lease
//! is lost, and hands back what was never worked on.
//!
//! Called by whoever claims for somebody else to work: the Python package. Uses the public handle only.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::claim::Taken;
use crate::env::Env;
use crate::error::{Kind, Result};
use crate::event::{At, Happened, Loss};
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
    Look,
}

/// What the task and the holder of a job share.
#[derive(Debug)]
struct Watched {
    held: Held,
    /// False: its lease runs out unless its holder extends it.
    is_extended: bool,
    stage: AtomicU8,
    times: Mutex<Times>,
    notice: Mutex<Notice>,
    /// The job as it was claimed, and in which commit, for those who watch.
    job: At,
    claimed: (u64, i64),
}

/// Whom to tell that the lease is lost, once.
#[derive(Default)]
struct Notice {
    told: Option<Loss>,
    to: Option<Box<dyn FnOnce(Loss) + Send>>,
}

impl fmt::Debug for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notice").field("told", &self.told).finish_non_exhaustive()
    }
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

    fn notice(&self) -> MutexGuard<'_, Notice> {
        self.notice.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_ended(&self) -> bool {
        self.stage.load(SeqCst) == ENDED
    }

    /// Somebody else has the job, or nobody ever will: unless it has ended here. True if that is news.
    fn taken(&self) -> bool {
        let is_held = self.stage.fetch_update(SeqCst, SeqCst, |now| (now != ENDED).then_some(LOST)).is_ok();
        is_held && self.lose(Loss::Taken)
    }

    /// The holder is told, if this is the first time.
    fn lose(&self, how: Loss) -> bool {
        let mut notice = self.notice();
        if notice.told.is_some() {
            return false;
        }
        notice.told = Some(how);
        let to = notice.to.take();
        drop(notice);
        if let Some(tell) = to {
            tell(how);
        }
        true
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
            notice: Mutex::default(),
            job: At {
                queue: taken.job.queue.as_str().into(),
                id: taken.job.id,
                run: taken.job.run,
                attempt: taken.job.attempt,
            },
            claimed: (taken.lease.fence, taken.job.claimed_ms.unwrap_or(0)),
        });
        if is_extended {
            self.send(Mail::Keep(Arc::clone(&watched)));
        }
        Kept { keeper: self.clone(), watched }
    }

    /// Something to call when the clock has jumped: the task looks at once what has run out. False when it has ended.
    pub fn nudge(&self) -> impl Fn() -> bool + Send + Sync + use<> {
        let tx = self.tx.downgrade();
        move || tx.upgrade().is_some_and(|tx| tx.send(Mail::Look).is_ok())
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
            let unused = self.watched.notice().to.take();
            drop(unused);
            self.keeper.send(Mail::Forget(self.watched.held));
        }
    }

    /// Have this called once the lease is lost, however that is noticed: from the keeper's task, or at once if it is
    /// lost already. Not once the job has ended. The last one given counts.
    pub fn on_lost(&self, tell: impl FnOnce(Loss) + Send + 'static) {
        let mut notice = self.watched.notice();
        match notice.told {
            Some(how) => {
                drop(notice);
                tell(how);
            }
            None if self.watched.has_ended() => {}
            None => {
                let before = notice.to.replace(Box::new(tell));
                drop(notice);
                drop(before);
                // What is extended is known to the task already.
                if !self.watched.is_extended {
                    self.keeper.send(Mail::Keep(Arc::clone(&self.watched)));
                }
            }
        }
    }

    /// An op with this proof was refused: the lease is gone.
    pub fn refused(&self) {
        self.watched.taken();
    }

    /// Hand it back now if nobody has worked on it.
    pub fn give_back(&self) {
        if self.watched.stage.compare_exchange(UNTOUCHED, ENDED, SeqCst, SeqCst).is_ok() {
            self.keeper.send(Mail::GiveBack(self.watched.held));
        }
    }

    /// True after [`Kept::end`], and once it was handed back.
    pub fn is_ended(&self) -> bool {
        self.watched.has_ended()
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
            self.watched.taken();
        }
        self.watched.set(Times { lease, deadline: extended? });
        // Told anew: a longer lease is extended less often.
        if self.watched.is_extended || self.watched.notice().to.is_some() {
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

/// One kept job.
#[derive(Debug)]
struct Entry {
    watched: Arc<Watched>,
    /// When it is extended next; no time while an extend is under way.
    next: Option<Instant>,
    /// When to look whether its lease has run out; no time once that was told.
    lost: Option<Instant>,
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
            self.tell_lost(now);
            let times = self.kept.values().flat_map(|e| [e.next, e.lost]).flatten();
            let pause = times.min().map(|at| at.saturating_duration_since(now));
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
                    Some(Mail::Look) => {}
                },
                Some((held, lease, extended)) = extending.next() => self.extended(held, lease, extended),
                Some(()) = releasing.next() => {}
                () = sleep => {}
            }
        }
        while releasing.next().await.is_some() {}
    }

    fn keep(&mut self, watched: Arc<Watched>) {
        if watched.has_ended() {
            return;
        }
        let Times { lease, deadline } = watched.times();
        let now = self.env.monotonic();
        // The claim itself may have taken much of the lease already.
        let next = now + (lease / 3).min(deadline.saturating_duration_since(now) / 2);
        let next = watched.is_extended.then_some(next);
        let lost = watched.notice().told.is_none().then_some(deadline);
        self.kept.insert(watched.held, Entry { watched, next, lost });
    }

    /// Leases that have run out meanwhile, because no extend was answered in time.
    fn tell_lost(&mut self, now: Instant) {
        let file = &self.file;
        for entry in self.kept.values_mut().filter(|e| e.lost.is_some_and(|at| at <= now)) {
            let watched = &entry.watched;
            // Extended meanwhile, perhaps.
            let deadline = watched.times().deadline;
            entry.lost = (deadline > now).then_some(deadline);
            if entry.lost.is_none() && !watched.has_ended() && watched.lose(Loss::RanOut) {
                let lost = || Happened::LeaseLost { job: watched.job.clone(), reason: Loss::RanOut };
                file.tell(lost, watched.claimed);
            }
        }
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
                let watched = &entry.watched;
                // The refusal of a lease is told by the writer; that there is no such job any more is not.
                if watched.taken() && e.kind() != Kind::LeaseLost {
                    let lost = || Happened::LeaseLost { job: watched.job.clone(), reason: Loss::Taken };
                    self.file.tell(lost, watched.claimed);
                }
                self.kept.remove(&held);
            }
            Err(e) if e.kind() == Kind::Closed => _ = self.kept.remove(&held),
            Err(_) => entry.next = Some(now + lease / RETRY_SHARE),
        }
    }
}
