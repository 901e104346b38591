//! Objects as the plain files of one directory, for several processes on one machine. Network mounts are not made
//! for this: it needs locks, atomic renames and one clock.
//!
//! A version is the XXH3-128 of the bytes: two bodies with one version cannot be told apart, which is harmless
//! because every HEAD holds a fresh random commit id. Files beginning with a dot are the store's own: lock files,
//! which stay, and unfinished writes, which the next opening removes once they are old.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::Bytes;

use super::{Expect, Got, Listed, Put, Store, Version};
use crate::env::Env;
use crate::error::{Code, Error, Result};
use seen::Seen;

mod seen;

/// No write takes this long; an unfinished one so old belongs to a process that is gone. Were it alive after all,
/// its rename would fail: an error, never a wrong object.
const ABANDONED_AFTER: Duration = Duration::from_hours(1);

/// A directory of objects. Clones are the same store.
#[derive(Clone, Debug)]
pub struct FileStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    dir: PathBuf,
    env: Env,
    seen: Seen,
    /// A rename happened whose directory could not be synced: until it is, nothing read counts as there.
    unsynced: AtomicBool,
}

impl FileStore {
    /// The store in this directory, which is made if only its last part is missing. Removes what processes killed
    /// long ago left half written.
    pub fn open(dir: &Path, env: &Env) -> Result<Self> {
        if let Err(e) = fs::create_dir(dir)
            && e.kind() != ErrorKind::AlreadyExists
        {
            return Err(failed("make the directory", dir, &e));
        }
        let store = Self::open_read_only(dir, env)?;
        store.inner.remove_abandoned()?;
        Ok(store)
    }

    /// The store in this directory, which is neither made nor tidied up.
    pub fn open_read_only(dir: &Path, env: &Env) -> Result<Self> {
        let dir = fs::canonicalize(dir).map_err(|e| failed("open the directory", dir, &e))?;
        if !dir.is_dir() {
            let what = format!("{} is a file, and a directory was wanted", dir.display());
            return Err(Error::new(Code::NoSuchBucket, what));
        }
        let inner = Inner { dir, env: env.clone(), seen: Seen::default(), unsynced: AtomicBool::new(false) };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Run on a thread that may block: a lock or an fsync takes as long as it takes.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> T + Send + 'static,
    ) -> Result<T> {
        let inner = Arc::clone(&self.inner);
        tokio::task::spawn_blocking(move || work(&inner))
            .await
            .map_err(|e| Error::new(Code::Unreachable, "the file operation did not finish").because(e))
    }
}

/// What failed, where, and the code that says what kind of trouble it is.
fn failed(what: &str, path: &Path, e: &io::Error) -> Error {
    let code = match e.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => Code::NoSuchBucket,
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Code::Denied,
        _ => Code::Unreachable,
    };
    Error::new(code, format!("cannot {what} {}: {e}", path.display()))
}

fn version(bytes: &[u8]) -> Version {
    Version::new(format!("{:032x}", twox_hash::XxHash3_128::oneshot(bytes)))
}

/// Why a put did not happen or is in doubt.
enum Trouble {
    /// Before the rename: surely nothing changed.
    Before(Error),
    /// At the rename or after it.
    InDoubt(Error),
}

impl Inner {
    /// Where the object lies. Keys are names, never paths, and never the store's own files.
    fn path(&self, key: &str) -> Result<PathBuf> {
        let plain = !key.is_empty() && !key.starts_with('.') && !key.contains(['/', '\\', '\0', ':']);
        if plain { Ok(self.dir.join(key)) } else { Err(Error::invalid(format!("`{key}` cannot be a key"))) }
    }

    fn get(&self, key: &str, unless: Option<&Version>) -> Result<Got> {
        let path = self.path(key)?;
        if self.unsynced.load(Ordering::Acquire) {
            self.sync_directory()?;
        }
        let mut file = match File::open(&path) {
            Ok(file) => file,
            // A missing directory is trouble; a missing object is an answer.
            Err(e) if e.kind() == ErrorKind::NotFound && self.dir.is_dir() => {
                return Ok(Got::Absent { date_ms: None });
            }
            Err(e) => return Err(failed("read", &path, &e)),
        };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|e| failed("read", &path, &e))?;
        let version = version(&bytes);
        if unless == Some(&version) {
            self.seen.remember(key, file, &version);
            return Ok(Got::Unchanged { date_ms: None });
        }
        Ok(Got::Object { bytes: bytes.into(), version, date_ms: None })
    }

    fn put_if(&self, key: &str, body: &[u8], expect: &Expect) -> Put {
        match self.try_put_if(key, body, expect) {
            Ok(put) => put,
            Err(Trouble::Before(error)) => Put::Unknown { error, sent: false, retry_after: None },
            Err(Trouble::InDoubt(error)) => Put::Unknown { error, sent: true, retry_after: None },
        }
    }

    fn try_put_if(&self, key: &str, body: &[u8], expect: &Expect) -> std::result::Result<Put, Trouble> {
        let path = self.path(key).map_err(Trouble::Before)?;
        let lock_path = self.lock_path(key);
        let _lock = lock(&lock_path).map_err(|e| Trouble::Before(failed("lock", &lock_path, &e)))?;
        match (self.get(key, None).map_err(Trouble::Before)?, expect) {
            (Got::Object { version, .. }, Expect::Is(wanted)) if version == *wanted => {}
            (Got::Object { .. }, _) => return Ok(Put::Conflict),
            (_, Expect::Absent) => {}
            (_, Expect::Is(_)) => {
                unlink(&lock_path);
                return Ok(Put::Conflict);
            }
        }
        self.replace(key, &path, body)?;
        Ok(Put::Stored { version: version(body), date_ms: None })
    }

    fn lock_path(&self, key: &str) -> PathBuf {
        self.dir.join(format!(".{key}.lock"))
    }

    /// Remove the object, and its lock with it where it has one.
    fn delete(&self, key: &str) -> Result<()> {
        let (path, lock_path) = (self.path(key)?, self.lock_path(key));
        let locked = cfg!(unix) && lock_path.exists();
        let _lock =
            locked.then(|| lock(&lock_path)).transpose().map_err(|e| failed("lock", &lock_path, &e))?;
        match fs::remove_file(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound && self.dir.is_dir() => {}
            done => done.map_err(|e| failed("remove", &path, &e))?,
        }
        if locked {
            unlink(&lock_path);
        }
        Ok(())
    }

    /// Put the whole body in place of what is there: written and synced beside it, then renamed, then the
    /// directory synced. A crash at any point leaves the old object or the new one.
    fn replace(&self, key: &str, path: &Path, body: &[u8]) -> std::result::Result<(), Trouble> {
        let temporary = self.dir.join(format!(".{key}.{:016x}.tmp", u64::from_le_bytes(self.env.bytes())));
        let written = File::options().write(true).create_new(true).open(&temporary).and_then(|mut file| {
            file.write_all(body)?;
            file.sync_all()
        });
        if let Err(e) = written {
            // Perhaps it was never made; perhaps the disk is full, and then it takes up room.
            let _ = fs::remove_file(&temporary);
            return Err(Trouble::Before(failed("write", &temporary, &e)));
        }
        fs::rename(&temporary, path).map_err(|e| Trouble::InDoubt(failed("replace", path, &e)))?;
        self.sync_directory().map_err(Trouble::InDoubt)
    }

    fn sync_directory(&self) -> Result<()> {
        // Elsewhere a directory cannot be opened, and the rename is as durable as the system makes it.
        let synced = if cfg!(unix) { File::open(&self.dir).and_then(|dir| dir.sync_all()) } else { Ok(()) };
        self.unsynced.store(synced.is_err(), Ordering::Release);
        synced.map_err(|e| failed("sync the directory", &self.dir, &e))
    }

    fn list(&self, prefix: &str) -> Result<Vec<Listed>> {
        let wrong = |e: io::Error| failed("list", &self.dir, &e);
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(wrong)? {
            let entry = entry.map_err(wrong)?;
            let Ok(key) = entry.file_name().into_string() else { continue };
            if key.starts_with('.') || !key.starts_with(prefix) {
                continue;
            }
            match entry.metadata() {
                Ok(meta) if meta.is_file() => found.push(Listed { key, size: meta.len() }),
                Ok(_) => {}
                // Deleted since the directory was read.
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) => return Err(wrong(e)),
            }
        }
        found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(found)
    }

    fn remove_abandoned(&self) -> Result<()> {
        let wrong = |e: io::Error| failed("list", &self.dir, &e);
        let oldest = self.env.wall_ms() - ABANDONED_AFTER.as_millis() as i64;
        for entry in fs::read_dir(&self.dir).map_err(wrong)?.filter_map(io::Result::ok) {
            let unfinished = entry.file_name().to_str().is_some_and(is_temporary);
            let changed = entry.metadata().and_then(|m| m.modified()).ok();
            let changed_ms =
                changed.and_then(|t| t.duration_since(UNIX_EPOCH).ok()).map(|d| d.as_millis() as i64);
            if unfinished && changed_ms.is_some_and(|ms| ms < oldest) {
                // Somebody else may be quicker, or we may not be allowed to: it is litter either way.
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(())
    }
}

/// The lock of this name, held until the file is dropped, and by the operating system's word no longer than this process
/// lives. Who deletes an object removes its lock too: one that was waited for may be gone from its name, and holds nobody
/// off.
fn lock(path: &Path) -> io::Result<File> {
    loop {
        let file = File::options().create(true).append(true).open(path)?;
        file.lock()?;
        if stands_at(&file, path)? {
            return Ok(file);
        }
    }
}

/// Remove a lock that is held, because its object is not there.
fn unlink(path: &Path) {
    if cfg!(unix) {
        // What stays is litter, and the next one to lock it takes it as it is.
        let _ = fs::remove_file(path);
    }
}

#[cfg(unix)]
fn stands_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let ours = file.metadata()?;
    match fs::metadata(path) {
        Ok(theirs) => Ok((ours.dev(), ours.ino()) == (theirs.dev(), theirs.ino())),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

/// Elsewhere locks are never removed.
#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "as on unix")]
fn stands_at(_: &File, _: &Path) -> io::Result<bool> {
    Ok(true)
}

/// Whether a file is called as `replace` calls its unfinished ones.
fn is_temporary(name: &str) -> bool {
    let random = name.strip_prefix('.').and_then(|n| n.strip_suffix(".tmp")).and_then(|n| n.rsplit_once('.'));
    random.is_some_and(|(_, random)| random.len() == 16 && random.bytes().all(|b| b.is_ascii_hexdigit()))
}

#[async_trait]
impl Store for FileStore {
    async fn get(&self, key: &str, unless: Option<&Version>) -> Result<Got> {
        let inner = &self.inner;
        if let Some(version) = unless
            && !inner.unsynced.load(Ordering::Acquire)
            && inner.seen.is_still(key, &inner.path(key)?, version)
        {
            return Ok(Got::Unchanged { date_ms: None });
        }
        let (key, unless) = (key.to_owned(), unless.cloned());
        self.blocking(move |inner| inner.get(&key, unless.as_ref())).await?
    }

    async fn put_if(&self, key: &str, body: Bytes, expect: &Expect) -> Put {
        let (key, expect) = (key.to_owned(), expect.clone());
        self.blocking(move |inner| inner.put_if(&key, &body, &expect))
            .await
            .unwrap_or_else(|error| Put::Unknown { error, sent: true, retry_after: None })
    }

    async fn put_new(&self, key: &str, body: Bytes) -> Result<()> {
        let key = key.to_owned();
        self.blocking(move |inner| {
            let path = inner.path(&key)?;
            inner.replace(&key, &path, &body).map_err(|(Trouble::Before(e) | Trouble::InDoubt(e))| e)
        })
        .await?
    }

    async fn delete(&self, key: &str) -> Result<()> {
        let key = key.to_owned();
        self.blocking(move |inner| inner.delete(&key)).await?
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Listed>> {
        let prefix = prefix.to_owned();
        self.blocking(move |inner| inner.list(&prefix)).await?
    }

    fn describe(&self) -> String {
        format!("file://{}", self.inner.dir.display())
    }

    fn default_max_skew(&self) -> Duration {
        Duration::ZERO
    }

    fn needs_probe(&self) -> bool {
        false
    }
}
