//! The writer in Local mode: batches are committed to the local log, and a sync publishes them.
//!
//! `commit` runs a batch, `sync` publishes and settles, `snapshot` takes over commits of others. A sync waits for the
//! store and meanwhile runs local batches, which do not depend on its outcome. If HEAD contradicts this directory, local
//! reads continue and changes fail until a discard.

mod commit;
mod snapshot;
mod sync;

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

use super::chain::Chain;
use super::waiting::{RoundWork, WaitEnd, WaitingRoom, respond};
use super::{Actor, Home};
use crate::bucket::head::Head;
use crate::door::{self, Done, Mail, Question, QueuedTask, Slot, Task, TaskResult};
use crate::engine::local::{Log, export};
use crate::engine::time::Timekeeper;
use crate::noun::error::{Code, Error, Result};
use crate::noun::op::Outcome;
use crate::state::db::Moment;
use crate::state::pages::Image;

/// The state of Local mode only.
pub(super) struct Local {
    pub log: Log,
    /// Why nothing can be published before a discard.
    stuck: Option<Error>,
    /// This process has read or written HEAD: it is the base, and its version is known.
    known: bool,
    /// Local calls are served while the writer waits for the store.
    serving: bool,
    /// Mail that arrived meanwhile and has to wait.
    stash: Vec<Mail>,
}

impl Local {
    /// `known`: HEAD was just read or written.
    pub fn new(log: Log, known: bool) -> Self {
        Self { log, stuck: None, known, serving: false, stash: vec![] }
    }

    /// Refuses all changes and syncs from now on, until a discard.
    fn stick(&mut self, error: Error) -> Error {
        tracing::error!(%error, "local changes cannot be published");
        self.stuck.insert(error).clone()
    }
}

impl Home for Local {
    fn settled_image(&self, _: &Chain) -> Image {
        self.log.base().clone()
    }

    fn last_ms(&self, known: &Head, time: &Timekeeper, now_ms: i64) -> i64 {
        let last_ms = self.log.last_ms();
        if time.is_ahead(last_ms, now_ms) { known.commit_ms } else { last_ms }
    }

    fn sticks(&mut self, error: &Error) -> bool {
        let sticks = error.code() != Code::Internal;
        if sticks {
            self.stick(error.clone());
        }
        sticks
    }

    fn drop_gone(waiting: &mut WaitingRoom) {
        // A sync serves its mail meanwhile.
        waiting.drop_gone();
    }

    /// During a sync, serves local calls while it waits.
    async fn meanwhile<T: Send>(actor: &mut Actor<Self>, work: impl Future<Output = T> + Send) -> T {
        let mut work = pin!(work);
        while actor.home.serving {
            let env = actor.env.clone();
            let due = actor.timer().map(|at| at.saturating_duration_since(env.monotonic()));
            tokio::select! {
                biased;
                done = &mut work => return done,
                mail = actor.waiting.new_mail() => match mail {
                    Some(mail) => actor.serve(mail),
                    None => actor.home.serving = false,
                },
                () = env.sleep(due.unwrap_or_default()), if due.is_some() => actor.run_locally(vec![], vec![], true),
            }
        }
        work.await
    }
}

impl Actor<Local> {
    /// Serves until every handle is gone and everything they sent has a reply.
    pub(super) async fn run(mut self: Box<Self>, ended: watch::Sender<bool>) {
        while let Some(work) = self.gather().await {
            self.round(work).await;
        }
        let log = &mut self.home.log;
        log.close();
        let pending = log.pending();
        if pending.commits > 0 {
            tracing::warn!(
                commits = pending.commits,
                ops = pending.ops,
                path = %log.path().display(),
                "closed without a sync: these local commits are not published"
            );
        }
        self.end(ended).await;
    }

    /// Returns the work of the next round; `None` when every handle is gone and nothing is left to do.
    async fn gather(&mut self) -> Option<RoundWork> {
        let slots = std::mem::take(&mut self.waiting.carry);
        let mut work = RoundWork { slots, ..RoundWork::default() };
        for mail in std::mem::take(&mut self.home.stash) {
            self.waiting.put(&mut work, mail);
        }
        self.waiting.take_waiting(&mut work);
        while work.is_empty() {
            let timer = self.timer();
            match self.waiting.next_event(timer).await {
                WaitEnd::Mail(mail) => self.waiting.put(&mut work, mail),
                WaitEnd::Closed => return None,
                WaitEnd::Time => {
                    self.waiting.awaited.drop_gone();
                    work.poll = true;
                }
            }
        }
        self.waiting.wait_for_callers(&mut work).await;
        self.waiting.take_waiting(&mut work);
        Some(work)
    }

    /// Returns when something is due without mail: for waiting callers, or for the disk. Commits of other writers are
    /// not visible before a snapshot.
    fn timer(&mut self) -> Option<Instant> {
        let callers = self.callers_timer(None);
        [callers, self.home.log.due()].into_iter().flatten().min()
    }

    /// Runs ops and queries on the local state, then tasks on the directory as a whole.
    async fn round(&mut self, work: RoundWork) {
        let RoundWork { slots, questions, exports, collections, archives, flushes, tasks, poll, wake: _ } =
            work;
        let is_fence = |slot: &Slot| slot.is(|work| matches!(work, door::Work::Fence));
        let (fences, slots): (Vec<Slot>, Vec<Slot>) = slots.into_iter().partition(is_fence);
        self.run_locally(slots, questions, poll);
        for slot in fences {
            let began = self.env.monotonic();
            // Once something is sent for its caller, the caller must not get "surely not applied" (P7).
            self.remote.serve(Some((Arc::clone(&slot.stage), slot.arrived + self.options.deadline)));
            let synced = self.sync().await;
            self.remote.serve(None);
            let commit_ms = self.chain.head().commit_ms;
            let done = synced.map(|s| Done {
                outcome: Outcome::Atomic(vec![]),
                commit_seq: s.commit_seq,
                commit_ms,
                began,
            });
            respond(slot, done);
        }
        for QueuedTask { task, stage, until, reply } in tasks {
            if stage.is_gone() {
                continue;
            }
            // Nothing is sent for a caller that got "surely not applied".
            self.remote.serve(Some((stage, until)));
            let told = match task {
                Task::Sync => self.sync().await.map(TaskResult::Synced),
                Task::Snapshot { discard } => self.snapshot(discard).await.map(TaskResult::At),
                Task::Export { path } => self.export_pending(&path).map(|()| TaskResult::Exported),
            };
            self.remote.serve(None);
            self.set_unsynced();
            let _ = reply.send(told);
            self.waiting.awaited.moved();
        }
        self.reply_finished();
        for order in collections {
            let no =
                "collecting on request needs Durable mode: in Local mode it happens by itself, with syncs";
            let _ = order.begun.send(Err(Error::invalid(no)));
        }
        for order in archives {
            let no = "the archive is written in Durable mode: open the queue file without Local mode for it";
            let _ = order.send(Err(Error::invalid(no)));
        }
        for export in exports {
            // Only a snapshot looks for newer commits.
            self.export(export, Ok(()));
        }
        for done in flushes {
            let _ = done.send(());
        }
    }

    /// Runs everything that is due before the next mail: nothing here waits for the store.
    fn run_locally(&mut self, slots: Vec<Slot>, questions: Vec<Question>, wake: bool) {
        self.home.log.tick();
        if let Err(error) = self.home.log.ready(|| self.chain.image()) {
            tracing::warn!(%error, "the local log may be damaged and could not be written again");
        }
        let batch = self.waiting.batch(slots, wake);
        if let Some(error) = self.halted.clone() {
            return self.waiting.refuse_all(batch, questions, &error);
        }
        if !batch.is_empty() {
            self.commit(batch);
        }
        for q in questions {
            if q.query.reads_log() {
                self.answer_history(q);
                continue;
            }
            let answer = self.look_up(&q.query);
            let _ = q.reply.send(answer);
        }
        self.reply_finished();
    }

    /// Updates the counts of unpublished changes that handles read.
    pub(super) fn set_unsynced(&self) {
        let pending = self.home.log.pending();
        self.shared.set_unsynced(pending.commits, pending.ops, pending.bytes);
    }

    /// Takes the waiting mail; requests about the directory as a whole wait until the sync is over.
    fn serve(&mut self, mail: Mail) {
        let mut work = RoundWork::default();
        self.waiting.put(&mut work, mail);
        self.waiting.take_waiting(&mut work);
        let RoundWork { slots, questions, exports, collections, archives, flushes, tasks, poll: _, wake: _ } =
            work;
        let (fences, slots): (Vec<Slot>, Vec<Slot>) =
            slots.into_iter().partition(|slot| slot.is(|work| matches!(work, door::Work::Fence)));
        let carried = std::mem::take(&mut self.waiting.carry);
        self.run_locally(carried.into_iter().chain(slots).collect(), questions, false);
        let stash = &mut self.home.stash;
        stash.extend(fences.into_iter().map(Mail::Op));
        stash.extend(tasks.into_iter().map(Mail::Task));
        stash.extend(collections.into_iter().map(Mail::Collect));
        stash.extend(archives.into_iter().map(Mail::Archive));
        stash.extend(exports.into_iter().map(Mail::Export));
        stash.extend(flushes.into_iter().map(Mail::Flush));
    }

    /// Writes the local state as a plain SQLite file, and its unpublished changes as lines.
    fn export_pending(&mut self, path: &Path) -> Result<()> {
        let now = self.chain.image();
        let log = &self.home.log;
        let (base, now_ms) = (log.base().clone(), log.last_ms());
        let rand = self.env.bytes();
        export(path, &base, &now, rand, Moment { now_ms, commit_seq: self.chain.head().commit_seq })
    }
}
