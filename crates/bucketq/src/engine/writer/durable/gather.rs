//! Collects a batch: takes the waiting mail, and after a put waits a moment for as many ops as it released, so that
//! callers that work in a loop share one commit (group commit).

use tokio::time::Instant;

use super::super::Actor;
use super::super::waiting::{MAX_OPS, RoundWork, WaitEnd, payload_bytes};
use super::Durable;

impl Actor<Durable> {
    /// Returns the work of the next round; `None` when every handle is gone and nothing is left to do.
    pub(super) async fn gather(&mut self) -> Option<RoundWork> {
        self.update_copy().await;
        let slots = std::mem::take(&mut self.waiting.carry);
        let mut work = RoundWork { slots, ..RoundWork::default() };
        self.waiting.take_waiting(&mut work);
        while work.is_empty() {
            let timer = self.timer();
            match self.waiting.next_event(timer).await {
                WaitEnd::Mail(mail) => self.waiting.put(&mut work, mail),
                WaitEnd::Closed => return None,
                WaitEnd::Time => {
                    self.update_copy().await;
                    self.waiting.awaited.drop_gone();
                    // Without waiting callers the store is not polled.
                    work.poll = self.waiting.is_waited_on();
                }
            }
        }
        self.waiting.wait_for_callers(&mut work).await;
        self.wait_interval(&mut work).await;
        self.gather_until_turn(&mut work).await;
        self.waiting.take_waiting(&mut work);
        self.leave_half(&mut work);
        Some(work)
    }

    /// Splits a batch that is too large for one HEAD and fits into two: the first half is stored after one round trip
    /// and the second after two. Together they would wait for a segment and then for HEAD.
    fn leave_half(&mut self, work: &mut RoundWork) {
        let room = self.options.max_head.saturating_sub(self.chain.head().fixed_len() + 4096) as f64;
        let total: usize = work.slots.iter().map(payload_bytes).sum();
        let record = self.packer.expected(total);
        if record <= room || record > 2.0 * room {
            return;
        }
        let mut bytes = 0;
        let half = work.slots.iter().position(|slot| {
            bytes += payload_bytes(slot);
            bytes > total / 2
        });
        if let Some(at) = half.filter(|at| *at > 0) {
            self.waiting.carry = work.slots.split_off(at);
        }
    }

    /// Waits until the next commit is due, if there is something to commit. A read costs no put: it does not wait.
    async fn wait_interval(&mut self, work: &mut RoundWork) {
        let Some(due) = self.turns.next_put() else { return };
        while self.halted.is_none() {
            self.answer(std::mem::take(&mut work.questions)).await;
            let nothing_to_commit = work.slots.is_empty() && !work.poll;
            if nothing_to_commit
                || work.slots.len() >= MAX_OPS
                || !self.waiting.wait_for_mail(work, due).await
            {
                return;
            }
        }
    }

    /// Returns when something is due without mail: for waiting callers, or for the copy.
    fn timer(&mut self) -> Option<Instant> {
        let copy = self.home.0.as_ref().and_then(|copy| copy.due(self.chain.head()));
        let callers = self.callers_timer(Some(self.chain.fresh()));
        [callers, copy].into_iter().flatten().min()
    }
}
