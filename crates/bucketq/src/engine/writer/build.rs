//! Builds a body and sends it, for both modes; and takes in a body that is stored.
//!
//! The next HEAD itself is built by `commit`. Settles nothing.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::{Actor, Home, ReadHead, back_off};
use crate::bucket::head::{Head, MAX_SEGMENTS};
use crate::bucket::record::Record;
use crate::bytes::metrics::Counters;
use crate::bytes::store::{Put, Version};
use crate::engine::commit::CommitAttempt;
use crate::engine::duty;
use crate::noun::error::{Code, Error, Result};
use crate::noun::event::Happened;
use crate::state::pages::PageChanges;

/// First and longest pause before a body is sent again.
pub(super) const RESEND: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));
/// A longer Retry-After is cut to this, as docs/stores.md says: callers have deadlines.
pub(super) const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);

impl<H: Home> Actor<H> {
    /// Builds the body, small enough to be sent in one round trip.
    pub(super) async fn build(
        &mut self,
        ops: u32,
        changes: &PageChanges,
        commit_ms: i64,
        payload: usize,
    ) -> Result<(Head, Record)> {
        if let Err(error) = self.chores.uploads.poll(false).await {
            tracing::warn!(%error, "a segment could not be written; it is tried again");
        }
        let attempt = self.identity.next_attempt(commit_ms);
        let record = self.packer.pack(self.chain.head(), &attempt, changes, ops, payload)?;

        let mut head = self.next_head(&attempt, &record);
        if self.chores.too_large(&head) {
            self.move_out(&attempt, &record, &mut head).await?;
        } else if self.chores.may_move_out(self.chain.head(), &head, attempt.writer)
            && self.packer.should_move_out(self.chain.head(), &head, &self.options)
        {
            self.chores.uploads.start_segment(&head, false);
        }
        Ok((head, record))
    }

    /// Returns the body of this attempt, with the finished uploads that fit and the gap that this writer asks for.
    fn next_head(&mut self, attempt: &CommitAttempt, record: &Record) -> Head {
        let mut head = self.chores.next_head(self.chain.head(), attempt, record);
        self.turns.ask_in(&mut head, attempt.writer);
        head
    }

    /// Makes a HEAD smaller: waits for the segment under way, then moves everything out, this commit included.
    async fn move_out(&mut self, attempt: &CommitAttempt, record: &Record, head: &mut Head) -> Result<()> {
        let began = self.env.monotonic();
        self.turns.waits_for_segment();
        for tries in 0.. {
            if !self.chores.uploads.has_segment() {
                // While others write, move out only settled records if that is enough: no garbage if this body loses.
                let (known, alone) = (self.chain.head(), duty::is_alone(self.chain.head(), attempt.writer));
                let fits = known.fixed_len() + 1024 + record.encoded_len() <= self.options.max_head;
                let settled = tries == 0 && fits && !known.tail.is_empty() && !alone;
                self.chores.uploads.start_segment(if settled { known } else { head }, true);
            }
            let moved = self.chores.uploads.poll(true).await;
            if head.segments.len() >= MAX_SEGMENTS {
                // A new base can begin only when the batch is undone: wait for the one under way.
                let based = self.chores.uploads.wait_for_base().await;
                based.map_err(|e| e.during("a base could not be written before the commit that needs it"))?;
            }
            *head = self.next_head(attempt, record);
            if !self.chores.too_large(head) {
                return Ok(());
            }
            // The segment held older commits only: start one of the whole tail.
            self.chores.uploads.forget_segment();
            *head = self.next_head(attempt, record);
            if let Err(error) = moved {
                self.shared.trouble(Some(error.clone()));
                if error.code() == Code::DiskFull
                    || self.env.monotonic().saturating_duration_since(began) > self.options.deadline
                {
                    return Err(error.during("a segment could not be written before its commit"));
                }
                back_off(&self.env, RESEND.0, RESEND.1, tries).await;
            } else if tries > 8 {
                return Err(Error::bug("the commit does not fit into HEAD although its tail was moved out"));
            }
        }
        Ok(())
    }

    /// Waits for the verdict of the store's check. An error means that nothing may be sent.
    pub(super) async fn pass_cas_check(&mut self) -> Result<()> {
        self.remote.begin_cas_check(self.chain.version());
        let Some(verdict) = self.remote.cas_verdict()? else { return Ok(()) };
        let verdict = self.meanwhile(verdict).await;
        self.remote.note_cas_verdict(&verdict);
        verdict
    }

    /// Sends one conditional put, with a time limit. The store has passed the check (G10).
    pub(super) async fn put_head(&mut self, body: &Bytes) -> Put {
        let put = self.remote.put_head(body, self.chain.version());
        self.turns.sends();
        self.meanwhile(put).await
    }

    /// Makes this settled body the newest commit that this writer knows.
    pub(super) fn stored(&mut self, head: Head, record: &Record, version: Version, sent_at: Instant) {
        let counters = &self.shared.counters;
        Counters::add(&counters.commits, 1);
        Counters::add(&counters.ops, u64::from(record.ops));
        Counters::add(&counters.delta_bytes, record.encoded_len() as u64);
        self.shared.trouble(None);
        self.identity.stored(record);
        self.turns.stored(record.seq, record.writer);
        self.chores.uploads.settled(record);
        let base = self.chain.head().base;
        self.stand_on(head, version, sent_at);
        let newest = self.chain.head().base;
        if newest != base {
            self.emit(|| Happened::Checkpoint { bytes: newest.len });
        }
    }

    /// Makes this settled HEAD the newest one known.
    pub(super) fn stand_on(&mut self, head: Head, version: Version, sent_at: Instant) {
        self.chores.uploads.adopted(&head);
        self.chores.collector.adopted(&head);
        self.shared.set_newest(head.commit_seq);
        let before = self.chain.stand_on(ReadHead { head, version, asked: sent_at });
        let (id, home) = (self.identity.id(), &self.home);
        self.chores.after_commit(&before, &mut self.chain, id, |chain| home.settled_image(chain));
    }

    /// Starts a base if a commit may have to wait for it. Call it only when no batch has run without being stored.
    pub(super) fn make_room(&mut self) {
        if self.chores.needs_room(self.chain.head()) {
            self.start_base();
        }
    }

    /// Starts a base of the settled state. Call it only when no batch has run without being stored.
    pub(super) fn start_base(&mut self) {
        let image = self.home.settled_image(&self.chain);
        self.chores.start_base(image, self.chain.head());
    }
}
