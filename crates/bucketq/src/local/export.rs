//! The local state as files for people: what a sync could not publish, to be looked at and done again.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::dir::failed;
use crate::error::{Code, Error, Result};
use crate::pages::Image;

/// Write the image to a new file: there as a whole or not at all.
pub(crate) fn export(path: &Path, image: &Image) -> Result<()> {
    write_new(path, |out| image.write_to(out))
}

fn write_new(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    if path.exists() {
        return Err(Error::invalid(format!("{} is there already: name a new file", path.display())));
    }
    let name =
        path.file_name().and_then(|n| n.to_str()).ok_or_else(|| Error::invalid("no file to write to"))?;
    let unfinished = path.with_file_name(format!(".{name}.tmp"));
    let written = File::create(&unfinished).and_then(|file| {
        let mut out = BufWriter::new(file);
        write(&mut out)?;
        out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
    });
    let done = written.and_then(|()| fs::rename(&unfinished, path));
    if done.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    done.map_err(|e| Error::new(Code::Disk, failed("write", path, &e).message()).because(e))
}
