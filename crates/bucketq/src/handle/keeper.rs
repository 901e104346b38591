//! [`Keeper`]: renews leases while jobs are worked on. One task per keeper extends the leases, reports a lost lease,
//! and hands back jobs that nobody started.
//!
//! Called by code that claims jobs for other code to run: the Python package. Uses the public handle only.

mod watched;

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::handle::claim::ClaimedJob;
use crate::handle::file::{QueueFile, deadline};
use crate::noun::env::Env;
use crate::noun::error::{Kind, Result};
use crate::noun::event::{At, Happened, Loss};
use crate::noun::lease::TIMED_OUT;
use crate::noun::op::Held;
use watched::{ENDED, LOST, LeaseTimes, RETRY_SHARE, UNTOUCHED, WORKED_ON, Watched};

/// The longest pause between two checks of the clock while the keeper watches jobs.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// If the wall clock has run ahead of the steady one by this much, leases may have run out that this process counts as
/// its own: it was frozen with its steady clock, as in a paused virtual machine.
const JUMP_MS: i64 = 1_000;

/// The sending side of the task; clones talk to the same task.
#[derive(Clone, Debug)]
pub struct Keeper {
    tx: mpsc::UnboundedSender<KeeperMail>,
    env: Env,
}

#[derive(Debug)]
enum KeeperMail {
    Keep(Arc<Watched>),
    Forget(Held),
    GiveBack(Held),
    Flush(oneshot::Sender<()>),
    TimeOut(Held),
    Look,
}

/// A job whose lease is renewed until this guard is ended or dropped. If it is dropped before anyone worked on the job,
/// the job is released; if later, its lease runs out (G5).
#[derive(Debug)]
pub struct LeaseGuard {
    keeper: Keeper,
    watched: Arc<Watched>,
}

impl Keeper {
    /// Returns a keeper and its task, which the caller spawns. The task ends when the keeper, its clones and all its
    /// guards are dropped.
    pub fn new(file: &QueueFile) -> Result<(Self, impl Future<Output = ()> + Send + use<>)> {
        let (tx, rx) = mpsc::unbounded_channel();
        let env = file.door()?.env.clone();
        let task = KeeperTask {
            file: file.clone(),
            env: env.clone(),
            jobs: HashMap::new(),
            compared: (env.wall_ms(), env.monotonic()),
            leaving: vec![],
        };
        Ok((Self { tx, env }, task.run(rx)))
    }

    /// Renews the lease of this claimed job, each time by `lease`. A lease that never runs out is not extended.
    pub fn keep(&self, claimed: &ClaimedJob, lease: Duration) -> LeaseGuard {
        self.watch(claimed, lease, claimed.lasts.is_some())
    }

    /// Watches this job without extending its lease, for tests in which it runs out.
    pub fn watch_only(&self, claimed: &ClaimedJob, lease: Duration) -> LeaseGuard {
        self.watch(claimed, lease, false)
    }

    fn watch(&self, claimed: &ClaimedJob, lease: Duration, is_extended: bool) -> LeaseGuard {
        let watched = Arc::new(Watched {
            held: claimed.held(),
            is_extended,
            ends: claimed.lasts.is_some(),
            hand: tokio::sync::Mutex::default(),
            stage: AtomicU8::new(UNTOUCHED),
            times: Mutex::new(LeaseTimes {
                lease,
                deadline: claimed.deadline,
                by_hand: 0,
                max_run: claimed.max_run(),
                begun: None,
            }),
            notice: Mutex::default(),
            job: At {
                queue: claimed.job.queue.as_str().into(),
                id: claimed.job.id,
                run: claimed.job.run,
                attempt: claimed.job.attempt,
            },
            claimed: (claimed.lease.fence, claimed.job.claimed_ms.unwrap_or(0)),
        });
        if is_extended {
            self.send(KeeperMail::Keep(Arc::clone(&watched)));
        }
        LeaseGuard { keeper: self.clone(), watched }
    }

    /// Returns a function to call when the clock has jumped: the task then checks at once which leases have run out. It
    /// returns false once the task has ended.
    pub fn nudge(&self) -> impl Fn() -> bool + Send + Sync + use<> {
        let tx = self.tx.downgrade();
        move || tx.upgrade().is_some_and(|tx| tx.send(KeeperMail::Look).is_ok())
    }

    /// Waits until all jobs handed back so far are released, as far as the store allows.
    pub async fn flush(&self) {
        let (tx, rx) = oneshot::channel();
        self.send(KeeperMail::Flush(tx));
        let _ = rx.await;
    }

    fn send(&self, mail: KeeperMail) {
        // Without the task, leases run out by themselves (G5).
        let _ = self.tx.send(mail);
    }
}

impl LeaseGuard {
    /// Returns the job's id and its token.
    pub fn held(&self) -> Held {
        self.watched.held
    }

    /// Marks the job as being worked on.
    pub fn work(&self) {
        let watched = &self.watched;
        if watched.stage.compare_exchange(UNTOUCHED, WORKED_ON, SeqCst, SeqCst).is_ok() {
            let now = self.keeper.env.monotonic();
            watched.change(|times| times.begun = Some(now));
            self.watch_run();
        }
    }

    /// Lets the holder work on the job for at most this long, or for less if the policy says so: then the lease is lost
    /// and the attempt has failed with "timed out". Counted from the begin of the work.
    pub fn limit(&self, max_run: Duration) {
        self.watched
            .change(|times| times.max_run = Some(times.max_run.map_or(max_run, |now| now.min(max_run))));
        self.watch_run();
    }

    /// Returns how long the holder may work on the job.
    pub fn max_run(&self) -> Option<Duration> {
        self.watched.times().max_run
    }

    /// Ends the attempt as failed, because it takes too long.
    pub fn time_out(&self) {
        self.keeper.send(KeeperMail::TimeOut(self.watched.held));
    }

    fn watch_run(&self) {
        if self.watched.times().over().is_some() && self.watched.stage.load(SeqCst) == WORKED_ON {
            self.keeper.send(KeeperMail::Keep(Arc::clone(&self.watched)));
        }
    }

    /// Returns true while nobody has worked on the job.
    pub fn is_untouched(&self) -> bool {
        self.watched.stage.load(SeqCst) == UNTOUCHED
    }

    /// Ends the guard after an ack, nack, release or reject: the lease is no longer renewed, and the job not handed
    /// back.
    pub fn end(&self) {
        if self.watched.stage.swap(ENDED, SeqCst) != ENDED {
            let unused = self.watched.notice().to.take();
            drop(unused);
            self.keeper.send(KeeperMail::Forget(self.watched.held));
        }
    }

    /// Sets the function to call once the lease is lost, for whatever reason: from the keeper's task, or at once if it
    /// is lost already. It is not called once the job has ended. A later call replaces the function.
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
                // The task already has a job that it extends.
                if !self.watched.is_extended {
                    self.keeper.send(KeeperMail::Keep(Arc::clone(&self.watched)));
                }
            }
        }
    }

    /// Records that an op with this token was refused: the lease is lost.
    pub fn refused(&self) {
        self.watched.lose_to_another();
    }

    /// Hands the job back now if nobody has worked on it.
    pub fn give_back(&self) {
        if self.watched.stage.compare_exchange(UNTOUCHED, ENDED, SeqCst, SeqCst).is_ok() {
            self.keeper.send(KeeperMail::GiveBack(self.watched.held));
        }
    }

    /// Returns true after [`LeaseGuard::end`], and once the job was handed back.
    pub fn is_ended(&self) -> bool {
        self.watched.has_ended()
    }

    /// Returns true when the lease is lost: stop working. Never true once the job has ended.
    pub fn is_lost(&self) -> bool {
        match self.watched.stage.load(SeqCst) {
            LOST => true,
            ENDED => false,
            _ => self.keeper.env.monotonic() >= self.watched.times().deadline,
        }
    }

    /// Returns for how long the lease surely lasts.
    pub fn remaining(&self) -> Duration {
        self.watched.times().deadline.saturating_duration_since(self.keeper.env.monotonic())
    }

    /// Extends the lease: it ends `lease` from now, even if that is earlier than before. The keeper then renews it by
    /// this length. A lease without end stays without end.
    pub async fn extend(&self, file: &QueueFile, lease: Duration) -> Result<()> {
        let extended = if self.watched.ends {
            let _turn = self.watched.hand.lock().await;
            let begun = ByHand::begin(self, file, lease)?;
            let extended = file.extend(self.held(), lease).await;
            begun.end(&extended);
            extended
        } else {
            file.extend(self.held(), lease).await
        };
        if matches!(&extended, Err(e) if e.kind() == Kind::LeaseLost) {
            self.watched.lose_to_another();
        }
        extended.map(drop)
    }
}

/// An extend by hand under way. Until its outcome is known, the lease is assumed to end at the earlier of the old and
/// the new deadline.
struct ByHand<'a> {
    guard: &'a LeaseGuard,
    lease: Duration,
    before: Instant,
}

impl<'a> ByHand<'a> {
    fn begin(guard: &'a LeaseGuard, file: &QueueFile, lease: Duration) -> Result<Self> {
        let door = file.door()?;
        let until = deadline(&door, guard.keeper.env.monotonic(), lease);
        let mut before = until;
        guard.watched.change(|times| {
            before = times.deadline;
            times.deadline = times.deadline.min(until);
            times.by_hand += 1;
        });
        Ok(Self { guard, lease, before })
    }

    fn end(self, extended: &Result<Instant>) {
        let not_applied =
            |kind| matches!(kind, Kind::Unavailable | Kind::Contended | Kind::Invalid | Kind::Full);
        self.guard.watched.change(|times| match extended {
            Ok(deadline) => (times.lease, times.deadline) = (self.lease, *deadline),
            Err(e) if not_applied(e.kind()) => times.deadline = self.before,
            Err(_) => {}
        });
    }
}

impl Drop for ByHand<'_> {
    fn drop(&mut self) {
        let watched = &self.guard.watched;
        watched.change(|times| times.by_hand += 1);
        // The task gets the job again: a longer lease is extended less often, and a shorter one ends sooner.
        let is_watched = watched.is_extended || watched.notice().to.is_some();
        if is_watched && watched.stage.load(SeqCst) != LOST {
            self.guard.keeper.send(KeeperMail::Keep(Arc::clone(watched)));
        }
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        self.give_back();
        self.end();
    }
}

/// One watched job.
#[derive(Debug)]
struct WatchedJob {
    watched: Arc<Watched>,
    /// When the keeper extends the lease next; none while an extend is under way.
    next: Option<Instant>,
    /// When to check whether the lease has run out; none once the loss was reported.
    lost: Option<Instant>,
    /// When its attempt has taken too long.
    over: Option<Instant>,
}

/// The job, the number of extends by hand before, and the result of the extend.
type Extending = Pin<Box<dyn Future<Output = (Held, u64, Result<Instant>)> + Send>>;
type Releasing = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Debug)]
struct KeeperTask {
    file: QueueFile,
    env: Env,
    jobs: HashMap<Held, WatchedJob>,
    /// Both clocks when they were last compared.
    compared: (i64, Instant),
    /// Callers of flush that wait for the releases under way.
    leaving: Vec<oneshot::Sender<()>>,
}

impl KeeperTask {
    async fn run(mut self, mut rx: mpsc::UnboundedReceiver<KeeperMail>) {
        let mut extending: FuturesUnordered<Extending> = FuturesUnordered::new();
        let mut releasing: FuturesUnordered<Releasing> = FuturesUnordered::new();
        loop {
            let now = self.env.monotonic();
            self.look_at_wall_clock(now);
            releasing.extend(self.time_out(now));
            extending.extend(self.due(now));
            if releasing.is_empty() {
                self.leaving.drain(..).for_each(|tx| _ = tx.send(()));
            }
            self.emit_lost(now);
            let times = self.jobs.values().flat_map(|e| [e.next, e.lost, e.over]).flatten();
            let pause = times.min().map(|at| at.saturating_duration_since(now));
            let sleep = async {
                match pause {
                    // A timer may stand still while the machine sleeps, but the lease keeps running.
                    Some(time) => self.env.sleep(time.min(LOOK_AGAIN)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                mail = rx.recv() => match mail {
                    None => break,
                    Some(KeeperMail::Keep(watched)) => self.keep(watched),
                    Some(KeeperMail::Forget(held)) => _ = self.jobs.remove(&held),
                    Some(KeeperMail::GiveBack(held)) => {
                        self.jobs.remove(&held);
                        let file = self.file.clone();
                        // A job that cannot be handed back becomes claimable when its lease runs out.
                        releasing.push(Box::pin(async move { _ = file.release(held).await }));
                    }
                    Some(KeeperMail::TimeOut(held)) => releasing.extend(self.fail(held)),
                    Some(KeeperMail::Flush(tx)) => self.leaving.push(tx),
                    Some(KeeperMail::Look) => {}
                },
                Some((held, by_hand, extended)) = extending.next() => self.extended(held, by_hand, extended),
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
        let next = watched.is_extended.then(|| watched.next(self.env.monotonic()));
        let lost = watched.notice().told.is_none().then(|| watched.times().deadline);
        let over = watched.times().over();
        self.jobs.insert(watched.held, WatchedJob { watched, next, lost, over });
    }

    /// Ends the attempts that have taken too long: they are no longer extended, and have failed.
    fn time_out(&mut self, now: Instant) -> Vec<Releasing> {
        let is_over = |entry: &WatchedJob| entry.over.is_some_and(|at| at <= now);
        let over: Vec<Held> = self.jobs.values().filter(|e| is_over(e)).map(|e| e.watched.held).collect();
        over.into_iter().filter_map(|held| self.fail(held)).collect()
    }

    fn fail(&mut self, held: Held) -> Option<Releasing> {
        let watched = self.jobs.remove(&held)?.watched;
        if watched.has_ended() {
            return None;
        }
        let _ = watched.stage.fetch_update(SeqCst, SeqCst, |now| (now != ENDED).then_some(LOST));
        if watched.lose(Loss::RanOut) {
            let lost = || Happened::LeaseLost { job: watched.job.clone(), reason: Loss::RanOut };
            self.file.emit(lost, watched.claimed);
        }
        let file = self.file.clone();
        // If the store is away, the lease runs out.
        Some(Box::pin(async move { _ = file.nack(held, None, Some(TIMED_OUT.to_owned())).await }))
    }

    /// Reports leases that have run out because no extend succeeded in time.
    fn emit_lost(&mut self, now: Instant) {
        let file = &self.file;
        for entry in self.jobs.values_mut().filter(|e| e.lost.is_some_and(|at| at <= now)) {
            let watched = &entry.watched;
            // It may have been extended meanwhile.
            let deadline = watched.times().deadline;
            entry.lost = (deadline > now).then_some(deadline);
            if entry.lost.is_none() && !watched.has_ended() && watched.lose(Loss::RanOut) {
                let lost = || Happened::LeaseLost { job: watched.job.clone(), reason: Loss::RanOut };
                file.emit(lost, watched.claimed);
            }
        }
    }

    /// If the wall clock has jumped ahead, extends every lease now: the queue file knows which of them are lost.
    fn look_at_wall_clock(&mut self, now: Instant) {
        let (wall_ms, steady) = std::mem::replace(&mut self.compared, (self.env.wall_ms(), now));
        let passed_ms = i64::try_from(now.saturating_duration_since(steady).as_millis()).unwrap_or(i64::MAX);
        if self.compared.0.saturating_sub(wall_ms).saturating_sub(passed_ms) > JUMP_MS {
            self.jobs.values_mut().filter_map(|entry| entry.next.as_mut()).for_each(|next| *next = now);
        }
    }

    /// Returns the extends that are due; they share a commit.
    fn due(&mut self, now: Instant) -> Vec<Extending> {
        let due = self.jobs.values_mut().filter(|e| e.next.is_some_and(|at| at <= now));
        let start = |entry: &mut WatchedJob| -> Extending {
            entry.next = None;
            let (file, held) = (self.file.clone(), entry.watched.held);
            let LeaseTimes { lease, by_hand, .. } = entry.watched.times();
            // `at_least`: a concurrent extend by hand may have made the lease longer.
            Box::pin(async move { (held, by_hand, file.hold(held, lease, true).await) })
        };
        due.map(start).collect()
    }

    fn extended(&mut self, held: Held, by_hand: u64, extended: Result<Instant>) {
        let Some(entry) = self.jobs.get_mut(&held) else { return };
        let now = self.env.monotonic();
        match extended {
            Ok(deadline) => {
                entry.watched.extended(deadline, by_hand);
                entry.next = Some(entry.watched.next(now));
            }
            Err(e) if matches!(e.kind(), Kind::LeaseLost | Kind::NotFound | Kind::Invalid) => {
                let watched = &entry.watched;
                // The writer emits the event for a refused lease, but not for a job that no longer exists.
                if watched.lose_to_another() && e.kind() != Kind::LeaseLost {
                    let lost = || Happened::LeaseLost { job: watched.job.clone(), reason: Loss::Taken };
                    self.file.emit(lost, watched.claimed);
                }
                self.jobs.remove(&held);
            }
            Err(e) if e.kind() == Kind::Closed => _ = self.jobs.remove(&held),
            Err(_) => entry.next = Some(now + entry.watched.times().lease / RETRY_SHARE),
        }
    }
}
