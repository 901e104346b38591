//! Bytes and versions: the [`Store`] trait and what every store agrees on. A store never parses what it carries.
//!
//! Called by the join layer (commit, settle, base, segment) and the probe. Knows nothing of SQLite or jobs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::{Error, Result};

pub mod file;
pub mod measure;
pub mod memory;
pub mod probe;
#[cfg(feature = "s3")]
pub mod s3;
pub mod url;

pub use file::FileStore;
pub use measure::{Measured, measure};
pub use memory::Memory;
pub use probe::{ProbeReport, probe};
#[cfg(feature = "s3")]
pub use s3::S3Store;
pub use url::{Place, StoreUrl, open_separately, open_store};

/// What a store calls one state of one object. Opaque: an ETag, a generation, a counter.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Version(Arc<str>);

impl Version {
    /// The store's own name of the version, to the letter.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// As given to [`Version::new`].
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Version({})", self.0)
    }
}

/// What must be there for a conditional put to happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// No object.
    Absent,
    /// Exactly this version.
    Is(Version),
}

/// The answer to a get.
#[derive(Clone, Debug)]
pub enum Got {
    /// The object, whole.
    Object {
        /// Its bytes.
        bytes: Bytes,
        /// Its version.
        version: Version,
        /// The store's clock when it answered, if it tells.
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

/// The answer to a conditional put. Only `Stored` is final; the others are settled by a get issued afterwards (P3).
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
    /// Nobody knows.
    Unknown {
        /// What came instead of an answer.
        error: Error,
        /// False only if the store surely saw or accepted nothing of it: no connection, or refused credentials.
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

/// A place where queue files live. Keys are names such as `jobs.head`; the store knows its bucket and path itself.
///
/// Every method may be cancelled by dropping its future; a put so cancelled may still happen. Every method ends by
/// itself, in a time that fits the size of what it moves: the engine gives up a request for HEAD that takes too long,
/// and trusts the store with the others.
#[async_trait]
pub trait Store: Send + Sync + fmt::Debug {
    /// The object now, unless it still has this version. Never an older state than one seen before the call.
    async fn get(&self, key: &str, unless: Option<&Version>) -> Result<Got>;
    /// Replace or create the object if the expectation holds. Sends the request once: no hidden repetition.
    async fn put_if(&self, key: &str, body: Bytes, expect: &Expect) -> Put;
    /// Write an object under a key never used before. May be repeated inside.
    async fn put_new(&self, key: &str, body: Bytes) -> Result<()>;
    /// Remove the object; removing what is not there is no error. May be repeated inside.
    async fn delete(&self, key: &str) -> Result<()>;
    /// Every key that begins with `prefix`, in order.
    async fn list(&self, prefix: &str) -> Result<Vec<Listed>>;
    /// What this store is, to tell two apart and to show people: never holds credentials.
    fn describe(&self) -> String;
    /// The largest clock difference between two writers that a queue file here is made for.
    fn default_max_skew(&self) -> Duration;
    /// Whether creating a queue file here needs the probe first (P24).
    fn needs_probe(&self) -> bool;
}
