//! The promises of every store, as functions that run on any of them: see [`suite`].

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bucketq::env::Env;
use bucketq::store::{FileStore, Memory, S3Store, Store};

pub mod suite;

use crate::servers::{BUCKET, Server};
use bucketq::config::S3Options;

/// A place to test a store in. Each handle is a separate one: another file store, other connections.
pub struct Ground {
    open: Box<dyn Fn() -> Arc<dyn Store> + Send + Sync>,
}

impl std::fmt::Debug for Ground {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ground({})", self.store().describe())
    }
}

static PREFIXES: AtomicU32 = AtomicU32::new(0);

impl Ground {
    /// A new memory store.
    pub fn memory() -> Self {
        let store = Memory::new();
        Self { open: Box::new(move || Arc::new(store.clone())) }
    }

    /// A store in this directory.
    pub fn directory(dir: &Path) -> Self {
        let dir = dir.to_owned();
        Self {
            open: Box::new(move || {
                Arc::new(FileStore::open(&dir, &Env::default()).expect("the directory is there"))
            }),
        }
    }

    /// An empty path in the server's bucket.
    pub async fn server(server: &Server) -> Self {
        Self::s3(&server.options()).await
    }

    /// An empty path in the bucket reached by these options.
    pub async fn s3(options: &S3Options) -> Self {
        let random = u64::from_le_bytes(Env::default().bytes());
        let prefix = format!("test-{random:016x}/{}/", PREFIXES.fetch_add(1, Ordering::Relaxed));
        let store = S3Store::open(BUCKET, &prefix, options).await.expect("the options are right");
        Self { open: Box::new(move || Arc::new(store.fork())) }
    }

    /// Another handle.
    pub fn store(&self) -> Arc<dyn Store> {
        (self.open)()
    }

    /// Several handles.
    pub fn stores(&self, count: usize) -> Vec<Arc<dyn Store>> {
        (0..count).map(|_| self.store()).collect()
    }
}
