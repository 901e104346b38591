//! Bytes and versions: the [`Store`] trait and the rules for every store. A store never parses the objects.
//!
//! Called by the engine (commit, settle, base, segment) and the probe. Knows nothing of SQLite or jobs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::noun::error::{Code, Error, Result};

pub mod file;
pub mod found;
pub mod measure;
pub mod memory;
pub mod probe;
#[cfg(feature = "s3")]
pub mod s3;
pub mod url;

pub use file::FileStore;
pub use found::{FoundStore, find_store, open_separately, open_store};
pub use measure::{Measured, measure};
pub use memory::Memory;
pub use probe::{ProbeReport, probe};
#[cfg(feature = "s3")]
pub use s3::S3Store;
pub(crate) use url::surroundings;
pub use url::{Place, StoreUrl};

/// A store's name for one state of one object. Opaque: an ETag, a generation, a counter.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Version(Arc<str>);

impl Version {
    /// Returns a version with the store's own name, to the letter.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// Returns the text given to [`Version::new`].
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Version({})", self.0)
    }
}

/// The condition of a conditional put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// No object.
    Absent,
    /// Exactly this version.
    Is(Version),
}

/// The result of a get.
#[derive(Clone, Debug)]
pub enum Got {
    /// The object, whole.
    Object {
        /// Its bytes.
        bytes: Bytes,
        /// Its version.
        version: Version,
        /// The store's clock at its reply, if the store sends it.
        date_ms: Option<i64>,
    },
    /// Still the version given in `unless`.
    Unchanged {
        /// The store's clock.
        date_ms: Option<i64>,
    },
    /// There is no such object.
    Absent {
        /// The store's clock.
        date_ms: Option<i64>,
    },
}

/// The result of a conditional put. Only `Stored` is final; a get issued afterwards settles the others (P3).
#[derive(Clone, Debug)]
pub enum Put {
    /// The object is there under this version.
    Stored {
        /// Its version.
        version: Version,
        /// The store's clock.
        date_ms: Option<i64>,
    },
    /// The store says that the expectation was not met.
    Conflict,
    /// It is unknown whether the object was written.
    Unknown {
        /// The error that came instead of a reply.
        error: Error,
        /// False only if the store certainly did not accept it: no connection, or refused credentials.
        sent: bool,
        /// The store asks to wait this long.
        retry_after: Option<Duration>,
    },
}

/// One listed object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its key.
    pub key: String,
    /// Its size in bytes.
    pub size: u64,
}

/// Most bytes that [`Store::get`] of a network store reads. Larger objects, which are bases, are read with
/// [`Store::get_at_most`] by the length that HEAD states.
pub const MAX_OBJECT: u64 = 1 << 30;

/// Returns the error for an object that has more bytes than its reference or its kind allows.
pub(crate) fn too_large(key: &str, len: Option<u64>, most: u64) -> Error {
    let has = len.map_or_else(|| "more".to_owned(), |len| format!("{len} bytes"));
    Error::new(
        Code::Corrupt,
        format!("{key} has {has}, and an object of its kind has at most {most} bytes: the rest was not read"),
    )
}

/// Where queue files are stored. Keys are names such as `jobs.head`; the store knows its bucket and path itself.
///
/// Dropping the future of a method cancels it; a put cancelled like this may still happen. Every method should end by
/// itself, in a time that fits the number of bytes it moves; if it does not, the engine's calls still end at their
/// deadlines.
#[async_trait]
pub trait Store: Send + Sync + fmt::Debug {
    /// Returns the current object, unless it still has this version. Never returns an older state than one seen before
    /// the call.
    async fn get(&self, key: &str, unless: Option<&Version>) -> Result<Got>;
    /// Does the same, but an object of more than `most` bytes is Corrupt and is not read to its end. A network store
    /// should not read it at all.
    async fn get_at_most(&self, key: &str, unless: Option<&Version>, most: u64) -> Result<Got> {
        match self.get(key, unless).await? {
            Got::Object { bytes, .. } if bytes.len() as u64 > most => {
                Err(too_large(key, Some(bytes.len() as u64), most))
            }
            got => Ok(got),
        }
    }
    /// Replaces or creates the object if the condition holds. Sends the request once, without hidden retries.
    async fn put_if(&self, key: &str, body: Bytes, expect: &Expect) -> Put;
    /// Writes an object under a key never used before. May retry.
    async fn put_new(&self, key: &str, body: Bytes) -> Result<()>;
    /// Deletes the object; deleting a missing object is no error. May retry.
    async fn delete(&self, key: &str) -> Result<()>;
    /// Returns every key that begins with `prefix`, in order.
    async fn list(&self, prefix: &str) -> Result<Vec<Listed>>;
    /// Returns a description of this store, to distinguish stores and for people to read. It never contains
    /// credentials.
    fn describe(&self) -> String;
    /// Returns the place whose behaviour it shares: the same for every path of one bucket on one server.
    fn place(&self) -> String {
        self.describe()
    }
    /// Returns the largest clock difference between two writers that a new queue file here allows.
    fn default_max_skew(&self) -> Duration;
    /// Returns whether creating a queue file here needs the probe first (P24).
    fn needs_probe(&self) -> bool;
}
