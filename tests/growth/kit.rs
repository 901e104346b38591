//! Queue files that grow fast, and the objects in the bucket that HEAD does not refer to.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bucketq::internals::head::Head;
use bucketq::internals::keys::Object;
use bucketq::store::{Got, Listed, Store, Version};
use bucketq::{Code, Error, Options, Payload, QueueFile, Result};
use bucketq_tests::given::{self, HEAD, NAME, inline, object};
use bytes::Bytes;
use futures_util::future::BoxFuture;

/// A base every few commits, a segment nearly every commit.
pub fn hasty() -> Options {
    Options { base_after: 16 * 1024, tail: 1024, ..inline() }
}

/// Let bases and merged segments come into HEAD, by commits that change nothing.
pub async fn calm(file: &QueueFile) -> Result<()> {
    for _ in 0..3 {
        bucketq_tests::clock::pass(Duration::from_secs(1)).await;
        file.settle().await?;
    }
    Ok(())
}

/// HEAD as it is now.
pub async fn head(store: &Arc<dyn Store>) -> Result<Head> {
    Head::decode(HEAD, &object(store, HEAD).await?.expect("there is a HEAD"))
}

/// The keys HEAD refers to.
pub fn referred(head: &Head) -> Vec<String> {
    let base = Object::Base { seq: head.base.seq, rand: head.base.rand };
    let segments = head.segments.iter().map(|s| Object::Segment { from: s.from, to: s.to, rand: s.rand });
    (head.base.len > 0)
        .then_some(base)
        .into_iter()
        .chain(segments)
        .map(|o| o.key(NAME, &head.file_id))
        .collect()
}

/// The keys of bases and segments that HEAD does not refer to. Fails if one it refers to is missing.
pub async fn garbage(store: &Arc<dyn Store>) -> Result<Vec<String>> {
    let head = head(store).await?;
    let referred = referred(&head);
    let there: Vec<String> = store.list("").await?.into_iter().map(|l| l.key).collect();
    for key in &referred {
        assert!(there.contains(key), "HEAD {} refers to {key}, which is gone", head.commit_seq);
    }
    Ok(there.into_iter().filter(|key| key != HEAD && !referred.contains(key)).collect())
}

/// This many jobs of 3 KB that do not compress, a commit each.
pub async fn fill(file: &QueueFile, jobs: u64) -> Result<()> {
    static SEED: AtomicU64 = AtomicU64::new(0);
    let queue = file.queue("q")?;
    for _ in 0..jobs {
        queue.enqueue(noise(SEED.fetch_add(1, Ordering::Relaxed), 3_000)).await?;
    }
    Ok(())
}

/// A payload that does not compress.
pub fn noise(seed: u64, len: usize) -> Payload {
    Payload::bytes(given::noise(seed, len))
}

/// Claim and ack until no job is left.
pub async fn drain(file: &QueueFile) -> Result<()> {
    loop {
        let taken = file.claim(100).lease(Duration::from_hours(1)).await?;
        if taken.is_empty() {
            return Ok(());
        }
        for job in taken {
            file.ack(job.held()).await?;
        }
    }
}

type Act = Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// A store in which a test makes something happen while others work.
pub struct Busy {
    inner: Arc<dyn Store>,
    /// Run before the next get of a base or a segment, once.
    before_get: Mutex<Option<Act>>,
    /// Whether it refuses deletes and lists.
    pub stubborn: AtomicBool,
    /// Whether bases never arrive.
    pub no_bases: AtomicBool,
}

impl fmt::Debug for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Busy({:?})", self.inner)
    }
}

impl Busy {
    /// A store without any such action yet.
    pub fn over(inner: Arc<dyn Store>) -> Arc<Self> {
        let (stubborn, no_bases) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { inner, before_get: Mutex::new(None), stubborn, no_bases })
    }

    /// The next get of a base or a segment waits for this.
    pub fn before_next_get(&self, act: impl Fn() -> BoxFuture<'static, ()> + Send + Sync + 'static) {
        *self.before_get.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(act));
    }

    /// Whether it has happened.
    pub fn happened(&self) -> bool {
        self.before_get.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    fn refused(&self) -> Result<()> {
        if self.stubborn.load(Ordering::Relaxed) {
            return Err(Error::new(Code::Denied, "as told"));
        }
        Ok(())
    }
}

#[async_trait]
impl Store for Busy {
    async fn get(&self, key: &str, unless: Option<&Version>) -> Result<Got> {
        if key != HEAD {
            let act = self.before_get.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(act) = act {
                act().await;
            }
        }
        self.inner.get(key, unless).await
    }

    async fn put_new(&self, key: &str, body: Bytes) -> Result<()> {
        if key.contains(".base-") && self.no_bases.load(Ordering::Relaxed) {
            // It arrives, but no reply comes: as if the process had been killed meanwhile.
            self.inner.put_new(key, body).await?;
            std::future::pending::<()>().await;
            return Ok(());
        }
        self.inner.put_new(key, body).await
    }

    async fn delete(&self, key: &str) -> Result<()> {
        self.refused()?;
        self.inner.delete(key).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Listed>> {
        self.refused()?;
        self.inner.list(prefix).await
    }

    fn describe(&self) -> String {
        format!("busy {}", self.inner.describe())
    }

    fn needs_probe(&self) -> bool {
        false
    }

    bucketq::forward_to_inner!(put_if default_max_skew);
}
