//! Objects as plain files of one directory, for several processes on one machine. Not for network mounts: it needs
//! locks, atomic renames and one clock.
//!
//! A version is the XXH3-128 of the bytes. Two equal bodies have the same version, which is harmless because every HEAD
//! has a fresh random commit id. Files beginning with a dot belong to the store: unfinished writes, which the next
//! opening deletes once they are old. A body is on the disk before the object is locked; under the lock there is only a
//! comparison and a rename (`replace_lock`, decision 26).

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::Bytes;

use super::{Expect, Got, Listed, Put, Store, Version, too_large};
use crate::bytes::disk;
use crate::noun::env::Env;
use crate::noun::error::{Code, Error, Result};
use pass::Replacement;
use replace_lock::{LockUse, ReadObject};
use unchanged::UnchangedFiles;

mod pass;
mod replace_lock;
mod unchanged;

/// No write takes this long: an unfinished file this old belongs to a process that is gone. If that process still
/// lived, its rename would fail: an error, never a wrong object.
const ABANDONED_AFTER: Duration = Duration::from_hours(1);

/// A directory of objects. Clones share it.
#[derive(Clone, Debug)]
pub struct FileStore {
    inner: Arc<FileStoreInner>,
}

#[derive(Debug)]
struct FileStoreInner {
    dir: PathBuf,
    env: Env,
    seen: UnchangedFiles,
    /// The directory could not be synced after a rename: reads sync it first.
    unsynced: AtomicBool,
}

impl FileStore {
    /// Opens the store in this directory; creates the directory if only its last part is missing. Deletes unfinished
    /// files of processes that were killed long ago.
    pub fn open(dir: &Path, env: &Env) -> Result<Self> {
        disk::make_one(dir).map_err(|e| failed("make the directory", dir, &e))?;
        let store = Self::open_read_only(dir, env)?;
        store.inner.remove_abandoned()?;
        Ok(store)
    }

    /// Opens the store in this directory; neither creates it nor deletes unfinished files.
    pub fn open_read_only(dir: &Path, env: &Env) -> Result<Self> {
        let dir = fs::canonicalize(dir).map_err(|e| failed("open the directory", dir, &e))?;
        if !dir.is_dir() {
            let what = format!("{} is a file and not a directory", dir.display());
            return Err(Error::new(Code::NoSuchBucket, what));
        }
        let inner = FileStoreInner {
            dir,
            env: env.clone(),
            seen: UnchangedFiles::default(),
            unsynced: AtomicBool::new(false),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Runs work on a thread that may block: an fsync can take long.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&FileStoreInner) -> T + Send + 'static,
    ) -> Result<T> {
        let inner = Arc::clone(&self.inner);
        tokio::task::spawn_blocking(move || work(&inner))
            .await
            .map_err(|e| Error::new(Code::Unreachable, "the file operation did not finish").because(e))
    }
}

/// Returns the error for a failed file operation, with the code for its cause.
fn failed(what: &str, path: &Path, e: &io::Error) -> Error {
    if is_exhausted(e) {
        return Error::exhausted(&format!("cannot {what} {}", path.display()), e);
    }
    let (code, then) = match e.kind() {
        _ if disk::is_full(e) => (Code::DiskFull, disk::MAKE_ROOM),
        ErrorKind::NotFound | ErrorKind::NotADirectory => (Code::NoSuchBucket, ""),
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => (Code::Denied, ""),
        _ => (Code::Unreachable, ""),
    };
    Error::new(code, format!("cannot {what} {}: {e}{then}", path.display()))
}

/// Returns whether this process or this machine has too many open files.
fn is_exhausted(e: &io::Error) -> bool {
    cfg!(unix) && matches!(e.raw_os_error(), Some(23 | 24))
}

fn version(bytes: &[u8]) -> Version {
    Version::new(format!("{:032x}", twox_hash::XxHash3_128::oneshot(bytes)))
}

/// Why a put did not happen or is in doubt.
enum PutError {
    /// Before the rename: certainly nothing changed.
    Before(Error),
    /// At the rename or after it.
    InDoubt(Error),
}

impl FileStoreInner {
    /// Returns the object's path. Keys are names, never paths, and never the store's own files.
    fn path(&self, key: &str) -> Result<PathBuf> {
        let plain = !key.is_empty() && !key.starts_with('.') && !key.contains(['/', '\\', '\0', ':']);
        if plain { Ok(self.dir.join(key)) } else { Err(Error::invalid(format!("`{key}` cannot be a key"))) }
    }

    fn get(&self, key: &str, unless: Option<&Version>, most: u64) -> Result<Got> {
        let path = self.path(key)?;
        let Some((file, bytes)) = self.read(&path, most, |path| File::open(path))? else {
            return Ok(Got::Absent { date_ms: None });
        };
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
            Err(PutError::Before(error)) => Put::Unknown { error, sent: false, retry_after: None },
            Err(PutError::InDoubt(error)) => Put::Unknown { error, sent: true, retry_after: None },
        }
    }

    /// Opens and reads the object; none if it does not exist. More than `most` bytes are an error.
    fn read(
        &self,
        path: &Path,
        most: u64,
        open: impl FnOnce(&Path) -> io::Result<File>,
    ) -> Result<Option<(File, Vec<u8>)>> {
        if self.unsynced.load(Ordering::Acquire) {
            self.sync_directory()?;
        }
        let mut file = match open(path) {
            Ok(file) => file,
            // A missing directory is an error; a missing object is not.
            Err(e) if e.kind() == ErrorKind::NotFound && self.dir.is_dir() => return Ok(None),
            Err(e) => return Err(failed("read", path, &e)),
        };
        let mut bytes = Vec::new();
        // Reading one byte more than allowed shows whether there are more.
        let read = (&mut file).take(most.saturating_add(1)).read_to_end(&mut bytes);
        read.map_err(|e| failed("read", path, &e))?;
        if bytes.len() as u64 > most {
            let len = file.metadata().ok().map(|m| m.len());
            return Err(too_large(&path.display().to_string(), len, most));
        }
        Ok(Some((file, bytes)))
    }

    fn try_put_if(&self, key: &str, body: &[u8], expect: &Expect) -> std::result::Result<Put, PutError> {
        let path = self.path(key).map_err(PutError::Before)?;
        let there = self.read(&path, u64::MAX, replace_lock::open).map_err(PutError::Before)?;
        let found = match (there, expect) {
            (Some((file, bytes)), Expect::Is(wanted)) if version(&bytes) == *wanted => {
                Some(ReadObject::of(file, bytes).map_err(|e| PutError::Before(failed("read", &path, &e)))?)
            }
            (None, Expect::Absent) => None,
            _ => return Ok(Put::Conflict),
        };
        let written = self.write(key, body, found.as_ref()).map_err(PutError::Before)?;
        let turned = match &found {
            Some(found) => {
                found.replace(&Replacement { written: &written.0, object: &path }, &self.lock_path(key))
            }
            None => replace_lock::create(&written.0, &path, &self.dir),
        };
        match turned.map_err(|e| PutError::Before(failed("lock", &path, &e)))? {
            LockUse::Used(Ok(())) => {}
            LockUse::Other => return Ok(Put::Conflict),
            LockUse::Waiting(whose) => return Err(PutError::Before(stuck(&path, whose))),
            // A rename that fails for lack of space has changed nothing.
            LockUse::Used(Err(e)) if disk::is_full(&e) => {
                return Err(PutError::Before(failed("replace", &path, &e)));
            }
            LockUse::Used(Err(e)) => return Err(PutError::InDoubt(failed("replace", &path, &e))),
        }
        self.sync_directory().map_err(PutError::InDoubt)?;
        Ok(Put::Stored { version: version(body), date_ms: None })
    }

    fn lock_path(&self, key: &str) -> PathBuf {
        self.dir.join(format!(".{key}.lock"))
    }

    /// Deletes the object under its lock.
    fn delete(&self, key: &str) -> Result<()> {
        let path = self.path(key)?;
        loop {
            let found = match replace_lock::open(&path) {
                Ok(file) => Some(ReadObject::of(file, vec![]).map_err(|e| failed("remove", &path, &e))?),
                Err(e) if e.kind() == ErrorKind::NotFound && self.dir.is_dir() => return Ok(()),
                // It can be deleted without read permission; only processes with read permission can replace it.
                Err(e) if e.kind() == ErrorKind::PermissionDenied => None,
                Err(e) => return Err(failed("remove", &path, &e)),
            };
            let turned = match &found {
                Some(found) => found.delete(&path, &self.lock_path(key)),
                None => Ok(LockUse::Used(fs::remove_file(&path))),
            };
            match turned.map_err(|e| failed("lock", &path, &e))? {
                LockUse::Used(Err(e)) if e.kind() == ErrorKind::NotFound && self.dir.is_dir() => {}
                LockUse::Used(removed) => return removed.map_err(|e| failed("remove", &path, &e)),
                // Replaced or removed since it was opened.
                LockUse::Other => {}
                LockUse::Waiting(whose) => return Err(stuck(&path, whose)),
            }
        }
    }

    /// Writes the body to a temporary file beside the object and syncs it. The file gets the permissions of `before`,
    /// the object that it replaces, if there is one.
    fn write(&self, key: &str, body: &[u8], before: Option<&ReadObject>) -> Result<TempFile> {
        let path = self.dir.join(format!(".{key}.{:016x}.tmp", u64::from_le_bytes(self.env.bytes())));
        let made = disk::making().create_new(true).open(&path);
        // From here on the file is deleted whatever happens: on a full disk it takes up space.
        let written = TempFile(path);
        made.and_then(|mut file| {
            replace_lock::permit(&file, before, &self.dir)?;
            file.write_all(body)?;
            file.sync_all()
        })
        .map_err(|e| failed("write", &written.0, &e))?;
        Ok(written)
    }

    /// Writes an object that no other writer writes: a crash at any point leaves it whole or absent.
    fn put_new(&self, key: &str, body: &[u8]) -> Result<()> {
        let path = self.path(key)?;
        let written = self.write(key, body, None)?;
        fs::rename(&written.0, &path).map_err(|e| failed("write", &path, &e))?;
        self.sync_directory()
    }

    fn sync_directory(&self) -> Result<()> {
        let synced = disk::sync_dir(&self.dir);
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
            let unfinished = entry.file_name().to_str().is_some_and(|name| temporary_for(name).is_some());
            let changed = entry.metadata().and_then(|m| m.modified()).ok();
            let changed_ms =
                changed.and_then(|t| t.duration_since(UNIX_EPOCH).ok()).map(|d| d.as_millis() as i64);
            if unfinished && changed_ms.is_some_and(|ms| ms < oldest) {
                // Another process may be quicker, or the permission may be missing: the file does no harm.
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(())
    }
}

/// A temporary file: deleted when dropped, unless it was renamed.
struct TempFile(PathBuf);

impl Drop for TempFile {
    fn drop(&mut self) {
        // Usually it has been renamed. The next opening deletes files that remain.
        let _ = fs::remove_file(&self.0);
    }
}

/// Returns the error for an object that another process keeps locked.
fn stuck(path: &Path, whose: Option<u32>) -> Error {
    let who = whose.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
    Error::new(
        Code::Locked,
        format!(
            "{who} has locked {} and does not continue: if that process is stopped, resume or end it, then call again",
            path.display()
        ),
    )
}

/// Returns the key of the object that a temporary file is for; none for other files.
fn temporary_for(name: &str) -> Option<&str> {
    let (key, random) = name.strip_prefix('.')?.strip_suffix(".tmp")?.rsplit_once('.')?;
    (random.len() == 16 && random.bytes().all(|b| b.is_ascii_hexdigit())).then_some(key)
}

#[async_trait]
impl Store for FileStore {
    async fn get(&self, key: &str, unless: Option<&Version>) -> Result<Got> {
        self.get_at_most(key, unless, u64::MAX).await
    }

    async fn get_at_most(&self, key: &str, unless: Option<&Version>, most: u64) -> Result<Got> {
        let inner = &self.inner;
        if let Some(version) = unless
            && !inner.unsynced.load(Ordering::Acquire)
            && inner.seen.is_still(key, &inner.path(key)?, version)
        {
            return Ok(Got::Unchanged { date_ms: None });
        }
        let (key, unless) = (key.to_owned(), unless.cloned());
        self.blocking(move |inner| inner.get(&key, unless.as_ref(), most)).await?
    }

    async fn put_if(&self, key: &str, body: Bytes, expect: &Expect) -> Put {
        let (key, expect) = (key.to_owned(), expect.clone());
        self.blocking(move |inner| inner.put_if(&key, &body, &expect))
            .await
            .unwrap_or_else(|error| Put::Unknown { error, sent: true, retry_after: None })
    }

    async fn put_new(&self, key: &str, body: Bytes) -> Result<()> {
        let key = key.to_owned();
        self.blocking(move |inner| inner.put_new(&key, &body)).await?
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
