//! Reading HEAD and following it: on refresh, after a lost race, and to settle a body.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::local::unseen;
use super::{Writer, back_off};
use crate::broken::{self, Broken};
use crate::catchup::Trouble;
use crate::db::Db;
use crate::error::{Code, Error, Kind, Result};
use crate::head::Head;
use crate::keys;
use crate::metrics::Counters;
use crate::pages::PageFile;
use crate::record::Record;
use crate::settle::{self, Pending, Shown, Verdict};
use crate::store::{Expect, Got, Version};
use crate::wire::corrupt;

/// HEAD as it was read.
pub(super) struct Seen {
    pub head: Head,
    pub version: Version,
    pub asked: Instant,
}

/// Pauses between tries at reading.
const REREAD: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Damaged answers in a row before they count as the truth: a torn answer passes, a damaged object stays.
const DAMAGED: u32 = 4;

impl Writer {
    /// Read the newest state and follow it. True if there was something new.
    pub(super) async fn refresh(&mut self) -> Result<bool> {
        let Some(seen) = self.read_head(|_| false).await? else { return Ok(false) };
        self.follow(seen).await
    }

    /// A HEAD that was shown is known, though it could not be followed yet (P21). What was followed is judged later.
    fn notice_put_back(&mut self, head: &Head) -> Result<()> {
        if let Some(shown) = self.shown.filter(|s| s.commit_seq() > self.chain.head.commit_seq) {
            shown.comes_before(head).map_err(|e| self.halt(e))?;
        }
        self.shown = Some(Shown::by(head));
        Ok(())
    }

    /// Read HEAD; none when it is unchanged. Retries until the deadline, unless trying again is hopeless or `stop`.
    pub(super) async fn read_head(&mut self, stop: impl Fn(&Self) -> bool) -> Result<Option<Seen>> {
        let key = keys::head(&self.source.name);
        let began = self.env.monotonic();
        let mut damaged = 0;
        for tries in 0.. {
            let (asked, asked_ms) = (self.env.monotonic(), self.env.wall_ms());
            let error = match self.get_head(&key).await {
                Ok(Got::Unchanged { date_ms }) => {
                    self.time.observe(date_ms, asked_ms);
                    self.shared.trouble(None);
                    self.chain.fresh = asked;
                    return Ok(None);
                }
                Ok(Got::Object { bytes, version, date_ms }) => {
                    self.time.observe(date_ms, asked_ms);
                    match Head::decode(&key, &bytes) {
                        Ok(head) => {
                            self.shared.trouble(None);
                            self.notice_put_back(&head)?;
                            return Ok(Some(Seen { head, version, asked }));
                        }
                        // Never again can this version follow it.
                        Err(error) if error.code() == Code::TooNew => return Err(self.halt(error)),
                        Err(error) => {
                            damaged += 1;
                            error
                        }
                    }
                }
                Ok(Got::Absent { .. }) if broken::is(&self.options, Broken::RecreateHead) => {
                    let body = self.chain.head.encode().into();
                    let _ = self.store.put_if(&key, body, &Expect::Absent).await;
                    continue;
                }
                Ok(Got::Absent { date_ms }) => {
                    self.time.observe(date_ms, asked_ms);
                    let missing = Error::new(
                        Code::HeadMissing,
                        format!(
                            "{key}, the HEAD of a queue file that was open, is gone; it is not made again: restore it, or open another name"
                        ),
                    );
                    return Err(self.halt(missing));
                }
                Err(error) => error,
            };
            self.shared.trouble(Some(error.clone()));
            let hopeless = matches!(error.code(), Code::Denied | Code::NoSuchBucket | Code::TooNew)
                || damaged >= DAMAGED;
            let late = self.env.monotonic().saturating_duration_since(began) > self.options.deadline;
            if hopeless || late || stop(self) {
                return Err(error);
            }
            let env = self.env.clone();
            self.meanwhile(async move { back_off(&env, REREAD.0, REREAD.1, tries).await }).await;
        }
        Err(Error::new(Code::Internal, "reading HEAD never ends"))
    }

    async fn get_head(&mut self, key: &str) -> Result<Got> {
        let limit = self.request_limit();
        let (store, env) = (Arc::clone(&self.store), self.env.clone());
        let known = Some(self.chain.version.clone()).filter(|v| *v != unseen());
        let got = self.meanwhile(async move {
            tokio::select! {
                biased;
                got = store.get(key, known.as_ref()) => got,
                () = env.sleep(limit) => Err(Error::new(Code::Unreachable, format!("the store did not answer a get within {limit:?}"))),
            }
        });
        got.await
    }

    /// Settle a body: what a look at HEAD, issued now, says of it. On `Ours` the state has followed; on `Lost` and
    /// `Unknowable` what was seen is kept for [`Writer::follow_seen`]. Tries for as long as somebody cares.
    pub(super) async fn look_for(
        &mut self,
        body: &Head,
        record: &Record,
        abandoned: impl Fn(&Self) -> bool,
    ) -> Result<Verdict> {
        let (mut damaged, mut missed) = (0, None);
        for tries in 0.. {
            match self.look_once(body, record, &mut missed).await {
                Ok(verdict) => return Ok(verdict),
                Err(error) if self.halted.is_some() => return Err(error),
                Err(error) => {
                    damaged += u32::from(error.kind() == Kind::Corrupt);
                    if damaged >= DAMAGED || abandoned(self) {
                        return Err(error);
                    }
                    // A body that was sent stays pending until it is settled; its callers leave by their deadlines (P8).
                    self.shared.trouble(Some(error));
                    back_off(&self.env, REREAD.0, REREAD.1, tries).await;
                }
            }
        }
        Err(Error::new(Code::Internal, "settling never ends"))
    }

    /// `missed` is the HEAD under which an object was missing last time.
    async fn look_once(
        &mut self,
        body: &Head,
        record: &Record,
        missed: &mut Option<[u8; 16]>,
    ) -> Result<Verdict> {
        let Some(seen) = self.read_head(|_| false).await? else { return Ok(Verdict::Unchanged) };
        let (known, k) = (self.chain.head.commit_seq, body.commit_seq);
        let logged = match self.logged(&seen.head, known, k).await {
            Ok(logged) => logged,
            Err(Trouble::Error(error)) => return Err(error),
            // Collected since, if HEAD has moved on (P18): the next look tells.
            Err(Trouble::Missing(key)) => {
                let same = missed.replace(seen.head.commit_id) == Some(seen.head.commit_id);
                let moved = || Error::new(Code::Unreachable, format!("{key} was collected meanwhile"));
                return Err(if same { missing(&key) } else { moved() });
            }
        };
        let verdict = self.judge(body, &seen, logged)?;
        match verdict {
            Verdict::Unchanged => {
                // The same commit under another name of the store's: the body must expect that one.
                self.chain.version = seen.version;
                self.chain.fresh = seen.asked;
            }
            Verdict::Ours => {
                if seen.head.commit_seq == k {
                    self.stored(body.clone(), record, seen.version, seen.asked);
                } else {
                    // Until it has followed, this writer must win nothing: the version it knows is a stale one.
                    let stale = self.chain.version.clone();
                    self.stored(body.clone(), record, stale, seen.asked);
                    if let Err(error) = self.follow(seen).await {
                        self.shared.trouble(Some(error));
                    }
                }
            }
            Verdict::Lost | Verdict::Unknowable => self.seen = Some(seen),
        }
        Ok(verdict)
    }

    fn judge(&mut self, body: &Head, seen: &Seen, logged: [Option<[u8; 16]>; 2]) -> Result<Verdict> {
        let known = &self.chain.head;
        settle::continues(known, &seen.head, logged[0], self.mine, self.id, &self.options)
            .map_err(|e| self.halt(e))?;
        let drawn: Vec<[u8; 16]> = self.drawn.iter().copied().collect();
        let pending = Pending { body, writer: self.id, drawn: &drawn };
        Ok(settle::judge(pending, &seen.head, logged[1], &self.options))
    }

    /// The commit ids at `known` and at `k`, from the segments, where HEAD itself does not tell them.
    pub(super) async fn logged(
        &mut self,
        head: &Head,
        known: u64,
        k: u64,
    ) -> Result<[Option<[u8; 16]>; 2], Trouble> {
        let told = |seq: u64| seq > head.commit_seq || head.commit_id_at(seq).is_some();
        if told(known) && told(k) {
            return Ok([None, None]);
        }
        // The record after a commit tells its id too.
        let records = self.source.records(head, known + 1).await?.unwrap_or_default();
        let after = |seq: u64| records.iter().find(|r| r.seq == seq + 1).map(|r| r.prev_commit_id);
        let at = |seq: u64| records.iter().find(|r| r.seq == seq).map(|r| r.commit_id);
        Ok([after(known), at(k).or_else(|| after(k))])
    }

    /// Follow what settling saw, once the local changes are undone.
    pub(super) async fn follow_seen(&mut self) -> Result<()> {
        match self.seen.take() {
            Some(seen) => self.follow(seen).await.map(|_| ()),
            None => self.refresh().await.map(|_| ()),
        }
    }

    /// Bring the local state, which is settled, to what was seen. True if it moved.
    pub(super) async fn follow(&mut self, mut seen: Seen) -> Result<bool> {
        for tries in 0.. {
            let known = self.chain.head.commit_seq;
            let logged = match self.logged(&seen.head, known, known).await {
                Ok(logged) => logged[0],
                Err(trouble) => {
                    seen = self.after_trouble(seen, trouble, tries).await?;
                    continue;
                }
            };
            settle::continues(&self.chain.head, &seen.head, logged, self.mine, self.id, &self.options)
                .map_err(|e| self.halt(e))?;
            if seen.head.commit_seq == known && !broken::is(&self.options, Broken::RollbackBySeqOnly) {
                self.chain.version = seen.version;
                self.chain.fresh = seen.asked;
                return Ok(false);
            }
            match self.advance(&seen.head).await {
                Ok(records) => {
                    self.advanced(seen, &records);
                    return Ok(true);
                }
                Err(trouble) => seen = self.after_trouble(seen, trouble, tries).await?,
            }
        }
        Ok(false)
    }

    /// What to follow after this: the HEAD that has come meanwhile, or once more the same.
    async fn after_trouble(&mut self, seen: Seen, trouble: Trouble, tries: u32) -> Result<Seen> {
        match trouble {
            // Collected since: HEAD must have moved on (P18).
            Trouble::Missing(key) => self.read_again(&seen).await?.ok_or_else(|| missing(&key)),
            Trouble::Error(error) if error.kind() == Kind::Corrupt || tries >= 8 => Err(error),
            Trouble::Error(error) => {
                self.shared.trouble(Some(error));
                back_off(&self.env, REREAD.0, REREAD.1, tries).await;
                Ok(seen)
            }
        }
    }

    /// HEAD again, if it is another than the one seen.
    async fn read_again(&mut self, seen: &Seen) -> Result<Option<Seen>> {
        let newer = self.read_head(|_| false).await?;
        Ok(newer.filter(|n| n.head.commit_id != seen.head.commit_id))
    }

    /// Apply what is missing to the pages: the records, or everything anew. Returns the records it used.
    async fn advance(&mut self, head: &Head) -> Result<Vec<Record>, Trouble> {
        let from = self.chain.head.commit_seq + 1;
        let mut damaged = None;
        for _ in 0..DAMAGED {
            let applied = match self.source.records(head, from).await {
                Ok(Some(records)) => match self.source.apply(&self.chain.pages, &records, head) {
                    Ok(()) => {
                        self.pages_changed_beneath();
                        return Ok(records);
                    }
                    Err(error) => Err(Trouble::Error(error)),
                },
                Ok(None) => Ok(()),
                Err(trouble) => Err(trouble),
            };
            let loaded = match applied {
                Err(Trouble::Error(error)) if error.kind() != Kind::Corrupt => return Err(error.into()),
                Err(Trouble::Missing(key)) => return Err(Trouble::Missing(key)),
                // The log does not reach back, or does not fit what is here: everything anew.
                _ => self.source.load(head).await,
            };
            match loaded {
                Ok((pages, records)) => {
                    let file = PageFile::new(pages);
                    let db = Db::open(file.connect(self.source.max_pages)?)?;
                    self.chain.db = db;
                    self.chain.pages = file;
                    return Ok(records);
                }
                Err(Trouble::Error(error)) if error.kind() == Kind::Corrupt => damaged = Some(error),
                Err(trouble) => return Err(trouble),
            }
        }
        Err(damaged
            .unwrap_or_else(|| corrupt(&keys::head(&self.source.name), "it cannot be followed"))
            .into())
    }

    pub(super) fn advanced(&mut self, seen: Seen, records: &[Record]) {
        let known = self.chain.head.commit_seq;
        for record in records {
            self.uploads.settled(record);
        }
        if records.iter().any(|r| r.seq > known && r.writer != self.id) {
            self.pace.sharing.met(self.pace.put);
        }
        Counters::add(
            &self.shared.counters.caught_up,
            seen.head.commit_seq - known.min(seen.head.commit_seq),
        );
        self.chain.head = seen.head;
        self.chain.version = seen.version;
        self.chain.fresh = seen.asked;
    }
}

/// What stood in the way of loading, told as an error.
pub(super) fn told(trouble: Trouble) -> Error {
    match trouble {
        Trouble::Missing(key) => missing(&key),
        Trouble::Error(error) => error,
    }
}

fn missing(key: &str) -> Error {
    corrupt(key, "HEAD refers to it and it is not there")
}
