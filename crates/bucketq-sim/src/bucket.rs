//! The bucket itself: what is truly stored, every HEAD there ever was, and the rules each new HEAD must keep.
//!
//! Called by the faulty store (requests that arrive) and by the checks (the history). It obeys at once and never
//! fails; time, faults and waiting belong to store.rs. Broken buckets, which lie about compare-and-swap, live here too.

use std::collections::BTreeMap;

use bucketq::head::Head;
use bytes::Bytes;

use crate::clock::EPOCH_MS;
use crate::rng::Rng;

/// One life of one process: a crash ends a life, a reopen begins the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Who {
    /// The node.
    pub node: usize,
    /// Its life, from 1.
    pub life: u32,
}

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "n{}.{}", self.node, self.life)
    }
}

/// How a bucket breaks its word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lie {
    /// It does not.
    #[default]
    None,
    /// Now and then two puts with the same If-Match both succeed.
    TwoWinners,
    /// Conditions are ignored.
    NoConditions,
    /// Now and then a get answers with the state before.
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
    /// What it says.
    pub head: Head,
    /// True time.
    pub at_ms: u64,
    /// Whose request it was.
    pub by: Who,
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

/// Everything stored, now and before.
#[derive(Debug, Default)]
pub struct Bucket {
    objects: BTreeMap<String, Object>,
    next_version: u64,
    lie: Lie,
    max_skew_ms: u64,
    before: BTreeMap<String, Object>,
    /// Every accepted HEAD, in order of arrival.
    pub landed: Vec<Landed>,
    /// Every object other than HEAD that was ever put.
    pub ever: BTreeMap<String, Bytes>,
    /// Commit ids of the chain that stands, by seq.
    pub chain: BTreeMap<u64, [u8; 16]>,
    /// Requests.
    pub counts: Counts,
    /// Rules broken by what was put.
    pub broken: Vec<String>,
    /// The operator has been at it: the chain need not be one any more.
    pub meddled: bool,
    /// What each life surely knows: the newest commit it was told of.
    pub known: BTreeMap<Who, (u64, [u8; 16])>,
}

impl Bucket {
    /// An empty bucket.
    pub fn new(lie: Lie, max_skew_ms: u64) -> Self {
        Self { lie, max_skew_ms, ..Self::default() }
    }

    /// The HEAD that stands.
    pub fn head(&self) -> Option<&Landed> {
        let now = self.objects.iter().find(|(key, _)| is_head(key))?;
        self.landed.iter().rev().find(|l| l.bytes == now.1.bytes)
    }

    /// `commit_seq` of the HEAD that stands; 0 without one.
    pub fn seq(&self) -> u64 {
        self.head().map_or(0, |l| l.head.commit_seq)
    }

    /// The object, as this bucket tells it.
    pub fn get(&mut self, key: &str, rng: &Rng) -> Option<Object> {
        self.counts.gets += 1;
        if self.lie == Lie::StaleReads && rng.one_in(12) {
            return self.before.get(key).or_else(|| self.objects.get(key)).cloned();
        }
        self.objects.get(key).cloned()
    }

    /// Put if the condition holds; the new version, or none for 412. `is` without a version means If-None-Match:*.
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
        let lost_before = self.before.get(key).map(|o| o.version.as_str());
        let holds = there == is
            || self.lie == Lie::NoConditions
            || (self.lie == Lie::TwoWinners && is.is_some() && lost_before == is && rng.one_in(2));
        if !holds {
            return None;
        }
        if is_head(key) {
            self.judge(by, at_ms, &body);
        } else {
            self.ever.insert(key.to_owned(), body.clone());
        }
        Some(self.store(key, body))
    }

    /// Put under a key that was never used.
    pub fn put_new(&mut self, key: &str, body: Bytes) {
        self.counts.puts += 1;
        if self.ever.get(key).is_some_and(|old| *old != body) {
            self.broken.push(format!("P12: {key} is overwritten with other bytes"));
        }
        self.ever.insert(key.to_owned(), body.clone());
        self.store(key, body);
    }

    /// Delete.
    pub fn delete(&mut self, key: &str) {
        self.counts.deletes += 1;
        self.objects.remove(key);
    }

    /// Keys and sizes.
    pub fn list(&mut self, prefix: &str) -> Vec<(String, u64)> {
        self.counts.lists += 1;
        self.objects
            .range(prefix.to_owned()..)
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, o)| (key.clone(), o.bytes.len() as u64))
            .collect()
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

    /// Whoever was given this HEAD knows its commit from now on.
    pub fn learn(&mut self, who: Who, bytes: &[u8]) {
        if let Ok(head) = Head::decode("HEAD", bytes) {
            let known = self.known.entry(who).or_insert((0, [0; 16]));
            if head.commit_seq > known.0 {
                *known = (head.commit_seq, head.commit_id);
            }
        }
    }

    fn store(&mut self, key: &str, bytes: Bytes) -> String {
        self.next_version += 1;
        let name = if self.lie == Lie::SameVersion { self.next_version % 2 } else { self.next_version };
        let version = format!("\"{name}\"");
        if let Some(old) = self.objects.insert(key.to_owned(), Object { bytes, version: version.clone() }) {
            self.before.insert(key.to_owned(), old);
        }
        version
    }

    /// What P1 to P22 say of a HEAD that is about to stand.
    fn judge(&mut self, by: Who, at_ms: u64, body: &Bytes) {
        let head = match Head::decode("HEAD", body) {
            Ok(head) => head,
            Err(e) => return self.broken.push(format!("{by} put a HEAD nobody can read: {e}")),
        };
        let seq = head.commit_seq;
        let mut broken = Vec::new();
        match self.head().map(|l| &l.head) {
            Some(old) => {
                if seq != old.commit_seq + 1 || head.prev_commit_id != old.commit_id {
                    broken.push(format!(
                        "G2: commit {seq} is not built on commit {} it replaces",
                        old.commit_seq
                    ));
                }
                succeeds(old, &head, &mut broken);
            }
            None if self.landed.is_empty() && (seq != 1 || head.prev_commit_id != [0; 16]) => {
                broken.push(format!("the first HEAD is commit {seq}"));
            }
            None => {}
        }
        if let Some((known, id)) = self.known.get(&by).copied() {
            let there = if known == seq { Some(&head.commit_id) } else { self.chain.get(&known) };
            // Beyond the log window nobody can tell (P23).
            if there != Some(&id) && known >= reach(&head) {
                broken.push(format!(
                    "P21, P22: {by} knew commit {known} and put commit {seq} over a history without it"
                ));
            }
        }
        if self.landed.iter().any(|l| l.head.commit_id == head.commit_id) {
            broken.push(format!("P1: the commit id of commit {seq} has been used before"));
        }
        // A writer may be off by the skew, and its Date by a second on top.
        let ahead = head.commit_ms - EPOCH_MS - at_ms.cast_signed();
        if ahead > self.max_skew_ms.cast_signed() + 1_000 {
            broken.push(format!("P28: commit {seq} is {ahead} ms ahead of true time"));
        }
        for record in &head.tail {
            if record.seq < seq && self.chain.get(&record.seq).is_some_and(|id| *id != record.commit_id) {
                broken.push(format!("P21: the tail of commit {seq} tells another commit {}", record.seq));
            }
        }
        broken.extend(
            self.missing(&head).map(|what| format!("P13: commit {seq} refers to {what}, which is not there")),
        );
        self.broken.extend(broken.into_iter().map(|what| format!("{at_ms} ms, {by}: {what}")));
        self.chain.insert(seq, head.commit_id);
        self.landed.push(Landed { bytes: body.clone(), head, at_ms, by });
    }

    fn missing(&self, head: &Head) -> Option<String> {
        let stored = |tail: String| self.objects.iter().any(|(key, _)| key.ends_with(&tail));
        let base = (head.base.len > 0).then(|| format!("{:016x}-{}", head.base.seq, hex(head.base.rand)));
        let segments = head.segments.iter().map(|s| format!("{:016x}-{:016x}-{}", s.from, s.to, hex(s.rand)));
        base.into_iter().chain(segments).find(|tail| !stored(tail.clone()))
    }
}

/// The oldest commit whose id this HEAD tells, in its tail or its segments.
pub fn reach(head: &Head) -> u64 {
    let inline = head.tail.first().map_or(head.commit_seq, |r| r.seq);
    head.segments.first().map_or(inline, |s| s.from)
}

/// What one HEAD must keep of the one it replaces.
fn succeeds(old: &Head, new: &Head, broken: &mut Vec<String>) {
    let seq = new.commit_seq;
    if new.file_id != old.file_id || new.lineage_id != old.lineage_id {
        broken.push(format!("P21: commit {seq} changes the file or the lineage"));
    }
    if new.commit_ms < old.commit_ms {
        broken.push(format!("G8: time goes back by {} ms at commit {seq}", old.commit_ms - new.commit_ms));
    }
    if new.base.seq < old.base.seq || (new.base.seq == old.base.seq && new.base != old.base) {
        broken.push(format!("P17: commit {seq} replaces base {} by base {}", old.base.seq, new.base.seq));
    }
    if new.gc_floor < old.gc_floor {
        broken.push(format!("P13: the floor falls at commit {seq}"));
    }
    if new.forgotten_seq < old.forgotten_seq {
        broken.push(format!("P4: forgotten_seq falls at commit {seq}"));
    }
    for entry in &old.writers {
        if new.writers.iter().all(|e| e.id != entry.id) && entry.seq > new.forgotten_seq {
            broken.push(format!(
                "P4: commit {seq} forgets the writer of commit {} without saying so",
                entry.seq
            ));
        }
    }
}

fn hex(rand: [u8; 8]) -> String {
    format!("{:016x}", u64::from_be_bytes(rand))
}

/// Whether this key is the one under compare-and-swap.
pub fn is_head(key: &str) -> bool {
    key.rsplit_once('.').is_some_and(|(_, what)| what == "head")
}
