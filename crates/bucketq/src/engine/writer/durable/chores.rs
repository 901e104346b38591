//! The writer's part in its chores: commits that raise the floor on request (P15, P16), that list archive objects
//! (decision 16), and that refer to a last base. The chores themselves are in `chores`, and run in the background.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::super::Actor;
use super::super::chores::ArchiveReply;
use super::Durable;
use crate::door::{Begun, Collection, Done, ReplyTo, Slot, Stage};
use crate::engine::commit;
use crate::noun::error::{Code, Error, Result};
use crate::state::db::ArchiveDue;

/// Most commits of one request: one that lets a finished base into HEAD, one that puts the floor above the objects that
/// it replaced, and one for commits that came between.
const MOST: u32 = 3;

impl Actor<Durable> {
    /// Collects garbage. The pass sends the second reply.
    pub(super) async fn collect(&mut self, order: Collection) {
        let Collection { grace, tidy, stage, arrived, begun, reply } = order;
        if let Err(error) = self.chain.check_writable() {
            let _ = begun.send(Err(error));
            return;
        }
        if let Err(error) = self.chores.uploads.poll(true).await {
            tracing::warn!(%error, "a segment could not be written; it is tried again");
        }
        // A base of an outdated state would be written for nothing.
        if self.chain.fresh() <= arrived
            && let Err(error) = self.refresh().await
        {
            let _ = begun.send(Err(error));
            return;
        }
        if tidy && self.chores.uploads.worth_a_base(self.chain.head(), &self.chain.image()) {
            self.start_base();
            let _ = begun.send(Ok(Begun::Base));
            return;
        }
        let floor = self.chain.head().gc_floor;
        self.chores.wish(Some(grace));
        let raised = self.raise_floor(grace, &stage).await;
        self.chores.wish(None);
        match raised {
            Ok(()) => self.chores.order_pass(&mut self.chain, Some(reply)),
            Err(_) if self.halted.is_none() && self.chain.head().gc_floor > floor => {
                self.chores.order_pass(&mut self.chain, None);
            }
            Err(_) => {}
        }
        let _ = begun.send(raised.map(|()| Begun::Deleting));
    }

    /// Commits until another commit would make nothing more collectable.
    async fn raise_floor(&mut self, grace: Duration, stage: &Arc<Stage>) -> Result<()> {
        for _ in 0..MOST {
            if !commit::floor_can_rise(self.chain.head(), self.remote.time.now_ms(), grace) {
                break;
            }
            if let Some(last) = self.turns.last_put().filter(|_| !self.options.commit_interval.is_zero()) {
                let next = last + self.options.commit_interval;
                self.env.sleep(next.saturating_duration_since(self.env.monotonic())).await;
            }
            self.fence(stage).await?;
        }
        Ok(())
    }

    /// Makes an empty commit.
    async fn fence(&mut self, stage: &Arc<Stage>) -> Result<Done> {
        let (tx, mut answer) = oneshot::channel();
        let slot = Slot::fence(self.env.monotonic(), Arc::clone(stage), ReplyTo::Caller(tx));
        self.commit(vec![slot]).await;
        answer
            .try_recv()
            .unwrap_or_else(|_| Err(Error::new(Code::Closed, "the caller of the collection no longer waits")))
    }

    /// Replies to callers that waited for the object of this round, and begins the next if one is due.
    pub(super) async fn archive(&mut self, orders: Vec<ArchiveReply>) {
        let archiver = &mut self.chores.archiver;
        archiver.listed();
        archiver.ask(orders);
        if let Some(error) = self.halted.clone() {
            archiver.fail(error);
            return;
        }
        if archiver.is_busy() {
            return;
        }
        if archiver.is_late() {
            archiver.begin_pass();
            // From the newest state, so that jobs finished by other processes leave too.
            let refreshed = self.refresh().await;
            let archiver = &mut self.chores.archiver;
            match refreshed {
                Ok(_) => archiver.begin(&self.chain, &self.remote),
                Err(error) => archiver.reply(&Err(error)),
            }
            return;
        }
        match archiver.due(&mut self.chain, &self.remote) {
            ArchiveDue::Nothing => {}
            ArchiveDue::Jobs => archiver.begin(&self.chain, &self.remote),
            ArchiveDue::Objects => self.waiting.carry.push(archiver.slot(None)),
        }
    }

    /// Lists the object under way, when the last handle is gone: otherwise processes that live for a moment would
    /// upload objects for nothing, each time.
    pub(super) async fn leave_archive(&mut self) {
        if !self.chores.archiver.is_making() || self.halted.is_some() {
            return;
        }
        let (env, limit) = (self.env.clone(), self.remote.request_limit());
        let last = async {
            let Some(listing) = self.chores.archiver.last().await else { return };
            self.waiting.carry.push(listing);
            while !self.waiting.carry.is_empty() {
                let again = std::mem::take(&mut self.waiting.carry);
                Box::pin(self.commit(again)).await;
            }
        };
        tokio::select! {
            biased;
            () = last => {}
            () = env.sleep(limit) => {}
        }
    }

    /// Makes a base and refers to it, when the last handle is gone and the log is far too long. Otherwise processes
    /// that live for one commit would each upload a base for nothing, and the log would grow without limit.
    pub(super) async fn leave_base(&mut self) {
        if self.halted.is_some() || !self.chores.uploads.is_overdue(self.chain.head()) {
            return;
        }
        let (env, limit) = (self.env.clone(), self.remote.request_limit());
        if !self.chores.uploads.has_base() {
            // A writer that has committed nothing leaves it to others.
            if !self.identity.has_stored() {
                return;
            }
            self.start_base();
        }
        let last = async {
            if self.chores.uploads.wait_for_base().await.is_ok() {
                let slot = Slot::fence(self.env.monotonic(), Arc::default(), ReplyTo::Nobody);
                Box::pin(self.commit(vec![slot])).await;
            }
        };
        tokio::select! {
            biased;
            () = last => {}
            () = env.sleep(limit) => {}
        }
    }
}
