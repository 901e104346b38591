//! Raising the floor on request, and passing on what can be collected (P15, P16). The passes themselves run beside the
//! writer, in `gc`.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::Writer;
use crate::commit;
use crate::door::{Begun, Collection, Done, Slot, Stage};
use crate::error::{Code, Error, Result};
use crate::gc::Order;
use crate::query::Collected;

/// Commits that one request makes at most: one that lets a waiting base into HEAD, one that puts the floor above what
/// that base replaced, and one for what came between.
const MOST: u32 = 3;

impl Writer {
    /// Have what can go deleted. The answer comes from the pass.
    pub(super) async fn collect(&mut self, order: Collection) {
        let Collection { grace, tidy, stage, arrived, begun, reply } = order;
        if let Err(error) = self.check_writable() {
            let _ = begun.send(Err(error));
            return;
        }
        if let Err(error) = self.uploads.poll(true).await {
            tracing::warn!(%error, "a segment could not be written; it is tried again");
        }
        // A base of what is no more would be written for nothing.
        if self.chain.fresh <= arrived
            && let Err(error) = self.refresh().await
        {
            let _ = begun.send(Err(error));
            return;
        }
        if tidy && self.uploads.worth_a_base(&self.chain.head, &self.settled_image()) {
            self.start_base();
            let _ = begun.send(Ok(Begun::Base));
            return;
        }
        let floor = self.chain.head.gc_floor;
        self.wish = Some(grace);
        let raised = self.raise_floor(grace, &stage).await;
        self.wish = None;
        match raised {
            Ok(()) => self.order_pass(Some(reply)),
            Err(_) if self.halted.is_none() && self.chain.head.gc_floor > floor => self.order_pass(None),
            Err(_) => {}
        }
        let _ = begun.send(raised.map(|()| Begun::Deleting));
    }

    /// Commit until nothing more could become collectable by it.
    async fn raise_floor(&mut self, grace: Duration, stage: &Arc<Stage>) -> Result<()> {
        for _ in 0..MOST {
            if !commit::floor_can_rise(&self.chain.head, self.time.now_ms(), grace) {
                break;
            }
            if let Some(last) = self.pace.last_put.filter(|_| !self.options.commit_interval.is_zero()) {
                let next = last + self.options.commit_interval;
                self.env.sleep(next.saturating_duration_since(self.env.monotonic())).await;
            }
            self.fence(stage).await?;
        }
        Ok(())
    }

    /// A commit that changes nothing.
    async fn fence(&mut self, stage: &Arc<Stage>) -> Result<Done> {
        let (tx, mut answer) = oneshot::channel();
        let slot = Slot::fence(self.env.monotonic(), Arc::clone(stage), Some(tx));
        self.commit(vec![slot], &mut vec![]).await;
        answer.try_recv().unwrap_or_else(|_| Err(Error::new(Code::Closed, "nobody waits for the collection")))
    }

    /// A pass over what the newest settled commit allows to go.
    pub(super) fn order_pass(&mut self, reply: Option<oneshot::Sender<Result<Collected>>>) {
        let (known, archives) = (self.chain.head.clone(), self.archives_kept());
        self.collector.order(Order { known, archives, too_early: None, reply });
    }
}
