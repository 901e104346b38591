//! Local mode: batches end in the local log; `sync` is in a file of its own.
//!
//! Called by turn, gather and open. A sync waits for the store and runs local batches meanwhile, for nothing they do depends on
//! its outcome. What a look at HEAD says against this directory does not stop local reads; it is told until discarded.

use std::future::Future;
use std::path::Path;
use std::pin::pin;

use super::push::unsend;
use super::turn::{Executed, fail, respond};
use super::{Outcomes, Work, Writer};
use crate::db::Moment;
use crate::door::{self, Done, Mail, Question, Slot, Task, Told};
use crate::error::{Code, Error, Kind, Result};
use crate::local::{Log, export};
use crate::metrics::Counters;
use crate::op::{Op, Outcome};
use crate::pages::Image;
use crate::query::Query;
use crate::store::Version;

/// Jobs that one commit can put at the end: the ordinal has 24 bits.
const MAX_ORDINAL: u64 = (1 << 24) - 1;

/// What a writer in Local mode has besides.
pub(super) struct Local {
    pub log: Log,
    /// Why nothing can be published before a discard.
    pub stuck: Option<Error>,
    /// HEAD was seen by this process, and is the base under the version known.
    pub known: bool,
    /// Local calls are served while the store is waited for.
    pub serving: bool,
    /// What came meanwhile and has to wait.
    stash: Vec<Mail>,
}

impl Local {
    /// `known`: HEAD was just read or written.
    pub fn new(log: Log, known: bool) -> Self {
        Self { log, stuck: None, known, serving: false, stash: vec![] }
    }
}

/// The version of a HEAD that this process has not seen; no request is made with it.
pub(super) fn unseen() -> Version {
    Version::new("")
}

impl Writer {
    pub(super) fn log(&mut self) -> Result<&mut Local> {
        self.local.as_mut().ok_or_else(|| Error::new(Code::Internal, "Local mode without a local log"))
    }

    /// Ops and questions from the local state, then what was asked about the directory as a whole.
    pub(super) async fn local_turn(&mut self, work: Work) {
        let Work { slots, questions, exports, collections, archives, flushes, tasks, poll, wake: _ } = work;
        let is_fence = |slot: &Slot| matches!(slot.work, door::Work::Fence);
        let (fences, slots): (Vec<Slot>, Vec<Slot>) = slots.into_iter().partition(is_fence);
        self.run_locally(slots, questions, poll);
        for slot in fences {
            let began = self.env.monotonic();
            let synced = self.sync().await;
            let commit_ms = self.chain.head.commit_ms;
            let done = synced.map(|s| Done {
                outcome: Outcome::Atomic(vec![]),
                commit_seq: s.commit_seq,
                commit_ms,
                began,
            });
            respond(slot, done);
        }
        for (task, reply) in tasks {
            let told = match task {
                Task::Sync => self.sync().await.map(Told::Synced),
                Task::Snapshot { discard } => self.snapshot(discard).await.map(Told::At),
                Task::Export { path } => self.export_pending(&path).map(|()| Told::Exported),
            };
            self.tell_pending();
            let _ = reply.send(told);
        }
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
            self.export(export).await;
        }
        for done in flushes {
            let _ = done.send(());
        }
    }

    /// What has to be done before the next mail: nothing here waits for the store.
    fn run_locally(&mut self, slots: Vec<Slot>, questions: Vec<Question>, wake: bool) {
        if let Some(local) = &mut self.local {
            local.log.tick();
            let pages = &self.chain.pages;
            if let Err(error) = local.log.ready(|| pages.with(|p| p.image())) {
                tracing::warn!(%error, "the local log is in doubt and could not be written anew");
            }
        }
        let batch = self.batch(slots, wake);
        if let Some(error) = self.halted.clone() {
            return self.refuse_all(batch, questions, &error);
        }
        if !batch.is_empty() {
            self.commit_locally(batch);
        }
        for q in questions {
            if matches!(q.query, Query::History { .. }) {
                self.tell_history(q);
                continue;
            }
            let answer = self.look_up(&q);
            let _ = q.reply.send(answer);
        }
    }

    fn commit_locally(&mut self, mut batch: Vec<Slot>) {
        if let Some(error) = self.local.as_ref().and_then(|l| l.stuck.clone()) {
            return fail(batch, &error);
        }
        // Nothing waits between here and the answer: who has not gone by now gets it.
        batch.retain(|slot| !slot.is_gone() && slot.stage.send());
        if batch.is_empty() {
            return;
        }
        let started = self.env.monotonic();
        match self.execute_and_log(&batch) {
            Ok((executed, commit_seq)) => {
                let took = self.env.monotonic().saturating_duration_since(started);
                self.pace.put = (self.pace.put * 7 + took) / 8;
                self.pace.looked_ms = executed.commit_ms;
                self.tell_batch(executed.told, (commit_seq, executed.commit_ms));
                self.tell_empty(&executed.outcomes, (commit_seq, executed.commit_ms));
                self.reply(batch, executed.outcomes, (commit_seq, executed.commit_ms), executed.began);
                self.shrink_log();
            }
            Err(error) => {
                if error.kind() != Kind::Unknown {
                    unsend(&batch);
                }
                fail(batch, &error);
            }
        }
    }

    /// Run the batch and write it down; on an error the local state is as it was before.
    fn execute_and_log(&mut self, batch: &[Slot]) -> Result<(Executed, u64)> {
        self.check_writable()?;
        let commit_seq = self.chain.head.commit_seq + 1;
        let (pages, local) = (self.chain.pages.clone(), self.log()?);
        local.log.ready(|| pages.with(|p| p.image()))?;
        let (ordinal, last_ms) = (local.log.ordinal(), local.log.last_ms());
        if u64::from(ordinal) + batch.iter().map(joining).sum::<u64>() > MAX_ORDINAL {
            return Err(Error::new(
                Code::FileFull,
                "one commit cannot hold more jobs than were enqueued since the last sync: sync first",
            ));
        }
        self.chain.db.go_on_from(ordinal);
        let began = self.env.monotonic();
        let commit_ms = self.time.commit_ms(last_ms)?;
        let (outcomes, changes) = self.execute(batch, commit_ms)?;
        let told = self.chain.db.take_told();
        let executed = |outcomes, changes, told| Executed { outcomes, changes, told, commit_ms, began };
        if changes.is_empty() {
            return Ok((executed(outcomes, changes, told), commit_seq));
        }
        let (ordinal, ops) = (self.chain.db.ordinal(), succeeded(&outcomes));
        let Err(failed) = self.log()?.log.commit(&changes, ops, commit_ms, ordinal) else {
            Counters::add(&self.shared.counters.local_commits, 1);
            Counters::add(&self.shared.counters.local_ops, ops.into());
            self.tell_pending();
            return Ok((executed(outcomes, changes, told), commit_seq));
        };
        self.undo(changes);
        if failed.in_doubt && self.log()?.log.roll(&pages.with(|p| p.image())).is_err() {
            let told = "it may be found applied when the local directory is opened again";
            return Err(Error::new(Code::OutcomeUnknown, format!("{told}: {}", failed.error.message()))
                .because(failed.error));
        }
        Err(failed.error)
    }

    /// A new generation when the log has grown beyond use. Its failure costs nothing but the time of the next opening.
    fn shrink_log(&mut self) {
        let pages = self.chain.pages.clone();
        if let Some(local) = self.local.as_mut().filter(|l| l.log.outgrown())
            && let Err(error) = local.log.roll(&pages.with(|p| p.image()))
        {
            tracing::warn!(%error, "the local log could not be written anew; it grows on");
        }
    }

    /// The pages as of the settled commit this writer stands on.
    pub(super) fn settled_image(&self) -> Image {
        self.local.as_ref().map_or_else(|| self.chain.pages.with(|p| p.image()), |l| l.log.base().clone())
    }

    /// For handles that ask what is pending.
    pub(crate) fn tell_pending(&self) {
        if let Some(local) = &self.local {
            let pending = local.log.pending();
            self.shared.tell_pending(pending.commits, pending.ops, pending.bytes);
        }
    }

    /// Wait for `work`, which is done by the store; during a sync, serve local calls meanwhile.
    pub(super) async fn meanwhile<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        while self.local.as_ref().is_some_and(|l| l.serving) {
            let env = self.env.clone();
            let due = self.timer().map(|at| at.saturating_duration_since(env.monotonic()));
            tokio::select! {
                biased;
                done = &mut work => return done,
                mail = self.rx.recv() => match mail {
                    Some(mail) => self.serve(mail),
                    None => if let Some(local) = &mut self.local { local.serving = false },
                },
                () = env.sleep(due.unwrap_or_default()), if due.is_some() => self.run_locally(vec![], vec![], true),
            }
        }
        work.await
    }

    /// Take what waits; what is about the directory as a whole waits until the sync is over.
    fn serve(&mut self, mail: Mail) {
        let mut work = Work::default();
        self.put(&mut work, mail);
        self.take_waiting(&mut work);
        let Work { slots, questions, exports, collections, archives, flushes, tasks, poll: _, wake: _ } =
            work;
        let (fences, slots): (Vec<Slot>, Vec<Slot>) =
            slots.into_iter().partition(|slot| matches!(slot.work, door::Work::Fence));
        let carried = std::mem::take(&mut self.carry);
        self.run_locally(carried.into_iter().chain(slots).collect(), questions, false);
        if let Some(local) = &mut self.local {
            local.stash.extend(fences.into_iter().map(Mail::Op));
            local.stash.extend(tasks.into_iter().map(|(task, reply)| Mail::Task(task, reply)));
            local.stash.extend(collections.into_iter().map(Mail::Collect));
            local.stash.extend(archives.into_iter().map(Mail::Archive));
            local.stash.extend(exports.into_iter().map(Mail::Export));
            local.stash.extend(flushes.into_iter().map(Mail::Flush));
        }
    }

    /// Mail that had to wait for a sync.
    pub(super) fn stashed(&mut self) -> Vec<Mail> {
        self.local.as_mut().map(|l| std::mem::take(&mut l.stash)).unwrap_or_default()
    }

    /// The local state as a plain SQLite file, and what of it is not published as lines.
    fn export_pending(&mut self, path: &Path) -> Result<()> {
        let now = self.chain.pages.with(|p| p.image());
        let log = &self.log()?.log;
        let (base, now_ms) = (log.base().clone(), log.last_ms());
        let rand = self.env.bytes();
        export(path, &base, &now, rand, Moment { now_ms, commit_seq: self.chain.head.commit_seq })
    }

    /// Bring the copy that `sqlite3` opens to the state this writer stands on, which is settled between two turns.
    pub(super) async fn keep_copy(&mut self) {
        if let Some(copy) = &mut self.copy {
            let pages = &self.chain.pages;
            copy.poll().await;
            copy.keep(&self.chain.head, || pages.with(|p| p.image()));
        }
    }

    /// The last thing a writer does.
    pub(super) async fn leave(&mut self) {
        if let Some(copy) = &mut self.copy {
            let pages = &self.chain.pages;
            copy.last(&self.chain.head, || pages.with(|p| p.image())).await;
        }
        let Some(local) = &mut self.local else { return };
        local.log.close();
        let pending = local.log.pending();
        if pending.commits > 0 {
            tracing::warn!(
                commits = pending.commits,
                ops = pending.ops,
                path = %local.log.path().display(),
                "closed without a sync: these local commits are not published"
            );
        }
    }
}

pub(super) fn succeeded(outcomes: &Outcomes) -> u32 {
    outcomes.iter().filter(|o| o.is_ok()).count() as u32
}

/// Places that this op may take in the order of enqueues and of finishes.
fn joining(slot: &Slot) -> u64 {
    fn of(op: &Op) -> u64 {
        match op {
            // Each may cancel another one to make room.
            Op::Enqueue { jobs, .. } => 2 * jobs.len() as u64,
            Op::Atomic(ops) => ops.iter().map(of).sum(),
            // Jobs whose last lease has run out are dead then, and live again elsewhere; schedules fire.
            Op::Claim(claim) => 2_000 + 2 * u64::from(claim.max),
            Op::RequeueMany { limit, .. } => 2 * u64::from(*limit),
            _ => 2,
        }
    }
    match &slot.work {
        door::Work::Op(op) => of(op),
        door::Work::Fence | door::Work::Archive { .. } => 0,
    }
}
