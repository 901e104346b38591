//! The bucket as it was at each commit: what any reader would have seen then.
//!
//! Called by `replay` and by `expired_archives`, which read a whole history through the public API.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bucketq::QueueFile;
use bucketq::config::Options;
use bucketq::env::{Clock, Env};
use bucketq::error::{Code, Error, Result};
use bucketq::store::{Expect, Got, Listed, Put, Store, Version};
use bytes::Bytes;

use crate::bucket::{Landed, is_head};
use crate::clock::pause_ms;
use crate::node::NAME;
use crate::rng::{Rng, SimEntropy};
use crate::world::World;

/// When a commit was made: its own time, and when it arrived in true time.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    /// Its own time.
    pub commit_ms: i64,
    /// When it arrived.
    pub landed_ms: u64,
}

/// The bucket as it was at each commit. It is read-only.
#[derive(Debug)]
pub struct Museum {
    /// Every commit of the current chain.
    pub commits: Vec<Made>,
    /// Every object that ever existed.
    pub ever: BTreeMap<String, Bytes>,
    heads: Vec<Bytes>,
    at: AtomicUsize,
}

impl Museum {
    /// The objects and commits up to now.
    pub fn of(world: &World) -> Arc<Self> {
        let bucket = world.bucket();
        let stands = |l: &&Landed| bucket.chain.get(&l.head.commit_seq) == Some(&l.head.commit_id);
        let landed: Vec<&Landed> = bucket.landed.iter().filter(stands).collect();
        let made = |l: &&Landed| Made { commit_ms: l.head.commit_ms, landed_ms: l.at_ms };
        Arc::new(Self {
            commits: landed.iter().map(made).collect(),
            heads: landed.iter().map(|l| l.bytes.clone()).collect(),
            ever: bucket.ever.clone(),
            at: AtomicUsize::new(0),
        })
    }

    /// Show commit number `n`, counted from 0.
    pub async fn show(&self, n: usize) {
        self.at.store(n, Ordering::Relaxed);
        // A read may share the result of another at the same instant.
        pause_ms(1).await;
    }

    /// The queue file as a reader opens it.
    pub async fn open(self: &Arc<Self>, world: &World) -> Result<QueueFile> {
        let clock = Arc::new(Hand { museum: Arc::clone(self) });
        let env = Env::new(clock, Arc::new(SimEntropy::new(Rng::new(1), 0)));
        let options = Options { create: false, max_skew: None, ..world.plan.options.clone() };
        QueueFile::open_with(Arc::clone(self) as Arc<dyn Store>, NAME, options, env).await
    }
}

#[derive(Debug)]
struct Hand {
    museum: Arc<Museum>,
}

impl Clock for Hand {
    fn wall_ms(&self) -> i64 {
        self.museum.commits[self.museum.at.load(Ordering::Relaxed)].commit_ms
    }

    fn monotonic(&self) -> tokio::time::Instant {
        crate::clock::now()
    }
}

#[async_trait]
impl Store for Museum {
    async fn get(&self, key: &str, unless: Option<&Version>) -> Result<Got> {
        let at = self.at.load(Ordering::Relaxed);
        let (found, version) = if is_head(key) {
            (self.heads.get(at).cloned(), Version::new(format!("head {at}")))
        } else {
            (self.ever.get(key).cloned(), Version::new("once"))
        };
        Ok(match found {
            None => Got::Absent { date_ms: None },
            Some(_) if unless == Some(&version) => Got::Unchanged { date_ms: None },
            Some(bytes) => Got::Object { bytes, version, date_ms: None },
        })
    }

    async fn put_if(&self, _: &str, _: Bytes, _: &Expect) -> Put {
        Put::Unknown { error: read_only(), sent: false, retry_after: None }
    }

    async fn put_new(&self, _: &str, _: Bytes) -> Result<()> {
        Err(read_only())
    }

    async fn delete(&self, _: &str) -> Result<()> {
        Err(read_only())
    }

    async fn list(&self, _: &str) -> Result<Vec<Listed>> {
        Ok(Vec::new())
    }

    fn describe(&self) -> String {
        "sim://museum".into()
    }

    fn default_max_skew(&self) -> Duration {
        Duration::ZERO
    }

    fn needs_probe(&self) -> bool {
        false
    }
}

fn read_only() -> Error {
    Error::new(Code::Denied, "this bucket can only be read")
}
