//! Where the processes of one user on one host that open one queue file meet: a directory, and in it a lock and a
//! socket for each seat.
//!
//! Called when a queue file is opened and when its writer changes. The lock of a seat says that a process leads, or has
//! led and hangs; its socket belongs to the process that has the lock. Creates the directory and the locks, binds and
//! connects nothing. A process that leaves its seat deletes the files, and the next leader of any queue file those of
//! killed processes. Only the process that has the lock deletes them: another one that is just locking the file then
//! sees that it is no longer there.

use std::fs::{self, File, Metadata, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process;
use std::thread;
use std::time::Duration;
#[cfg(unix)]
use std::{collections::BTreeSet, env, fmt::Write as _};

use crate::bytes::disk;
use crate::fork::{self, LockedFile};
use crate::noun::error::{Code, Error, Result};

/// The number of seats: leaders that hang keep theirs, the next leader takes the next one.
pub const SEATS: u8 = 8;

/// Most bytes of the path of a socket, without the zero at its end.
pub const LONGEST_SOCKET: usize = if cfg!(target_os = "linux") { 107 } else { 103 };

/// The number of digits of a name.
#[cfg(unix)]
const NAME_LEN: usize = 16;

/// The rights of all but the owner.
#[cfg(unix)]
const OTHERS: u32 = 0o077;

/// How often a lock is tried that only looks of other processes can keep, and the pause after each time.
const TRIES: u32 = 200;
const PAUSE: Duration = Duration::from_micros(100);

/// The files of a seat are abandoned if they are this old and nobody has their lock.
#[cfg(unix)]
const ABANDONED_AFTER_MS: i64 = 3_600_000;
/// Most seats that one leader tidies away: the next one continues.
#[cfg(unix)]
const TIDIED: usize = 256;

/// Where the processes of this user that open one queue file meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeetingPlace {
    dir: PathBuf,
    /// The directory comes from the option, so its owner and its rights are those that the user chose.
    is_chosen: bool,
    /// The beginning of the names of its files.
    name: String,
}

impl MeetingPlace {
    /// Returns the place for the queue file at `place`, its resolved place as text; only a hash of it is used.
    ///
    /// `host_dir` is the option. When not set: `$XDG_RUNTIME_DIR/bucketq` if that directory is this user's own and
    /// private, else `bucketq-<uid>` in the directory for temporary files. Creates the directory for its owner only. An
    /// error says in one sentence why processes cannot meet here.
    #[cfg(unix)]
    pub fn find(host_dir: Option<&Path>, place: &str) -> Result<Self> {
        let (dir, is_chosen) = host_dir.map_or_else(|| (usual(), false), |dir| (dir.to_owned(), true));
        let dir = std::path::absolute(&dir)
            .map_err(|e| Error::new(Code::Option, format!("`host_dir` is no path: {e}")).because(e))?;
        // Without a slash at the end, which would lead through a symbolic link.
        let found = Self { dir: dir.components().collect(), is_chosen, name: name(place) };
        let bytes = found.socket(SEATS - 1).as_os_str().len();
        if bytes > LONGEST_SOCKET {
            let dir = found.dir.display();
            return Err(Error::new(
                Code::Option,
                format!(
                    "the path of a socket in {dir} has {bytes} bytes, at most {LONGEST_SOCKET} are possible: \
                     set `host_dir` to a shorter path"
                ),
            ));
        }
        found.prepare()?;
        Ok(found)
    }

    /// See above. On this system processes do not meet.
    #[cfg(not(unix))]
    pub fn find(_: Option<&Path>, _: &str) -> Result<Self> {
        Err(Error::new(Code::LocalFile, "processes do not share a writer on this system"))
    }

    /// Returns the directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the path of this seat's socket.
    pub fn socket(&self, seat: u8) -> PathBuf {
        self.dir.join(format!("{}.{seat}.sock", self.name))
    }

    fn lock_file(&self, seat: u8) -> PathBuf {
        self.dir.join(format!("{}.{seat}.lock", self.name))
    }

    /// Takes this seat; none if a process has it, this one included. Fails where the file system has no locks. A socket
    /// that a killed leader left in the seat is gone afterwards.
    pub fn take(&self, seat: u8) -> Result<Option<Seat>> {
        let (path, mut is_prepared) = (self.lock_file(seat), false);
        for _ in 0..TRIES {
            let (file, meta) = match open(&path, true) {
                Ok(opened) => opened,
                // Somebody tidied up.
                Err(e) if e.kind() == ErrorKind::NotFound && !is_prepared => {
                    is_prepared = true;
                    self.prepare()?;
                    continue;
                }
                Err(e) => return Err(self.failed("open a lock", &e)),
            };
            match fork::hold(file) {
                Ok(Some(lock)) => {
                    let seat = Seat {
                        number: seat,
                        socket: self.socket(seat),
                        path: path.clone(),
                        meta,
                        pid: process::id(),
                        _lock: lock,
                    };
                    // Otherwise the file was deleted meanwhile, and other processes lock another one.
                    if seat.is_current() {
                        let _ = fs::remove_file(&seat.socket);
                        return Ok(Some(seat));
                    }
                }
                Ok(None) if self.is_taken(seat)? => return Ok(None),
                // Another process only looked, or its lock is just gone.
                Ok(None) => thread::park_timeout(PAUSE),
                Err(e) => return Err(self.no_locks(e)),
            }
        }
        Ok(None)
    }

    /// Returns whether a process holds the lock of this seat now, this one included. Takes nothing.
    pub fn is_taken(&self, seat: u8) -> Result<bool> {
        let file = match open(&self.lock_file(seat), false) {
            Ok((file, _)) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(self.failed("open a lock", &e)),
        };
        // No fork happens here: the child would keep the lock. Looks share it, so none keeps off another.
        let _inside = fork::inside();
        match file.try_lock_shared() {
            Ok(()) => {
                let _ = file.unlock();
                Ok(false)
            }
            Err(TryLockError::WouldBlock) => Ok(true),
            Err(TryLockError::Error(e)) => Err(self.no_locks(e)),
        }
    }

    /// Deletes files of seats, of any queue file, whose processes were killed long ago. Those of other users stay. A
    /// failure does no harm: the files wait for the next leader.
    #[cfg(unix)]
    pub fn tidy(&self, now_ms: i64) {
        use std::os::unix::fs::MetadataExt;
        let Ok(files) = fs::read_dir(&self.dir) else { return };
        let is_abandoned = |file: &fs::DirEntry| {
            let Ok(meta) = file.metadata() else { return false };
            meta.uid() == user() && meta.mtime() * 1_000 < now_ms - ABANDONED_AFTER_MS
        };
        let abandoned = files.flatten().filter_map(|file| {
            let named = seat_of(file.file_name().to_str()?)?;
            is_abandoned(&file).then_some(named)
        });
        let abandoned: BTreeSet<(String, u8)> = abandoned.take(2 * TIDIED).collect();
        for (name, seat) in abandoned.into_iter().take(TIDIED) {
            // A seat that is taken stays as it is, and one that is left has no files.
            drop(Self { name, ..self.clone() }.take(seat));
        }
    }

    fn no_locks(&self, e: io::Error) -> Error {
        let text = format!("the file system of {} has no locks: {e}", self.dir.display());
        Error::new(Code::LocalFile, text).because(e)
    }

    fn failed(&self, what: &str, e: &io::Error) -> Error {
        let (code, then) =
            if disk::is_full(e) { (Code::DiskFull, disk::MAKE_ROOM) } else { (Code::LocalFile, "") };
        Error::new(code, format!("cannot {what} in {}: {e}{then}", self.dir.display()))
    }

    /// Creates the directory if it is not there, and refuses one that is not safe.
    fn prepare(&self) -> Result<()> {
        let dir = &self.dir;
        let made = if self.is_chosen { disk::make(dir) } else { disk::make_one(dir).map(drop) };
        match made {
            // Refused below, with a better reason.
            Err(e) if e.kind() == ErrorKind::NotADirectory && fs::symlink_metadata(dir).is_ok() => {}
            made => made.map_err(|e| self.failed("create a directory", &e))?,
        }
        let meta = fs::symlink_metadata(dir).map_err(|e| self.failed("look", &e))?;
        let refused = |why: String| {
            Err(Error::new(Code::LocalFile, format!("processes do not meet in {}: {why}", dir.display())))
        };
        if meta.is_symlink() {
            return refused("it is a symbolic link".to_owned());
        }
        if !meta.is_dir() {
            return refused("it is not a directory".to_owned());
        }
        unsafe_rights(dir, &meta, self.is_chosen).map_or(Ok(()), refused)
    }
}

/// Returns the beginning of the names of a place and the number of the seat, if a file has the name of a seat's file.
#[cfg(unix)]
fn seat_of(file: &str) -> Option<(String, u8)> {
    let (name, rest) = file.split_once('.')?;
    let (seat, end) = rest.split_once('.')?;
    let is_name = name.len() == NAME_LEN && name.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let seat = seat.parse().ok().filter(|seat| *seat < SEATS)?;
    (is_name && matches!(end, "lock" | "sock")).then(|| (name.to_owned(), seat))
}

/// Opens the file of a lock with its metadata. Only a plain file: a directory that several users may write to can
/// contain a link to somewhere else.
fn open(path: &Path, create: bool) -> io::Result<(File, Metadata)> {
    let mut options = disk::making();
    options.read(true).create(create);
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, flags.bits() as i32);
    }
    let file = options.open(path)?;
    let meta = file.metadata()?;
    if meta.is_file() { Ok((file, meta)) } else { Err(io::Error::other("it is not a plain file")) }
}

/// Returns the directory for processes whose user has named none.
#[cfg(unix)]
fn usual() -> PathBuf {
    use std::os::unix::fs::MetadataExt;
    let is_private = |dir: &PathBuf| {
        let meta = dir.metadata().ok();
        dir.is_absolute() && meta.is_some_and(|m| m.is_dir() && m.uid() == user() && m.mode() & OTHERS == 0)
    };
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(is_private);
    runtime.map_or_else(|| env::temp_dir().join(format!("bucketq-{}", user())), |dir| dir.join("bucketq"))
}

#[cfg(unix)]
fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns the name of the files of this user for this queue file: every version of this library has the same.
#[cfg(unix)]
fn name(place: &str) -> String {
    use sha2::{Digest, Sha256};
    let hash = Sha256::new().chain_update(user().to_be_bytes()).chain_update(place).finalize();
    hash[..NAME_LEN / 2].iter().fold(String::new(), |mut name, byte| {
        let _ = write!(name, "{byte:02x}");
        name
    })
}

/// Returns why this user cannot rely on the directory; none if it can.
#[cfg(unix)]
fn unsafe_rights(dir: &Path, meta: &Metadata, is_chosen: bool) -> Option<String> {
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    use std::os::unix::fs::MetadataExt;
    let (mode, owner, user) = (meta.mode() & 0o7777, meta.uid(), user());
    if !is_chosen && owner != user {
        return Some(format!("it belongs to user {owner}, and this process runs as user {user}"));
    }
    if !is_chosen && mode & OTHERS != 0 {
        return Some(format!("others may access it (mode {mode:o}); give it mode 700"));
    }
    if mode & 0o1002 == 0o002 {
        return Some(format!("everybody may delete files in it (mode {mode:o}); give it mode 700 or 1777"));
    }
    let may = accessat(CWD, dir, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS);
    may.err().map(|e| format!("this process may not create files in it: {}", io::Error::from(e)))
}

#[cfg(not(unix))]
fn unsafe_rights(_: &Path, _: &Metadata, _: bool) -> Option<String> {
    None
}

/// A taken seat. When it is dropped, its files are removed and then its lock released. A forked child has neither: its
/// copy of this value does nothing.
#[derive(Debug)]
pub struct Seat {
    number: u8,
    socket: PathBuf,
    /// The file of the lock, and its metadata when it was locked.
    path: PathBuf,
    meta: Metadata,
    pid: u32,
    _lock: LockedFile,
}

impl Seat {
    /// Returns the number of the seat.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// Returns the path of its socket, which nobody else binds while the seat is taken.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns whether other processes still find the process in this seat, after it has bound the socket. Not after the
    /// lock or the socket was deleted, as programs do that tidy up temporary files.
    pub fn is_found(&self) -> bool {
        self.is_current() && self.socket.exists()
    }

    /// Returns whether other processes still see that the seat is taken. Not after its lock file was deleted: then
    /// another process may take the same seat.
    pub fn is_current(&self) -> bool {
        disk::is_at(&self.meta, &self.path).unwrap_or(false)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // The files may be another leader's if the seat is not current.
        if self.pid == process::id() && self.is_current() {
            let _ = fs::remove_file(&self.socket);
            let _ = fs::remove_file(&self.path);
        }
    }
}
