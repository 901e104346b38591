//! Runs a batch until it is stored, surely not applied, or unknowable: after a lost race once more, on the new state.

use super::super::turns::changes;
use super::super::waiting::fail;
use super::super::{Actor, Executed, succeeded};
use super::{Durable, Pushed};
use crate::bytes::metrics::Counters;
use crate::door::{self, Slot};
use crate::noun::error::Result;

impl Actor<Durable> {
    /// Runs the batch until it is stored, surely not applied, or unknowable. The queries of the round wait.
    pub(super) async fn commit(&mut self, mut batch: Vec<Slot>) {
        let mut losses = 0;
        loop {
            batch.retain_mut(|slot| !slot.is_to_drop());
            if batch.is_empty() {
                return;
            }
            if let Some(error) = self.halted.clone() {
                return self.waiting.refuse_all(batch, vec![], &error);
            }
            if let Err(error) = self.chain.check_writable() {
                return fail(batch, &error);
            }
            if self.leaves_for_later(&batch) {
                return self.waiting.carry.extend(batch);
            }
            if losses == 0 {
                self.look_before_first_put().await;
            }
            self.ask_for_gap(&batch, losses).await;
            self.wait_for_turn(&batch).await;
            self.make_room();
            self.turns.begins();
            let started = self.env.monotonic();
            let executed = match self.prepare(&batch).await {
                Ok(executed) => executed,
                Err(error) => return fail(batch, &error),
            };
            let fence = batch.iter().any(|slot| slot.is(|work| matches!(work, door::Work::Fence)));
            if executed.changes.is_empty() && !fence {
                // Nothing to store; but "empty" or "no such job" may be returned only from the newest state.
                let asked = batch.iter().map(|slot| slot.arrived).max();
                if asked.is_some_and(|asked| self.chain.fresh() <= asked) {
                    match self.refresh().await {
                        Ok(true) => continue,
                        Ok(false) => {}
                        Err(error) => return fail(batch, &error),
                    }
                }
                self.waiting.looked(executed.commit_ms);
                let decided_on = self.chain.newest();
                // A deduplicated enqueue changed nothing, but has an event.
                self.emit_batch(executed.told, decided_on);
                self.emit_empty(&batch, &executed.outcomes, decided_on);
                return self.reply(batch, executed.outcomes, decided_on, executed.began);
            }
            self.turns.executed(changes(&batch), self.env.monotonic() - started);
            let Executed { outcomes, changes, told, commit_ms, began } = executed;
            // Taken now: a commit that settles late may have others after it.
            let commit = (self.chain.head().commit_seq + 1, commit_ms);
            match self.push(&batch, &outcomes, changes, commit_ms).await {
                Pushed::Stored => {
                    self.waiting.looked(commit_ms);
                    self.emit_batch(told, commit);
                    self.emit_empty(&batch, &outcomes, commit);
                    self.emit_commit(succeeded(&outcomes), began, commit);
                    return self.reply(batch, outcomes, commit, began);
                }
                Pushed::Again => {}
                Pushed::Lost(cause) => {
                    losses += 1;
                    self.turns.lost(started);
                    self.lost_race(cause, losses).await;
                    // Archiving changes many pages, and a commit that takes long to build often loses. So it moves to a
                    // later batch, in which it moves few pages: other callers do not wait for it again and again.
                    let leaves = |slot: &mut Slot| match slot.work().as_ref().map(|loaded| &loaded.work) {
                        Some(door::Work::Archive { listing, .. }) => {
                            let work = door::Work::Archive { listing: listing.clone(), tidy: false };
                            slot.load = door::Load::new(work, None);
                            true
                        }
                        None | Some(door::Work::Op(_) | door::Work::Fence) => false,
                    };
                    self.waiting.carry.extend(batch.extract_if(.., leaves));
                }
                Pushed::NotApplied(error) => return fail(batch, &error),
                Pushed::Unknown(error) => {
                    Counters::add(&self.shared.counters.unknown, 1);
                    return fail(batch, &error);
                }
            }
        }
    }

    /// Runs the batch on the database, at a time that the clocks agree on.
    pub(super) async fn prepare(&mut self, batch: &[Slot]) -> Result<Executed> {
        self.agree_on_time().await;
        if self.remote.time.is_held_up(self.chain.head().commit_ms) {
            // Another process may have fixed the time since.
            self.refresh().await?;
        }
        let began = self.env.monotonic();
        let commit_ms = self.remote.time.commit_ms(self.chain.head().commit_ms)?;
        let (outcomes, changes) = self.execute(batch, commit_ms)?;
        let told = self.chain.db.take_reported();
        Ok(Executed { outcomes, changes, told, commit_ms, began })
    }
}
