//! Runs a batch on the local state and commits it to the local log.

use super::super::waiting::fail;
use super::super::{Actor, Executed, succeeded, unsend};
use super::Local;
use crate::bytes::metrics::Counters;
use crate::door::{self, Slot};
use crate::noun::error::{Code, Error, Kind, Result};

/// Places that one commit has in the order of jobs: the ordinal has 24 bits.
const MAX_ORDINAL: u64 = (1 << 24) - 1;

impl Actor<Local> {
    /// Runs the batch, writes it to the local log and replies.
    pub(super) fn commit(&mut self, mut batch: Vec<Slot>) {
        if let Some(error) = &self.home.stuck {
            return fail(batch, error);
        }
        // Nothing waits between here and the reply: each caller that has not gone by now gets it.
        batch.retain(|slot| !slot.is_gone() && slot.stage.send());
        if batch.is_empty() {
            return;
        }
        let started = self.env.monotonic();
        match self.execute_and_log(&batch) {
            Ok((executed, commit_seq)) => {
                let took = self.env.monotonic().saturating_duration_since(started);
                self.turns.learn(took);
                self.waiting.looked(executed.commit_ms);
                self.emit_batch(executed.told, (commit_seq, executed.commit_ms));
                self.emit_empty(&batch, &executed.outcomes, (commit_seq, executed.commit_ms));
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

    /// Runs the batch and writes it to the local log; on an error the local state is unchanged.
    fn execute_and_log(&mut self, batch: &[Slot]) -> Result<(Executed, u64)> {
        self.chain.check_writable()?;
        let commit_seq = self.chain.head().commit_seq + 1;
        let log = &mut self.home.log;
        log.ready(|| self.chain.image())?;
        let (ordinal, last_ms) = (log.ordinal(), log.last_ms());
        if u64::from(ordinal) + batch.iter().map(joining).sum::<u64>() > MAX_ORDINAL {
            return Err(Error::new(
                Code::FileFull,
                "one commit cannot hold more jobs than were enqueued since the last sync: sync first",
            ));
        }
        self.chain.db.go_on_from(ordinal);
        let began = self.env.monotonic();
        let commit_ms = self.local_ms(last_ms)?;
        let (outcomes, changes) = self.execute(batch, commit_ms)?;
        let told = self.chain.db.take_reported();
        let executed = |outcomes, changes, told| Executed { outcomes, changes, told, commit_ms, began };
        if changes.is_empty() {
            return Ok((executed(outcomes, changes, told), commit_seq));
        }
        let (ordinal, ops) = (self.chain.db.ordinal(), succeeded(&outcomes));
        let Err(failed) = self.home.log.commit(&changes, ops, commit_ms, ordinal) else {
            Counters::add(&self.shared.counters.local_commits, 1);
            Counters::add(&self.shared.counters.local_ops, ops.into());
            self.set_unsynced();
            return Ok((executed(outcomes, changes, told), commit_seq));
        };
        self.undo(changes);
        if failed.in_doubt && self.home.log.roll(&self.chain.image()).is_err() {
            let told = "it may be found applied when the local directory is opened again";
            return Err(Error::new(Code::OutcomeUnknown, format!("{told}: {}", failed.error.message()))
                .because(failed.error));
        }
        Err(failed.error)
    }

    /// Returns the time of the next local commit. The sync checks whether this machine's clock is right.
    fn local_ms(&self, last_ms: i64) -> Result<i64> {
        let head_ms = self.chain.head().commit_ms;
        let now_ms = self.remote.time.now_ms();
        self.remote.time.not_behind(head_ms, now_ms)?;
        // If a clock was ahead, local time does not stand still until the clock catches up.
        let last_ms = if self.remote.time.is_ahead(last_ms, now_ms) { head_ms } else { last_ms };
        Ok(now_ms.max(last_ms))
    }

    /// If a clock that was ahead made local commits, brings their times back to `now_ms` before they are published, in
    /// a local commit of its own.
    pub(super) fn bring_back(&mut self, now_ms: i64) -> Result<()> {
        let last_ms = self.home.log.last_ms();
        if !self.remote.time.is_ahead(last_ms, now_ms) || self.home.log.pending().commits == 0 {
            return Ok(());
        }
        self.home.log.ready(|| self.chain.image())?;
        let ordinal = self.home.log.ordinal();
        self.chain.db.go_on_from(ordinal);
        let (brought, changes) = self.chain.bring_back(now_ms, last_ms.saturating_sub(now_ms));
        let brought = match brought {
            Ok(brought) => brought,
            Err(error) => {
                self.undo(changes);
                return Err(error.during("bringing times of local commits back to the present"));
            }
        };
        if !changes.is_empty() {
            if let Err(failed) = self.home.log.commit(&changes, 0, now_ms, ordinal) {
                self.undo(changes);
                return Err(failed.error);
            }
            tracing::warn!(
                ahead_ms = last_ms - now_ms,
                jobs = brought.jobs,
                leases = brought.leases,
                "this machine's clock was ahead; times in local commits were brought back before the sync"
            );
        }
        self.home.log.is_at(now_ms);
        Ok(())
    }

    /// Makes a new generation when the log is too long. If that fails, only the next opening takes longer.
    fn shrink_log(&mut self) {
        if self.home.log.outgrown()
            && let Err(error) = self.home.log.roll(&self.chain.image())
        {
            tracing::warn!(%error, "the local log could not be written again; it keeps growing");
        }
    }
}

/// Returns how many places this op may take in the order of enqueues and of finishes.
fn joining(slot: &Slot) -> u64 {
    slot.work().map_or(0, |loaded| match &loaded.work {
        door::Work::Op(op) => op.places(),
        door::Work::Fence | door::Work::Archive { .. } => 0,
    })
}
