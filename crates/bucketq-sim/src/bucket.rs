//! The bucket itself: what it really stores, and every HEAD it ever had.
//!
//! Called by the faulty store (requests that arrive) and by the checks (the history). Requests take effect at once and
//! never fail; store.rs adds time, faults and waiting. Broken buckets, with a faulty compare-and-swap, are here too.
//! The rules for a new HEAD are in judge.rs.

use std::collections::{BTreeMap, BTreeSet};

use bucketq::internals::head::Head;
use bytes::Bytes;

use crate::rng::Rng;

/// One life of one node's process: a crash ends a life, a reopen begins the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Who {
    /// The node.
    pub node: usize,
    /// The number of its life, from 1.
    pub life: u32,
}

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "n{}.{}", self.node, self.life)
    }
}

/// How a bucket breaks its promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lie {
    /// It keeps them.
    #[default]
    None,
    /// Now and then two puts with the same If-Match both succeed.
    TwoWinners,
    /// It ignores conditions.
    NoConditions,
    /// It ignores If-Match.
    NoIfMatch,
    /// It ignores If-None-Match.
    NoIfNoneMatch,
    /// Now and then a get returns the previous state.
    StaleReads,
    /// Versions repeat: state n and state n + 2 look alike.
    SameVersion,
}

/// One object.
#[derive(Clone, Debug)]
pub struct Object {
    /// Its bytes.
    pub bytes: Bytes,
    /// Its version.
    pub version: String,
}

/// A HEAD that was put and accepted.
#[derive(Clone, Debug)]
pub struct Landed {
    /// The body.
    pub bytes: Bytes,
    /// The decoded body.
    pub head: Head,
    /// True time.
    pub at_ms: u64,
    /// The sender of the request.
    pub by: Who,
}

/// A commit that the store acknowledged and then lost to a second winner.
#[derive(Clone, Debug)]
pub struct Betrayal {
    /// Its number ...
    pub seq: u64,
    /// ... and its id.
    pub id: [u8; 16],
    /// Its writer.
    pub by: Who,
    /// When, in true time.
    pub at_ms: u64,
    /// Lives that had read it, or were about to.
    pub knew: BTreeSet<Who>,
}

/// Requests that arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Conditional and plain puts.
    pub puts: u64,
    /// Gets.
    pub gets: u64,
    /// Lists.
    pub lists: u64,
    /// Deletes.
    pub deletes: u64,
}

/// Everything stored, now and earlier.
#[derive(Debug, Default)]
pub struct Bucket {
    objects: BTreeMap<String, Object>,
    next_version: u64,
    lie: Lie,
    /// With `StaleReads`, one get in this number returns the previous state.
    pub stale_one_in: u64,
    pub(crate) max_skew_ms: u64,
    /// A clock is ahead and no process can notice: commits may be ahead of true time.
    pub time_free: bool,
    before: BTreeMap<String, Object>,
    /// Every accepted HEAD, in order of arrival.
    pub landed: Vec<Landed>,
    /// Every object other than HEAD that was ever put.
    pub ever: BTreeMap<String, Bytes>,
    /// Commit ids of the current chain, by seq.
    pub chain: BTreeMap<u64, [u8; 16]>,
    /// Requests.
    pub counts: Counts,
    /// Rules that stored bodies broke.
    pub broken: Vec<String>,
    /// The operator has changed HEAD: the commits need not form one chain any more.
    pub meddled: bool,
    /// The newest commit that each life surely knows, because a reply contained it.
    pub known: BTreeMap<Who, (u64, [u8; 16])>,
    /// Lives that have opened the queue file: what they read before does not bind them.
    pub opened: BTreeSet<Who>,
    /// The newest commit of each life's own that the store acknowledged to it.
    pub mine: BTreeMap<Who, (u64, [u8; 16])>,
    /// When each life read a history without one of its own commits.
    pub shown_loss: BTreeMap<Who, u64>,
    /// Once, after this number of commits, a second winner is let in.
    pub betray_after: Option<u64>,
    /// The commit lost to that second winner.
    pub betrayal: Option<Betrayal>,
    /// The grace period of every writer, where the checks apply it.
    pub grace_ms: Option<i64>,
    /// Lists of every object of a queue file.
    pub searches: u64,
    /// Collections that callers requested.
    pub asked_to_collect: u64,
    /// Deleted archive objects, each with the stored floor at that time.
    pub archives_deleted: Vec<(String, u64)>,
    /// Commit ids of the bodies that were sent.
    pub(crate) sent: BTreeSet<[u8; 16]>,
}

impl Bucket {
    /// An empty bucket.
    pub fn new(lie: Lie, max_skew_ms: u64) -> Self {
        Self { lie, max_skew_ms, stale_one_in: 12, ..Self::default() }
    }

    /// The current HEAD.
    pub fn head(&self) -> Option<&Landed> {
        let now = self.objects.iter().find(|(key, _)| is_head(key))?;
        self.landed.iter().rev().find(|l| l.bytes == now.1.bytes)
    }

    /// `commit_seq` of the current HEAD; 0 without one.
    pub fn seq(&self) -> u64 {
        self.head().map_or(0, |l| l.head.commit_seq)
    }

    /// Whether a known commit may be gone: deleted by the operator, or lost by the store.
    pub fn deceived(&self) -> bool {
        self.meddled || self.betrayal.is_some()
    }

    /// The object, as this bucket returns it.
    pub fn get(&mut self, key: &str, rng: &Rng) -> Option<Object> {
        self.counts.gets += 1;
        if self.lie == Lie::StaleReads && rng.one_in(self.stale_one_in) {
            return self.before.get(key).or_else(|| self.objects.get(key)).cloned();
        }
        self.objects.get(key).cloned()
    }

    /// Put if the condition holds; returns the new version, or `None` for 412. `is` without a version means
    /// If-None-Match:*.
    pub fn put_if(
        &mut self,
        by: Who,
        at_ms: u64,
        key: &str,
        body: Bytes,
        is: Option<&str>,
        rng: &Rng,
    ) -> Option<String> {
        self.counts.puts += 1;
        let there = self.objects.get(key).map(|o| o.version.as_str());
        let lost_before = self.version_before(key);
        let holds = there == is
            || self.lie == Lie::NoConditions
            || (self.lie == Lie::NoIfMatch && is.is_some())
            || (self.lie == Lie::NoIfNoneMatch && is.is_none())
            || (self.lie == Lie::TwoWinners && is.is_some() && lost_before == is && rng.one_in(2));
        if !holds {
            return None;
        }
        if is_head(key) {
            let old = self.head().map(|l| l.head.clone());
            self.judge(by, at_ms, &body, old.as_ref());
        } else {
            self.ever.insert(key.to_owned(), body.clone());
        }
        Some(self.store(key, body))
    }

    /// The version before the object's current one.
    pub(crate) fn version_before(&self, key: &str) -> Option<&str> {
        self.before.get(key).map(|o| o.version.as_str())
    }

    /// The bytes under a key.
    pub fn object(&self, key: &str) -> Option<Bytes> {
        self.objects.get(key).map(|o| o.bytes.clone())
    }

    /// Every existing key.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.objects.keys().map(String::as_str)
    }

    /// Put under a key that was never used before.
    pub fn put_new(&mut self, key: &str, body: Bytes) {
        self.counts.puts += 1;
        if key.contains(".knock") {
            // The only object besides HEAD that may be overwritten: nothing refers to it.
            self.store(key, body);
            return;
        }
        if self.ever.get(key).is_some_and(|old| *old != body) {
            self.broken.push(format!("P12: {key} is overwritten with other bytes"));
        }
        self.ever.insert(key.to_owned(), body.clone());
        self.store(key, body);
    }

    /// Delete.
    pub fn delete(&mut self, by: Who, at_ms: u64, key: &str) {
        self.counts.deletes += 1;
        if !self.meddled {
            self.judge_delete(by, at_ms, key);
        }
        self.objects.remove(key);
    }

    /// Keys and sizes.
    pub fn list(&mut self, prefix: &str) -> Vec<(String, u64)> {
        self.counts.lists += 1;
        self.searches += u64::from(prefix.ends_with('.'));
        self.objects
            .range(prefix.to_owned()..)
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, o)| (key.clone(), o.bytes.len() as u64))
            .collect()
    }

    /// From now on the bucket breaks its promises.
    pub fn turn(&mut self, lie: Lie) {
        self.lie = lie;
    }

    /// The operator deletes HEAD, or puts the HEAD of commit `seq` back.
    pub fn meddle(&mut self, restore: Option<u64>) {
        self.meddled = true;
        let Some(key) = self.objects.keys().find(|key| is_head(key)).cloned() else { return };
        self.objects.remove(&key);
        let old = restore.and_then(|seq| self.landed.iter().find(|l| l.head.commit_seq == seq));
        if let Some(old) = old {
            let (seq, bytes) = (old.head.commit_seq, old.bytes.clone());
            self.chain.retain(|s, _| *s <= seq);
            self.store(&key, bytes);
        } else {
            self.chain.clear();
        }
    }

    pub(crate) fn store(&mut self, key: &str, bytes: Bytes) -> String {
        self.next_version += 1;
        let name = if self.lie == Lie::SameVersion { self.next_version % 2 } else { self.next_version };
        let version = format!("\"{name}\"");
        if let Some(old) = self.objects.insert(key.to_owned(), Object { bytes, version: version.clone() }) {
            self.before.insert(key.to_owned(), old);
        }
        version
    }
}

/// Whether this key is the one under compare-and-swap.
pub fn is_head(key: &str) -> bool {
    key.rsplit_once('.').is_some_and(|(_, what)| what == "head")
}
