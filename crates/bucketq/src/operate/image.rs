//! Reads and checks an image, a plain SQLite file on this machine, before it is restored.
//!
//! Called by restore. Blocks on files: callers run it on a blocking thread.

use std::fs;
use std::path::{Path, PathBuf};

use super::check::look;
use crate::bucket::head::Head;
use crate::engine::image::local;
use crate::noun::error::{Code, Error, Result};
use crate::state::db::{self, Db};
use crate::state::pages::{Image, PAGE, PageFile, Pages};

/// An image that can be restored.
pub(super) struct Sound {
    pub pages: Image,
    pub jobs: u64,
    /// The newest commit that any row in it mentions.
    pub newest: u64,
}

impl Sound {
    /// Returns the state that a database of this HEAD has now.
    pub fn of(file: &PageFile, db: Db, head: &Head) -> Result<Self> {
        let (jobs, newest) = db::extent(db.connection())?;
        drop(db);
        let pages = file.with(|p| {
            p.take_changes();
            p.image()
        });
        Ok(Self { pages, jobs, newest: newest.max(head.commit_seq) })
    }
}

/// Reads an image and refuses it unless it is a whole queue file with a schema that this version writes.
pub(super) fn read(path: &Path, max_pages: u32) -> Result<Sound> {
    let refuse =
        |why: String| Err(Error::new(Code::Image, format!("{} cannot be restored: {why}", path.display())));
    let most = u64::from(max_pages) * PAGE as u64;
    let len = fs::metadata(path).map_err(|e| local(&format!("read {}", path.display()), &e))?.len();
    if len > most {
        return Err(Error::new(
            Code::FileFull,
            format!("{} has {len} bytes; the option max_file allows {most}", path.display()),
        ));
    }
    for end in ["-wal", "-journal"] {
        let mut beside = path.as_os_str().to_owned();
        beside.push(end);
        let beside = PathBuf::from(beside);
        if fs::metadata(&beside).is_ok_and(|m| m.len() > 0) {
            return refuse(format!(
                "{} holds changes that are not in the image yet: open the image with sqlite3 and close it first",
                beside.display()
            ));
        }
    }
    let bytes = fs::read(path).map_err(|e| local(&format!("read {}", path.display()), &e))?;
    if !bytes.starts_with(b"SQLite format 3\0") || bytes.len() < 100 {
        return refuse("it is not a SQLite database".into());
    }
    if bytes[16..18] != [0x10, 0] {
        return refuse("its pages do not have 4096 bytes".into());
    }
    if bytes[18..20] != [1, 1] {
        return refuse("it is in WAL mode; run `PRAGMA journal_mode=DELETE` in it first".into());
    }
    let stated = u32::from_be_bytes([bytes[28], bytes[29], bytes[30], bytes[31]]);
    if bytes.len() as u64 != u64::from(stated) * PAGE as u64 {
        return refuse(format!("it has {} bytes where its header says {stated} pages", bytes.len()));
    }
    let pages = Pages::from_image(&bytes)?;
    drop(bytes);
    let image = pages.image();
    let looked = match look(pages, max_pages, None, 0) {
        Ok(looked) => looked,
        Err(error) => return refuse(error.message().to_owned()),
    };
    if looked.newer {
        return Err(Error::new(
            Code::TooNew,
            format!("{} has a newer schema than this library writes: upgrade bucketq", path.display()),
        ));
    }
    if let Some(first) = looked.violations.first() {
        let others = match looked.violations.len() {
            1 => String::new(),
            n => format!(", and {} findings more", n - 1),
        };
        return refuse(format!("it breaks the rule that {}: {}{others}", first.rule, first.what));
    }
    Ok(Sound { pages: image, jobs: looked.jobs, newest: looked.newest })
}
