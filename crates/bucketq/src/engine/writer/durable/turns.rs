//! The writer waits for its turn and takes it: races, the line, knocks and gaps (decisions 29 and 32). `turns` beside this
//! folder knows the others and decides.
//!
//! Called by commit and gather.

use std::time::Duration;

use tokio::time::Instant;

use super::super::remote::HeadTrouble;
use super::super::turns::{self, changes};
use super::super::waiting::{MAX_OPS, RoundWork};
use super::super::{Actor, back_off};
use super::head_watch::{HeadWatch, SeenHead};
use super::{Durable, Pushed};
use crate::door::{ReplyTo, Slot, Work};
use crate::noun::error::{Code, Error};
use crate::noun::event::Cause;

/// Tries at asking for one gap.
const TRIES: u32 = 64;

impl Actor<Durable> {
    /// Handles a lost race, one of `losses` in a row: emits it, and perhaps knocks.
    pub(super) async fn lost_race(&mut self, cause: Cause, losses: u32) {
        self.emit_conflict(cause);
        let lost = format!("other writers were faster {losses} times");
        self.shared.trouble(Some(Error::new(Code::Contended, lost)));
        if self.turns.is_sure(self.identity.id()) {
            return;
        }
        let trip = self.turns.trip_of_this_try();
        if losses > 1 || self.others_never_rest(trip) {
            self.knock(trip);
        }
        // A short pause, so that two losers do not meet again. A writer that gives way leaves time for more.
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

    /// Knocks, unless the others wait for this writer anyway.
    fn knock(&mut self, trip: Duration) {
        let id = self.identity.id();
        if !self.turns.is_sure(id) {
            self.turns.knock(&self.remote, self.chain.head(), id, trip);
        }
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
            self.wait_for_turn(batch).await;
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

    /// Returns whether this batch waits for its turn in a later round, which serves reads meanwhile.
    pub(super) fn leaves_for_later(&self, batch: &[Slot]) -> bool {
        let served =
            !self.waiting.is_closed() && batch.iter().all(|slot| slot.is(|work| matches!(work, Work::Op(_))));
        served && self.is_held(batch)
    }

    /// Waits for this writer's turn before a batch is complete: serves reads, and adds new ops to the batch.
    pub(super) async fn gather_until_turn(&mut self, work: &mut RoundWork) {
        if self.turns.is_listening() {
            // The look for a knock was sent with the last put, so it usually has its reply by now.
            tokio::task::yield_now().await;
        }
        let (mut watch, mut open) = (HeadWatch::default(), true);
        while self.follow_arrived(&mut watch).await && !work.slots.is_empty() {
            let Some(end) = self.wait_until(&work.slots, &mut watch) else { return };
            self.answer(std::mem::take(&mut work.questions)).await;
            let shown = tokio::select! {
                biased;
                shown = watch.next(&self.remote, &self.env) => Some(shown),
                came = self.waiting.wait_for_mail(work, end), if open && work.slots.len() < MAX_OPS => {
                    open = came;
                    None
                }
                () = self.env.sleep(end.saturating_duration_since(self.env.monotonic())) => None,
            };
            if let Some(shown) = shown {
                self.follow_shown(shown).await;
            }
        }
    }

    /// Waits for this writer's turn to send a batch.
    pub(super) async fn wait_for_turn(&mut self, batch: &[Slot]) {
        let mut watch = HeadWatch::default();
        while self.follow_arrived(&mut watch).await && !batch.iter().all(Slot::is_gone) {
            let Some(end) = self.wait_until(batch, &mut watch) else { return };
            let shown = tokio::select! {
                biased;
                shown = watch.next(&self.remote, &self.env) => shown,
                () = self.env.sleep(end.saturating_duration_since(self.env.monotonic())) => continue,
            };
            self.follow_shown(shown).await;
        }
    }

    /// Returns until when to wait before this batch is sent, and plans the reads of HEAD until then.
    fn wait_until(&mut self, batch: &[Slot], watch: &mut HeadWatch) -> Option<Instant> {
        let (head, id) = (self.chain.head(), self.identity.id());
        self.turns.give_way(head, id);
        let end = self.turns.held_until(batch, head, id, &self.remote.time)?;
        self.turns.listen_in_line(&self.remote, head, id);
        watch.plan(self.turns.reads(head, id, &self.remote.time), self.chain.version());
        if self.turns.is_unknown(id) {
            self.knock(self.turns.trip());
        }
        Some(end)
    }

    /// Takes in the replies that are there. Returns whether the writer may continue.
    async fn follow_arrived(&mut self, watch: &mut HeadWatch) -> bool {
        while let Some(shown) = watch.arrived() {
            self.follow_shown(shown).await;
        }
        self.halted.is_none()
    }

    /// Takes in a reply to a read of HEAD. After an error it reads again; a put shows any that lasts.
    async fn follow_shown(&mut self, shown: SeenHead) {
        let SeenHead { asked, known, got } = shown;
        let current = known == *self.chain.version();
        let heard = if current {
            self.remote.heard(got, asked, self.chain.head())
        } else {
            self.remote.heard_late(got, asked, self.chain.head())
        };
        let followed = match heard {
            Ok(Some(seen)) => self.follow(seen).await,
            Ok(None) => {
                if current {
                    self.chain.confirm(asked);
                }
                return;
            }
            Err(HeadTrouble::Stop(error)) => Err(self.halt(error)),
            Err(_) => self.refresh().await,
        };
        if let Err(error) = followed {
            self.shared.trouble(Some(error));
        }
    }

    fn is_held(&self, batch: &[Slot]) -> bool {
        let held = self.turns.held_until(batch, self.chain.head(), self.identity.id(), &self.remote.time);
        held.is_some()
    }
}
