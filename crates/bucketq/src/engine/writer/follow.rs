//! Reads HEAD and follows it: on refresh, after a lost race, and to settle a body. Both modes do.

use std::time::Duration;

use super::remote::HeadTrouble;
use super::{Actor, Home, ReadHead, back_off};
use crate::bucket::record::Record;
use crate::bucket::wire::corrupt;
use crate::bytes::metrics::Counters;
use crate::engine::catchup::FetchError;
use crate::noun::error::{Code, Error, Kind, Result};

/// First and longest pause between tries at reading.
pub(super) const REREAD: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Damaged replies before HEAD counts as damaged: a torn reply passes, a damaged object stays.
pub(super) const DAMAGED: u32 = 4;

impl<H: Home> Actor<H> {
    /// Reads the newest HEAD and follows it. Returns true if there was something new.
    pub(super) async fn refresh(&mut self) -> Result<bool> {
        let Some(seen) = self.read_head().await? else { return Ok(false) };
        self.follow(seen).await
    }

    /// Reads HEAD; returns `None` when it is unchanged. Retries until the deadline, unless that is hopeless.
    pub(super) async fn read_head(&mut self) -> Result<Option<ReadHead>> {
        let began = self.env.monotonic();
        let mut damaged = 0;
        for tries in 0.. {
            let asked = self.env.monotonic();
            let get = self.remote.get_head(self.chain.version());
            let got = self.meanwhile(get).await;
            let error = match self.remote.heard(got, asked, self.chain.head()) {
                Ok(None) => {
                    self.chain.confirm(asked);
                    return Ok(None);
                }
                Ok(seen) => return Ok(seen),
                Err(HeadTrouble::Stop(error)) => return Err(self.halt(error)),
                Err(HeadTrouble::Damaged(error)) => {
                    damaged += 1;
                    error
                }
                Err(HeadTrouble::Absent(error, pause)) => {
                    let env = self.env.clone();
                    self.meanwhile(async move { env.sleep(pause).await }).await;
                    error
                }
                Err(HeadTrouble::Failed(error)) => error,
            };
            self.shared.trouble(Some(error.clone()));
            let hopeless = matches!(error.code(), Code::Denied | Code::NoSuchBucket | Code::TooNew)
                || damaged >= DAMAGED;
            let late = self.env.monotonic().saturating_duration_since(began) > self.options.deadline;
            if hopeless || late || self.remote.is_overdue() {
                return Err(error);
            }
            H::drop_gone(&mut self.waiting);
            let env = self.env.clone();
            self.meanwhile(async move { back_off(&env, REREAD.0, REREAD.1, tries).await }).await;
        }
        Err(Error::bug("reading HEAD never ends"))
    }

    /// If this machine's clock is in doubt, asks the store for its time until that is decided or the round is over.
    pub(super) async fn agree_on_time(&mut self) {
        self.remote.time.begin();
        while let Some(question) = self.remote.time.question() {
            let heard = self.meanwhile(question).await;
            self.remote.time.hear(heard);
        }
    }

    /// Brings the database, which must be settled, to this HEAD. Returns true if it moved.
    pub(super) async fn follow(&mut self, mut seen: ReadHead) -> Result<bool> {
        for tries in 0.. {
            let known = self.chain.head().commit_seq;
            let logged = match self.remote.source.logged(&seen.head, known, known).await {
                Ok(logged) => logged[0],
                Err(trouble) => {
                    seen = self.after_trouble(seen, trouble, tries).await?;
                    continue;
                }
            };
            self.identity.check_continues(self.chain.head(), &seen.head, logged).map_err(|e| self.halt(e))?;
            if seen.head.commit_seq == known {
                self.chain.found_under(seen.version, seen.asked);
                return Ok(false);
            }
            match self.chain.advance(&self.remote.source, &seen.head).await {
                Ok(records) => {
                    let records = records.map_err(|e| self.halt(e))?;
                    self.advanced(seen, &records);
                    return Ok(true);
                }
                Err(trouble) => seen = self.after_trouble(seen, trouble, tries).await?,
            }
        }
        Ok(false)
    }

    /// Returns the HEAD to follow after an error: a newer one, or the same once more.
    async fn after_trouble(&mut self, seen: ReadHead, trouble: FetchError, tries: u32) -> Result<ReadHead> {
        match trouble {
            // The object was collected: HEAD must have moved on (P18).
            FetchError::Missing(key) => self.read_again(&seen).await?.ok_or_else(|| missing(&key)),
            FetchError::Error(error) if error.kind() == Kind::Corrupt || tries >= 8 => Err(error),
            FetchError::Error(error) => {
                self.shared.trouble(Some(error));
                back_off(&self.env, REREAD.0, REREAD.1, tries).await;
                Ok(seen)
            }
        }
    }

    /// Reads HEAD again; returns it if it is another than `seen`.
    async fn read_again(&mut self, seen: &ReadHead) -> Result<Option<ReadHead>> {
        let newer = self.read_head().await?;
        Ok(newer.filter(|n| n.head.commit_id != seen.head.commit_id))
    }

    pub(super) fn advanced(&mut self, seen: ReadHead, records: &[Record]) {
        let known = self.chain.head().commit_seq;
        for record in records {
            self.chores.uploads.settled(record);
        }
        self.turns.followed(known, &seen.head, records);
        Counters::add(
            &self.shared.counters.caught_up,
            seen.head.commit_seq - known.min(seen.head.commit_seq),
        );
        self.shared.set_newest(seen.head.commit_seq);
        self.chain.stand_on(seen);
        self.waiting.awaited.moved();
    }
}

/// Returns the error for an object that could not be fetched.
pub(super) fn fetch_failed(trouble: FetchError) -> Error {
    match trouble {
        FetchError::Missing(key) => missing(&key),
        FetchError::Error(error) => error,
    }
}

pub(super) fn missing(key: &str) -> Error {
    corrupt(key, "HEAD refers to it, and it does not exist")
}
