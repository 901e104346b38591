//! Files and directories of bucketq: only their owner can access them, and they are durable where a caller relies on
//! it.
//!
//! Called by the file store, the cache and Local mode. Knows nothing of their content.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Options to open a file, creating it for its owner only. An existing file keeps its permissions.
pub(crate) fn making() -> OpenOptions {
    let mut options = File::options();
    options.write(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Opens an empty file: creates or truncates it.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    making().truncate(true).open(path)
}

/// Creates this directory for its owner only, durably; returns false if it exists.
pub(crate) fn make_one(path: &Path) -> io::Result<bool> {
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(path) {
        Ok(()) => sync_parent(path).map(|()| true),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(e) => Err(e),
    }
}

/// Creates this directory and its parents.
pub(crate) fn make(path: &Path) -> io::Result<()> {
    match make_one(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let above = path.parent().filter(|above| !above.as_os_str().is_empty()).ok_or(e)?;
            make(above)?;
            make_one(path).map(drop)
        }
        Ok(false) if !path.is_dir() => Err(ErrorKind::NotADirectory.into()),
        made => made.map(drop),
    }
}

fn sync_parent(path: &Path) -> io::Result<()> {
    let above = match path.parent() {
        Some(above) if above.as_os_str().is_empty() => Path::new("."),
        Some(above) => above,
        None => return Ok(()),
    };
    match sync_dir(above) {
        // Some file systems cannot sync a directory.
        Err(e) if matches!(e.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        synced => synced,
    }
}

/// Makes the names in this directory durable.
pub(crate) fn sync_dir(path: &Path) -> io::Result<()> {
    if !cfg!(unix) {
        // On other systems a directory cannot be opened, and a rename is as durable as the system makes it.
        return Ok(());
    }
    match File::open(path) {
        Ok(dir) => dir.sync_all(),
        // A directory can be writable and not readable: then it cannot be synced.
        Err(e) if e.kind() == ErrorKind::PermissionDenied => Ok(()),
        Err(e) => Err(e),
    }
}

/// Returns whether there was no space, on the disk or in the quota of this user or process.
pub(crate) fn is_full(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
}

/// The advice for a full disk.
pub(crate) const MAKE_ROOM: &str = ": make room on this disk and call again";

/// Returns the identity of a file, whatever its name; none where files have no identity.
#[cfg(unix)]
pub(crate) fn identity(meta: &Metadata) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    // No file has inode 0: a file system that reports it has no usable inodes.
    (meta.ino() != 0).then(|| (meta.dev(), meta.ino()))
}

/// See above.
#[cfg(not(unix))]
pub(crate) fn identity(_: &Metadata) -> Option<(u64, u64)> {
    None
}

/// Returns whether `path` is still the name of this file.
pub(crate) fn is_at(meta: &Metadata, path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(there) => Ok(identity(meta) == identity(&there)),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        Err(e) => Err(e),
    }
}
