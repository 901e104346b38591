//! The URL of a queue file.
//!
//! Called when a queue file is opened. Error texts never repeat parts that may contain credentials.

use std::fmt;
use std::path::{Path, PathBuf, is_separator};
use std::str::FromStr;

use crate::noun::config::Options;
use crate::noun::error::{Code, Error, Result};

/// Longest name: with its suffixes it fits into the 255 bytes of a file name.
const MAX_FILE_NAME: usize = 128;
/// Longest path in a bucket: with the name and its suffixes it fits into the 1,024 bytes of a key.
const MAX_PREFIX: usize = 768;

const EXAMPLES: &str =
    "valid are s3://bucket/path/name, file:///dir/name, a path such as ./jobs, and memory://name";

/// The place and the name of a queue file.
///
/// Written `s3://bucket/path/name`, `file:///dir/name`, a plain path (its last part is the name) or `memory://name`. A
/// name has letters, digits, `_` and `-` only.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StoreUrl {
    place: Place,
    name: String,
}

/// The place that stores the objects of a queue file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// A bucket, and the part of every key before the name: empty, or ending in a slash.
    S3 {
        /// The bucket.
        bucket: String,
        /// The beginning of every key.
        prefix: String,
    },
    /// A directory, as written; it may be relative.
    Directory(PathBuf),
    /// The memory of this process, under the queue file's own name.
    Memory,
}

impl StoreUrl {
    /// Refuses an invalid name of a queue file.
    pub fn check_name(name: &str) -> Result<()> {
        checked_name(name, name).map(|_| ())
    }

    /// Parses a URL or path; anything doubtful is Invalid, with an error that says what is right.
    pub fn parse(text: &str) -> Result<Self> {
        if text.is_empty() {
            return bad("the URL is empty");
        }
        if text.chars().any(char::is_control) {
            return bad("the URL has a control character in it");
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return plain_path(text);
        };
        let scheme = scheme.to_ascii_lowercase();
        match scheme.as_str() {
            "s3" => s3(rest),
            "file" => file(rest),
            "memory" => memory(rest),
            "gs" | "az" => Err(Error::new(
                Code::Url,
                format!("{scheme}:// is reserved and not supported yet; {EXAMPLES}"),
            )),
            // An unknown scheme may contain anything, even credentials.
            _ if scheme.len() <= 16 && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+') => {
                bad(&format!("there is no store for {scheme}://"))
            }
            _ => bad("this is neither a URL with a known scheme nor a path"),
        }
    }

    /// Returns the queue file's name, with which all its keys begin.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the place that stores it.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Returns the same value for every way to write a place: relative paths and links are resolved.
    #[must_use]
    pub fn resolved(&self) -> Self {
        let place = match &self.place {
            Place::Directory(dir) => Place::Directory(resolved(dir)),
            other => other.clone(),
        };
        Self { place, name: self.name.clone() }
    }
}

/// Returns what distinguishes two openings of one URL beside their options: for S3 the environment and the profile also
/// decide which server it is.
pub(crate) fn surroundings(url: &StoreUrl, options: &Options) -> String {
    match url.place() {
        #[cfg(feature = "s3")]
        Place::S3 { .. } => super::s3::surroundings(&options.s3),
        _ => {
            let _ = options;
            String::new()
        }
    }
}

/// Returns the real path as far as it exists: the last part may be created later.
fn resolved(dir: &Path) -> PathBuf {
    let parent = || Some(dir.parent()?.canonicalize().ok()?.join(dir.file_name()?));
    dir.canonicalize().ok().or_else(parent).unwrap_or_else(|| dir.to_owned())
}

impl FromStr for StoreUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::S3 { bucket, prefix } => write!(f, "s3://{bucket}/{prefix}{}", self.name),
            Place::Directory(dir) => write!(f, "{}", dir.join(&self.name).display()),
            Place::Memory => write!(f, "memory://{}", self.name),
        }
    }
}

fn bad<T>(what: &str) -> Result<T> {
    Err(Error::new(Code::Url, format!("{what}; {EXAMPLES}")))
}

fn checked_name(name: &str, whole: &str) -> Result<String> {
    if name.is_empty() {
        return bad(if whole.is_empty() {
            "the URL has no name"
        } else {
            "the URL ends in a slash: the name of the queue file is missing"
        });
    }
    if name.len() > MAX_FILE_NAME {
        return bad(&format!("the name has {} bytes; at most {MAX_FILE_NAME} are allowed", name.len()));
    }
    match name.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))) {
        None => Ok(name.to_owned()),
        Some(c) => {
            bad(&format!("the name `{name}` has `{c}` in it; only letters, digits, `_` and `-` are allowed"))
        }
    }
}

/// Refuses forbidden characters. Comes first: later messages may quote their part.
fn checked_url(rest: &str) -> Result<()> {
    if rest.contains('@') {
        return bad("credentials do not belong in the URL: they come from the options or the environment");
    }
    if rest.contains(['?', '#']) {
        return bad("the URL has a query or a fragment, which bucketq does not use: set options instead");
    }
    if rest.contains('%') {
        return bad("the URL has `%` in it; escapes are not decoded: write the characters themselves");
    }
    Ok(())
}

fn s3(rest: &str) -> Result<StoreUrl> {
    checked_url(rest)?;
    let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() {
        return bad("the bucket is missing");
    }
    if bucket.contains(':') {
        return bad("the bucket has `:` in it; a server's address goes into the option `endpoint`");
    }
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    if !(3..=63).contains(&bucket.len())
        || !bucket.bytes().all(allowed)
        || !bucket.as_bytes()[0].is_ascii_alphanumeric()
    {
        return bad(&format!("`{bucket}` cannot be a bucket: 3 to 63 letters, digits, `.`, `-` or `_`"));
    }
    let (prefix, name) = key.rfind('/').map_or(("", key), |slash| key.split_at(slash + 1));
    if prefix.len() > MAX_PREFIX {
        return bad(&format!("the path has {} bytes; at most {MAX_PREFIX} are allowed", prefix.len()));
    }
    if prefix.contains('\\') {
        return bad("the path has a backslash in it");
    }
    if prefix.split_terminator('/').any(|part| matches!(part, "" | "." | "..")) {
        return bad("the path has an empty part, `.` or `..` in it");
    }
    let name = checked_name(name, key)?;
    Ok(StoreUrl { place: Place::S3 { bucket: bucket.to_owned(), prefix: prefix.to_owned() }, name })
}

fn file(rest: &str) -> Result<StoreUrl> {
    checked_url(rest)?;
    if !rest.starts_with('/') {
        return bad("a file URL must have three slashes and an absolute path");
    }
    // On Windows, file:///C:/data/jobs is C:/data/jobs.
    let drive =
        cfg!(windows) && matches!(rest.as_bytes(), [_, letter, b':', ..] if letter.is_ascii_alphabetic());
    directory(if drive { &rest[1..] } else { rest })
}

fn memory(rest: &str) -> Result<StoreUrl> {
    checked_url(rest)?;
    if rest.contains('/') {
        return bad("a memory URL must have a name only, without slashes");
    }
    Ok(StoreUrl { place: Place::Memory, name: checked_name(rest, rest)? })
}

fn plain_path(text: &str) -> Result<StoreUrl> {
    let scheme = ["s3", "file", "memory", "gs", "az"].iter().find(|s| {
        text.get(..s.len()).is_some_and(|t| t.eq_ignore_ascii_case(s)) && text[s.len()..].starts_with(':')
    });
    if let Some(scheme) = scheme {
        return bad(&format!("`{scheme}:` must be followed by two slashes"));
    }
    if text.starts_with('~') {
        return bad("`~` is not expanded: write the directory out");
    }
    directory(text)
}

fn directory(path: &str) -> Result<StoreUrl> {
    let (dir, name) = path.rfind(is_separator).map_or(("", path), |slash| path.split_at(slash + 1));
    let name = checked_name(name, path)?;
    // "a/b/" and "a/b" are one directory; "/" stays.
    let dir: PathBuf = Path::new(if dir.is_empty() { "." } else { dir }).components().collect();
    Ok(StoreUrl { place: Place::Directory(dir), name })
}
