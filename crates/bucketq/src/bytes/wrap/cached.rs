//! A store wrapper that caches bases and segments in a directory of this machine, so that reopening reads HEAD only.
//!
//! Called by the writer at open, in Durable mode with a `cache`. These objects are written once under keys never used
//! again (P12), so a copy is never outdated. A damaged copy is fetched again, and a failure of the directory is no
//! error: copies are verified here by their own hash and later by the one in HEAD.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::Bytes;
use twox_hash::XxHash3_128;

use crate::bytes::disk;
use crate::bytes::store::{Expect, Got, Listed, MAX_OBJECT, Put, Store, Version};
use crate::noun::env::Env;
use crate::noun::error::Result;

/// The end of a cached object's file name.
const SUFFIX: &str = ".kept";
/// The end of an unfinished file's name.
const UNFINISHED: &str = ".tmp";

/// Bytes of the hash behind each object.
const SUM: usize = 16;

/// Keys remembered as served; a HEAD refers to far fewer.
const REMEMBERED: usize = 1_024;

/// Caches the objects that are read from and written to the inner store. Several processes may share the directory.
#[derive(Debug)]
pub(crate) struct CachedStore {
    inner: Arc<dyn Store>,
    shelf: Arc<Shelf>,
    /// Keys served from the directory: a second read of one means that the copy was not usable.
    served: Mutex<HashSet<String>>,
}

#[derive(Debug)]
struct Shelf {
    dir: PathBuf,
    most: u64,
    env: Env,
    /// Locked while room is made for an object and filled.
    filling: Mutex<()>,
}

impl CachedStore {
    /// Returns the store with this existing directory, and the most bytes to keep in it.
    pub fn new(inner: Arc<dyn Store>, dir: PathBuf, most: u64, env: Env) -> Self {
        Self {
            inner,
            shelf: Arc::new(Shelf { dir, most, env, filling: Mutex::default() }),
            served: Mutex::default(),
        }
    }

    async fn on_shelf<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shelf) -> T + Send + 'static,
    ) -> Option<T> {
        let theirs = Arc::clone(&self.shelf);
        tokio::task::spawn_blocking(move || work(&theirs)).await.ok()
    }

    /// Returns whether this key was not served from the directory recently.
    fn is_first(&self, key: &str) -> bool {
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        if served.len() >= REMEMBERED {
            served.clear();
        }
        served.insert(key.to_owned())
    }

    async fn put_in_cache(&self, key: &str, bytes: &Bytes) {
        let (key, bytes) = (key.to_owned(), bytes.clone());
        self.on_shelf(move |shelf| shelf.put(&key, &bytes)).await;
    }
}

/// Returns whether objects of this kind are written only once.
fn is_cacheable(key: &str) -> bool {
    key.contains(".base-") || key.contains(".seg-")
}

fn hash(key: &str, bytes: &[u8]) -> [u8; SUM] {
    let seed = XxHash3_128::oneshot(key.as_bytes()) as u64;
    XxHash3_128::oneshot_with_seed(seed, bytes).to_le_bytes()
}

impl Shelf {
    fn path(&self, key: &str) -> PathBuf {
        self.dir.join(format!("{key}{SUFFIX}"))
    }

    fn get(&self, key: &str) -> Option<Bytes> {
        let path = self.path(key);
        let bytes = fs::read(&path).ok()?;
        let sound = bytes.split_last_chunk::<SUM>().filter(|(body, sum)| hash(key, body) == **sum);
        let Some((body, _)) = sound else {
            tracing::warn!(path = %path.display(), "a cached object is damaged; fetching it again");
            let _ = fs::remove_file(path);
            return None;
        };
        let len = body.len();
        // Used now, so not the next to be deleted.
        let now = UNIX_EPOCH + Duration::from_millis(self.env.wall_ms().max(0).unsigned_abs());
        let _ = File::options().write(true).open(&path).and_then(|file| file.set_modified(now));
        Some(Bytes::from(bytes).slice(..len))
    }

    fn put(&self, key: &str, bytes: &Bytes) {
        let len = bytes.len() as u64 + SUM as u64;
        if len > self.most {
            return;
        }
        let _filling = self.filling.lock().unwrap_or_else(PoisonError::into_inner);
        // Before this object is there, so that the directory is never over its limit.
        self.evict(self.most - len);
        let unfinished =
            self.dir.join(format!("{key}.{:016x}{UNFINISHED}", u64::from_le_bytes(self.env.bytes())));
        let written = disk::create(&unfinished).and_then(|mut file| {
            use std::io::Write;
            file.write_all(bytes)?;
            file.write_all(&hash(key, bytes))
        });
        if let Err(error) = written.and_then(|()| fs::rename(&unfinished, self.path(key))) {
            tracing::warn!(%error, key, "an object could not be kept");
            let _ = fs::remove_file(&unfinished);
        }
    }

    /// Deletes the least recently used objects, down to `most` bytes.
    fn evict(&self, most: u64) {
        let mut all: Vec<(SystemTime, u64, PathBuf)> = cached_files(&self.dir);
        let mut bytes: u64 = all.iter().map(|(_, len, _)| len).sum();
        all.sort();
        for (_, len, path) in all {
            if bytes <= most {
                return;
            }
            // Another process may have been quicker; where open files cannot be deleted, the next one is.
            if fs::remove_file(path).is_ok() {
                bytes -= len;
            }
        }
    }
}

fn cached_files(dir: &Path) -> Vec<(SystemTime, u64, PathBuf)> {
    let Ok(entries) = fs::read_dir(dir) else { return vec![] };
    entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let name = entry.file_name().into_string().ok()?;
            let ours = name.ends_with(SUFFIX) || (is_cacheable(&name) && name.ends_with(UNFINISHED));
            let meta = entry.metadata().ok().filter(|_| ours)?;
            Some((meta.modified().ok()?, meta.len(), entry.path()))
        })
        .collect()
}

#[async_trait]
impl Store for CachedStore {
    async fn get(&self, key: &str, unless: Option<&Version>) -> Result<Got> {
        self.get_at_most(key, unless, MAX_OBJECT).await
    }

    async fn get_at_most(&self, key: &str, unless: Option<&Version>, most: u64) -> Result<Got> {
        if unless.is_some() || !is_cacheable(key) {
            return self.inner.get_at_most(key, unless, most).await;
        }
        let first = self.is_first(key);
        let name = key.to_owned();
        if first && let Some(Some(bytes)) = self.on_shelf(move |shelf| shelf.get(&name)).await {
            return Ok(Got::Object { bytes, version: Version::new("kept"), date_ms: None });
        }
        let got = self.inner.get_at_most(key, None, most).await?;
        if let Got::Object { bytes, .. } = &got {
            self.put_in_cache(key, bytes).await;
        }
        Ok(got)
    }

    async fn put_if(&self, key: &str, body: Bytes, expect: &Expect) -> Put {
        self.inner.put_if(key, body, expect).await
    }

    async fn put_new(&self, key: &str, body: Bytes) -> Result<()> {
        self.inner.put_new(key, body.clone()).await?;
        if is_cacheable(key) {
            self.put_in_cache(key, &body).await;
        }
        Ok(())
    }

    async fn delete(&self, key: &str) -> Result<()> {
        self.inner.delete(key).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Listed>> {
        self.inner.list(prefix).await
    }

    crate::forward_to_inner!(describe place default_max_skew needs_probe);
}
