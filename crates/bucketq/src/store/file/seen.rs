//! Whether an object is still the one read before, told by one stat.
//!
//! Called by the file store. The file read is kept open: as long as it is, its inode cannot be given to another
//! file, and objects are only ever replaced by a rename, so the same inode under the key is the same bytes. Length
//! and times are compared too, for hands that write into the file itself.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::store::Version;

/// The files last found unchanged, by key. One entry a key ever asked for by version: HEAD, in practice.
#[derive(Debug, Default)]
pub(super) struct Seen {
    by_key: Mutex<BTreeMap<String, Remembered>>,
}

#[derive(Debug)]
struct Remembered {
    /// Never read again: it holds the inode.
    _file: File,
    stamp: Stamp,
    version: Version,
}

#[derive(Debug, PartialEq)]
struct Stamp {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    #[cfg(unix)]
    fn of(meta: &Metadata) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        // No file has inode 0: a file system that says so has none to tell apart by.
        (meta.ino() != 0).then(|| Self {
            device: meta.dev(),
            inode: meta.ino(),
            length: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        })
    }

    /// Without inodes nothing can be told: every get reads the file.
    #[cfg(not(unix))]
    fn of(_: &Metadata) -> Option<Self> {
        None
    }
}

impl Seen {
    /// `file` is what the key stood for and its bytes have this version.
    pub(super) fn remember(&self, key: &str, file: File, version: &Version) {
        if let Some(stamp) = file.metadata().ok().as_ref().and_then(Stamp::of) {
            let remembered = Remembered { _file: file, stamp, version: version.clone() };
            self.by_key.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned(), remembered);
        }
    }

    /// True only if the object is surely still this version.
    pub(super) fn is_still(&self, key: &str, path: &Path, version: &Version) -> bool {
        let by_key = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(remembered) = by_key.get(key) else { return false };
        remembered.version == *version
            && path.metadata().ok().as_ref().and_then(Stamp::of).is_some_and(|now| now == remembered.stamp)
    }
}
