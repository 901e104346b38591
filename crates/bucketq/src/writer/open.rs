//! Bringing a writer to life: read the queue file, or make it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::archive::Archiver;
use super::local::{Local, unseen};
use super::{Chain, Pace, Writer, back_off, writer_id};
use crate::cache::Kept;
use crate::catchup::{Source, Trouble};
use crate::commit::{self, Attempt, Care, Fresh};
use crate::config::{Mode, Options};
use crate::db::{Db, Limits};
use crate::door::{Mail, Shared};
use crate::env::Env;
use crate::error::{Code, Error, Kind, Result};
use crate::gc::Collector;
use crate::head::Head;
use crate::keys;
use crate::local::{Dir, Disk, Settled, Taken, directory, failed, make};
use crate::metrics::{Counted, Counters};
use crate::pages::{PAGE, PageFile, Pages};
use crate::record::Record;
use crate::settle::Shown;
use crate::store::probe::{ROUNDS_AT_CREATION, WRITERS};
use crate::store::{Expect, Got, Put, Store, Version, probe};
use crate::time::Timekeeper;
use crate::upload::Uploads;
use crate::wire::corrupt;

/// Tries at open: a passing fault is ridden out, a wrong address is told soon.
const TRIES: u32 = 6;
/// Pauses between them.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// What a writer is opened with.
pub(crate) struct Opening {
    /// The place, over one connection or several separate ones (for the probe).
    pub stores: Vec<Arc<dyn Store>>,
    /// The name of the queue file in it.
    pub name: String,
    pub options: Arc<Options>,
    pub env: Env,
    pub rx: mpsc::UnboundedReceiver<Mail>,
    pub wake: mpsc::WeakUnboundedSender<Mail>,
    pub shared: Arc<Shared>,
    /// The directory of Local mode, if it is not the one the options name.
    pub dir: Option<Arc<dyn Dir>>,
}

/// A queue file as found.
struct Found {
    head: Head,
    version: Version,
    asked: tokio::time::Instant,
    pages: Pages,
    records: Vec<Record>,
}

/// Reads and makes queue files for [`Writer::open`].
struct Opener {
    source: Source,
    options: Arc<Options>,
    env: Env,
    time: Timekeeper,
    stores: Vec<Arc<dyn Store>>,
    /// A creation that was sent and has not been seen to land.
    sent: Option<Bytes>,
    /// There was a HEAD: it is not made again, whatever becomes of it (P22).
    met: bool,
    /// And this one could be decoded: an older one is not taken for it (P21).
    shown: Option<Shown>,
}

impl Writer {
    /// Open the queue file, or make it.
    pub async fn open(opening: Opening) -> Result<Self> {
        let Opening { stores, name, options, env, rx, wake, shared, dir } = opening;
        let Some(first) = stores.first() else { return Err(Error::invalid("a queue file needs a store")) };
        let store: Arc<dyn Store> =
            Arc::new(Counted { inner: Arc::clone(first), counters: Arc::clone(&shared.counters) });
        let max_pages = Self::max_pages(&options);
        let source = Source { store: Arc::clone(&store), name: name.clone(), max_pages };
        let mut time = Timekeeper::new(env.clone());
        time.set_max_skew(skew_ms(&options, store.as_ref()));
        let mut opener = Opener {
            source,
            options: Arc::clone(&options),
            env: env.clone(),
            time,
            stores,
            sent: None,
            met: false,
            shown: None,
        };
        let copy = opener.keep_in_cache()?;
        let (source, store) = (opener.source.clone(), Arc::clone(&opener.source.store));
        let (found, local) = opener.open_in(dir).await?;
        let time = opener.time;
        let pages = PageFile::new(found.pages);
        let db = Db::open(pages.connect(max_pages)?)?;
        let under_way = shared.base_under_way.clone();
        let mut uploads =
            Uploads::new(Arc::clone(&store), &name, Arc::clone(&options), env.clone(), under_way);
        let collector = Collector::new(Arc::clone(&store), &name, Arc::clone(&options), env.clone());
        found.records.iter().for_each(|r| uploads.settled(r));
        let record = found.head.tail.last().map_or(1024, Record::encoded_len);
        let zstd = zstd::bulk::Compressor::new(1)
            .map_err(|e| Error::new(Code::Internal, "zstd cannot be set up").because(e))?;
        Ok(Self {
            source,
            store,
            limits: Limits { max_payload: options.max_payload, max_pages },
            id: writer_id(&env, &options),
            attempt: 0,
            drawn: VecDeque::new(),
            mine: None,
            uploads,
            collector,
            archiver: Archiver::new(wake),
            wish: None,
            zstd,
            parked: VecDeque::new(),
            carry: vec![],
            pace: Pace {
                put: Duration::from_millis(5),
                last_put: None,
                expect: None,
                gap_until: None,
                poll: options.poll_min,
                polled: found.asked,
                looked_ms: 0,
                sharing: super::Sharing::new(),
                record,
                largest: record,
                swell: 1.0,
            },
            halted: None,
            seen: None,
            shown: None,
            local,
            copy,
            chain: Chain { head: found.head, version: found.version, fresh: found.asked, pages, db },
            options,
            env,
            shared,
            rx,
            time,
        })
    }
}

impl Opener {
    /// In Durable mode with a cache, read through it from now on.
    fn keep_in_cache(&mut self) -> Result<Option<Settled>> {
        let Some(cache) = self.options.cache.as_ref().filter(|_| self.options.mode == Mode::Durable) else {
            return Ok(None);
        };
        let (store, name) = (Arc::clone(&self.source.store), &self.source.name);
        let dir = directory(Some(cache), &store.describe(), name)?;
        make(&dir).map_err(|e| failed("make the directory", &dir, &e))?;
        let copy = Settled::new(&dir, name, self.options.copy_interval, self.env.clone());
        self.source.store = Arc::new(Kept::new(store, dir, self.options.cache_bytes, self.env.clone()));
        Ok(Some(copy))
    }

    /// Open the queue file; in Local mode from its directory, if that holds it, without asking the store.
    async fn open_in(&mut self, dir: Option<Arc<dyn Dir>>) -> Result<(Found, Option<Local>)> {
        if self.options.mode == Mode::Durable {
            return Ok((self.open().await?, None));
        }
        let dir = if let Some(dir) = dir {
            dir
        } else {
            let (store, name) = (self.source.store.describe(), &self.source.name);
            Arc::new(Disk::new(directory(self.options.cache.as_deref(), &store, name)?))
        };
        let taken = Taken::take(dir, Arc::clone(&self.options), self.env.clone())?;
        match taken.restore(self.source.max_pages)? {
            Ok((log, pages)) => {
                let (head, asked) = (log.head().clone(), self.env.monotonic());
                self.time.set_max_skew(head.max_skew_ms);
                let records = head.tail.clone();
                let found = Found { head, version: unseen(), asked, pages, records };
                Ok((found, Some(Local::new(log, false))))
            }
            Err(taken) => {
                let found = self.open().await?;
                let log = taken.begin(found.head.clone(), &found.pages.image())?;
                Ok((found, Some(Local::new(log, true))))
            }
        }
    }

    async fn open(&mut self) -> Result<Found> {
        let (mut last, mut tries) = (None, 0);
        let until = self.env.monotonic() + self.options.deadline;
        while tries < TRIES {
            match self.once().await {
                Ok(Some(found)) => return Ok(found),
                // Somebody made it, or collected what was being read: the next look finds another HEAD (P18).
                Ok(None) if self.env.monotonic() < until => continue,
                Ok(None) => tries += 1,
                Err(error) => {
                    let passing = matches!(
                        error.code(),
                        Code::Unreachable | Code::Throttled | Code::Timeout | Code::Corrupt | Code::Foreign
                    );
                    if !passing {
                        return Err(error);
                    }
                    last = Some(error);
                    tries += 1;
                }
            }
            back_off(&self.env, PAUSE.0, PAUSE.1, tries).await;
        }
        let what = format!("opening {} in {}", self.source.name, self.source.store.describe());
        Err(last
            .unwrap_or_else(|| Error::new(Code::Contended, "others make and remove it all the time"))
            .during(what))
    }

    /// One look; none when it has to be looked at again.
    async fn once(&mut self) -> Result<Option<Found>> {
        let key = keys::head(&self.source.name);
        let (asked, asked_ms) = (self.env.monotonic(), self.env.wall_ms());
        match self.get(&key).await? {
            Got::Object { bytes, version, date_ms } => {
                self.met = true;
                let head = Head::decode(&key, &bytes)?;
                if let Some(shown) = self.shown.replace(Shown::by(&head)) {
                    shown.comes_before(&head)?;
                }
                // First the skew: by less, an honest clock would count as wrong until the next Date.
                self.time.set_max_skew(head.max_skew_ms);
                self.time.observe(date_ms, asked_ms);
                if let Err(error) = head.check_writable(&key) {
                    tracing::warn!(%error, "the queue file can only be read");
                }
                let most = self.source.max_pages;
                if head.page_count > most {
                    let (has, may) = (u64::from(head.page_count) * PAGE as u64, self.options.max_file);
                    return Err(Error::new(
                        Code::FileFull,
                        format!(
                            "{key} holds {has} bytes of pages; this handle was opened with max_file = {may}"
                        ),
                    ));
                }
                match self.source.load(&head).await {
                    Ok((pages, records)) => Ok(Some(Found { head, version, asked, pages, records })),
                    Err(Trouble::Missing(missing)) => match self.get(&key).await? {
                        Got::Object { version: newer, .. } if newer != version => Ok(None),
                        _ => Err(corrupt(&missing, "HEAD refers to it and it is not there")),
                    },
                    Err(Trouble::Error(error)) => Err(error),
                }
            }
            Got::Absent { date_ms } => {
                self.time.observe(date_ms, asked_ms);
                if self.met {
                    return Err(Error::new(
                        Code::HeadMissing,
                        format!(
                            "{key} was there a moment ago and is gone; it is not made again: restore it, or open once more if it was to go"
                        ),
                    ));
                }
                self.make(&key).await
            }
            Got::Unchanged { .. } => {
                Err(corrupt(&key, "the store calls it unchanged though nothing was known"))
            }
        }
    }

    async fn get(&self, key: &str) -> Result<Got> {
        let limit = self.options.deadline / 3;
        tokio::select! {
            biased;
            got = self.source.store.get(key, None) => got,
            () = self.env.sleep(limit) => Err(Error::new(Code::Unreachable, format!("the store did not answer within {limit:?}"))),
        }
    }

    /// Make the queue file. Whatever the answer is, a look afterwards tells whose it is: both are fine.
    async fn make(&mut self, key: &str) -> Result<Option<Found>> {
        if !self.options.create || self.options.read_only {
            return Err(Error::new(
                Code::NoSuchFile,
                format!("there is no queue file {} in {}", self.source.name, self.source.store.describe()),
            ));
        }
        let body = if let Some(body) = self.sent.clone() {
            body
        } else {
            if let Some(base) = self.orphan().await? {
                // Unless somebody made it since it was looked for.
                let Got::Absent { .. } = self.get(key).await? else { return Ok(None) };
                return Err(Error::new(
                    Code::HeadMissing,
                    format!(
                        "{} has no HEAD but bases such as {base}: restore it, or choose another name",
                        self.source.name
                    ),
                ));
            }
            if self.source.store.needs_probe() {
                probe(&self.stores, &self.source.name, ROUNDS_AT_CREATION, WRITERS, &self.env).await?;
            }
            self.first_body()?
        };
        let limit = self.options.deadline / 3;
        let asked_ms = self.env.wall_ms();
        let put = tokio::select! {
            biased;
            put = self.source.store.put_if(key, body.clone(), &Expect::Absent) => put,
            () = self.env.sleep(limit) => Put::Unknown { error: Error::new(Code::Unreachable, "the store did not answer"), sent: true, retry_after: None },
        };
        match put {
            Put::Stored { date_ms, .. } => {
                self.time.observe(date_ms, asked_ms);
                tracing::info!(
                    name = self.source.name,
                    store = self.source.store.describe(),
                    "made a queue file"
                );
                Box::pin(self.once()).await
            }
            Put::Conflict => Ok(None),
            Put::Unknown { error, sent, .. } => {
                self.sent = sent.then_some(body);
                if error.kind() == Kind::Unavailable { Err(error) } else { Ok(None) }
            }
        }
    }

    /// A base, if there is one: a HEAD that is gone while its bases are there is a loss, not an invitation (P22).
    async fn orphan(&self) -> Result<Option<String>> {
        let left = self.source.store.list(&keys::base_prefix(&self.source.name)).await?;
        Ok(left.into_iter().next().map(|base| base.key))
    }

    /// Commit 1: the empty schema, whole in HEAD's tail.
    fn first_body(&self) -> Result<Bytes> {
        let now = self.time.now_ms();
        let pages = PageFile::new(Pages::new());
        drop(Db::create(pages.connect(self.source.max_pages)?, now)?);
        let (changes, after) = pages.with(|p| (p.take_changes(), (p.page_count(), p.checksum())));
        let skew_ms = skew_ms(&self.options, self.source.store.as_ref());
        let nothing = Head::nothing(self.env.bytes(), self.env.bytes(), now, skew_ms);
        let attempt =
            Attempt { writer: self.env.bytes(), number: 1, commit_id: self.env.bytes(), commit_ms: now };
        let mut zstd = zstd::bulk::Compressor::new(1)
            .map_err(|e| Error::new(Code::Internal, "zstd cannot be set up").because(e))?;
        let record = commit::record(&nothing, &attempt, &changes, after, 0, &mut zstd)?;
        Ok(commit::next(&nothing, &attempt, &record, Fresh::default(), &Care::none(), &self.options)
            .encode()
            .into())
    }
}

/// The skew a queue file made here would have.
fn skew_ms(options: &Options, store: &dyn Store) -> u32 {
    let skew = options.max_skew.unwrap_or_else(|| store.default_max_skew());
    u32::try_from(skew.as_millis()).unwrap_or(u32::MAX)
}

impl Shared {
    /// What a writer starts with.
    pub fn fresh() -> Arc<Self> {
        Arc::new(Self::new(Arc::new(Counters::default())))
    }
}
