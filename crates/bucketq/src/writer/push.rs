//! One attempt: build a body, send it, settle it. Returns when it is known what became of it, or that it cannot be
//! known (P1 to P8).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::gather::payload_bytes;
use super::local::succeeded;
use super::wrong::told_failed;
use super::{Outcomes, Writer, back_off};
use crate::commit::{self, Attempt, Care, Fresh};
use crate::door::Slot;
use crate::error::{Code, Error, Result};
use crate::event::{Cause, Happened};
use crate::head::Head;
use crate::keys;
use crate::metrics::Counters;
use crate::pages::Changes;
use crate::record::Record;
use crate::settle::Verdict;
use crate::store::{Expect, Put, Version};

/// What became of an attempt.
pub(super) enum Pushed {
    /// It is in the chain, and the local state is at least that far.
    Stored,
    /// Somebody else's commit stands at its number; the local state has followed it.
    Lost(Cause),
    /// Nothing was sent and a caller has given up meanwhile: the batch must be run again without its op.
    Again,
    /// Surely not applied.
    NotApplied(Error),
    /// Nobody knows.
    Unknown(Error),
}

/// First and longest pause before a body is sent again.
pub(super) const RESEND: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));
/// A Retry-After beyond this is cut: callers have deadlines.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);

impl Writer {
    /// Publish what `changes` did. On anything but `Stored` the local changes are undone.
    pub(super) async fn push(
        &mut self,
        batch: &[Slot],
        outcomes: &Outcomes,
        changes: Changes,
        commit_ms: i64,
    ) -> Pushed {
        let payload = batch.iter().map(payload_bytes).sum();
        let (head, record) = match self.build(succeeded(outcomes), &changes, commit_ms, payload).await {
            Ok(built) => built,
            Err(error) => {
                if let Some(commit_id) = self.drawn.back().copied() {
                    self.uploads.lost(&commit_id);
                }
                self.undo(changes);
                // Where HEAD has no room for another segment, only a base makes some; one may have fallen below the floor.
                if self.halted.is_none() && self.uploads.wants_base(&self.chain.head) {
                    self.start_base();
                }
                return Pushed::NotApplied(error);
            }
        };
        let commit_id = record.commit_id;
        let pushed = self.send(batch, head, record, changes).await;
        if !matches!(pushed, Pushed::Stored) {
            // A resend of this body can never come: what was uploaded for it is garbage (P5, P12).
            self.uploads.lost(&commit_id);
        }
        pushed
    }

    /// The body, small enough to be sent in one round trip.
    pub(super) async fn build(
        &mut self,
        ops: u32,
        changes: &Changes,
        commit_ms: i64,
        payload: usize,
    ) -> Result<(Head, Record)> {
        if let Err(error) = self.uploads.poll(false).await {
            tracing::warn!(%error, "a segment could not be written; it is tried again");
        }
        self.attempt += 1;
        let attempt =
            Attempt { writer: self.id, number: self.attempt, commit_id: self.draw_commit_id(), commit_ms };
        let after = (changes.new_count(), changes.new_checksum());
        let record = commit::record(&self.chain.head, &attempt, changes, after, ops, &mut self.zstd)?;
        self.pace.built(record.encoded_len(), payload);

        let mut head = self.next_head(&attempt, &record);
        self.start_base_too_early(&head);
        self.collect_too_early(&head);
        if self.too_large(&head) {
            self.move_out(&attempt, &record, &mut head).await?;
        } else if self.wish.is_none() && self.uploads.may_start_segment(&head) && self.should_move_out(&head)
        {
            self.uploads.start_segment(&head, false);
        }
        Ok((head, record))
    }

    fn next_head(&mut self, attempt: &Attempt, record: &Record) -> Head {
        let (known, options) = (&self.chain.head, &self.options);
        let newest = known.commit_seq + 1;
        let fresh = Fresh {
            segment: self.uploads.ready_segment(|s| commit::segment_fits(known, s, newest, options)),
            base: self.uploads.ready_base(|b| commit::base_fits(known, b, options)),
        };
        let care = Care {
            grace: self.wish.unwrap_or(options.grace),
            below: self.uploads.base_under_way().unwrap_or(u64::MAX),
            gone: self.collector.gone(),
        };
        commit::next(known, attempt, record, fresh, &care, options)
    }

    fn too_large(&self, head: &Head) -> bool {
        head.fixed_len() + tail_len(head) > self.options.max_head
            || head.segments.len() > crate::head::MAX_SEGMENTS
    }

    /// Whether the tail should be on its way out while this commit is: it has its size, or the next commit, if it is
    /// as large as they come, would not fit beside it.
    fn should_move_out(&self, head: &Head) -> bool {
        let tail = tail_len(head);
        tail >= self.tail_aim() / 2 || head.fixed_len() + tail + self.pace.largest > self.options.max_head
    }

    /// The tail HEAD should have: some commits' worth, so that a segment is under way most of the time and not always.
    fn tail_aim(&self) -> usize {
        let most = self.options.max_head.saturating_sub(self.chain.head.fixed_len());
        (self.pace.record * 6).clamp(self.options.tail.min(most), most)
    }

    /// HEAD would be too large: wait for the segment on its way, then move everything out, this commit included.
    async fn move_out(&mut self, attempt: &Attempt, record: &Record, head: &mut Head) -> Result<()> {
        let began = self.env.monotonic();
        for tries in 0.. {
            if !self.uploads.has_segment() {
                self.uploads.start_segment(head, true);
            }
            let moved = self.uploads.poll(true).await;
            if head.segments.len() >= crate::head::MAX_SEGMENTS {
                // Another one can begin only when the batch is undone.
                let based = self.uploads.wait_for_base().await;
                based.map_err(|e| e.during("a base could not be written before the commit that needs it"))?;
            }
            *head = self.next_head(attempt, record);
            if !self.too_large(head) {
                return Ok(());
            }
            // What was on its way holds older commits only: once more, over the whole tail.
            self.uploads.forget_segment();
            *head = self.next_head(attempt, record);
            if let Err(error) = moved {
                self.shared.trouble(Some(error.clone()));
                if self.env.monotonic().saturating_duration_since(began) > self.options.deadline {
                    return Err(error.during("a segment could not be written before its commit"));
                }
                back_off(&self.env, RESEND.0, RESEND.1, tries).await;
            } else if tries > 8 {
                return Err(Error::new(
                    Code::Internal,
                    "the commit does not fit into HEAD although its tail was moved out",
                ));
            }
        }
        Ok(())
    }

    async fn send(&mut self, batch: &[Slot], mut head: Head, mut record: Record, changes: Changes) -> Pushed {
        let mut body = Bytes::from(head.encode());
        let key = keys::head(&self.source.name);
        let (mut ever_sent, mut cause) = (false, Cause::Race);
        for tries in 0.. {
            // Until something was sent, callers may still leave; afterwards the body must stay as it is (P1, P7).
            if !ever_sent && !batch.iter().all(|slot| slot.stage.send()) {
                unsend(batch);
                self.undo(changes);
                return Pushed::Again;
            }
            let expect = Expect::Is(self.chain.version.clone());
            let (sent_at, sent_ms) = (self.env.monotonic(), self.env.wall_ms());
            let put = self.put_head(&key, &body, &expect).await;
            let wait = match put {
                Put::Stored { version, date_ms } => {
                    self.time.observe(date_ms, sent_ms);
                    self.stored(head, &record, version, sent_at);
                    return Pushed::Stored;
                }
                Put::Unknown { error, sent: false, retry_after } if !ever_sent => {
                    unsend(batch);
                    let hopeless = matches!(error.code(), Code::Denied | Code::NoSuchBucket);
                    if hopeless || self.abandoned(batch) {
                        self.undo(changes);
                        return Pushed::NotApplied(error);
                    }
                    self.shared.trouble(Some(error));
                    self.pause(retry_after, tries).await;
                    continue;
                }
                Put::Conflict if told_failed(&self.options, true) => {
                    return self.pretend_failed(changes).await;
                }
                Put::Unknown { .. } if told_failed(&self.options, false) => {
                    return self.pretend_failed(changes).await;
                }
                Put::Conflict => None,
                Put::Unknown { error, retry_after, .. } => {
                    cause = Cause::Unanswered;
                    self.shared.trouble(Some(error));
                    retry_after
                }
            };
            ever_sent = true;
            if wait.is_some() {
                self.pause(wait, tries).await;
            }
            let abandoned = |w: &Self| w.abandoned(batch);
            match self.look_for(&head, &record, abandoned).await {
                Ok(Verdict::Ours) => return Pushed::Stored,
                Ok(Verdict::Lost) => {
                    unsend(batch);
                    self.undo(changes);
                    return match self.follow_seen().await {
                        Ok(()) => Pushed::Lost(cause),
                        Err(error) => Pushed::NotApplied(error),
                    };
                }
                Ok(Verdict::Unknowable) => {
                    self.undo(changes);
                    self.new_id();
                    let followed = self.follow_seen().await;
                    tracing::warn!(
                        seq = record.seq,
                        followed = followed.is_ok(),
                        "the outcome of a commit cannot be known; going on under a new writer id"
                    );
                    return Pushed::Unknown(unknown(
                        "another writer's commits reach beyond what the log tells",
                    ));
                }
                Ok(Verdict::Unchanged) => {
                    Counters::add(&self.shared.counters.resends, 1);
                    self.tell(|| Happened::Resent);
                    if self.redraw(&mut head, &mut record) {
                        body = Bytes::from(head.encode());
                    }
                    self.pause(None, tries).await;
                }
                Err(error) => {
                    self.undo(changes);
                    return Pushed::Unknown(unknown("the store could not tell").because(error));
                }
            }
        }
        self.undo(changes);
        Pushed::Unknown(unknown("it was sent too often"))
    }

    /// One conditional put, given up when it hangs.
    pub(super) async fn put_head(&mut self, key: &str, body: &Bytes, expect: &Expect) -> Put {
        let limit = self.request_limit();
        let started = self.env.monotonic();
        self.pace.last_put = Some(started);
        let (store, env, body) = (Arc::clone(&self.store), self.env.clone(), body.clone());
        let put = self.meanwhile(async move {
            tokio::select! {
                biased;
                put = store.put_if(key, body, expect) => put,
                () = env.sleep(limit) => Put::Unknown {
                    error: Error::new(Code::Unreachable, format!("the store did not answer a put within {limit:?}")),
                    sent: true,
                    retry_after: None,
                },
            }
        });
        let put = put.await;
        if matches!(put, Put::Stored { .. } | Put::Conflict) && self.local.is_none() {
            let took = self.env.monotonic().saturating_duration_since(started);
            self.pace.put = (self.pace.put * 7 + took) / 8;
        }
        put
    }

    /// Longest time for one request: a hung one must leave time for settling.
    pub(super) fn request_limit(&self) -> Duration {
        self.options.deadline / 3
    }

    async fn pause(&mut self, retry_after: Option<Duration>, tries: u32) {
        if let Some(wait) = retry_after {
            self.env.sleep(wait.min(RETRY_AFTER_MAX)).await;
        }
        back_off(&self.env, RESEND.0, RESEND.1, tries).await;
    }

    /// Nobody waits for this batch any more, and nobody will send another.
    fn abandoned(&self, batch: &[Slot]) -> bool {
        self.rx.is_closed() && batch.iter().all(Slot::is_gone)
    }

    /// The body is settled: it is the newest commit this writer knows.
    pub(super) fn stored(&mut self, head: Head, record: &Record, version: Version, sent_at: Instant) {
        let counters = &self.shared.counters;
        Counters::add(&counters.commits, 1);
        Counters::add(&counters.ops, u64::from(record.ops));
        Counters::add(&counters.delta_bytes, record.encoded_len() as u64);
        self.shared.trouble(None);
        self.mine = Some((record.seq, record.commit_id));
        self.uploads.settled(record);
        let base = self.chain.head.base;
        self.stand_on(head, version, sent_at);
        let newest = self.chain.head.base;
        if newest != base {
            self.tell(|| Happened::Checkpoint { bytes: newest.len });
        }
    }

    /// This settled HEAD is the newest one known.
    pub(super) fn stand_on(&mut self, head: Head, version: Version, sent_at: Instant) {
        self.uploads.adopted(&head);
        self.collector.adopted(&head);
        let raised = head.gc_floor > self.chain.head.gc_floor;
        self.chain.head = head;
        self.chain.version = version;
        self.chain.fresh = sent_at;
        // Who asks for a collection gets a pass of his own, and no upload begins that it would have to leave.
        if self.wish.is_none() {
            if raised {
                self.order_pass(None);
            }
            if self.uploads.wants_base(&self.chain.head) {
                self.start_base();
            }
        }
    }

    /// Have a base written where a commit may have to wait for it. Nothing may be executed and not stored.
    pub(super) fn make_room(&mut self) {
        if self.wish.is_none() && self.uploads.needs_base(&self.chain.head) {
            self.start_base();
        }
    }

    /// Refer to the base on its way, when the last handle has gone and the log is far too long: where every process lives
    /// for a commit, each would else upload a base for nothing, and the log would grow and grow.
    pub(super) async fn leave_base(&mut self) {
        if self.local.is_some() || self.halted.is_some() || !self.uploads.is_overdue(&self.chain.head) {
            return;
        }
        let (env, limit) = (self.env.clone(), self.request_limit());
        let last = async {
            if self.uploads.wait_for_base().await.is_ok() {
                let slot = Slot::fence(self.env.monotonic(), Arc::default(), None);
                Box::pin(self.commit(vec![slot], &mut vec![])).await;
            }
        };
        tokio::select! {
            biased;
            () = last => {}
            () = env.sleep(limit) => {}
        }
    }

    /// Have a base of the settled state written. Nothing may be executed and not stored.
    pub(super) fn start_base(&mut self) {
        let image = self.settled_image();
        self.uploads.start_base(image, self.chain.head.commit_seq, self.chain.head.file_id);
    }
}

/// The body is surely not applied: its callers may be told so.
pub(super) fn unsend(batch: &[Slot]) {
    for slot in batch {
        slot.stage.unsend();
    }
}

fn unknown(why: &str) -> Error {
    Error::new(Code::OutcomeUnknown, format!("the operation may have been applied: {why}"))
}

pub(super) fn tail_len(head: &Head) -> usize {
    head.tail.iter().map(Record::encoded_len).sum()
}
