//! Objects in memory: for tests, examples and queues that need not outlive the process.
//!
//! Named stores are shared by the whole process and kept until it ends or [`Memory::forget`] is called.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::{Expect, Got, Listed, Put, Store, Version};
use crate::fork::PerProcess;
use crate::noun::error::Result;

/// A store in this process. Clones share it.
#[derive(Clone, Debug)]
pub struct Memory {
    name: Arc<str>,
    objects: Arc<Mutex<MemoryObjects>>,
}

#[derive(Default)]
struct MemoryObjects {
    by_key: BTreeMap<String, MemoryObject>,
    /// Grows with every write to any key, so that no version ever repeats.
    writes: u64,
}

struct MemoryObject {
    bytes: Bytes,
    write: u64,
}

impl std::fmt::Debug for MemoryObjects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} objects after {} writes", self.by_key.len(), self.writes)
    }
}

impl MemoryObjects {
    fn write(&mut self, key: &str, bytes: Bytes) -> Version {
        self.writes += 1;
        self.by_key.insert(key.to_owned(), MemoryObject { bytes, write: self.writes });
        version(self.writes)
    }
}

fn version(write: u64) -> Version {
    Version::new(write.to_string())
}

/// A forked child has none of its parent's stores: jobs in two copies of a store would be worked on twice.
static NAMED: PerProcess<BTreeMap<String, Memory>> = PerProcess::new();
static PRIVATE: AtomicU64 = AtomicU64::new(0);

/// No change here can stop halfway, so the data under a poisoned lock is sound.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Memory {
    /// Returns a private store, reachable through its clones only.
    pub fn new() -> Self {
        // Names have no spaces, so a private store never has the name of a named one.
        Self::called(&format!("private {}", PRIVATE.fetch_add(1, Ordering::Relaxed)))
    }

    /// Returns the store of this name in this process; the first call creates it.
    pub fn named(name: &str) -> Self {
        NAMED.with(|named| named.entry(name.to_owned()).or_insert_with(|| Self::called(name)).clone())
    }

    /// Forgets a store: the next use of this name returns a new, empty one. Existing handles keep the old one.
    pub fn forget(name: &str) {
        // Dropped outside the lock: it may be large.
        drop(NAMED.with(|named| named.remove(name)));
    }

    fn called(name: &str) -> Self {
        Self { name: name.into(), objects: Arc::default() }
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Store for Memory {
    async fn get(&self, key: &str, unless: Option<&Version>) -> Result<Got> {
        let objects = lock(&self.objects);
        Ok(match objects.by_key.get(key) {
            None => Got::Absent { date_ms: None },
            Some(object) => {
                let version = version(object.write);
                if unless == Some(&version) {
                    Got::Unchanged { date_ms: None }
                } else {
                    Got::Object { bytes: object.bytes.clone(), version, date_ms: None }
                }
            }
        })
    }

    async fn put_if(&self, key: &str, body: Bytes, expect: &Expect) -> Put {
        let mut objects = lock(&self.objects);
        let holds = match (objects.by_key.get(key), expect) {
            (None, Expect::Absent) => true,
            (Some(object), Expect::Is(expected)) => version(object.write) == *expected,
            _ => false,
        };
        if holds { Put::Stored { version: objects.write(key, body), date_ms: None } } else { Put::Conflict }
    }

    async fn put_new(&self, key: &str, body: Bytes) -> Result<()> {
        lock(&self.objects).write(key, body);
        Ok(())
    }

    async fn delete(&self, key: &str) -> Result<()> {
        lock(&self.objects).by_key.remove(key);
        Ok(())
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Listed>> {
        let objects = lock(&self.objects);
        let from =
            objects.by_key.range::<str, _>((std::ops::Bound::Included(prefix), std::ops::Bound::Unbounded));
        Ok(from
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, object)| Listed { key: key.clone(), size: object.bytes.len() as u64 })
            .collect())
    }

    fn describe(&self) -> String {
        format!("memory://{}", self.name)
    }

    fn default_max_skew(&self) -> Duration {
        Duration::ZERO
    }

    fn needs_probe(&self) -> bool {
        false
    }
}
