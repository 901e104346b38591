//! `sync` and `snapshot` in Local mode: bodies with their intents, and what a look at HEAD says of them (P19 to P21).
//!
//! Called by local. Nothing here changes what was committed locally before the store has it, or it is discarded.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::local::unseen;
use super::look::told;
use super::push::RESEND;
use super::{Writer, back_off};
use crate::broken::{self, Broken};
use crate::catchup::Trouble;
use crate::db::Db;
use crate::door::Synced;
use crate::error::{Code, Error, Kind, Result};
use crate::event::Happened;
use crate::keys;
use crate::local::{Fate, Intent, Log, judge};
use crate::pages::{Image, PageFile};
use crate::settle;
use crate::store::{Expect, Put, Version};

impl Writer {
    /// Publish what is pending, in one commit as a rule: in several if an earlier one had landed without an answer.
    pub(super) async fn sync(&mut self) -> Result<Synced> {
        let local = self.log()?;
        let before = local.log.at_base();
        local.serving = true;
        let done = self.publish(false).await;
        let local = self.log()?;
        local.serving = false;
        let (base, open) = (local.log.at_base(), commit_ids(&local.log));
        for commit_id in open {
            // A body built later must not take what was uploaded for this one (P12).
            self.uploads.lost(&commit_id);
        }
        done?;
        let (commits, ops) = (base.commits - before.commits, base.ops.saturating_sub(before.ops));
        if commits > 0 {
            self.tell(|| Happened::Synced { commits, ops });
        }
        Ok(Synced { commits, ops, commit_seq: self.chain.head.commit_seq })
    }

    /// Send bodies until everything that was pending at the beginning is in the chain, or, with `fence`, until no body
    /// sent before can land any more.
    async fn publish(&mut self, fence: bool) -> Result<()> {
        let began = self.env.monotonic();
        let wanted = self.log()?.log.now();
        let mut look = self.time.is_skewed();
        let mut in_doubt = false;
        for tries in 0.. {
            let local = self.log()?;
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
                self.look_at_intents().await.map_err(|e| unsettled(e, in_doubt))?;
                look = false;
                continue;
            }
            let intent = self.body(fence).await?;
            let (key, expect) = (keys::head(&self.source.name), Expect::Is(self.chain.version.clone()));
            let (sent_at, sent_ms) = (self.env.monotonic(), self.env.wall_ms());
            let put = self.put_head(&key, &intent.body, &expect).await;
            self.intend_too_late(&intent);
            let (error, retry_after) = match put {
                Put::Stored { version, date_ms } => {
                    self.time.observe(date_ms, sent_ms);
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
            if late || (!look && matches!(error.code(), Code::Denied | Code::NoSuchBucket)) {
                return Err(unsettled(error, in_doubt));
            }
            let env = self.env.clone();
            self.meanwhile(async move {
                env.sleep(retry_after.unwrap_or_default().min(Duration::from_secs(5))).await;
                back_off(&env, RESEND.0, RESEND.1, tries).await;
            })
            .await;
        }
        Err(Error::new(Code::Internal, "a sync never ends"))
    }

    /// The body to send: the newest one, if it publishes just what is wanted, else a new one with its intent (P19).
    async fn body(&mut self, fence: bool) -> Result<Intent> {
        self.check_writable()?;
        let pages = self.chain.pages.clone();
        let log = &mut self.log()?.log;
        let (at, ops) = if fence { (log.at_base(), 0) } else { (log.now(), log.pending().ops) };
        if let Some(intent) = log.intents().last().filter(|i| i.at == at) {
            return Ok(intent.clone());
        }
        log.ready(|| pages.with(|p| p.image()))?;
        let (last_ms, open) = (log.last_ms(), commit_ids(log));
        let image = if fence { log.base().clone() } else { pages.with(|p| p.image()) };
        let changes = image.since(log.base());
        for commit_id in open {
            self.uploads.lost(&commit_id);
        }
        let commit_ms = self.time.commit_ms(last_ms)?;
        let ops = u32::try_from(ops).unwrap_or(u32::MAX);
        self.make_room();
        let built = self.build(ops, &changes, commit_ms, 0).await;
        let (head, record) = built.inspect_err(|_| {
            if let Some(commit_id) = self.drawn.back().copied() {
                self.uploads.lost(&commit_id);
            }
        })?;
        let body = Bytes::from(head.encode());
        let intent = Intent { writer: self.id, head, body, at, image, record: Some(record) };
        if !broken::is(&self.options, Broken::NoIntent) && !broken::is(&self.options, Broken::LateIntent) {
            // The disk may have gone while the body was built.
            let log = &mut self.log()?.log;
            log.ready(|| pages.with(|p| p.image()))?;
            log.intend(intent.clone()).map_err(|failed| failed.error.during("nothing was sent"))?;
        }
        Ok(intent)
    }

    /// P19, broken on purpose: the intent comes after the put.
    fn intend_too_late(&mut self, intent: &Intent) {
        let late = broken::is(&self.options, Broken::LateIntent);
        if let Some(local) = self.local.as_mut().filter(|_| late) {
            let _ = local.log.intend(intent.clone());
        }
    }

    /// Settle every open body by a look at HEAD, issued now (P3, P20).
    async fn look_at_intents(&mut self) -> Result<()> {
        let known = self.chain.head.clone();
        let k = known.commit_seq + 1;
        let (mut missed, mut tries) = (None, 0);
        let (seen, logged) = loop {
            let Some(seen) = self.read_head(|_| false).await? else { return Ok(()) };
            match self.logged(&seen.head, known.commit_seq, k).await {
                Ok(logged) => break (seen, logged),
                // Collected since: HEAD has moved on, as long as it keeps doing so (P18).
                Err(Trouble::Missing(key))
                    if missed.replace(seen.head.commit_id) == Some(seen.head.commit_id) =>
                {
                    return Err(told(Trouble::Missing(key)));
                }
                Err(Trouble::Missing(_)) => {}
                Err(Trouble::Error(error)) if error.kind() == Kind::Corrupt || tries >= 4 => {
                    return Err(error);
                }
                Err(Trouble::Error(_)) => tries += 1,
            }
        };
        if let Err(error) =
            settle::continues(&known, &seen.head, logged[0], self.mine, self.id, &self.options)
        {
            return Err(self.stick(error));
        }
        let local = self.log()?;
        let pending = local.log.pending();
        match judge(&known, local.log.intents(), &seen.head, logged[1]) {
            Fate::Open => {
                local.known = true;
                self.chain.version = seen.version;
                self.chain.fresh = seen.asked;
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
                        "another writer committed {k} on top of what {} commits ({} ops) here stand on, and they can no longer be published; nothing is lost: export_pending() saves what is in {}, snapshot(discard) drops it",
                        pending.commits,
                        pending.ops,
                        path.display()
                    ),
                );
                Err(self.stick(error))
            }
            Fate::Unknowable => Err(self.stick(Error::new(
                Code::OutcomeUnknown,
                format!(
                    "whether a body sent earlier became commit {k} can no longer be known, so nothing more is published; nothing is lost here: export_pending() saves it, snapshot(discard) drops it; compare with the store first"
                ),
            ))),
        }
    }

    /// From now on, until a discard, nothing can be changed or published here.
    pub(super) fn stick(&mut self, error: Error) -> Error {
        tracing::error!(%error, "local changes cannot be published");
        match &mut self.local {
            Some(local) => local.stuck.insert(error).clone(),
            None => error,
        }
    }

    /// The body with this commit id is in the chain: it is the base from now on. Without its version, others have gone
    /// on beyond it.
    fn adopt(&mut self, commit_id: &[u8; 16], version: Option<Version>, asked: Instant) {
        let pages = self.chain.pages.clone();
        let Some(local) = &mut self.local else { return };
        let Some(intent) = local.log.settle(commit_id, || pages.with(|p| p.image())) else { return };
        let Intent { writer, head, record, .. } = intent;
        local.known = version.is_some();
        let record = record.or_else(|| head.tail.last().filter(|r| r.seq == head.commit_seq).cloned());
        let version = version.unwrap_or_else(unseen);
        match record {
            Some(record) if writer == self.id => self.stored(head, &record, version, asked),
            // An earlier life built it.
            record => {
                if let Some(record) = record {
                    self.uploads.settled(&record);
                }
                self.stand_on(head, version, asked);
            }
        }
        self.tell_pending();
    }

    /// Bring what others published. With `discard`, what is pending goes, and whatever the store has is taken.
    pub(super) async fn snapshot(&mut self, discard: bool) -> Result<u64> {
        let local = self.log()?;
        let pending = local.log.pending();
        if !discard {
            if pending.commits > 0 {
                return Err(Error::new(
                    Code::Unsynced,
                    format!(
                        "{} local commits ({} ops) are not published: sync first, or discard them",
                        pending.commits, pending.ops
                    ),
                ));
            }
            if let Some(error) = &local.stuck {
                return Err(error.clone());
            }
        }
        if discard && local.stuck.is_none() && !local.log.intents().is_empty() {
            // What was sent could still land after it was dropped here: not after another commit (P9).
            let fenced = self.publish(true).await;
            if let Err(error) = fenced
                && self.log()?.stuck.is_none()
            {
                return Err(error);
            }
        }
        let stuck = self.log()?.stuck.take();
        let went_back = |e: Option<&Error>| e.is_some_and(|e| e.kind() == Kind::Corrupt);
        let mut moved = self.replace(went_back(stuck.as_ref())).await;
        if moved.is_err() && discard && went_back(self.log()?.stuck.as_ref()) {
            // Found out only now; who discards takes what is there (P21).
            moved = self.replace(true).await;
        }
        let local = self.log()?;
        local.stuck = if moved.is_ok() { None } else { local.stuck.take().or(stuck) };
        self.tell_pending();
        // Without room for it on the disk: asked again, it is written down, and nothing else is before.
        moved??;
        self.tell(|| Happened::Snapshot);
        Ok(self.chain.head.commit_seq)
    }

    /// Let the newest state of the store take the place of what is here; on an error nothing has changed, except that
    /// after an error inside an `Ok` all of it has changed and the disk does not have it yet. `anew`: it need not
    /// continue what is known (P21).
    async fn replace(&mut self, anew: bool) -> Result<Result<()>> {
        if anew {
            self.chain.version = unseen();
        }
        let seen = self.read_head(|_| false).await?;
        let log = &self.log()?.log;
        let (base, dirty) = (log.base().clone(), log.pending().commits > 0);
        let here = self.chain.pages.with(|p| p.image());
        self.go_to(&base)?;
        let moved = match seen {
            None => Ok(dirty),
            Some(seen) if anew => self.load_anew(seen).await.map(|()| true),
            Some(seen) => self.follow(seen).await.map(|moved| moved || dirty),
        };
        let moved = match moved {
            Ok(moved) => moved,
            Err(error) => {
                self.go_to(&here)?;
                return Err(error);
            }
        };
        let (head, image) = (self.chain.head.clone(), self.chain.pages.with(|p| p.image()));
        let local = self.log()?;
        local.known = true;
        Ok(if moved { local.log.moved(head, image) } else { local.log.ready(|| image) })
    }

    /// Take what HEAD describes, whatever was known.
    async fn load_anew(&mut self, seen: super::look::Seen) -> Result<()> {
        let (pages, records) = self.source.load(&seen.head).await.map_err(told)?;
        let file = PageFile::new(pages);
        self.chain.db = Db::open(file.connect(self.source.max_pages)?)?;
        self.chain.pages = file;
        self.time.set_max_skew(seen.head.max_skew_ms);
        self.new_id();
        self.advanced(seen, &records);
        Ok(())
    }

    fn go_to(&mut self, image: &Image) -> Result<()> {
        self.chain.pages.with(|p| p.go_to(image))?;
        self.chain.db.forget();
        self.pages_changed_beneath();
        Ok(())
    }
}

fn commit_ids(log: &Log) -> Vec<[u8; 16]> {
    log.intents().iter().map(|i| i.head.commit_id).collect()
}

/// A sync that ended without an answer. What is pending stays; whether it was published may not be known.
fn unsettled(error: Error, in_doubt: bool) -> Error {
    if !in_doubt || matches!(error.kind(), Kind::Diverged | Kind::Corrupt | Kind::Unknown) {
        return error;
    }
    let told = "the sync may have been applied; sync again, which settles it first";
    Error::new(Code::OutcomeUnknown, format!("{told}: {}", error.message())).because(error)
}
