//! Restores an image: it becomes the newest commit of a queue file, in a lineage of its own (P23).
//!
//! Called by programs. Takes no part in the old lineage: a writer of that one halts with `RolledBack` and opens again.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use tokio::time::Instant;

use super::image::{self, Sound};
use super::report::Tally;
use crate::bucket::head::{BaseRef, Head, MAX_SEQ};
use crate::bucket::keys::Object;
use crate::bucket::wire::hash;
use crate::bucket::{base, keys};
use crate::bytes::store::probe::{ROUNDS_AT_CREATION, WRITERS, conditions_hold};
use crate::bytes::store::{Expect, Got, Put, Store, StoreUrl, Version, open_separately, probe};
use crate::bytes::wrap::limited::CallLimit;
use crate::engine::commit::{self, CommitAttempt};
use crate::engine::time::{Timekeeper, skew_ms};
use crate::noun::config::{MAX_HEAD, Options};
use crate::noun::env::Env;
use crate::noun::error::{Code, Error, Kind, Result};
use crate::state::pages::PAGE;

/// Connections that the probe races.
const PROBE_CONNECTIONS: usize = 4;
/// The restored commit is this far above every known one: commits made during the upload of the base do not reach it.
const AHEAD: u64 = 1 << 12;
/// This far when HEAD cannot be read: it must also be above commits that left no trace, because fences only grow.
const FAR_AHEAD: u64 = 1 << 24;
/// The error text when HEAD was sent and no read has shown the outcome.
const MAYBE_RESTORED: &str =
    "it is not known whether the restore took place: check the queue file, and restore again if not";
/// Longest pause between two tries.
const PAUSE_MS: u64 = 500;

/// The result of a restore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Restored {
    /// The commit that the image became.
    pub commit_seq: u64,
    /// Its id, in hexadecimal digits.
    pub commit_id: String,
    /// The new lineage, in hexadecimal digits.
    pub lineage_id: String,
    /// The file id, in hexadecimal digits: the old one if HEAD could be read, else a new one.
    pub file_id: String,
    /// The commit that was the newest before, if HEAD could be read.
    pub replaced: Option<u64>,
    /// Jobs in the image.
    pub jobs: u64,
    /// Objects of another file id under the name. Nothing refers to them and nothing collects them: delete them by hand
    /// once you have seen that the restored file is right.
    pub foreign: Tally,
}

/// Makes the image at `path` the newest state of the queue file at `url`, whether that is a queue file, a damaged one
/// or none. Undoes everything committed since the image was made. Stop the workers first: leases granted since then are
/// forgotten, so their jobs can be claimed at once.
pub async fn restore(url: &str, path: &Path, options: Options) -> Result<Restored> {
    let env = Env::default();
    let url = StoreUrl::parse(url)?;
    options.check()?;
    let call_limit = CallLimit::new(&env, options.deadline);
    let restored = async {
        let stores = open_separately(&url, &options, &env, PROBE_CONNECTIONS).await?;
        run(&call_limit, stores, url.name(), path, options, env).await
    };
    call_limit.run(&format!("the restore of {}", url.name()), Box::pin(restored)).await
}

/// Does the same as [`restore`] in the given store, with the given clock.
pub async fn restore_with(
    store: Arc<dyn Store>,
    name: &str,
    path: &Path,
    options: Options,
    env: Env,
) -> Result<Restored> {
    StoreUrl::check_name(name)?;
    options.check()?;
    let call_limit = CallLimit::new(&env, options.deadline);
    let restored = run(&call_limit, vec![store], name, path, options, env);
    call_limit.run(&format!("the restore of {name}"), Box::pin(restored)).await
}

async fn run(
    call_limit: &Arc<CallLimit>,
    stores: Vec<Arc<dyn Store>>,
    name: &str,
    path: &Path,
    options: Options,
    env: Env,
) -> Result<Restored> {
    let stores: Vec<_> = stores.into_iter().map(|store| call_limit.over_store(store)).collect();
    if options.read_only {
        return Err(Error::new(Code::ReadOnly, "a restore writes, and the option read_only forbids that"));
    }
    let max_pages = u32::try_from(options.max_file / PAGE as u64).unwrap_or(u32::MAX - 1);
    let from = path.to_owned();
    let read = tokio::task::spawn_blocking(move || -> Result<_> {
        let sound = image::read(&from, max_pages)?;
        let body = Bytes::from(base::encode(&sound.pages)?);
        Ok((sound, body))
    });
    let (sound, body) = ended(read.await)?;
    let mut restoring = Restoring::new(RestoreTarget::new(stores, name, options)?, env);
    restoring.call_limit = Arc::clone(call_limit);
    restoring.take(sound, body);
    restoring.run().await
}

fn ended<T>(result: std::result::Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    result.unwrap_or_else(|e| Err(Error::bug("reading the image ended early").because(e)))
}

pub(super) struct RestoreTarget {
    store: Arc<dyn Store>,
    /// The same store over separate connections, for the probe.
    stores: Vec<Arc<dyn Store>>,
    name: String,
    options: Options,
}

impl RestoreTarget {
    pub(super) fn new(stores: Vec<Arc<dyn Store>>, name: &str, options: Options) -> Result<Self> {
        let Some(store) = stores.first().cloned() else {
            return Err(Error::invalid("a restore needs a store"));
        };
        Ok(Self { store, stores, name: name.to_owned(), options })
    }
}

/// A state that is to become the newest one.
pub(super) struct Restoring {
    pub(super) call_limit: Arc<CallLimit>,
    place: RestoreTarget,
    env: Env,
    time: Timekeeper,
    sound: Option<Sound>,
    /// The image as a base.
    body: Bytes,
    until: Instant,
    /// The base uploaded by an earlier try: its file id and its reference.
    uploaded: Option<([u8; 16], BaseRef)>,
}

/// The queue file before the restore.
pub(super) struct Before {
    pub head: Option<Head>,
    pub version: Option<Version>,
}

pub(super) enum Sent {
    Stored,
    /// Another commit replaced HEAD.
    Lost,
}

impl Restoring {
    pub(super) fn new(place: RestoreTarget, env: Env) -> Self {
        let mut time = Timekeeper::new(env.clone(), place.stores.clone(), &place.name, &place.options);
        time.set_max_skew(skew_ms(&place.options, place.store.as_ref()));
        let until = env.monotonic() + place.options.deadline;
        let call_limit = CallLimit::new(&env, place.options.deadline);
        Self { call_limit, place, env, time, sound: None, body: Bytes::new(), until, uploaded: None }
    }

    /// Sets the image to restore and its base.
    pub(super) fn take(&mut self, sound: Sound, body: Bytes) {
        (self.sound, self.body, self.uploaded) = (Some(sound), body, None);
    }

    fn sound(&self) -> Result<&Sound> {
        self.sound.as_ref().ok_or_else(|| Error::bug("a restore without an image"))
    }

    pub(super) fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.place.store)
    }

    /// Returns the present, once this machine's clock and the store agree on it.
    pub(super) async fn now_ms(&mut self) -> Result<i64> {
        self.time.agreed_ms().await
    }

    pub(super) fn is_ahead(&self, head_ms: i64, now_ms: i64) -> bool {
        self.time.is_ahead(head_ms, now_ms)
    }

    /// Returns whether the deadline has passed.
    pub(super) fn is_late(&self) -> bool {
        self.env.monotonic() > self.until
    }

    async fn run(mut self) -> Result<Restored> {
        loop {
            let before = self.before().await?;
            let (known, foreign) = self.known(before.head.as_ref()).await?;
            let head = self.next(&before, known).await?;
            let expect = before.version.map_or(Expect::Absent, Expect::Is);
            let sent = self.send(&head, &expect).await?;
            self.call_limit.doubt(None);
            if let Sent::Stored = sent {
                tracing::info!(name = self.place.name, commit_seq = head.commit_seq, "restored a queue file");
                return Ok(Restored {
                    commit_seq: head.commit_seq,
                    commit_id: keys::hex(&head.commit_id),
                    lineage_id: keys::hex(&head.lineage_id),
                    file_id: keys::hex(&head.file_id),
                    replaced: before.head.map(|h| h.commit_seq),
                    jobs: self.sound()?.jobs,
                    foreign,
                });
            }
            if self.is_late() {
                let what = "other writers committed during every try to restore: stop them first";
                return Err(Error::new(Code::Contended, what));
            }
            self.pause().await;
        }
    }

    pub(super) async fn pause(&self) {
        self.env.sleep(std::time::Duration::from_millis(self.env.below(PAUSE_MS) + 1)).await;
    }

    fn key(&self) -> String {
        keys::head(&self.place.name)
    }

    /// Reads the current HEAD. A damaged one may be replaced; a foreign one or one of a newer version may not.
    pub(super) async fn before(&mut self) -> Result<Before> {
        let key = self.key();
        let sent = self.env.monotonic();
        match self.place.store.get_at_most(&key, None, MAX_HEAD as u64).await? {
            Got::Object { bytes, version, date_ms } => {
                let head = match Head::decode(&key, &bytes) {
                    Ok(head) => {
                        head.check_writable(&key)?;
                        self.time.set_max_skew(head.max_skew_ms);
                        Some(head)
                    }
                    Err(error) if error.code() == Code::Corrupt => {
                        tracing::warn!(%error, "HEAD is damaged: the restored file gets a new file id");
                        None
                    }
                    Err(error) => return Err(error),
                };
                self.time.observe(date_ms, sent);
                Ok(Before { head, version: Some(version) })
            }
            Got::Absent { date_ms } if self.place.options.create => {
                self.time.observe(date_ms, sent);
                if self.place.store.needs_probe() {
                    let (stores, name) = (&self.place.stores, &self.place.name);
                    let deadline = self.place.options.deadline;
                    probe(stores, name, ROUNDS_AT_CREATION, WRITERS, deadline, &self.env).await?;
                }
                Ok(Before { head: None, version: None })
            }
            _ => Err(Error::new(
                Code::NoSuchFile,
                format!("there is no queue file {} in {}", self.place.name, self.place.store.describe()),
            )),
        }
    }

    /// Returns the newest commit number found in HEAD, image or keys, and the objects of other files under the name.
    pub(super) async fn known(&self, head: Option<&Head>) -> Result<(u64, Tally)> {
        let listed = self.place.store.list(&keys::prefix(&self.place.name)).await?;
        let mut known = self.sound()?.newest.max(head.map_or(0, |h| h.commit_seq));
        let mut foreign = Tally::default();
        for object in listed {
            let Some(named) = keys::parse(&self.place.name, &object.key) else { continue };
            // An object staged for Spark is of no commit.
            if !matches!(named.object, Object::Stage { .. }) {
                known = known.max(named.object.seq());
            }
            let mine = |id: &[u8; 16]| keys::file8(id) == named.file8;
            let kept = head.is_some_and(|h| mine(&h.file_id));
            if !kept && !self.uploaded.as_ref().is_some_and(|(id, _)| mine(id)) {
                foreign.add(object.size);
            }
        }
        Ok((known, foreign))
    }

    /// Uploads the base under its key. An earlier upload is used again as long as its number is above every known
    /// commit.
    async fn base(&mut self, file_id: [u8; 16], above: u64, ahead: u64) -> Result<BaseRef> {
        if let Some((_, made)) = self.uploaded.filter(|(of, made)| *of == file_id && made.seq > above) {
            return Ok(made);
        }
        let seq = above.saturating_add(ahead);
        if seq >= MAX_SEQ {
            let what =
                format!("the image or the queue file mentions commit {above}, and no higher number exists");
            return Err(Error::new(Code::Image, what));
        }
        let rand: [u8; 8] = self.env.bytes();
        let key = keys::base(&self.place.name, &file_id, seq, &rand);
        self.place.store.put_new(&key, self.body.clone()).await?;
        let len = self.body.len() as u64;
        let made = BaseRef { seq, rand, codec: base::CODEC_ZSTD, len, hash: hash(&self.body) };
        self.uploaded = Some((file_id, made));
        Ok(made)
    }

    /// Returns the HEAD that begins the new lineage: the image as its base and an empty log.
    pub(super) async fn next(&mut self, before: &Before, known: u64) -> Result<Head> {
        let old = before.head.as_ref();
        let file_id = match (old, &self.uploaded) {
            (Some(old), _) => old.file_id,
            (None, Some((id, _))) => *id,
            (None, None) => self.env.bytes(),
        };
        // The listing includes the base of an earlier try: it must not count as a known commit.
        let above = match &self.uploaded {
            Some((id, r)) if *id == file_id && known == r.seq => r.seq - 1,
            _ => known,
        };
        let base = self.base(file_id, above, if old.is_some() { AHEAD } else { FAR_AHEAD }).await?;
        let max_skew_ms =
            old.map_or(skew_ms(&self.place.options, self.place.store.as_ref()), |h| h.max_skew_ms);
        let now_ms = self.time.agreed_ms().await?;
        // A HEAD far ahead of every clock is another reason for a restore: its time is not kept.
        let ahead = |head: &&Head| !self.time.is_ahead(head.commit_ms, now_ms);
        let commit_ms = old.filter(ahead).map_or(now_ms, |head| head.commit_ms.max(now_ms));
        let attempt =
            CommitAttempt { writer: self.env.bytes(), number: 1, commit_id: self.env.bytes(), commit_ms };
        let lineage_id = self.env.bytes();
        let nothing = Head::nothing(file_id, lineage_id, commit_ms, max_skew_ms);
        let after = (self.sound()?.pages.page_count(), self.sound()?.pages.checksum());
        Ok(commit::restored(old.unwrap_or(&nothing), &attempt, lineage_id, base, after))
    }

    /// Puts HEAD and settles it: the lineage id shows whether the stored HEAD is ours.
    pub(super) async fn send(&mut self, head: &Head, expect: &Expect) -> Result<Sent> {
        let key = self.key();
        let body = Bytes::from(head.encode());
        if let Expect::Is(version) = expect
            && self.place.store.needs_probe()
        {
            // HEAD may have been copied to this store, and this PUT replaces it.
            conditions_hold(&self.place.store, &self.place.name, version, &self.env).await?;
        }
        let mut ever_sent = false;
        loop {
            self.call_limit.doubt(Some(MAYBE_RESTORED));
            let error = match self.place.store.put_if(&key, body.clone(), expect).await {
                Put::Stored { .. } => return Ok(Sent::Stored),
                Put::Conflict => {
                    ever_sent = true;
                    Error::new(Code::Contended, "HEAD was replaced meanwhile")
                }
                Put::Unknown { error, sent, .. } => {
                    ever_sent |= sent;
                    if !ever_sent {
                        self.call_limit.doubt(None);
                    }
                    if !ever_sent && (error.kind() != Kind::Unavailable || self.env.monotonic() > self.until)
                    {
                        return Err(error);
                    }
                    error
                }
            };
            // After any reply but Stored only a read shows the outcome (P3).
            match self.place.store.get_at_most(&key, None, MAX_HEAD as u64).await {
                Ok(Got::Object { bytes, version, .. }) => {
                    let now = Head::decode(&key, &bytes);
                    if now.is_ok_and(|now| now.lineage_id == head.lineage_id) {
                        return Ok(Sent::Stored);
                    }
                    if *expect != Expect::Is(version) {
                        return Ok(Sent::Lost);
                    }
                }
                Ok(_) if *expect != Expect::Absent => return Ok(Sent::Lost),
                Ok(_) => {}
                Err(looking) => tracing::debug!(error = %looking, "settling a restore"),
            }
            if self.env.monotonic() > self.until {
                let code = if ever_sent { Code::OutcomeUnknown } else { error.code() };
                return Err(Error::new(code, MAYBE_RESTORED).because(error));
            }
            self.pause().await;
        }
    }
}
