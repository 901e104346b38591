//! Restoring: an image becomes the newest commit of a queue file, in a lineage of its own (P23).
//!
//! Called by programs. Takes no part in the old lineage: whoever knows that one halts with `RolledBack` and opens again.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use tokio::time::Instant;

use super::image::{self, Sound};
use super::report::Tally;
use crate::commit::{self, Attempt};
use crate::config::Options;
use crate::env::Env;
use crate::error::{Code, Error, Kind, Result};
use crate::head::{BaseRef, Head, MAX_SEQ};
use crate::pages::PAGE;
use crate::store::probe::{ROUNDS_AT_CREATION, WRITERS};
use crate::store::{Expect, Got, Put, Store, StoreUrl, Version, open_separately, probe};
use crate::time::Timekeeper;
use crate::wire::hash;
use crate::{base, keys};

/// Connections the probe races over.
const PROBE_CONNECTIONS: usize = 4;
/// The restored commit is this far above every one known: commits made while the base is uploaded do not reach it.
const AHEAD: u64 = 1 << 12;
/// So far when HEAD cannot be read: commits that nothing tells of any more must lie below too, for fences only grow.
const FAR_AHEAD: u64 = 1 << 24;
/// Pauses between tries.
const PAUSE_MS: u64 = 500;

/// What a restore did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Restored {
    /// The commit the image became.
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
    /// Objects of another file id under the name. Nothing refers to them and nothing collects them: once the restored
    /// file is seen to be right they can be deleted by hand.
    pub foreign: Tally,
}

/// Make the image at `path` the newest state of the queue file at `url`, whatever is there: a queue file, a damaged
/// one, or none. Everything committed since the image was made is undone. Stop the workers first: leases given
/// since then are forgotten, so their jobs can be claimed at once.
pub async fn restore(url: &str, path: &Path, options: Options) -> Result<Restored> {
    let env = Env::default();
    let url = StoreUrl::parse(url)?;
    options.check()?;
    let stores = open_separately(&url, &options, &env, PROBE_CONNECTIONS).await?;
    run(stores, url.name(), path, options, env).await
}

/// [`restore`] in a store of one's own, with one's own clock.
pub async fn restore_with(
    store: Arc<dyn Store>,
    name: &str,
    path: &Path,
    options: Options,
    env: Env,
) -> Result<Restored> {
    StoreUrl::check_name(name)?;
    options.check()?;
    run(vec![store], name, path, options, env).await
}

async fn run(
    stores: Vec<Arc<dyn Store>>,
    name: &str,
    path: &Path,
    options: Options,
    env: Env,
) -> Result<Restored> {
    if options.read_only {
        return Err(Error::new(Code::ReadOnly, "a restore writes, and the options say read_only"));
    }
    let max_pages = u32::try_from(options.max_file / PAGE as u64).unwrap_or(u32::MAX - 1);
    let from = path.to_owned();
    let read = tokio::task::spawn_blocking(move || -> Result<_> {
        let sound = image::read(&from, max_pages)?;
        let body = Bytes::from(base::encode(&sound.pages)?);
        Ok((sound, body))
    });
    let (sound, body) = ended(read.await)?;
    let Some(store) = stores.first().cloned() else { return Err(Error::invalid("a restore needs a store")) };
    let time = Timekeeper::new(env.clone());
    let until = env.monotonic() + options.deadline;
    let place = Place { store, stores, name: name.to_owned(), options };
    Restoring { place, env, time, sound, body, until, uploaded: None }.run().await
}

fn ended<T>(result: std::result::Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    result.unwrap_or_else(|e| Err(Error::new(Code::Internal, "reading the image ended early").because(e)))
}

struct Place {
    store: Arc<dyn Store>,
    /// The same place over separate connections, for the probe.
    stores: Vec<Arc<dyn Store>>,
    name: String,
    options: Options,
}

struct Restoring {
    place: Place,
    env: Env,
    time: Timekeeper,
    sound: Sound,
    /// The image as a base.
    body: Bytes,
    until: Instant,
    /// The base of an earlier try: whose file it is of, and its reference.
    uploaded: Option<([u8; 16], BaseRef)>,
}

/// What is there before the restore.
struct Before {
    head: Option<Head>,
    version: Option<Version>,
}

enum Sent {
    Stored,
    /// HEAD is another one by now.
    Lost,
}

impl Restoring {
    async fn run(mut self) -> Result<Restored> {
        loop {
            let before = self.before().await?;
            let (known, foreign) = self.known(before.head.as_ref()).await?;
            let head = self.next(&before, known).await?;
            let expect = before.version.map_or(Expect::Absent, Expect::Is);
            if let Sent::Stored = self.send(&head, &expect).await? {
                tracing::info!(name = self.place.name, commit_seq = head.commit_seq, "restored a queue file");
                return Ok(Restored {
                    commit_seq: head.commit_seq,
                    commit_id: keys::hex(&head.commit_id),
                    lineage_id: keys::hex(&head.lineage_id),
                    file_id: keys::hex(&head.file_id),
                    replaced: before.head.map(|h| h.commit_seq),
                    jobs: self.sound.jobs,
                    foreign,
                });
            }
            if self.env.monotonic() > self.until {
                let what = "others committed faster than the image could be put in place: stop them first";
                return Err(Error::new(Code::Contended, what));
            }
            self.pause().await;
        }
    }

    async fn pause(&self) {
        self.env.sleep(std::time::Duration::from_millis(self.env.below(PAUSE_MS) + 1)).await;
    }

    fn key(&self) -> String {
        keys::head(&self.place.name)
    }

    /// HEAD as it is. A damaged one is what restores are for; one of somebody else's or of a newer version stays.
    async fn before(&mut self) -> Result<Before> {
        let key = self.key();
        let sent_ms = self.env.wall_ms();
        match self.place.store.get(&key, None).await? {
            Got::Object { bytes, version, date_ms } => {
                self.time.observe(date_ms, sent_ms);
                let head = match Head::decode(&key, &bytes) {
                    Ok(head) => {
                        head.check_writable(&key)?;
                        Some(head)
                    }
                    Err(error) if error.code() == Code::Corrupt => {
                        tracing::warn!(%error, "HEAD is damaged: the restored file gets a new file id");
                        None
                    }
                    Err(error) => return Err(error),
                };
                Ok(Before { head, version: Some(version) })
            }
            Got::Absent { date_ms } if self.place.options.create => {
                self.time.observe(date_ms, sent_ms);
                if self.place.store.needs_probe() {
                    let (stores, name) = (&self.place.stores, &self.place.name);
                    probe(stores, name, ROUNDS_AT_CREATION, WRITERS, &self.env).await?;
                }
                Ok(Before { head: None, version: None })
            }
            _ => Err(Error::new(
                Code::NoSuchFile,
                format!("there is no queue file {} in {}", self.place.name, self.place.store.describe()),
            )),
        }
    }

    /// The newest commit that anything tells of, and what belongs to other files of the name.
    async fn known(&self, head: Option<&Head>) -> Result<(u64, Tally)> {
        let listed = self.place.store.list(&keys::prefix(&self.place.name)).await?;
        let mut known = self.sound.newest.max(head.map_or(0, |h| h.commit_seq));
        let mut foreign = Tally::default();
        for object in listed {
            let Some(named) = keys::parse(&self.place.name, &object.key) else { continue };
            known = known.max(named.object.seq());
            let mine = |id: &[u8; 16]| keys::file8(id) == named.file8;
            let kept = head.is_some_and(|h| mine(&h.file_id));
            if !kept && !self.uploaded.as_ref().is_some_and(|(id, _)| mine(id)) {
                foreign.add(object.size);
            }
        }
        Ok((known, foreign))
    }

    /// The base where HEAD will look for it: an earlier upload serves while nothing known has reached its number.
    async fn base(&mut self, file_id: [u8; 16], above: u64, ahead: u64) -> Result<BaseRef> {
        if let Some((_, made)) = self.uploaded.filter(|(of, made)| *of == file_id && made.seq > above) {
            return Ok(made);
        }
        let seq = above + ahead;
        if seq >= MAX_SEQ {
            let what = format!(
                "the image or the queue file speaks of commit {above}, which leaves no number above it"
            );
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

    /// The HEAD that begins the new lineage: the image as its base, nothing in the log.
    async fn next(&mut self, before: &Before, known: u64) -> Result<Head> {
        let old = before.head.as_ref();
        let file_id = match (old, &self.uploaded) {
            (Some(old), _) => old.file_id,
            (None, Some((id, _))) => *id,
            (None, None) => self.env.bytes(),
        };
        // What was uploaded by an earlier try is listed too: it is not above itself.
        let above = match &self.uploaded {
            Some((id, r)) if *id == file_id && known == r.seq => r.seq - 1,
            _ => known,
        };
        let base = self.base(file_id, above, if old.is_some() { AHEAD } else { FAR_AHEAD }).await?;
        let skew = self.place.options.max_skew.unwrap_or_else(|| self.place.store.default_max_skew());
        let max_skew_ms = old.map_or(u32::try_from(skew.as_millis()).unwrap_or(u32::MAX), |h| h.max_skew_ms);
        self.time.set_max_skew(max_skew_ms);
        let now_ms = self.time.now_ms();
        // A HEAD far ahead of every clock is another reason for a restore: its time is not carried on.
        let commit_ms = old.and_then(|h| self.time.commit_ms(h.commit_ms).ok()).unwrap_or(now_ms);
        let attempt = Attempt { writer: self.env.bytes(), number: 1, commit_id: self.env.bytes(), commit_ms };
        let lineage_id = self.env.bytes();
        let nothing = Head::nothing(file_id, lineage_id, commit_ms, max_skew_ms);
        let after = (self.sound.pages.page_count(), self.sound.pages.checksum());
        Ok(commit::restored(old.unwrap_or(&nothing), &attempt, lineage_id, base, after))
    }

    /// Put HEAD, and settle it: the lineage id tells whose what is there is.
    async fn send(&mut self, head: &Head, expect: &Expect) -> Result<Sent> {
        let key = self.key();
        let body = Bytes::from(head.encode());
        let mut ever_sent = false;
        loop {
            let error = match self.place.store.put_if(&key, body.clone(), expect).await {
                Put::Stored { .. } => return Ok(Sent::Stored),
                Put::Conflict => {
                    ever_sent = true;
                    Error::new(Code::Contended, "HEAD was replaced meanwhile")
                }
                Put::Unknown { error, sent, .. } => {
                    ever_sent |= sent;
                    if !ever_sent && (error.kind() != Kind::Unavailable || self.env.monotonic() > self.until)
                    {
                        return Err(error);
                    }
                    error
                }
            };
            // After any answer but Stored only a look tells (P3).
            match self.place.store.get(&key, None).await {
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
                let what = "it is not known whether the restore took place: check the queue file, and restore again if not";
                return Err(Error::new(code, what).because(error));
            }
            self.pause().await;
        }
    }
}
