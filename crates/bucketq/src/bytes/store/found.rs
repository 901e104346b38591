//! The store of a URL: found first, opened then.
//!
//! Finding it reads the options and the environment once: which server it is, and with which key requests are signed.
//! It sends no request to the store, so a process that sends its ops to another one opens nothing.

use std::sync::Arc;

use super::file::FileStore;
use super::memory::Memory;
#[cfg(feature = "s3")]
use super::s3::S3Store;
use super::{Place, Store, StoreUrl};
use crate::noun::config::Options;
use crate::noun::env::Env;
#[cfg(not(feature = "s3"))]
use crate::noun::error::Code;
use crate::noun::error::{Error, Result};

/// A store that is not open yet.
#[derive(Clone, Debug)]
pub struct FoundStore {
    url: StoreUrl,
    #[cfg(feature = "s3")]
    s3: Option<FoundS3>,
}

/// A store on a server.
#[cfg(feature = "s3")]
#[derive(Clone)]
struct FoundS3 {
    store: S3Store,
    key: (String, String),
}

#[cfg(feature = "s3")]
impl std::fmt::Debug for FoundS3 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.store.fmt(f)
    }
}

/// Finds the store of a URL. Fails if there are no credentials for it.
pub async fn find_store(url: &StoreUrl, options: &Options) -> Result<FoundStore> {
    #[cfg(feature = "s3")]
    {
        let s3 = match url.place() {
            Place::S3 { bucket, prefix } => {
                let (store, key) = S3Store::find(bucket, prefix, &options.s3).await?;
                Some(FoundS3 { store, key })
            }
            Place::Directory(_) | Place::Memory => None,
        };
        Ok(FoundStore { url: url.clone(), s3 })
    }
    #[cfg(not(feature = "s3"))]
    {
        let _ = options;
        Ok(FoundStore { url: url.clone() })
    }
}

impl FoundStore {
    /// Returns the URL.
    pub fn url(&self) -> &StoreUrl {
        &self.url
    }

    /// Returns a text that is the same in every process that reaches the same queue file in the same way: the URL with
    /// its real path, and the server. It depends on no credentials, and contains none.
    pub fn place(&self) -> String {
        let url = self.url.resolved();
        #[cfg(feature = "s3")]
        if let Some(s3) = &self.s3 {
            return format!("{url:?} on {}", s3.store.server());
        }
        format!("{url:?}")
    }

    /// Returns the key that signs requests: its id and its secret. None if the store knows no keys.
    pub fn signing_key(&self) -> Option<(&str, &str)> {
        #[cfg(feature = "s3")]
        if let Some(s3) = &self.s3 {
            return Some((&s3.key.0, &s3.key.1));
        }
        None
    }

    /// Opens the store `connections` times, each over its own connections if the store has any. S3 is not contacted
    /// yet; a directory is created if only its last part is missing.
    pub fn open(&self, options: &Options, env: &Env, connections: usize) -> Result<Vec<Arc<dyn Store>>> {
        let connections = connections.max(1);
        match self.url.place() {
            Place::Memory => Ok(repeat(Memory::named(self.url.name()), connections)),
            Place::Directory(dir) if options.read_only => {
                Ok(repeat(FileStore::open_read_only(dir, env)?, connections))
            }
            Place::Directory(dir) => Ok(repeat(FileStore::open(dir, env)?, connections)),
            #[cfg(feature = "s3")]
            Place::S3 { .. } => {
                let found =
                    self.s3.as_ref().ok_or_else(|| Error::bug("a bucket was found without its server"))?;
                Ok((0..connections).map(|_| Arc::new(found.store.fork()) as Arc<dyn Store>).collect())
            }
            #[cfg(not(feature = "s3"))]
            Place::S3 { .. } => {
                Err(Error::new(Code::Url, "this build has no S3 store: enable the feature `s3`"))
            }
        }
    }
}

/// Opens the store of a URL. S3 is not contacted yet; a directory is created if only its last part is missing.
pub async fn open_store(url: &StoreUrl, options: &Options, env: &Env) -> Result<Arc<dyn Store>> {
    // One connection was requested, so there is one store.
    open_separately(url, options, env, 1).await.map(|mut stores| stores.swap_remove(0))
}

/// Opens the same store `connections` times, each over its own connections if the store has any: for the probe.
pub async fn open_separately(
    url: &StoreUrl,
    options: &Options,
    env: &Env,
    connections: usize,
) -> Result<Vec<Arc<dyn Store>>> {
    find_store(url, options).await?.open(options, env, connections)
}

fn repeat(store: impl Store + 'static, times: usize) -> Vec<Arc<dyn Store>> {
    let store: Arc<dyn Store> = Arc::new(store);
    vec![store; times]
}
