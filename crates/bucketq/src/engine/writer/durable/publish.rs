//! One attempt: builds, sends and settles a body, until its outcome is known or cannot be known (P1 to P8).

use std::time::Duration;

use bytes::Bytes;

use super::super::build::{RESEND, RETRY_AFTER_MAX};
use super::super::remote::is_hopeless;
use super::super::waiting::payload_bytes;
use super::super::{Actor, Home, Outcomes, back_off, succeeded, unsend};
use super::Durable;
use crate::bucket::head::Head;
use crate::bucket::record::Record;
use crate::bytes::metrics::Counters;
use crate::bytes::store::Put;
use crate::door::Slot;
use crate::engine::duty;
use crate::engine::settle::Settlement;
use crate::noun::error::{Code, Error};
use crate::noun::event::{Cause, Happened};
use crate::state::pages::PageChanges;

/// The outcome of an attempt.
pub(in crate::engine::writer) enum Pushed {
    /// The commit is in the chain, and the database is at least that new.
    Stored,
    /// Another writer's commit has its number; the database has followed it.
    Lost(Cause),
    /// Nothing was sent and a caller has given up meanwhile: the batch must be run again without its op.
    Again,
    /// Surely not applied.
    NotApplied(Error),
    /// The outcome cannot be known.
    Unknown(Error),
}

impl Actor<Durable> {
    /// Publishes `changes`. Unless this returns `Stored`, they are undone.
    pub(super) async fn push(
        &mut self,
        batch: &[Slot],
        outcomes: &Outcomes,
        changes: PageChanges,
        commit_ms: i64,
    ) -> Pushed {
        self.remote.begin_cas_check(self.chain.version());
        let payload = batch.iter().map(payload_bytes).sum();
        let (head, record) = match self.build(succeeded(outcomes), &changes, commit_ms, payload).await {
            Ok(built) => built,
            Err(error) => {
                if let Some(commit_id) = self.identity.newest() {
                    self.chores.uploads.lost(&commit_id);
                }
                self.undo(changes);
                // If HEAD has no room for a segment, only a base makes some; one may have fallen below the floor.
                let due =
                    duty::base_is_due(self.chain.head(), &self.options) && !self.chores.uploads.has_base();
                if self.halted.is_none() && due {
                    self.start_base();
                }
                return Pushed::NotApplied(error);
            }
        };
        let commit_id = record.commit_id;
        let pushed = self.send(batch, head, record, changes).await;
        if !matches!(pushed, Pushed::Stored) {
            // This body is never sent again: uploads for it are garbage (P5, P12).
            self.chores.uploads.lost(&commit_id);
        }
        pushed
    }

    async fn send(&mut self, batch: &[Slot], head: Head, record: Record, changes: PageChanges) -> Pushed {
        let body = Bytes::from(head.encode());
        let (mut ever_sent, mut cause) = (false, Cause::Race);
        let began = self.env.monotonic();
        for tries in 0.. {
            // A caller that leaves during this wait gets "surely not applied".
            let proven = if ever_sent { Ok(()) } else { self.pass_cas_check().await };
            // Until something was sent, callers may still leave; afterwards the body must stay as it is (P1, P7).
            if !ever_sent && !batch.iter().all(|slot| slot.stage.send()) {
                unsend(batch);
                self.undo(changes);
                return Pushed::Again;
            }
            let sent_at = self.env.monotonic();
            let put = match proven {
                Ok(()) => {
                    self.turns.listen_with_put(&self.remote);
                    let put = self.put_head(&body).await;
                    if matches!(put, Put::Stored { .. } | Put::Conflict) {
                        self.turns.learn(self.turns.since_last_put());
                    }
                    put
                }
                Err(error) => Put::Unknown { error, sent: false, retry_after: None },
            };
            let wait = match put {
                Put::Stored { version, date_ms } => {
                    self.remote.time.observe(date_ms, sent_at);
                    self.stored(head, &record, version, sent_at);
                    return Pushed::Stored;
                }
                Put::Unknown { error, sent: false, retry_after } if !ever_sent => {
                    unsend(batch);
                    let waited = sent_at.saturating_duration_since(began);
                    let hopeless = is_hopeless(error.code(), waited, self.options.deadline);
                    if hopeless || self.waiting.abandoned(batch) {
                        self.undo(changes);
                        return Pushed::NotApplied(error);
                    }
                    self.shared.trouble(Some(error));
                    self.pause(retry_after, tries).await;
                    continue;
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
            match self.look_for(&head, &record, batch).await {
                Ok((Settlement::Ours, _)) => return Pushed::Stored,
                Ok((Settlement::Lost, seen)) => {
                    unsend(batch);
                    self.undo(changes);
                    return match self.follow_seen(seen).await {
                        Ok(()) => Pushed::Lost(cause),
                        Err(error) => Pushed::NotApplied(error),
                    };
                }
                Ok((Settlement::Unknowable, seen)) => {
                    self.undo(changes);
                    self.identity.renew();
                    let followed = self.follow_seen(seen).await;
                    tracing::warn!(
                        seq = record.seq,
                        followed = followed.is_ok(),
                        "the outcome of a commit cannot be known; continuing under a new writer id"
                    );
                    return Pushed::Unknown(unknown(
                        "other writers have committed, and the log no longer has the commit that would show it",
                    ));
                }
                Ok((Settlement::Unchanged, _)) => {
                    Counters::add(&self.shared.counters.resends, 1);
                    self.emit(|| Happened::Resent);
                    self.pause(None, tries).await;
                }
                Err(error) => {
                    self.undo(changes);
                    return Pushed::Unknown(unknown("every read of HEAD failed").because(error));
                }
            }
        }
        self.undo(changes);
        Pushed::Unknown(unknown("it was sent too often"))
    }

    async fn pause(&mut self, retry_after: Option<Duration>, tries: u32) {
        Durable::drop_gone(&mut self.waiting);
        if let Some(wait) = retry_after {
            self.env.sleep(wait.min(RETRY_AFTER_MAX)).await;
        }
        back_off(&self.env, RESEND.0, RESEND.1, tries).await;
    }
}

fn unknown(why: &str) -> Error {
    Error::new(Code::OutcomeUnknown, format!("the operation may have been applied: {why}"))
}
