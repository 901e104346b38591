//! Writes an image of a settled commit as a plain SQLite file on this machine.
//!
//! Called by exports, in Durable and in Local mode. Blocks on files: callers run it on a thread where that is allowed.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use crate::noun::error::{Code, Error, Result};
use crate::state::pages::Image;

/// Writes the image to `path`, whole or not at all; replaces an existing file only with `replace`. `rand` names the
/// temporary file.
pub(crate) fn export(image: &Image, path: &Path, replace: bool, rand: [u8; 8]) -> Result<u64> {
    let exists = || {
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
        return exists();
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
        // A hard link, unlike a rename, never replaces a file that another process created meanwhile.
        fs::hard_link(&unfinished, path)
    });
    if !(replace && written.is_ok()) {
        let _ = fs::remove_file(&unfinished);
    }
    match written {
        Err(e) if e.kind() == ErrorKind::AlreadyExists && !replace => return exists(),
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

/// Returns the error for a failure on a file of this machine.
pub(crate) fn local(what: &str, e: &io::Error) -> Error {
    Error::new(Code::LocalFile, format!("cannot {what}: {e}"))
}
