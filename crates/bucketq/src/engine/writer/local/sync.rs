//! Publishes local commits: sends bodies with their intents, and settles them by HEAD (P19 to P21).
//!
//! Local commits stay as they are until the store has them, or they are discarded.

use bytes::Bytes;
use tokio::time::Instant;

use super::super::build::{RESEND, RETRY_AFTER_MAX};
use super::super::follow::fetch_failed;
use super::super::{Actor, back_off, unseen};
use super::Local;
use crate::bytes::store::{Put, Version};
use crate::door::Synced;
use crate::engine::catchup::FetchError;
use crate::engine::local::{Fate, Intent, Log, judge};
use crate::noun::error::{Code, Error, Kind, Result};
use crate::noun::event::Happened;

impl Actor<Local> {
    /// Publishes unpublished changes, usually in one commit; in several if an earlier one had landed without a reply.
    pub(super) async fn sync(&mut self) -> Result<Synced> {
        let local = &mut self.home;
        let before = local.log.at_base();
        local.serving = true;
        let done = self.publish(false).await;
        let local = &mut self.home;
        local.serving = false;
        let (base, open) = (local.log.at_base(), commit_ids(&local.log));
        for commit_id in open {
            // A body built later must not refer to uploads for this one (P12).
            self.chores.uploads.lost(&commit_id);
        }
        done?;
        let (commits, ops) = (base.commits - before.commits, base.ops.saturating_sub(before.ops));
        if commits > 0 {
            self.emit(|| Happened::Synced { commits, ops });
        }
        Ok(Synced { commits, ops, commit_seq: self.chain.head().commit_seq })
    }

    /// Sends bodies until everything that was unpublished at the beginning is in the chain, or, with `fence`, until no body
    /// sent before can land any more.
    pub(super) async fn publish(&mut self, fence: bool) -> Result<()> {
        let began = self.env.monotonic();
        let wanted = self.home.log.now();
        let mut look = false;
        let mut in_doubt = false;
        for tries in 0.. {
            let local = &mut self.home;
            if let Some(error) = &local.stuck {
                return Err(error.clone());
            }
            let open = !local.log.intents().is_empty();
            let reached = local.log.at_base().commits >= wanted.commits;
            if !open && (fence || reached) {
                return Ok(());
            }
            if look || !local.known || (open && tries == 0) {
                in_doubt |= open;
                if open && !self.remote.may_send() {
                    return Err(nobody_waits());
                }
                self.look_at_intents().await.map_err(|e| unsettled(e, in_doubt))?;
                look = false;
                continue;
            }
            let intent = self.body(fence).await?;
            if let Err(error) = self.pass_cas_check().await {
                return Err(unsettled(error, in_doubt));
            }
            if !self.remote.may_send() {
                return Err(nobody_waits());
            }
            let sent_at = self.env.monotonic();
            let put = self.put_head(&intent.body).await;
            let (error, retry_after) = match put {
                Put::Stored { version, date_ms } => {
                    self.remote.time.observe(date_ms, sent_at);
                    self.adopt(&intent.head.commit_id, Some(version), sent_at);
                    continue;
                }
                Put::Conflict => (Error::new(Code::Contended, "another writer was faster"), None),
                Put::Unknown { error, sent, retry_after } => {
                    in_doubt |= sent;
                    (error, retry_after)
                }
            };
            look = in_doubt || error.code() == Code::Contended;
            self.shared.trouble(Some(error.clone()));
            let late = self.env.monotonic().saturating_duration_since(began) > self.options.deadline;
            if late
                || self.remote.is_overdue()
                || (!look
                    && matches!(error.code(), Code::Denied | Code::NoSuchBucket | Code::NoCompareAndSwap))
            {
                return Err(unsettled(error, in_doubt));
            }
            let env = self.env.clone();
            self.meanwhile(async move {
                env.sleep(retry_after.unwrap_or_default().min(RETRY_AFTER_MAX)).await;
                back_off(&env, RESEND.0, RESEND.1, tries).await;
            })
            .await;
        }
        Err(Error::bug("a sync never ends"))
    }

    /// Returns the body to send: the newest if it publishes the same changes, else a new one with its intent (P19).
    async fn body(&mut self, fence: bool) -> Result<Intent> {
        self.chain.check_writable()?;
        self.agree_on_time().await;
        if self.remote.time.is_held_up(self.chain.head().commit_ms) {
            // Another process may have fixed the time since.
            self.look_at_intents().await?;
        }
        let commit_ms = self.remote.time.commit_ms(self.chain.head().commit_ms)?;
        if !fence {
            self.bring_back(commit_ms)?;
        }
        let log = &mut self.home.log;
        let (at, ops) = if fence { (log.at_base(), 0) } else { (log.now(), log.pending().ops) };
        if let Some(intent) = log.intents().last().filter(|i| i.at == at) {
            return Ok(intent.clone());
        }
        log.ready(|| self.chain.image())?;
        let open = commit_ids(log);
        let image = if fence { log.base().clone() } else { self.chain.image() };
        let changes = image.since(log.base());
        for commit_id in open {
            self.chores.uploads.lost(&commit_id);
        }
        let ops = u32::try_from(ops).unwrap_or(u32::MAX);
        self.make_room();
        let built = self.build(ops, &changes, commit_ms, 0).await;
        let (head, record) = built.inspect_err(|_| {
            if let Some(commit_id) = self.identity.newest() {
                self.chores.uploads.lost(&commit_id);
            }
        })?;
        let body = Bytes::from(head.encode());
        let intent = Intent { writer: self.identity.id(), head, body, at, image, record: Some(record) };
        // The disk may have failed while the body was built.
        let log = &mut self.home.log;
        log.ready(|| self.chain.image())?;
        log.intend(intent.clone()).map_err(|failed| failed.error.during("nothing was sent"))?;
        Ok(intent)
    }

    /// Settles every open body by a read of HEAD, sent now (P3, P20).
    async fn look_at_intents(&mut self) -> Result<()> {
        let known = self.chain.head().clone();
        let k = known.commit_seq + 1;
        let (mut missed, mut tries) = (None, 0);
        let (seen, logged) = loop {
            let Some(seen) = self.read_head().await? else { return Ok(()) };
            match self.remote.source.logged(&seen.head, known.commit_seq, k).await {
                Ok(logged) => break (seen, logged),
                // The segment was collected since: read again as long as HEAD moves on (P18).
                Err(FetchError::Missing(key))
                    if missed.replace(seen.head.commit_id) == Some(seen.head.commit_id) =>
                {
                    return Err(fetch_failed(FetchError::Missing(key)));
                }
                Err(FetchError::Missing(_)) => {}
                Err(FetchError::Error(error)) if error.kind() == Kind::Corrupt || tries >= 4 => {
                    return Err(error);
                }
                Err(FetchError::Error(_)) => tries += 1,
            }
        };
        if let Err(error) = self.identity.check_continues(&known, &seen.head, logged[0]) {
            return Err(self.home.stick(error));
        }
        let local = &mut self.home;
        let pending = local.log.pending();
        match judge(&known, local.log.intents(), &seen.head, logged[1]) {
            Fate::Open => {
                local.known = true;
                self.chain.found_under(seen.version, seen.asked);
                Ok(())
            }
            Fate::Ours(commit_id) => {
                let version = (seen.head.commit_seq == k).then_some(seen.version);
                self.adopt(&commit_id, version, seen.asked);
                Ok(())
            }
            Fate::Lost if pending.commits == 0 => Ok(()),
            Fate::Lost => {
                let path = local.log.path();
                let error = Error::new(
                    Code::Diverged,
                    format!(
                        "another writer committed {k} on the same base as {} local commits ({} ops), which can no longer be published; nothing is lost: export_pending() saves the state in {}, snapshot(discard) drops it",
                        pending.commits,
                        pending.ops,
                        path.display()
                    ),
                );
                Err(self.home.stick(error))
            }
            Fate::Unknowable => Err(self.home.stick(Error::new(
                Code::OutcomeUnknown,
                format!(
                    "whether a body sent earlier became commit {k} can no longer be known, so nothing more is published; nothing is lost here: export_pending() saves it, snapshot(discard) drops it; compare with the store first"
                ),
            ))),
        }
    }

    /// Makes the body with this commit id, which is in the chain, the base. `version` is `None` if others have
    /// committed after it.
    fn adopt(&mut self, commit_id: &[u8; 16], version: Option<Version>, asked: Instant) {
        let local = &mut self.home;
        let Some(intent) = local.log.settle(commit_id) else { return };
        let Intent { writer, head, record, .. } = intent;
        local.known = version.is_some();
        let record = record.or_else(|| head.tail.last().filter(|r| r.seq == head.commit_seq).cloned());
        let version = version.unwrap_or_else(unseen);
        match record {
            Some(record) if writer == self.identity.id() => self.stored(head, &record, version, asked),
            // An earlier process built it.
            record => {
                if let Some(record) = record {
                    self.chores.uploads.settled(&record);
                }
                self.stand_on(head, version, asked);
            }
        }
        self.set_unsynced();
    }
}

pub(super) fn nobody_waits() -> Error {
    Error::new(Code::Timeout, "the caller left before anything was sent")
}

fn commit_ids(log: &Log) -> Vec<[u8; 16]> {
    log.intents().iter().map(|i| i.head.commit_id).collect()
}

/// Returns the error of a sync that failed. Unpublished changes stay; if `in_doubt`, they may have been published.
fn unsettled(error: Error, in_doubt: bool) -> Error {
    if !in_doubt || matches!(error.kind(), Kind::Diverged | Kind::Corrupt | Kind::Unknown) {
        return error;
    }
    let told = "the sync may have been applied; sync again, which settles it first";
    Error::new(Code::OutcomeUnknown, format!("{told}: {}", error.message())).because(error)
}
