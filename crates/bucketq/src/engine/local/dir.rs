//! The directory of Local mode: the few operations on its files, which a simulation can replace.
//!
//! Called by the log only. Everything blocks: the writer has a thread of its own, and a local commit ends when the disk
//! confirms it. Knows names and bytes, not their meaning. A write fails if its name no longer leads to the file,
//! because the directory or the file was deleted or moved.

use std::any::Any;
use std::fmt;
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::bytes::disk;
use crate::fork;
use crate::noun::error::{Code, Error, Result};

/// Keeps the directory for this process until it is dropped.
pub type Lock = Box<dyn Any + Send + Sync>;

/// One directory. Names are plain file names.
pub trait Dir: Send + Sync + fmt::Debug {
    /// Returns the name of the directory for people; of a real one, its path.
    fn path(&self) -> PathBuf;
    /// Locks the directory, and creates it if necessary. Fails while another process has it.
    fn lock(&self) -> Result<Lock>;
    /// Returns the names of the files in it.
    fn names(&self) -> io::Result<Vec<String>>;
    /// Reads a whole file.
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;
    /// Creates a file with these bytes, durable when this returns. Even after a crash it exists as a whole or not at
    /// all.
    fn create(&self, name: &str, bytes: &[u8]) -> io::Result<()>;
    /// Writes at this offset: the end of the file, or of its valid bytes. Not durable before [`sync`](Self::sync). On
    /// an error, some of the bytes may be written.
    fn append(&self, name: &str, at: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes appended bytes durable. After an error it is unknown which ones are.
    fn sync(&self, name: &str) -> io::Result<()>;
    /// Cuts the file to this length. Not durable before [`sync`](Self::sync).
    fn cut(&self, name: &str, len: u64) -> io::Result<()>;
    /// Removes a file. A missing file is no error.
    fn remove(&self, name: &str) -> io::Result<()>;
}

/// A directory of the file system.
pub struct Disk {
    path: PathBuf,
    /// The file appended to last, kept open.
    open: Mutex<Option<Open>>,
    /// The metadata of the locked directory.
    locked: Mutex<Option<Metadata>>,
}

struct Open {
    name: String,
    file: File,
    meta: Metadata,
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Disk({})", self.path.display())
    }
}

impl Disk {
    /// Returns the directory at `path`.
    pub fn new(path: PathBuf) -> Self {
        Self { path, open: Mutex::new(None), locked: Mutex::new(None) }
    }

    fn with<T>(&self, name: &str, work: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
        let (mut open, path) = (lock(&self.open), self.path.join(name));
        if open.as_ref().is_none_or(|there| there.name != name) {
            let file = File::options().read(true).write(true).open(&path)?;
            let meta = file.metadata()?;
            *open = Some(Open { name: name.to_owned(), file, meta });
        }
        let Some(there) = open.as_mut() else {
            return Err(io::Error::other("the file is not open although it was just opened"));
        };
        let done = work(&mut there.file)?;
        if disk::is_at(&there.meta, &path)? { Ok(done) } else { Err(gone()) }
    }

    /// Fails unless the directory is the one that was locked.
    fn still_there(&self) -> io::Result<()> {
        let locked = lock(&self.locked);
        let Some(locked) = locked.as_ref() else { return Ok(()) };
        if disk::is_at(locked, &self.path)? { Ok(()) } else { Err(gone()) }
    }

    /// Locks the directory itself, so that the lock cannot be deleted alone; where directories cannot be locked
    /// (outside Unix, and on network mounts), a file in it. Returns `None` if another process has it.
    fn hold(&self) -> io::Result<Option<fork::LockedFile>> {
        if cfg!(unix)
            && let Ok(held) = File::open(&self.path).and_then(fork::hold)
        {
            return Ok(held);
        }
        disk::making().open(self.path.join("lock")).and_then(fork::hold)
    }

    fn in_use(&self) -> Error {
        let pid = fs::read_to_string(self.path.join("owner")).unwrap_or_default();
        let who = if pid.is_empty() { "another process".to_owned() } else { format!("process {pid}") };
        Error::new(
            Code::InUse,
            format!(
                "{who} has the local directory {} open: close the queue file there first, or give this process another `cache`",
                self.path.display()
            ),
        )
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn gone() -> io::Error {
    io::Error::new(
        ErrorKind::NotFound,
        "it was deleted or moved while this process has it open; close the queue file, put the directory back and open it again",
    )
}

impl Dir for Disk {
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    fn lock(&self) -> Result<Lock> {
        let failed = |e: io::Error| failed("lock", &self.path, &e);
        disk::make(&self.path).map_err(failed)?;
        let meta = fs::metadata(&self.path).map_err(failed)?;
        let Some(held) = self.hold().map_err(failed)? else { return Err(self.in_use()) };
        // In a file beside the lock: where locks are mandatory, a locked file cannot be read.
        let owner = disk::create(&self.path.join("owner"))
            .and_then(|mut owner| owner.write_all(std::process::id().to_string().as_bytes()));
        owner.map_err(failed)?;
        *lock(&self.locked) = cfg!(unix).then_some(meta);
        self.still_there().map_err(failed)?;
        Ok(Box::new(held))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = vec![];
        for entry in fs::read_dir(&self.path)? {
            names.extend(entry?.file_name().into_string());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut bytes = vec![];
        File::open(self.path.join(name))?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn create(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let (path, unfinished) = (self.path.join(name), self.path.join(format!("{name}.tmp")));
        self.still_there()?;
        let made = disk::create(&unfinished)
            .and_then(|mut file| {
                file.write_all(bytes)?;
                file.sync_all()
            })
            .and_then(|()| fs::rename(&unfinished, &path));
        if made.is_err() {
            // On a full disk it would take up room.
            let _ = fs::remove_file(&unfinished);
        }
        made?;
        disk::sync_dir(&self.path)
    }

    fn append(&self, name: &str, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.with(name, |file| {
            file.seek(SeekFrom::Start(at))?;
            file.write_all(bytes)
        })
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        self.with(name, |file| file.sync_data())
    }

    fn cut(&self, name: &str, len: u64) -> io::Result<()> {
        self.with(name, |file| file.set_len(len))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.path.join(name)) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }
}

/// Returns the error: the operation that failed, where, and whether the disk was full.
pub(crate) fn failed(what: &str, path: &Path, e: &io::Error) -> Error {
    let (code, then) = if disk::is_full(e) { (Code::DiskFull, disk::MAKE_ROOM) } else { (Code::Disk, "") };
    Error::new(code, format!("cannot {what} {}: {e}{then}", path.display()))
}
