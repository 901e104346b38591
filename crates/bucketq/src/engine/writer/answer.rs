//! Replies to queries and to callers of a settled batch.
//!
//! For a read that takes too long for a round, the writer takes the settled state, and a background task does the rest.

use tokio::time::Instant;

use super::waiting::BatchEnd;
use super::{Actor, Home, Outcomes};
use crate::bucket::keys;
use crate::bytes::metrics::Counters;
use crate::door::{Export, Question, Slot};
use crate::engine::history::history;
use crate::engine::image;
use crate::noun::error::{Code, Error, Result, only};
use crate::noun::job::JobId;
use crate::noun::query::{Answer, Detail, Exported, Query};

impl<H: Home> Actor<H> {
    /// Replies with the log of the settled HEAD, once its segments are fetched.
    pub(super) fn answer_history(&self, q: Question) {
        let Query::History { limit } = q.query else { return };
        let (source, head) = (self.remote.source.clone(), self.chain.head().clone());
        tokio::spawn(async move {
            let told = history(source, head, limit).await.map(Answer::History);
            let _ = q.reply.send(told);
        });
    }

    /// Takes an image of the settled state, unless refreshing it has failed, and writes it on another thread.
    pub(super) fn export(&mut self, export: Export, refreshed: Result<()>) {
        let Export { path, replace, reply, .. } = export;
        let _ = reply.send(refreshed.map(|()| {
            let image = self.home.settled_image(&self.chain);
            let (head, rand) = (self.chain.head(), self.env.bytes());
            let (commit_seq, commit_ms, commit_id) =
                (head.commit_seq, head.commit_ms, keys::hex(&head.commit_id));
            tokio::task::spawn_blocking(move || -> Result<Exported> {
                let bytes = image::export(&image, &path, replace, rand)?;
                Ok(Exported { commit_seq, commit_id, commit_ms, bytes })
            })
        }));
    }

    /// Runs a query on the state as it is now.
    pub(super) fn look_up(&mut self, query: &Query) -> Result<Answer> {
        let now_ms = self.remote.time.now_ms();
        let last_ms = self.home.last_ms(self.chain.head(), &self.remote.time, now_ms);
        self.chain.look_up(query, now_ms.max(last_ms))
    }

    /// Replies to a settled batch: see [`super::waiting::WaitingRoom::reply`].
    pub(super) fn reply(&mut self, batch: Vec<Slot>, outcomes: Outcomes, commit: (u64, i64), began: Instant) {
        let end = BatchEnd { outcomes, commit, began };
        self.waiting.reply(batch, end, &mut self.chain, &self.remote.time, self.turns.put_time());
    }

    /// Replies to callers whose job is finished or gone. Call it only when no batch has run without being committed.
    pub(super) fn reply_finished(&mut self) {
        if !self.waiting.awaited.is_waited_for() {
            return;
        }
        if let Some(error) = self.halted.clone() {
            return self.waiting.awaited.refuse(&error);
        }
        for id in self.waiting.awaited.due_by(self.env.monotonic()) {
            Counters::add(&self.shared.counters.wait_looks, 1);
            let told = match self.chain.db.state(id) {
                Ok(Some(state)) if !state.is_finished() => continue,
                Ok(_) => self.finished(id),
                Err(error) => Err(error),
            };
            for caller in self.waiting.awaited.take(id) {
                let _ = caller.send(told.clone());
            }
        }
    }

    fn finished(&mut self, id: JobId) -> Result<Detail> {
        match only!(self.look_up(&Query::Get(id))?, Answer::Job(found) => found)? {
            Some(detail) => Ok(*detail),
            None => {
                Err(Error::new(Code::NoSuchJob, format!("job {id} was deleted or archived during the wait")))
            }
        }
    }
}
