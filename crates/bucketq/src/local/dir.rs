//! The directory beneath Local mode: the few things done to its files, so that a simulation can take its place.
//!
//! Called by the log only. Everything blocks: the writer has a thread of its own, and a local commit is over when the
//! disk says so. Knows names and bytes, nothing of what they mean.

use std::any::Any;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::error::{Code, Error, Result};

/// Held as long as the directory belongs to this process.
pub type Lock = Box<dyn Any + Send + Sync>;

/// One directory. Names are plain file names.
pub trait Dir: Send + Sync + fmt::Debug {
    /// What people call it; for the real one, its path.
    fn path(&self) -> PathBuf;
    /// Take the directory, which is made if it is not there; refused while another has it.
    fn lock(&self) -> Result<Lock>;
    /// The names of the files in it.
    fn names(&self) -> io::Result<Vec<String>>;
    /// A whole file.
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;
    /// A new file with these bytes, durable when this returns. Whatever happens meanwhile, it is there as a whole or not
    /// at all.
    fn create(&self, name: &str, bytes: &[u8]) -> io::Result<()>;
    /// Write at this place, which is the end of the file or behind what counts of it. Not durable before
    /// [`sync`](Self::sync). On an error some of it may be there.
    fn append(&self, name: &str, at: u64, bytes: &[u8]) -> io::Result<()>;
    /// Make what was appended durable. After an error nobody knows what is.
    fn sync(&self, name: &str) -> io::Result<()>;
    /// Cut the file off there. Not durable before [`sync`](Self::sync).
    fn cut(&self, name: &str, len: u64) -> io::Result<()>;
    /// Remove a file.
    fn remove(&self, name: &str) -> io::Result<()>;
}

/// A directory of the file system.
pub struct Disk {
    path: PathBuf,
    /// The file appended to last, kept open.
    open: Mutex<Option<(String, File)>>,
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Disk({})", self.path.display())
    }
}

impl Disk {
    /// The directory at `path`.
    pub fn new(path: PathBuf) -> Self {
        Self { path, open: Mutex::new(None) }
    }

    fn with<T>(&self, name: &str, work: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.as_ref().is_none_or(|(there, _)| there != name) {
            let file = File::options().read(true).write(true).open(self.path.join(name))?;
            *open = Some((name.to_owned(), file));
        }
        match open.as_mut() {
            Some((_, file)) => work(file),
            None => Err(io::Error::other("the file that was just opened is not")),
        }
    }
}

impl Dir for Disk {
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    fn lock(&self) -> Result<Lock> {
        let failed = |e: io::Error| failed("lock", &self.path, &e);
        make(&self.path).map_err(failed)?;
        let lock = File::options().create(true).append(true).open(self.path.join("lock")).map_err(failed)?;
        // Beside the lock and not in it: where locks are mandatory, a locked file cannot be read.
        let owner = self.path.join("owner");
        match lock.try_lock() {
            Ok(()) => {
                fs::write(owner, std::process::id().to_string()).map_err(failed)?;
                Ok(Box::new(lock))
            }
            Err(fs::TryLockError::WouldBlock) => {
                let pid = fs::read_to_string(owner).unwrap_or_default();
                let who =
                    if pid.is_empty() { "another process".to_owned() } else { format!("process {pid}") };
                Err(Error::new(
                    Code::InUse,
                    format!(
                        "{who} has the local directory {} open: close the queue file there first, or give this process another `cache`",
                        self.path.display()
                    ),
                ))
            }
            Err(fs::TryLockError::Error(e)) => Err(failed(e)),
        }
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
        let made = File::create(&unfinished)
            .and_then(|mut file| {
                file.write_all(bytes)?;
                file.sync_all()
            })
            .and_then(|()| fs::rename(&unfinished, &path));
        if made.is_err() {
            // On a full disk it takes up room.
            let _ = fs::remove_file(&unfinished);
        }
        made?;
        sync_dir(&self.path)
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

/// Make the directory and those above it. What lies in it is nobody else's business.
pub(crate) fn make(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

pub(crate) fn sync_dir(path: &Path) -> io::Result<()> {
    // Elsewhere a directory cannot be opened, and the rename is as durable as the system makes it.
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}

/// What failed, where, and whether the disk was full.
pub(crate) fn failed(what: &str, path: &Path, e: &io::Error) -> Error {
    let full =
        matches!(e.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge);
    let (code, then) = if full { (Code::DiskFull, ": make room and call again") } else { (Code::Disk, "") };
    Error::new(code, format!("cannot {what} {}: {e}{then}", path.display()))
}
