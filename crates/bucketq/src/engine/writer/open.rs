//! Starts a writer: reads the queue file, or creates it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::chores::{Archiver, Chores};
use super::{
    Actor, Chain, Durable, Identity, Local, Packer, ProvenStores, ReadHead, Remote, Turns, WaitingRoom,
    Writer, WriterInMode, back_off, unseen,
};
use crate::bucket::head::Head;
use crate::bucket::keys;
use crate::bucket::record::Record;
use crate::bucket::wire::corrupt;
use crate::bytes::disk;
use crate::bytes::metrics::Counters;
use crate::bytes::store::probe::{ROUNDS_AT_CREATION, WRITERS};
use crate::bytes::store::{Expect, Got, Put, Store, Version, probe};
use crate::bytes::wrap::cached::CachedStore;
use crate::bytes::wrap::counted::Counted;
use crate::bytes::wrap::limited::{CallLimit, put_within, within};
use crate::door::{Inbox, Mail, Shared};
use crate::engine::catchup::{FetchError, Source};
use crate::engine::commit::{self, Care, CommitAttempt, Fresh};
use crate::engine::local::{Dir, Disk, LockedDir, Settled, directory, failed};
use crate::engine::settle::Shown;
use crate::engine::time::{Timekeeper, skew_ms};
use crate::noun::config::{Mode, Options};
use crate::noun::env::Env;
use crate::noun::error::{Code, Error, Kind, Result};
use crate::state::db::Db;
use crate::state::pages::{PAGE, PageFile, Pages};

/// The message when a creation was sent and no read has shown its outcome.
const MAYBE_MADE: &str = "the queue file may have been created: open it again to find out";
/// Tries at open: enough for a passing fault, few enough to report a wrong address soon.
const TRIES: u32 = 6;
/// First and longest pause between them.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The arguments of [`Writer::open`].
pub(crate) struct Opening<'a> {
    /// The store, over one connection or several separate ones (for the probe).
    pub stores: Vec<Arc<dyn Store>>,
    /// The name of the queue file in it.
    pub name: String,
    pub options: Arc<Options>,
    pub env: Env,
    /// The mailbox, which is taken once the queue file is open.
    pub inbox: &'a mut Option<Inbox>,
    pub wake: mpsc::WeakUnboundedSender<Mail>,
    pub shared: Arc<Shared>,
    /// The time limit of the opening.
    pub call_limit: Arc<CallLimit>,
    /// The stores whose compare-and-swap this process trusts.
    pub proven_stores: Arc<ProvenStores>,
    /// The directory of Local mode, if it is not the one that the options name.
    pub dir: Option<Arc<dyn Dir>>,
    /// The newest commit that the callers have seen; 0 for the first writer of a mailbox.
    pub seen: u64,
}

/// A queue file as read.
struct LoadedFile {
    head: Head,
    version: Version,
    asked: tokio::time::Instant,
    pages: Pages,
    records: Vec<Record>,
}

/// Reads and creates queue files for [`Writer::open`].
struct Opener {
    source: Source,
    options: Arc<Options>,
    env: Env,
    time: Timekeeper,
    stores: Vec<Arc<dyn Store>>,
    proven_stores: Arc<ProvenStores>,
    call_limit: Arc<CallLimit>,
    /// The body of a creation that was sent and has not been seen to land.
    sent: Option<Bytes>,
    /// There was a HEAD: it is never created again, even if it disappears (P22).
    met: bool,
    /// The last HEAD that could be decoded: an older one is refused (P21).
    shown: Option<Shown>,
}

impl Writer {
    /// Opens the queue file, or creates it.
    pub async fn open(opening: Opening<'_>) -> Result<Self> {
        let Opening { stores, name, options, env, inbox, wake, shared, call_limit, proven_stores, dir, seen } =
            opening;
        let Some(first) = stores.first() else { return Err(Error::invalid("a queue file needs a store")) };
        let counted = |store: &Arc<dyn Store>| -> Arc<dyn Store> {
            Arc::new(Counted { inner: Arc::clone(store), counters: Arc::clone(&shared.counters) })
        };
        let store = counted(first);
        let max_pages = u32::try_from(options.max_file / PAGE as u64).unwrap_or(u32::MAX - 1);
        let source = Source::new(Arc::clone(&store), name.clone(), max_pages);
        let witnesses = stores.iter().map(counted).collect();
        let mut time = Timekeeper::new(env.clone(), witnesses, &name, &options);
        time.set_max_skew(skew_ms(&options, store.as_ref()));
        let mut opener = Opener {
            source,
            options,
            env,
            time,
            stores,
            proven_stores,
            call_limit,
            sent: None,
            met: false,
            shown: None,
        };
        let copy = opener.open_cache()?;
        let (found, local) = opener.open_in(dir).await?;
        if found.head.commit_seq < seen {
            return Err(Error::new(
                Code::RolledBack,
                format!(
                    "this process has seen commit {seen}, and the newest is {} now",
                    found.head.commit_seq
                ),
            ));
        }
        Ok(Self(match local {
            None => WriterInMode::Durable(opener.assemble(Durable(copy), found, inbox, wake, shared)?),
            Some(local) => WriterInMode::Local(opener.assemble(local, found, inbox, wake, shared)?),
        }))
    }
}

impl Opener {
    /// Returns the writer of the queue file that was found.
    fn assemble<H>(
        self,
        home: H,
        found: LoadedFile,
        inbox: &mut Option<Inbox>,
        wake: mpsc::WeakUnboundedSender<Mail>,
        shared: Arc<Shared>,
    ) -> Result<Box<Actor<H>>> {
        let Self { source, options, env, time, proven_stores, .. } = self;
        let LoadedFile { head, version, asked, pages, records } = found;
        shared.set_newest(head.commit_seq);
        let chain = Chain::new(ReadHead { head, version, asked }, pages, &options, &source)?;
        let archiver = Archiver::new(wake, &options, &env, &shared);
        let mut chores = Chores::new(&source, archiver, &options, &env, shared.base_under_way.clone());
        for record in &records {
            chores.uploads.settled(record);
        }
        let packer = Packer::new(chain.head())?;
        let Some(inbox) = inbox.take() else { return Err(Error::bug("the mailbox has an owner already")) };
        Ok(Box::new(Actor {
            home,
            packer,
            waiting: WaitingRoom::new(inbox, asked, &options, &env, &shared),
            turns: Turns::new(asked, &options, &env),
            chain,
            remote: Remote::new(source, time, proven_stores, &options, &env, &shared),
            identity: Identity::new(&env),
            chores,
            halted: None,
            options,
            env,
            shared,
        }))
    }

    /// In Durable mode with a cache, reads through it from now on. Returns the copy that `sqlite3` opens.
    fn open_cache(&mut self) -> Result<Option<Settled>> {
        let Some(cache) = self.options.cache.as_ref().filter(|_| self.options.mode == Mode::Durable) else {
            return Ok(None);
        };
        let (store, name) = (Arc::clone(&self.source.store), &self.source.name);
        let dir = directory(Some(cache), &store.describe(), name)?;
        disk::make(&dir).map_err(|e| failed("make the directory", &dir, &e))?;
        let copy = Settled::new(&dir, name, self.options.copy_interval, self.env.clone());
        self.source.store =
            Arc::new(CachedStore::new(store, dir, self.options.cache_bytes, self.env.clone()));
        Ok(Some(copy))
    }

    /// Opens the queue file; in Local mode from its directory if that holds it, without a request to the store.
    async fn open_in(&mut self, dir: Option<Arc<dyn Dir>>) -> Result<(LoadedFile, Option<Local>)> {
        if self.options.mode == Mode::Durable {
            return Ok((self.open().await?, None));
        }
        let dir = if let Some(dir) = dir {
            dir
        } else {
            let (store, name) = (self.source.store.describe(), &self.source.name);
            Arc::new(Disk::new(directory(self.options.cache.as_deref(), &store, name)?))
        };
        let locked = LockedDir::take(dir, Arc::clone(&self.options), self.env.clone())?;
        match locked.restore(self.source.max_pages)? {
            Ok((log, pages)) => {
                let (head, asked) = (log.head().clone(), self.env.monotonic());
                self.time.set_max_skew(head.max_skew_ms);
                let records = head.tail.clone();
                let found = LoadedFile { head, version: unseen(), asked, pages, records };
                Ok((found, Some(Local::new(log, false))))
            }
            Err(locked) => {
                let found = self.open().await?;
                let log = locked.begin(found.head.clone(), &found.pages.image())?;
                Ok((found, Some(Local::new(log, true))))
            }
        }
    }

    async fn open(&mut self) -> Result<LoadedFile> {
        let opened = self.try_to_open().await;
        opened.map_err(|error| match &self.sent {
            // No read has shown its outcome (P7).
            Some(_) if error.kind() == Kind::Unavailable => {
                Error::new(Code::OutcomeUnknown, format!("{MAYBE_MADE}: {}", error.message())).because(error)
            }
            _ => error,
        })
    }

    async fn try_to_open(&mut self) -> Result<LoadedFile> {
        let (mut last, mut tries) = (None, 0);
        let until = self.env.monotonic() + self.options.deadline;
        while tries < TRIES {
            match self.once().await {
                Ok(Some(found)) => return Ok(found),
                // Another process created it, or collected an object being read: the next read finds a new HEAD (P18).
                Ok(None) if self.env.monotonic() < until => continue,
                Ok(None) => tries += 1,
                Err(error) => {
                    let passing = matches!(
                        error.code(),
                        Code::Unreachable | Code::Throttled | Code::Timeout | Code::Corrupt | Code::Foreign
                    ) || (error.code() == Code::HeadMissing && self.met);
                    if !passing {
                        return Err(error);
                    }
                    self.call_limit.trouble(&error);
                    last = Some(error);
                    tries += 1;
                }
            }
            back_off(&self.env, PAUSE.0, PAUSE.1, tries).await;
        }
        let what = format!("opening {} in {}", self.source.name, self.source.store.describe());
        Err(last
            .unwrap_or_else(|| {
                Error::new(Code::Contended, "other processes create and delete it again and again")
            })
            .during(what))
    }

    /// Tries once; returns `None` when it has to be tried again.
    async fn once(&mut self) -> Result<Option<LoadedFile>> {
        let key = keys::head(&self.source.name);
        let asked = self.env.monotonic();
        match self.get().await? {
            Got::Object { bytes, version, date_ms } => {
                (self.met, self.sent) = (true, None);
                self.call_limit.doubt(None);
                let head = Head::decode(&key, &bytes)?;
                let read = self.env.monotonic();
                self.shown = Some(match self.shown {
                    Some(shown) => shown.and_then(&head, asked, read)?,
                    None => Shown::by(&head, read),
                });
                // First the skew: with a smaller one, a correct clock would count as wrong until the next Date.
                self.time.set_max_skew(head.max_skew_ms);
                self.time.observe(date_ms, asked);
                if let Err(error) = head.check_writable(&key) {
                    tracing::warn!(%error, "the queue file can only be read");
                }
                let most = self.source.max_pages;
                if head.page_count > most {
                    let (has, may) = (u64::from(head.page_count) * PAGE as u64, self.options.max_file);
                    return Err(Error::new(
                        Code::FileFull,
                        format!(
                            "{key} holds {has} bytes of pages; the option max_file of this handle allows {may}: raise max_file"
                        ),
                    ));
                }
                match self.source.load(&head).await {
                    Ok((pages, records)) => Ok(Some(LoadedFile { head, version, asked, pages, records })),
                    Err(FetchError::Missing(missing)) => match self.get().await? {
                        Got::Object { version: newer, .. } if newer != version => Ok(None),
                        _ => Err(corrupt(&missing, "HEAD refers to it, and it does not exist")),
                    },
                    Err(FetchError::Error(error)) => Err(error),
                }
            }
            Got::Absent { date_ms } => {
                self.time.observe(date_ms, asked);
                if self.met {
                    return Err(Error::new(
                        Code::HeadMissing,
                        format!(
                            "{key} was deleted while it was opened; it is not created again: restore the queue file, or open it again if you meant to delete it"
                        ),
                    ));
                }
                self.make(&key).await
            }
            Got::Unchanged { .. } => {
                Err(corrupt(&key, "the store replied \"not modified\" to an unconditional GET"))
            }
        }
    }

    async fn get(&self) -> Result<Got> {
        within(&self.env, self.options.deadline / 3, self.source.head(None)).await
    }

    /// Creates the queue file. After any reply, a read of HEAD shows whose it is: either is fine.
    async fn make(&mut self, key: &str) -> Result<Option<LoadedFile>> {
        if !self.options.create || self.options.read_only {
            return Err(Error::new(
                Code::NoSuchFile,
                format!("there is no queue file {} in {}", self.source.name, self.source.store.describe()),
            ));
        }
        let body = if let Some(body) = self.sent.clone() {
            body
        } else {
            if let Some(left) = self.orphan().await? {
                // Unless another process created it since HEAD was read.
                let Got::Absent { .. } = self.get().await? else { return Ok(None) };
                return Err(Error::new(
                    Code::HeadMissing,
                    format!(
                        "{} has no HEAD, but objects such as {left} exist: restore it, or choose another name",
                        self.source.name
                    ),
                ));
            }
            if self.source.store.needs_probe() {
                probe(
                    &self.stores,
                    &self.source.name,
                    ROUNDS_AT_CREATION,
                    WRITERS,
                    self.options.deadline,
                    &self.env,
                )
                .await?;
                self.proven_stores.note(self.source.store.as_ref());
            }
            self.first_body().await?
        };
        let asked = self.env.monotonic();
        self.call_limit.doubt(Some(MAYBE_MADE));
        let put = self.source.store.put_if(key, body.clone(), &Expect::Absent);
        let put = put_within(&self.env, self.options.deadline / 3, put).await;
        match put {
            Put::Stored { date_ms, .. } => {
                self.time.observe(date_ms, asked);
                tracing::info!(
                    name = self.source.name,
                    store = self.source.store.describe(),
                    "made a queue file"
                );
                Box::pin(self.once()).await
            }
            Put::Conflict => Ok(None),
            Put::Unknown { error, sent, .. } => {
                if sent {
                    self.sent = Some(body);
                } else if self.sent.is_none() {
                    self.call_limit.doubt(None);
                }
                if error.kind() == Kind::Unavailable { Err(error) } else { Ok(None) }
            }
        }
    }

    /// Returns an object of a queue file of this name, if there is one: then a missing HEAD is a loss and is not created
    /// again (P22).
    async fn orphan(&self) -> Result<Option<String>> {
        for prefix in keys::content_prefixes(&self.source.name) {
            if let Some(left) = self.source.store.list(&prefix).await?.into_iter().next() {
                return Ok(Some(left.key));
            }
        }
        Ok(None)
    }

    /// Builds commit 1: the empty schema, whole in HEAD's tail.
    async fn first_body(&mut self) -> Result<Bytes> {
        let now = self.time.agreed_ms().await?;
        let pages = PageFile::new(Pages::new());
        drop(Db::create(pages.connect(self.source.max_pages)?, now)?);
        let (changes, after) = pages.with(|p| (p.take_changes(), (p.page_count(), p.checksum())));
        let skew_ms = skew_ms(&self.options, self.source.store.as_ref());
        let nothing = Head::nothing(self.env.bytes(), self.env.bytes(), now, skew_ms);
        let attempt = CommitAttempt {
            writer: self.env.bytes(),
            number: 1,
            commit_id: self.env.bytes(),
            commit_ms: now,
        };
        let mut zstd =
            zstd::bulk::Compressor::new(1).map_err(|e| Error::bug("zstd cannot be set up").because(e))?;
        let record = commit::record(&nothing, &attempt, &changes, after, 0, &mut zstd)?;
        Ok(commit::next(&nothing, &attempt, &record, Fresh::default(), &Care::none()).encode().into())
    }
}

impl Shared {
    /// Returns the state that a new writer shares with its handles.
    pub fn fresh() -> Arc<Self> {
        Arc::new(Self::new(Arc::new(Counters::default())))
    }
}
