//! Finds out with one stat whether an object is still the one read before.
//!
//! Called by the file store. The file that was read stays open: meanwhile its inode cannot be reused for another file,
//! and objects are only replaced by a rename, so the same inode under the key means the same bytes. Length and times
//! are compared too, in case someone edits the file by hand.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::bytes::store::Version;

/// The files last found unchanged, by key: one entry per key that was read with a version, in practice HEAD.
#[derive(Debug, Default)]
pub(super) struct UnchangedFiles {
    by_key: Mutex<BTreeMap<String, Remembered>>,
}

#[derive(Debug)]
struct Remembered {
    /// Never read again: it keeps the inode in use.
    _file: File,
    stamp: FileStamp,
    version: Version,
}

#[derive(Debug, PartialEq)]
struct FileStamp {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileStamp {
    #[cfg(unix)]
    fn of(meta: &Metadata) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        // No file has inode 0: a file system that reports it has no usable inodes.
        (meta.ino() != 0).then(|| Self {
            device: meta.dev(),
            inode: meta.ino(),
            length: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        })
    }

    /// Without inodes this cannot be known: every get reads the file.
    #[cfg(not(unix))]
    fn of(_: &Metadata) -> Option<Self> {
        None
    }
}

impl UnchangedFiles {
    /// Records that the key names `file` and its bytes have this version.
    pub(super) fn remember(&self, key: &str, file: File, version: &Version) {
        if let Some(stamp) = file.metadata().ok().as_ref().and_then(FileStamp::of) {
            let remembered = Remembered { _file: file, stamp, version: version.clone() };
            self.by_key.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned(), remembered);
        }
    }

    /// Returns true only if the object certainly still has this version.
    pub(super) fn is_still(&self, key: &str, path: &Path, version: &Version) -> bool {
        let by_key = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(remembered) = by_key.get(key) else { return false };
        remembered.version == *version
            && path
                .metadata()
                .ok()
                .as_ref()
                .and_then(FileStamp::of)
                .is_some_and(|now| now == remembered.stamp)
    }
}
