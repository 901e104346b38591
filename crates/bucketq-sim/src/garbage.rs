//! The objects that are written once: references, floor, deletions and lists (G7, G9, P13 to P16).
//!
//! Called by the bucket for every HEAD that lands and every delete that arrives, and by run.rs at the end.

use std::collections::BTreeSet;

use bucketq::internals::head::Head;

use crate::bucket::{Bucket, Who, is_head};

/// The number that the floor is compared with, and the part of the key in HEAD, of a base, segment or archive object.
struct Object {
    seq: u64,
    tail: String,
}

impl Object {
    fn of(key: &str) -> Option<Self> {
        let (what, rest) = key.split_once('.')?.1.split_once('-')?;
        let parts: Vec<&str> = rest.split('-').collect();
        let number = |digits| u64::from_str_radix(digits, 16).ok();
        match (what, &parts[..]) {
            ("base" | "arch", [_, seq, rand]) => {
                Some(Self { seq: number(seq)?, tail: format!("{seq}-{rand}") })
            }
            ("seg", [_, from, to, rand]) => {
                Some(Self { seq: number(to)?, tail: format!("{from}-{to}-{rand}") })
            }
            _ => None,
        }
    }
}

/// The endings of the keys that this HEAD refers to, each with its number.
fn referred(head: &Head) -> Vec<(String, u64)> {
    let base = (head.base.len > 0)
        .then(|| (format!("{:016x}-{}", head.base.seq, hex(head.base.rand)), head.base.seq));
    let segments =
        head.segments.iter().map(|s| (format!("{:016x}-{:016x}-{}", s.from, s.to, hex(s.rand)), s.to));
    base.into_iter().chain(segments).collect()
}

impl Bucket {
    /// An object that this HEAD refers to and that does not exist (G7).
    pub(crate) fn missing(&self, head: &Head) -> Option<String> {
        let gone = |tail: &String| !self.keys().any(|key| key.ends_with(tail));
        referred(head).into_iter().map(|(tail, _)| tail).find(gone)
    }

    /// A delete arrives: it must not delete an object that HEAD refers to, or one at or above a stored floor.
    pub(crate) fn judge_delete(&mut self, by: Who, at_ms: u64, key: &str) {
        let (Some(object), Some(head)) = (Object::of(key), self.head().map(|l| &l.head)) else { return };
        let (seq, floor) = (object.seq, head.gc_floor);
        let refers = referred(head).iter().any(|(tail, _)| *tail == object.tail);
        let mut bad = Vec::new();
        if refers {
            bad.push(format!("{at_ms} ms, {by}: G7: {key} is deleted although HEAD refers to it"));
        }
        if seq >= floor {
            bad.push(format!(
                "{at_ms} ms, {by}: P14: {key} is deleted although the floor that is stored is {floor}"
            ));
        }
        self.broken.extend(bad);
        if key.contains(".arch-") {
            self.archives_deleted.push((key.to_owned(), floor));
        }
    }

    /// Keys that neither HEAD nor the list of archive objects refers to, without the leftovers of a probe.
    pub fn unreferenced(&self, listed: &BTreeSet<String>) -> Vec<String> {
        let known = self.head().map(|l| referred(&l.head)).unwrap_or_default();
        let litter = |key: &&str| {
            !is_head(key)
                && !listed.contains(*key)
                && !key.contains(".probe-")
                // One for each queue file, never collected.
                && !key.contains(".knock")
                && Object::of(key).is_none_or(|o| known.iter().all(|(tail, _)| *tail != o.tail))
        };
        self.keys().filter(litter).map(str::to_owned).collect()
    }

    /// P16: a writer that raised the floor lists once for it, and once for each collection that a caller requests.
    pub fn lists_too_often(&self) -> Option<String> {
        let raised =
            self.landed.windows(2).filter(|w| w[1].head.gc_floor > w[0].head.gc_floor).count() as u64;
        let (lists, asked) = (self.searches, self.asked_to_collect);
        (lists > raised + asked).then(|| {
            format!(
                "P16: {lists} searches for orphans; the floor rose {raised} times, {asked} were asked for"
            )
        })
    }
}

/// Checks what a HEAD must keep of the floor, and of the objects below it (P13, P15). `asked` is whether a caller may
/// have requested a collection: if not, the floor rises at most once a grace period.
pub fn floor_kept(old: &Head, new: &Head, grace_ms: Option<i64>, broken: &mut Vec<String>) {
    let seq = new.commit_seq;
    if new.gc_floor < old.gc_floor {
        broken.push(format!("P13: the floor falls at commit {seq}"));
    }
    if new.gc_floor > seq {
        broken.push(format!("P15: commit {seq} puts the floor to {}", new.gc_floor));
    }
    let before = referred(old);
    for (tail, upto) in referred(new).iter().filter(|r| !before.contains(r)) {
        if *upto < old.gc_floor {
            broken.push(format!(
                "P13: commit {seq} refers to {tail} for the first time, below the floor {} it is built on",
                old.gc_floor
            ));
        }
    }
    if let Some(grace) = grace_ms
        && new.gc_floor > old.gc_floor
        && (new.commit_ms - old.floor_candidate_ms < grace || new.gc_floor > old.floor_candidate)
    {
        broken.push(format!(
            "P15: commit {seq} raises the floor from {} to {}, {} ms after {} was noted",
            old.gc_floor,
            new.gc_floor,
            new.commit_ms - old.floor_candidate_ms,
            old.floor_candidate
        ));
    }
}

fn hex(rand: [u8; 8]) -> String {
    format!("{:016x}", u64::from_be_bytes(rand))
}
