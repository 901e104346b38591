//! One commit of a queue file, pinned for readers in many processes: the bytes of its HEAD name all its other objects,
//! and none of those ever changes. Every process with these bytes builds the same database, until the objects that HEAD
//! dropped meanwhile are collected, a grace period later (P15).
//!
//! Called by programs that analyse queue files. Never writes a queue file, and has no writer.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use crate::bucket::archive;
use crate::bucket::head::Head;
use crate::bucket::keys::{self, Object};
use crate::bucket::wire::{corrupt, hash};
use crate::bytes::store::{Got, Store, StoreUrl, Version, open_store};
use crate::bytes::wrap::limited::CallLimit;
use crate::engine::catchup::{FetchError, Source};
use crate::engine::history::history;
use crate::fork;
use crate::noun::config::Options;
use crate::noun::env::Env;
use crate::noun::error::{Code, Error, Result};
use crate::noun::job::State;
use crate::noun::query::{Answer, Commit, Query};
use crate::state::db::{Db, Moment};
use crate::state::pages::{Image, PAGE, PageFile};

/// Times to start over because HEAD moved on and objects it had referred to were collected.
const TRIES: u32 = 8;

/// Access to the objects of a queue file without opening it.
#[derive(Clone, Debug)]
pub struct Objects {
    source: Source,
    env: Env,
    deadline: Duration,
}

impl Objects {
    /// Returns the objects of the queue file at `url`.
    pub async fn open(url: &str, options: Options) -> Result<Self> {
        options.check()?;
        let (url, env) = (StoreUrl::parse(url)?, Env::default());
        let opened = Box::pin(open_store(&url, &options, &env));
        let store = CallLimit::new(&env, options.deadline).run("opening the store", opened).await?;
        Self::with(store, url.name(), &options, env)
    }

    /// Does the same in the given store.
    pub fn with(store: Arc<dyn Store>, name: &str, options: &Options, env: Env) -> Result<Self> {
        StoreUrl::check_name(name)?;
        let max_pages = u32::try_from(options.max_file / PAGE as u64).unwrap_or(u32::MAX - 1);
        Ok(Self { source: Source::new(store, name.to_owned(), max_pages), env, deadline: options.deadline })
    }

    /// Returns the bytes of an object of this queue file and checks their hash if one is given; none when it does not
    /// exist.
    pub async fn get(&self, key: &str, expected: Option<[u8; 16]>) -> Result<Option<Bytes>> {
        if !key.starts_with(&keys::prefix(&self.source.name)) {
            let told = format!("{key} is no object of the queue file {}", self.source.name);
            return Err(Error::invalid(told));
        }
        let got = self.within("reading an object", self.source.store.get(key, None)).await?;
        let Got::Object { bytes, .. } = got else { return Ok(None) };
        if expected.is_some_and(|expected| expected != hash(&bytes)) {
            return Err(corrupt(key, "its hash differs from the one in the list"));
        }
        Ok(Some(bytes))
    }

    /// Stores these bytes as a temporary object and returns its key. The caller deletes it later; if it cannot, the
    /// object is collected after [`keys::STAGED_MS`].
    pub async fn stage(&self, file_id: &[u8; 16], group: &[u8; 8], bytes: Bytes) -> Result<String> {
        let key = keys::stage(&self.source.name, file_id, group, self.env.wall_ms(), &self.env.bytes());
        self.within("uploading a temporary object", self.source.store.put_new(&key, bytes)).await?;
        Ok(key)
    }

    /// Deletes a temporary object.
    pub async fn unstage(&self, key: &str) -> Result<()> {
        match keys::parse(&self.source.name, key).map(|named| named.object) {
            Some(Object::Stage { .. }) => {
                self.within("deleting an object", self.source.store.delete(key)).await
            }
            _ => {
                Err(Error::invalid(format!("{key} is not a staged object: only staged objects are deleted")))
            }
        }
    }

    /// Returns the keys of a group's temporary objects, oldest first.
    pub async fn staged(&self, file_id: &[u8; 16], group: &[u8; 8]) -> Result<Vec<String>> {
        let prefix = keys::stage_prefix(&self.source.name, file_id, group);
        let listed = self.within("listing objects", self.source.store.list(&prefix)).await?;
        Ok(listed.into_iter().map(|l| l.key).collect())
    }

    /// Returns the newest commit.
    pub async fn pin(&self) -> Result<Pinned> {
        self.within("reading the queue file", self.newest()).await
    }

    async fn newest(&self) -> Result<Pinned> {
        let mut before = None;
        for _ in 0..TRIES {
            let Some((bytes, _)) = self.head_now(None).await? else { continue };
            match self.build(bytes.clone()).await {
                Err(error) if error.code() == Code::Collected && before.as_ref() != Some(&bytes) => {
                    before = Some(bytes);
                }
                Err(error) if error.code() == Code::Collected => {
                    return Err(Error::new(Code::Corrupt, error.message()));
                }
                done => return done,
            }
        }
        let name = &self.source.name;
        Err(Error::new(
            Code::Contended,
            format!("{name} changed {TRIES} times while it was read: read it again"),
        ))
    }

    /// Returns the commit with these bytes as its HEAD.
    pub async fn at(&self, bytes: Bytes) -> Result<Pinned> {
        self.within("reading the queue file", self.build(bytes)).await
    }

    async fn build(&self, bytes: Bytes) -> Result<Pinned> {
        let head = Head::decode(&keys::head(&self.source.name), &bytes)?;
        let (pages, _) = self.source.load(&head).await.map_err(|trouble| match trouble {
            FetchError::Missing(key) => Error::new(
                Code::Collected,
                format!(
                    "{key} of commit {} is collected: the read took longer than the grace period; read again, and \
                     raise the option grace of those who write",
                    head.commit_seq
                ),
            ),
            FetchError::Error(error) => error,
        })?;
        let image = pages.image();
        let max_pages = self.source.max_pages;
        let build = move || {
            let _inside = fork::inside();
            Db::open(PageFile::new(pages).connect(max_pages)?)
        };
        let db = tokio::task::spawn_blocking(build)
            .await
            .map_err(|e| Error::bug("the database was not built").because(e))??;
        Ok(Pinned { objects: self.clone(), bytes, head, image, db: Mutex::new(db) })
    }

    /// Returns the bytes and the store's version of the current HEAD; none when it still has the given version.
    pub async fn head(&self, unless: Option<&str>) -> Result<Option<(Bytes, String)>> {
        self.within("reading HEAD", self.head_now(unless)).await
    }

    async fn within<T>(&self, what: &str, call: impl Future<Output = Result<T>>) -> Result<T> {
        CallLimit::new(&self.env, self.deadline).run(what, call).await
    }

    async fn head_now(&self, unless: Option<&str>) -> Result<Option<(Bytes, String)>> {
        match self.source.head(unless.map(Version::new).as_ref()).await? {
            Got::Object { bytes, version, .. } => Ok(Some((bytes, version.as_str().to_owned()))),
            Got::Unchanged { .. } => Ok(None),
            Got::Absent { .. } => {
                let (name, store) = (&self.source.name, self.source.store.describe());
                Err(Error::new(Code::NoSuchFile, format!("there is no queue file {name} in {store}")))
            }
        }
    }
}

/// The database of one commit.
pub struct Pinned {
    objects: Objects,
    bytes: Bytes,
    head: Head,
    image: Image,
    db: Mutex<Db>,
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinned").field("commit_seq", &self.head.commit_seq).finish_non_exhaustive()
    }
}

impl Pinned {
    /// Returns the bytes of HEAD, from which [`Objects::at`] builds the same commit in another process.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns the HEAD of the commit.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Runs a query on the database. Takes a while if the result is long.
    pub fn ask(&self, query: &Query) -> Result<Answer> {
        let _inside = fork::inside();
        let mut answer = self.db().query(query, &self.moment())?;
        for a in answer.archived_mut() {
            a.key = keys::archive(&self.objects.source.name, &keys::hex(&a.file), a.seq, &a.rand);
        }
        Ok(answer)
    }

    /// Returns up to `limit` finished runs that are not archived, after one `finish_seq` up to another, as the bytes of
    /// an archive object. None when there are none.
    pub fn lives(&self, after: u64, until: u64, limit: u32) -> Result<Option<Vec<u8>>> {
        let _inside = fork::inside();
        let lives = self.db().finished_lives(after, until, limit, &self.moment())?;
        if lives.is_empty() {
            return Ok(None);
        }
        archive::encode(&lives, &self.head.file_id, self.head.commit_seq).map(Some)
    }

    /// Returns up to `limit` jobs of the queue file in the order of their enqueues, from this `seq` on, as the bytes of
    /// a Parquet file; only of these queues and in these states. None when there are none.
    pub fn jobs(
        &self,
        from: u64,
        limit: u32,
        queues: Option<&[String]>,
        states: Option<&[State]>,
    ) -> Result<Option<Vec<u8>>> {
        let _inside = fork::inside();
        let jobs = self.db().whole_jobs(from, limit, queues, states, &self.moment())?;
        if jobs.is_empty() { Ok(None) } else { archive::encode_jobs(&jobs).map(Some) }
    }

    /// Returns the database as a plain SQLite file.
    pub fn image(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(usize::try_from(self.image.bytes()).unwrap_or(0));
        let wrote = self.image.write_to(&mut bytes);
        wrote.map_err(|e| Error::bug("an image in memory could not be written").because(e))?;
        Ok(bytes)
    }

    /// Returns up to `limit` commits of its log, newest first.
    pub async fn history(&self, limit: u32) -> Result<Vec<Commit>> {
        let log = history(self.objects.source.clone(), self.head.clone(), limit);
        self.objects.within("reading the log", log).await
    }

    fn moment(&self) -> Moment {
        Moment { now_ms: self.head.commit_ms, commit_seq: self.head.commit_seq }
    }

    fn db(&self) -> std::sync::MutexGuard<'_, Db> {
        self.db.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
