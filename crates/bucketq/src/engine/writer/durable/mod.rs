//! The writer in Durable mode: each batch is a commit in the store before its callers get a reply (G1).
//!
//! `gather` collects a batch, `commit` runs it until its outcome is known, `publish` sends and settles one body, `settle`
//! decides by a read of HEAD, `turns` waits for other writers with `head_watch`, `chores` makes the commits that chores need. No unsettled
//! commit is visible outside (P11), and no op runs during a put.

mod chores;
mod commit;
mod gather;
mod head_watch;
mod publish;
mod settle;
mod turns;

use std::future::Future;

use tokio::sync::watch;
use tokio::time::Instant;

pub(super) use publish::Pushed;

use super::chain::Chain;
use super::waiting::{RoundWork, WaitingRoom};
use super::{Actor, Home};
use crate::bucket::head::Head;
use crate::door::{Inbox, Question, Synced, Task, TaskResult};
use crate::engine::local::Settled;
use crate::engine::time::Timekeeper;
use crate::noun::error::{Error, Result};
use crate::state::pages::Image;

/// The state of Durable mode only: with a cache, the copy that `sqlite3` opens.
pub(super) struct Durable(pub Option<Settled>);

impl Home for Durable {
    fn settled_image(&self, chain: &Chain) -> Image {
        chain.image()
    }

    fn last_ms(&self, known: &Head, _: &Timekeeper, _: i64) -> i64 {
        known.commit_ms
    }

    fn sticks(&mut self, _: &Error) -> bool {
        false
    }

    fn drop_gone(waiting: &mut WaitingRoom) {
        waiting.drop_gone();
        waiting.drop_gone_mail();
    }

    async fn meanwhile<T: Send>(_: &mut Actor<Self>, work: impl Future<Output = T> + Send) -> T {
        work.await
    }
}

impl Actor<Durable> {
    /// Serves until every handle is gone and everything they sent has a reply; or until another process is to write for
    /// this one: then returns the mailbox.
    pub(super) async fn run(mut self: Box<Self>, ended: watch::Sender<bool>) -> Option<Inbox> {
        while let Some(work) = self.gather().await {
            self.round(work).await;
            if self.waiting.resigns() {
                self.chores.collector.finish(self.remote.request_limit()).await;
                self.remote.end_cas_check().await;
                return Some(self.waiting.leave());
            }
        }
        self.leave_archive().await;
        self.leave_base().await;
        if let Some(copy) = &mut self.home.0 {
            copy.finish().await;
            copy.last(self.chain.head(), || self.chain.image());
            copy.finish().await;
        }
        self.end(ended).await;
        None
    }

    /// Updates the copy that `sqlite3` opens to this writer's state, which is settled between two rounds.
    async fn update_copy(&mut self) {
        if let Some(copy) = &mut self.home.0 {
            copy.poll().await;
            copy.update(self.chain.head(), || self.chain.image());
        }
    }

    /// Runs a batch and publishes it, then runs queries on settled state.
    async fn round(&mut self, work: RoundWork) {
        let RoundWork { mut slots, questions, exports, collections, archives, flushes, tasks, poll, wake: _ } =
            work;
        if let Some(error) = self.halted.clone() {
            self.waiting.refuse_all(slots, questions, &error);
            for order in collections {
                let _ = order.begun.send(Err(error.clone()));
            }
            for export in exports {
                let _ = export.reply.send(Err(error.clone()));
            }
            self.archive(archives).await;
        } else {
            let moved = poll && self.poll().await;
            slots.extend(self.chores.archiver.made(&mut self.chain, &self.remote));
            let batch = self.waiting.batch(slots, poll || moved);
            if !batch.is_empty() {
                self.commit(batch).await;
            }
            if !questions.is_empty() {
                self.answer(questions).await;
            }
            for order in collections {
                self.collect(order).await;
            }
            for export in exports {
                let old = self.chain.fresh() <= export.arrived;
                let refreshed = if old { self.refresh().await.map(drop) } else { Ok(()) };
                self.export(export, refreshed);
            }
            self.archive(archives).await;
        }
        for queued in tasks.into_iter().filter(|queued| !queued.stage.is_gone()) {
            let _ = queued.reply.send(self.task(queued.task).await);
        }
        self.reply_finished();
        for done in flushes {
            let _ = done.send(());
        }
    }

    /// Runs a task of Local mode in Durable mode, which has no unpublished changes.
    async fn task(&mut self, task: Task) -> Result<TaskResult> {
        if let Some(error) = &self.halted {
            return Err(error.clone());
        }
        match task {
            Task::Sync => Ok(TaskResult::Synced(Synced {
                commits: 0,
                ops: 0,
                commit_seq: self.chain.head().commit_seq,
            })),
            Task::Snapshot { .. } => {
                self.refresh().await.map(|_| TaskResult::At(self.chain.head().commit_seq))
            }
            Task::Export { .. } => {
                Err(Error::invalid("Durable mode has no unpublished changes: there is nothing to export"))
            }
        }
    }

    /// Polls the store for waiting callers, if it is time. Returns true if something had changed.
    async fn poll(&mut self) -> bool {
        if self.env.monotonic() < self.waiting.next_poll(self.chain.fresh()) {
            return false;
        }
        let moved = self.refresh().await.unwrap_or(false);
        self.waiting.polled();
        self.waiting.pace_polls(moved);
        moved
    }

    /// Runs queries on settled state that is as fresh as they require.
    async fn answer(&mut self, questions: Vec<Question>) {
        let now = self.env.monotonic();
        let (fresh, known) = (self.chain.fresh(), self.chain.head().commit_seq);
        let stale = |q: &Question, fresh: Instant| {
            fresh <= q.arrived
                && (q.max_age.is_none_or(|age| now.saturating_duration_since(fresh) > age) || known < q.seen)
        };
        let refreshed =
            if questions.iter().any(|q| stale(q, fresh)) { self.refresh().await.map(|_| ()) } else { Ok(()) };
        for q in questions {
            let answer = match &refreshed {
                Err(error) if stale(&q, fresh) => Err(error.clone()),
                _ if q.query.reads_log() => {
                    self.answer_history(q);
                    continue;
                }
                _ => self.look_up(&q.query),
            };
            let _ = q.reply.send(answer);
        }
    }
}
