//! The store as the writer uses it: requests for HEAD with their time limits, what their replies show, and the time.
//!
//! Returns each request as a future that the writer awaits: in Local mode it serves local calls meanwhile. `cas_check`
//! tests the store before the first write. Knows no database, and decides no commit.

mod cas_check;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

pub(crate) use cas_check::ProvenStores;

use super::chain::{ReadHead, unseen};
use crate::bucket::head::Head;
use crate::bucket::keys;
use crate::bytes::store::{Expect, Got, Put, Store, Version};
use crate::bytes::wrap::limited::{put_within, within};
use crate::door::{Shared, Stage};
use crate::engine::catchup::Source;
use crate::engine::settle::Shown;
use crate::engine::time::Timekeeper;
use crate::noun::config::Options;
use crate::noun::env::Env;
use crate::noun::error::{Code, Error, Result};
use cas_check::CasCheck;

/// HEAD is gone once this many replies in a row say so ...
const ABSENT: u32 = 5;
/// ... over at least this long. One wrong 404, from a proxy or a cold cache, passes.
const ABSENT_FOR: Duration = Duration::from_secs(1);
/// The first pause before a missing HEAD is read again; each one doubles.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Why a request for HEAD has not shown it.
pub(super) enum HeadTrouble {
    /// There was a reply, and it is no whole HEAD.
    Damaged(Error),
    /// One reply that there is no HEAD: read it again after this pause.
    Absent(Error, Duration),
    Failed(Error),
    /// The writer must stop (P21, P22).
    Stop(Error),
}

pub(super) struct Remote {
    pub source: Source,
    pub time: Timekeeper,
    /// The HEAD that was read last.
    shown: Option<Shown>,
    /// How many replies in a row said that there is no HEAD, and when the first of them was requested.
    absent: Option<(u32, Instant)>,
    cas_check: CasCheck,
    /// In Local mode: the stage of the task under way, and the deadline of its caller.
    caller: Option<(Arc<Stage>, Instant)>,
    key: String,
    options: Arc<Options>,
    env: Env,
    shared: Arc<Shared>,
}

impl Remote {
    pub fn new(
        source: Source,
        time: Timekeeper,
        proven_stores: Arc<ProvenStores>,
        options: &Arc<Options>,
        env: &Env,
        shared: &Arc<Shared>,
    ) -> Self {
        Self {
            key: keys::head(&source.name),
            source,
            time,
            shown: None,
            absent: None,
            cas_check: CasCheck::new(proven_stores),
            caller: None,
            options: Arc::clone(options),
            env: env.clone(),
            shared: Arc::clone(shared),
        }
    }

    pub fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.source.store)
    }

    /// Makes requests for this caller until its deadline, or for nobody.
    pub fn serve(&mut self, caller: Option<(Arc<Stage>, Instant)>) {
        self.caller = caller;
    }

    /// Marks the task under way as sent, before a body is sent or settled. Returns false if its caller has given up.
    pub fn may_send(&self) -> bool {
        self.caller.as_ref().is_none_or(|(stage, _)| stage.send())
    }

    /// Returns the longest time for one request: one that hangs must leave time for settling.
    pub fn request_limit(&self) -> Duration {
        let limit = self.options.deadline / 3;
        let left =
            self.caller.as_ref().map(|(_, until)| until.saturating_duration_since(self.env.monotonic()));
        left.map_or(limit, |left| limit.min(left))
    }

    /// Returns whether the deadline of the task under way has passed.
    pub fn is_overdue(&self) -> bool {
        self.caller.as_ref().is_some_and(|(_, until)| *until <= self.env.monotonic())
    }

    /// Requests HEAD, unless it still has this version.
    pub fn get_head(&self, known: &Version) -> impl Future<Output = Result<Got>> + Send + use<> {
        let limit = self.request_limit();
        let (source, env) = (self.source.clone(), self.env.clone());
        let known = Some(known.clone()).filter(|v| *v != unseen());
        async move { within(&env, limit, source.head(known.as_ref())).await }
    }

    /// Sends HEAD on top of the version `on`. The store has passed the check (G10).
    pub fn put_head(&self, body: &Bytes, on: &Version) -> impl Future<Output = Put> + Send + use<> {
        let limit = self.request_limit();
        let (store, key, env, body) = (self.store(), self.key.clone(), self.env.clone(), body.clone());
        let expect = Expect::Is(on.clone());
        async move { put_within(&env, limit, store.put_if(&key, body, &expect)).await }
    }

    /// Takes in the reply to a request for HEAD that was sent at `asked`; returns `None` if HEAD is unchanged: still
    /// `known`.
    pub fn heard(
        &mut self,
        got: Result<Got>,
        asked: Instant,
        known: &Head,
    ) -> Result<Option<ReadHead>, HeadTrouble> {
        match got.map_err(HeadTrouble::Failed)? {
            Got::Unchanged { date_ms } => {
                self.time.observe(date_ms, asked);
                self.notice_put_back(known, asked, known).map_err(HeadTrouble::Stop)?;
                self.shared.trouble(None);
                self.absent = None;
                Ok(None)
            }
            Got::Object { bytes, version, date_ms } => {
                self.time.observe(date_ms, asked);
                let head = Head::decode(&self.key, &bytes).map_err(|error| match error.code() {
                    // This version can never follow it again.
                    Code::TooNew => HeadTrouble::Stop(error),
                    _ => HeadTrouble::Damaged(error),
                })?;
                self.shared.trouble(None);
                self.absent = None;
                self.notice_put_back(&head, asked, known).map_err(HeadTrouble::Stop)?;
                Ok(Some(ReadHead { head, version, asked }))
            }
            Got::Absent { date_ms } => {
                self.time.observe(date_ms, asked);
                Err(self.absent(asked))
            }
        }
    }

    /// Takes in the reply to a read that began before the writer knew this HEAD. It counts if it shows a newer one. An
    /// older one was HEAD then, so the known HEAD must continue it (P21).
    pub fn heard_late(
        &mut self,
        got: Result<Got>,
        asked: Instant,
        known: &Head,
    ) -> Result<Option<ReadHead>, HeadTrouble> {
        let Ok(Got::Object { bytes, .. }) = &got else { return Ok(None) };
        match Head::decode(&self.key, bytes) {
            Ok(head) if head.commit_seq > known.commit_seq => self.heard(got, asked, known),
            Ok(head) => Shown::by(&head, asked).comes_before(known).map(|()| None).map_err(HeadTrouble::Stop),
            Err(_) => Ok(None),
        }
    }

    /// Refuses a HEAD that is older than one that was read and not followed yet (P21). Those followed are checked later.
    fn notice_put_back(&mut self, head: &Head, asked: Instant, known: &Head) -> Result<()> {
        let read = self.env.monotonic();
        let ahead = self.shown.filter(|shown| shown.commit_seq() > known.commit_seq);
        self.shown = Some(match ahead {
            Some(shown) => shown.and_then(head, asked, read)?,
            None => Shown::by(head, read),
        });
        Ok(())
    }

    /// Counts a reply, requested at `asked`, that there is no HEAD. After enough of them the writer stops (P22).
    fn absent(&mut self, asked: Instant) -> HeadTrouble {
        let (times, since) = self.absent.map_or((1, asked), |(times, since)| (times + 1, since));
        self.absent = Some((times, since));
        let key = &self.key;
        if times >= ABSENT && asked.saturating_duration_since(since) >= ABSENT_FOR {
            return HeadTrouble::Stop(Error::new(
                Code::HeadMissing,
                format!(
                    "{key}, the HEAD of a queue file that was open, was deleted; it is not created again: restore the queue file, or open another name"
                ),
            ));
        }
        let error =
            Error::new(Code::Unreachable, format!("the store says that there is no {key}: reading again"));
        HeadTrouble::Absent(error, LOOK_AGAIN * (1 << (times.min(4) - 1)))
    }
}

/// Returns whether sending again is useless, for a body of which nothing was sent.
pub(super) fn is_hopeless(code: Code, waited: Duration, deadline: Duration) -> bool {
    match code {
        // A person has to do something first: make room, for example.
        Code::Denied | Code::NoSuchBucket | Code::NoCompareAndSwap | Code::DiskFull => true,
        // Each put waits for the lock of another process, and a caller that gives up meanwhile gets "unknown". So stop
        // before the callers do, while surely nothing was sent.
        Code::Locked => waited > deadline.mul_f64(0.5),
        _ => false,
    }
}
