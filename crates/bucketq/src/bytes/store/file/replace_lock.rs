//! The lock for replacing an object: only the writer that has locked the object's file may replace it.
//!
//! Called by the file store. The lock is on the object itself, not on a file beside it that could be deleted
//! separately. A rename replaces the object and so ends the lock. Under the lock the writer checks that the file is
//! still the one it read, and renames. All slow work is outside. A process that is stopped in these few microseconds
//! blocks others for LONGEST; then they pass it (pass.rs). On systems other than Unix, where open files cannot be
//! renamed over or locked files not read, the lock is on a file beside the object, and nobody passes.

use std::fs::{self, File, Metadata, TryLockError};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::pass::{self, Replacement};
use crate::bytes::disk;
use crate::fork;

/// First and longest pause between two tries to get the lock. After LONGEST in total the holder is stopped, or its disk
/// hangs. The pauses are counted, not measured.
const PAUSE: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(5));
const LONGEST: Duration = Duration::from_millis(250);

/// An object and its file as they were read.
pub(super) struct ReadObject {
    file: File,
    meta: Metadata,
    #[cfg_attr(unix, expect(dead_code, reason = "elsewhere a file is known by its bytes"))]
    bytes: Vec<u8>,
}

/// The outcome of taking the lock. With an error instead, nothing was changed.
pub(super) enum LockUse {
    /// The object was locked, and this is the result of the work.
    Used(io::Result<()>),
    /// The object was replaced or deleted meanwhile.
    Other,
    /// Another process holds the lock and does not release it: its pid, if known.
    Waiting(Option<u32>),
}

/// Opens an object to lock it. Some file systems lock only files that are open for writing.
pub(super) fn open(path: &Path) -> io::Result<File> {
    match File::options().read(true).write(true).open(path) {
        Err(e) if e.kind() == ErrorKind::PermissionDenied => File::open(path),
        opened => opened,
    }
}

impl ReadObject {
    /// Returns the object that was read from this file.
    pub fn of(file: File, bytes: Vec<u8>) -> io::Result<Self> {
        let meta = file.metadata()?;
        Ok(Self { file, meta, bytes })
    }

    /// Replaces the object, if no other process has done so.
    pub fn replace(&self, new: &Replacement<'_>, beside: &Path) -> io::Result<LockUse> {
        match self.with_lock(new.object, beside, || new.rename())? {
            LockUse::Waiting(_) if cfg!(unix) => Ok(used(new.pass(|| self.is_still(new.object)))),
            other => Ok(other),
        }
    }

    /// Deletes the object, if no other process has replaced it.
    pub fn delete(&self, path: &Path, beside: &Path) -> io::Result<LockUse> {
        self.with_lock(path, beside, || fs::remove_file(path).map(|()| true))
    }

    fn with_lock(
        &self,
        path: &Path,
        beside: &Path,
        work: impl FnOnce() -> io::Result<bool>,
    ) -> io::Result<LockUse> {
        let (is_still, locked) = (|| self.is_still(path), || pass::cancel(path));
        if cfg!(unix) {
            return with_lock(&self.file, locked, is_still, work);
        }
        let lock = crate::bytes::disk::making().open(beside)?;
        with_lock(&lock, locked, is_still, work)
    }

    /// Returns whether it is the same file and nobody has edited it by hand.
    #[cfg(unix)]
    fn is_still(&self, path: &Path) -> io::Result<bool> {
        use std::os::unix::fs::MetadataExt;
        let stamp = |m: &Metadata| (m.dev(), m.ino(), m.len(), m.mtime(), m.mtime_nsec());
        match fs::metadata(path) {
            Ok(there) => Ok(stamp(&there) == stamp(&self.meta)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    #[cfg(not(unix))]
    fn is_still(&self, path: &Path) -> io::Result<bool> {
        match fs::read(path) {
            Ok(there) => Ok(self.bytes.is_empty() || there == self.bytes),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }
}

/// Gives the written file its name, if no file has it.
pub(super) fn create(written: &Path, path: &Path, dir: &Path) -> io::Result<LockUse> {
    match fs::hard_link(written, path) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => return Ok(LockUse::Other),
        // A file system without hard links, such as those of memory cards.
        Err(e) if matches!(e.kind(), ErrorKind::Unsupported | ErrorKind::PermissionDenied) && cfg!(unix) => {}
        made => return Ok(LockUse::Used(made)),
    }
    let is_absent = || Ok(!fs::exists(path)?);
    with_lock(&File::open(dir)?, || Ok(()), is_absent, || fs::rename(written, path).map(|()| true))
}

/// Returns the outcome of work that returns false if another writer has cancelled it.
fn used(done: io::Result<bool>) -> LockUse {
    match done {
        Ok(true) => LockUse::Used(Ok(())),
        Ok(false) => LockUse::Other,
        Err(e) => LockUse::Used(Err(e)),
    }
}

/// Runs `locked` under the lock, and then `work` if it is still the same object.
fn with_lock(
    lock: &File,
    locked: impl FnOnce() -> io::Result<()>,
    is_still: impl Fn() -> io::Result<bool>,
    work: impl FnOnce() -> io::Result<bool>,
) -> io::Result<LockUse> {
    let (mut pause, mut waited) = (PAUSE.0, Duration::ZERO);
    loop {
        {
            // No fork happens here: the child would hold the lock too, and keep it if this process is killed.
            let _inside = fork::inside();
            match lock.try_lock() {
                Ok(()) => {
                    let _unlock = Unlock(lock);
                    locked()?;
                    return Ok(if is_still()? { used(work()) } else { LockUse::Other });
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(e)) => return Err(e),
            }
        }
        if !is_still()? {
            return Ok(LockUse::Other);
        }
        if waited >= LONGEST {
            return Ok(LockUse::Waiting(holder(lock)));
        }
        thread::park_timeout(pause);
        waited += pause;
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// Unlocks for every copy of the file: after a mere close, a program that is just being started would still hold the
/// lock.
struct Unlock<'a>(&'a File);

impl Drop for Unlock<'_> {
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

/// Returns the process that holds the lock on this file, where the system shows it.
#[cfg(target_os = "linux")]
fn holder(lock: &File) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    let inode = lock.metadata().ok()?.ino().to_string();
    let all = fs::read_to_string("/proc/locks").ok()?;
    // 1: FLOCK  ADVISORY  WRITE 4711 08:01:131 0 EOF
    all.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, file, ..] = words[..] else { return None };
        (file.rsplit(':').next() == Some(inode.as_str())).then(|| pid.parse().ok()).flatten()
    })
}

#[cfg(not(target_os = "linux"))]
fn holder(_: &File) -> Option<u32> {
    None
}

/// Sets the permissions: a new object is for its owner only, and for the group too if the directory is group-writable.
/// A replacement gets the permissions of the replaced object.
#[cfg(unix)]
pub(super) fn permit(file: &File, before: Option<&ReadObject>, dir: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mode = match before {
        Some(before) => before.meta.permissions().mode() & 0o777,
        None if is_shared(dir)? => 0o660,
        None => 0o600,
    };
    if mode != 0o600 {
        file.set_permissions(fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// Makes a directory inside `dir`, if it is not there; where the group may write to `dir`, it may use the new one too.
/// Needs a free name beside it.
#[cfg(unix)]
pub(super) fn make_shared(place: &Path, dir: &Path, free: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    if !is_shared(dir)? {
        return disk::make_one(place).map(drop);
    }
    if fs::exists(place)? {
        return Ok(());
    }
    // Under its name the group may use it from the beginning: this process may be stopped at any step.
    disk::make_one(free)?;
    fs::set_permissions(free, fs::Permissions::from_mode(0o770))?;
    match fs::rename(free, place) {
        // Another process has made it, and is in it.
        Err(e) if matches!(e.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) => {
            fs::remove_dir(free)
        }
        renamed => renamed,
    }
}

/// Returns whether the group may write to a directory. A world-writable one such as /tmp shares nothing.
#[cfg(unix)]
fn is_shared(dir: &Path) -> io::Result<bool> {
    use std::os::unix::fs::PermissionsExt;
    Ok(fs::metadata(dir)?.permissions().mode() & 0o022 == 0o020)
}

#[cfg(not(unix))]
pub(super) fn make_shared(place: &Path, _: &Path, _: &Path) -> io::Result<()> {
    disk::make_one(place).map(drop)
}

#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "as on unix")]
pub(super) fn permit(_: &File, _: Option<&ReadObject>, _: &Path) -> io::Result<()> {
    Ok(())
}
