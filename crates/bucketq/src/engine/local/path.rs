//! Chooses the directory of a queue file.

use std::env::var_os;
use std::path::{Path, PathBuf};

use crate::bucket::keys;
use crate::bucket::wire::hash;
use crate::noun::error::{Code, Error, Result};

/// Returns the directory of the queue file `name` in this store: in `cache`, or where this platform keeps the state of
/// programs.
pub(crate) fn directory(cache: Option<&Path>, store: &str, name: &str) -> Result<PathBuf> {
    let above = match cache {
        Some(dir) => dir.to_owned(),
        None => state()?.join("bucketq"),
    };
    let above = std::path::absolute(&above)
        .map_err(|e| Error::new(Code::Option, format!("`cache` is no path: {e}")).because(e))?;
    // Queue files of the same name in several stores may share `cache`.
    let told = hash(format!("{store} {name}").as_bytes());
    Ok(above.join(format!("{name}-{}", keys::hex(&told[..4]))))
}

fn state() -> Result<PathBuf> {
    let absolute = |variable: &str| var_os(variable).map(PathBuf::from).filter(|p| p.is_absolute());
    let found = if cfg!(windows) {
        absolute("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        absolute("HOME").map(|home| home.join("Library/Application Support"))
    } else {
        absolute("XDG_STATE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
    };
    found.ok_or_else(|| {
        Error::new(
            Code::Option,
            "this process has no directory for its state (HOME is not set): name one by the option `cache`",
        )
    })
}
