//! The writer waits for its turn and takes it: races, gaps and knocks (decision 29). `turns` beside this folder knows
//! the others and decides.
//!
//! Called by commit and gather.

use std::time::Duration;

use super::super::turns::{self, changes};
use super::super::waiting::{MAX_OPS, RoundWork};
use super::super::{Actor, back_off};
use super::{Durable, Pushed};
use crate::door::{ReplyTo, Slot, Work};
use crate::noun::error::{Code, Error};
use crate::noun::event::Cause;

/// Tries at asking for one gap.
const TRIES: u32 = 64;

impl Actor<Durable> {
    /// Leaves a gap after a stored commit, if it is time for one.
    pub(super) async fn share(&mut self) {
        if self.turns.last_put().is_some() {
            // A look for a knock, sent with the put, usually has its reply by now.
            tokio::task::yield_now().await;
            self.turns.stored(&self.chain.head().file_id);
        }
    }

    /// Handles a lost race, one of `losses` in a row: emits it, perhaps knocks, and backs off.
    pub(super) async fn lost_race(&mut self, cause: Cause, losses: u32) {
        self.emit_conflict(cause);
        let lost = format!("other writers were faster {losses} times");
        self.shared.trouble(Some(Error::new(Code::Contended, lost)));
        let trip = self.turns.trip_of_this_try();
        if losses > 1 || self.others_never_rest(trip) {
            self.knock(trip);
        }
        // A short pause: otherwise the winner's gap is over before the next put.
        let put = self.turns.put_time();
        back_off(&self.env, put / 8, put / 4, losses.min(2)).await;
    }

    /// Before the first put of a batch, reads HEAD if its known state is old and another writer never rests: the put
    /// would only lose, and a read takes half as long as a lost put. If the other is still as busy, knocks at once.
    pub(super) async fn look_before_first_put(&mut self) {
        let (head, id, fresh) = (self.chain.head(), self.identity.id(), self.chain.fresh());
        let Some(seq) = self.turns.worth_a_look(head, id, fresh, &self.remote.time) else { return };
        let trip = self.turns.trip();
        match self.refresh().await {
            Ok(true) if self.others_never_rest(trip) => self.knock(trip),
            // A HEAD that has not moved since means that they rest now.
            Ok(false) => self.turns.they_rest(seq),
            _ => {}
        }
    }

    fn others_never_rest(&self, trip: Duration) -> bool {
        turns::others_never_rest(self.chain.head(), self.identity.id(), trip)
    }

    fn knock(&mut self, trip: Duration) {
        self.turns.knock(&self.remote, &self.chain.head().file_id, self.identity.id(), trip);
    }

    /// Asks for a gap before this try, if it would lose without one. This batch has lost `losses` races.
    pub(super) async fn ask_for_gap(&mut self, batch: &[Slot], losses: u32) {
        let (head, id) = (self.chain.head(), self.identity.id());
        let wanted = self.turns.needs_gap(changes(batch), losses, head, id, &self.remote.time);
        let Some(ms) = wanted else { return };
        let slots = [Slot::fence(self.env.monotonic(), std::sync::Arc::default(), ReplyTo::Nobody)];
        for tries in 0..TRIES {
            if self.halted.is_some() || batch.iter().all(Slot::is_gone) {
                return;
            }
            self.keep_out(batch).await;
            let Ok(executed) = self.prepare(&slots).await else { return };
            self.turns.ask(Some(ms));
            let pushed = self.push(&slots, &executed.outcomes, executed.changes, executed.commit_ms).await;
            self.turns.ask(None);
            match pushed {
                Pushed::Lost(cause) => self.lost_race(cause, tries + 1).await,
                Pushed::Again => {}
                Pushed::Stored | Pushed::NotApplied(_) | Pushed::Unknown(_) => return,
            }
        }
    }

    /// Returns whether this batch waits out another writer's gap in a later round, which serves reads meanwhile.
    pub(super) fn leaves_for_later(&self, batch: &[Slot]) -> bool {
        let served =
            !self.waiting.is_closed() && batch.iter().all(|slot| slot.is(|work| matches!(work, Work::Op(_))));
        served && self.held_until(batch).is_some()
    }

    /// Waits out another writer's gap before a batch is complete: serves reads, and adds new ops to the batch.
    pub(super) async fn wait_out_gap(&mut self, work: &mut RoundWork) {
        let mut poll = self.env.monotonic() + self.turns.poll_gap();
        while self.halted.is_none() && !work.slots.is_empty() {
            let Some(end) = self.held_until(&work.slots) else { return };
            self.answer(std::mem::take(&mut work.questions)).await;
            let until = poll.min(end);
            if work.slots.len() < MAX_OPS
                && self.waiting.wait_for_mail(work, until).await
                && self.env.monotonic() < until
            {
                continue;
            }
            self.env.sleep(until.saturating_duration_since(self.env.monotonic())).await;
            if self.refresh().await.is_err() {
                return;
            }
            poll = self.env.monotonic() + self.turns.poll_gap();
        }
    }

    /// Waits while another writer's gap lasts: until HEAD moves on, or the time is over.
    pub(super) async fn keep_out(&mut self, batch: &[Slot]) {
        while self.halted.is_none() && !batch.iter().all(Slot::is_gone) {
            let Some(end) = self.held_until(batch) else { return };
            let wait = end.saturating_duration_since(self.env.monotonic()).min(self.turns.poll_gap());
            self.env.sleep(wait).await;
            if self.refresh().await.is_err() {
                return;
            }
        }
    }

    fn held_until(&self, batch: &[Slot]) -> Option<tokio::time::Instant> {
        self.turns.held_until(batch, self.chain.head(), self.identity.id(), &self.remote.time)
    }
}
