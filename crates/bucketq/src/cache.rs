//! A store wrapper that keeps bases and segments in a directory of this machine, so that reopening reads HEAD only.
//!
//! Called by the writer at open, in Durable mode with a `cache`. Those objects are written once under keys never used
//! again (P12), so a copy never grows old. A damaged copy is fetched anew, and no trouble with the directory is an error:
//! what is kept is verified here by a hash of its own and above by the one in HEAD.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::Bytes;
use twox_hash::XxHash3_128;

use crate::env::Env;
use crate::error::Result;
use crate::store::{Expect, Got, Listed, Put, Store, Version};

/// What the name of a kept object ends with.
const SUFFIX: &str = ".kept";
/// What the name of one ends with that is still being written.
const UNFINISHED: &str = ".tmp";

/// Keys remembered as served: a HEAD refers to far fewer.
const REMEMBERED: usize = 1_024;

/// Keeps what is read from and written to the store beneath. Several processes may share the directory.
#[derive(Debug)]
pub(crate) struct Kept {
    inner: Arc<dyn Store>,
    shelf: Arc<Shelf>,
    /// Keys that were served from the directory: who asks again did not like what it got.
    served: Mutex<HashSet<String>>,
}

#[derive(Debug)]
struct Shelf {
    dir: PathBuf,
    most: u64,
    env: Env,
}

impl Kept {
    /// The store with this directory, which is there, and at most so many bytes in it.
    pub fn new(inner: Arc<dyn Store>, dir: PathBuf, most: u64, env: Env) -> Self {
        Self { inner, shelf: Arc::new(Shelf { dir, most, env }), served: Mutex::default() }
    }

    async fn on_shelf<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shelf) -> T + Send + 'static,
    ) -> Option<T> {
        let theirs = Arc::clone(&self.shelf);
        tokio::task::spawn_blocking(move || work(&theirs)).await.ok()
    }

    /// Whether this key was not served from the directory of late.
    fn is_first(&self, key: &str) -> bool {
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        if served.len() >= REMEMBERED {
            served.clear();
        }
        served.insert(key.to_owned())
    }

    async fn keep(&self, key: &str, bytes: &Bytes) {
        let (key, bytes) = (key.to_owned(), bytes.clone());
        self.on_shelf(move |shelf| shelf.put(&key, &bytes)).await;
    }
}

/// Whether the object is of the kind that is written once.
fn is_kept(key: &str) -> bool {
    key.contains(".base-") || key.contains(".seg-")
}

fn hash(key: &str, bytes: &[u8]) -> [u8; 16] {
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
        let sound = bytes.split_last_chunk::<16>().filter(|(body, sum)| hash(key, body) == **sum);
        let Some((body, _)) = sound else {
            tracing::warn!(path = %path.display(), "a kept object is damaged; it is fetched anew");
            let _ = fs::remove_file(path);
            return None;
        };
        let len = body.len();
        // Used now, so not the next to go.
        let now = UNIX_EPOCH + Duration::from_millis(self.env.wall_ms().max(0).unsigned_abs());
        let _ = File::options().write(true).open(&path).and_then(|file| file.set_modified(now));
        Some(Bytes::from(bytes).slice(..len))
    }

    fn put(&self, key: &str, bytes: &Bytes) {
        if bytes.len() as u64 > self.most {
            return;
        }
        let unfinished =
            self.dir.join(format!("{key}.{:016x}{UNFINISHED}", u64::from_le_bytes(self.env.bytes())));
        let written = File::create(&unfinished).and_then(|mut file| {
            use std::io::Write;
            file.write_all(bytes)?;
            file.write_all(&hash(key, bytes))
        });
        if let Err(error) = written.and_then(|()| fs::rename(&unfinished, self.path(key))) {
            tracing::warn!(%error, key, "an object could not be kept");
            let _ = fs::remove_file(&unfinished);
        }
        self.make_room();
    }

    /// Remove what was not used for the longest time, down to the bound.
    fn make_room(&self) {
        let mut all: Vec<(SystemTime, u64, PathBuf)> = kept(&self.dir);
        let mut bytes: u64 = all.iter().map(|(_, len, _)| len).sum();
        all.sort();
        for (_, len, path) in all {
            if bytes <= self.most {
                return;
            }
            // Another process may have been quicker; where open files cannot be removed, the next one is.
            if fs::remove_file(path).is_ok() {
                bytes -= len;
            }
        }
    }
}

fn kept(dir: &Path) -> Vec<(SystemTime, u64, PathBuf)> {
    let Ok(entries) = fs::read_dir(dir) else { return vec![] };
    entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let name = entry.file_name().into_string().ok()?;
            let ours = name.ends_with(SUFFIX) || (is_kept(&name) && name.ends_with(UNFINISHED));
            let meta = entry.metadata().ok().filter(|_| ours)?;
            Some((meta.modified().ok()?, meta.len(), entry.path()))
        })
        .collect()
}

#[async_trait]
impl Store for Kept {
    async fn get(&self, key: &str, unless: Option<&Version>) -> Result<Got> {
        if unless.is_some() || !is_kept(key) {
            return self.inner.get(key, unless).await;
        }
        let first = self.is_first(key);
        let name = key.to_owned();
        if first && let Some(Some(bytes)) = self.on_shelf(move |shelf| shelf.get(&name)).await {
            return Ok(Got::Object { bytes, version: Version::new("kept"), date_ms: None });
        }
        let got = self.inner.get(key, None).await?;
        if let Got::Object { bytes, .. } = &got {
            self.keep(key, bytes).await;
        }
        Ok(got)
    }

    async fn put_if(&self, key: &str, body: Bytes, expect: &Expect) -> Put {
        self.inner.put_if(key, body, expect).await
    }

    async fn put_new(&self, key: &str, body: Bytes) -> Result<()> {
        self.inner.put_new(key, body.clone()).await?;
        if is_kept(key) {
            self.keep(key, &body).await;
        }
        Ok(())
    }

    async fn delete(&self, key: &str) -> Result<()> {
        self.inner.delete(key).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Listed>> {
        self.inner.list(prefix).await
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn default_max_skew(&self) -> Duration {
        self.inner.default_max_skew()
    }

    fn needs_probe(&self) -> bool {
        self.inner.needs_probe()
    }
}
