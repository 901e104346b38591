//! One commit of a queue file, held fast for readers in many processes: the bytes of its HEAD name everything else it
//! consists of, and none of that ever changes. Whoever has those bytes builds the same database, until what HEAD dropped
//! meanwhile is collected, a grace period later (P15).
//!
//! Called by programs that analyse queue files. Never writes a queue file, and has no writer.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use crate::archive;
use crate::catchup::{Source, Trouble};
use crate::config::Options;
use crate::db::{Db, Moment};
use crate::env::Env;
use crate::error::{Code, Error, Result};
use crate::head::Head;
use crate::keys::{self, Object};
use crate::pages::{Image, PAGE, PageFile};
use crate::query::{Answer, Commit, Query};
use crate::store::{Got, Store, StoreUrl, Version, open_store};
use crate::wire::{corrupt, hash};

/// Times to begin again because HEAD moved on and what it had referred to was collected.
const TRIES: u32 = 8;

/// What a program needs to reach the objects of a queue file without opening it.
#[derive(Clone, Debug)]
pub struct Objects {
    source: Source,
    env: Env,
}

impl Objects {
    /// The objects of the queue file at `url`.
    pub async fn open(url: &str, options: Options) -> Result<Self> {
        options.check()?;
        let (url, env) = (StoreUrl::parse(url)?, Env::default());
        let store = open_store(&url, &options, &env).await?;
        Self::with(store, url.name(), &options, env)
    }

    /// The same in a store of one's own.
    pub fn with(store: Arc<dyn Store>, name: &str, options: &Options, env: Env) -> Result<Self> {
        StoreUrl::check_name(name)?;
        let max_pages = u32::try_from(options.max_file / PAGE as u64).unwrap_or(u32::MAX - 1);
        Ok(Self { source: Source { store, name: name.to_owned(), max_pages }, env })
    }

    /// The bytes of an object of this queue file, which have this hash if one is given; none when it is not there.
    pub async fn get(&self, key: &str, expected: Option<[u8; 16]>) -> Result<Option<Bytes>> {
        if !key.starts_with(&keys::prefix(&self.source.name)) {
            let told = format!("{key} is no object of the queue file {}", self.source.name);
            return Err(Error::invalid(told));
        }
        let Got::Object { bytes, .. } = self.source.store.get(key, None).await? else { return Ok(None) };
        if expected.is_some_and(|expected| expected != hash(&bytes)) {
            return Err(corrupt(key, "its hash is not the one it was listed with"));
        }
        Ok(Some(bytes))
    }

    /// Put these bytes aside under a key of their own, which is the answer. Who put them there deletes them; if he cannot,
    /// they are collected after [`keys::STAGED_MS`].
    pub async fn stage(&self, file_id: &[u8; 16], group: &[u8; 8], bytes: Bytes) -> Result<String> {
        let key = keys::stage(&self.source.name, file_id, group, self.env.wall_ms(), &self.env.bytes());
        self.source.store.put_new(&key, bytes).await?;
        Ok(key)
    }

    /// Delete what was put aside.
    pub async fn unstage(&self, key: &str) -> Result<()> {
        match keys::parse(&self.source.name, key).map(|named| named.object) {
            Some(Object::Stage { .. }) => self.source.store.delete(key).await,
            _ => Err(Error::invalid(format!("{key} was not put aside: only such objects are deleted"))),
        }
    }

    /// The keys of what a group put aside, oldest first.
    pub async fn staged(&self, file_id: &[u8; 16], group: &[u8; 8]) -> Result<Vec<String>> {
        let listed = self.source.store.list(&keys::stage_prefix(&self.source.name, file_id, group)).await?;
        Ok(listed.into_iter().map(|l| l.key).collect())
    }

    /// The newest commit.
    pub async fn pin(&self) -> Result<Pinned> {
        let mut before = None;
        for _ in 0..TRIES {
            let Some((bytes, _)) = self.head(None).await? else { continue };
            match self.at(bytes.clone()).await {
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

    /// The commit whose HEAD these bytes are.
    pub async fn at(&self, bytes: Bytes) -> Result<Pinned> {
        let head = Head::decode(&keys::head(&self.source.name), &bytes)?;
        let (pages, _) = self.source.load(&head).await.map_err(|trouble| match trouble {
            Trouble::Missing(key) => Error::new(
                Code::Collected,
                format!(
                    "{key} of commit {} is collected: the read took longer than the grace period; read again, and \
                     raise the option grace of those who write",
                    head.commit_seq
                ),
            ),
            Trouble::Error(error) => error,
        })?;
        let image = pages.image();
        let max_pages = self.source.max_pages;
        let build = move || Db::open(PageFile::new(pages).connect(max_pages)?);
        let db = tokio::task::spawn_blocking(build)
            .await
            .map_err(|e| Error::new(Code::Internal, "the database was not built").because(e))??;
        Ok(Pinned { objects: self.clone(), bytes, head, image, db: Mutex::new(db) })
    }

    /// The bytes of HEAD now, and what the store calls this version of it; none when it is still the version given.
    pub async fn head(&self, unless: Option<&str>) -> Result<Option<(Bytes, String)>> {
        let key = keys::head(&self.source.name);
        match self.source.store.get(&key, unless.map(Version::new).as_ref()).await? {
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
    /// What [`Objects::at`] builds the same again from, elsewhere.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// HEAD of the commit.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Answer a question from the database. Takes a while if the answer is long.
    pub fn ask(&self, query: &Query) -> Result<Answer> {
        let mut answer = self.db().query(query, &self.moment())?;
        if let Answer::Archives(archives) = &mut answer {
            for a in &mut archives.objects {
                a.key = keys::archive(&self.objects.source.name, &keys::hex(&a.file), a.seq, &a.rand);
            }
        }
        Ok(answer)
    }

    /// The lives that ended after one place in the order of finishes up to another and are not archived, at most so many,
    /// as the bytes of an archive object. None when there are none.
    pub fn lives(&self, after: u64, until: u64, limit: u32) -> Result<Option<Vec<u8>>> {
        let lives = self.db().finished_lives(after, until, limit, &self.moment())?;
        if lives.is_empty() {
            return Ok(None);
        }
        archive::encode(&lives, &self.head.file_id, self.head.commit_seq).map(Some)
    }

    /// The database as a plain SQLite file.
    pub fn image(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(usize::try_from(self.image.bytes()).unwrap_or(0));
        let wrote = self.image.write_to(&mut bytes);
        wrote
            .map_err(|e| Error::new(Code::Internal, "an image in memory could not be written").because(e))?;
        Ok(bytes)
    }

    /// Up to `limit` commits of its log, newest first.
    pub async fn history(&self, limit: u32) -> Result<Vec<Commit>> {
        super::history(self.objects.source.clone(), self.head.clone(), limit).await
    }

    fn moment(&self) -> Moment {
        Moment { now_ms: self.head.commit_ms, commit_seq: self.head.commit_seq }
    }

    fn db(&self) -> std::sync::MutexGuard<'_, Db> {
        self.db.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
