//! Images: a settled commit as a plain SQLite file on this machine. Written for an export, read and judged for a restore.
//!
//! Called by the writer (export) and by restore. Blocks on files: callers run it where that is allowed.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::check::look;
use crate::error::{Code, Error, Result};
use crate::pages::{Image, PAGE, Pages};

/// Write the image to `path`: whole or not at all, and over a file that is there only with `replace`. `rand` names the
/// file it grows in.
pub(crate) fn export(image: &Image, path: &Path, replace: bool, rand: [u8; 8]) -> Result<u64> {
    let taken = || {
        let what = format!(
            "there is a file at {} already: choose another path, or have it replaced",
            path.display()
        );
        Err(Error::new(Code::FileExists, what))
    };
    let Some(name) = path.file_name() else {
        return Err(Error::invalid(format!("{} names no file to write to", path.display())));
    };
    if !replace && path.symlink_metadata().is_ok() {
        return taken();
    }
    let dir = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut unfinished = std::ffi::OsString::from(".");
    unfinished.push(name);
    unfinished.push(format!(".{:016x}.tmp", u64::from_le_bytes(rand)));
    let unfinished = dir.join(unfinished);
    let written = write(image, &unfinished).and_then(|()| {
        if replace {
            return fs::rename(&unfinished, path);
        }
        // A link, unlike a rename, never takes the place of what somebody put there meanwhile.
        fs::hard_link(&unfinished, path)
    });
    if !(replace && written.is_ok()) {
        let _ = fs::remove_file(&unfinished);
    }
    match written {
        Err(e) if e.kind() == ErrorKind::AlreadyExists && !replace => return taken(),
        Err(e) => return Err(local(&format!("write {}", path.display()), &e)),
        Ok(()) => {}
    }
    if cfg!(unix) {
        File::open(dir)
            .and_then(|d| d.sync_all())
            .map_err(|e| local(&format!("sync {}", dir.display()), &e))?;
    }
    Ok(image.bytes())
}

fn write(image: &Image, to: &Path) -> io::Result<()> {
    let mut file = io::BufWriter::new(File::options().write(true).create_new(true).open(to)?);
    image.write_to(&mut file)?;
    file.flush()?;
    file.get_ref().sync_all()
}

/// An image that may be restored.
pub(super) struct Sound {
    pub pages: Image,
    pub jobs: u64,
    /// The newest commit that anything in it is of.
    pub newest: u64,
}

/// Read an image and refuse it unless it is a whole queue file of a schema this version writes.
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
                "{} holds changes that are not in it; let sqlite3 open and close it first",
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
    if let Some(first) = looked.unsound.first() {
        let others = match looked.unsound.len() {
            1 => String::new(),
            n => format!(", and {} findings more", n - 1),
        };
        return refuse(format!("{}, but not: {}{others}", first.rule, first.what));
    }
    Ok(Sound { pages: image, jobs: looked.jobs, newest: looked.newest })
}

fn local(what: &str, e: &io::Error) -> Error {
    Error::new(Code::LocalFile, format!("cannot {what}: {e}"))
}
