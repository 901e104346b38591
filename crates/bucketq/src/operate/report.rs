//! What a check found: plain data for people and programs. No logic.

use serde::Serialize;

/// How many objects, and how many bytes they have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Objects.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Tally {
    pub(super) fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
    }
}

/// A check that something did not pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The object: a key, or `database` for what the objects together say.
    pub object: String,
    /// What should hold.
    pub check: String,
    /// What was found instead.
    pub found: String,
}

/// What a check of a queue file read and found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The name of the queue file.
    pub name: String,
    /// The store it is in.
    pub store: String,
    /// The newest commit, if HEAD can be read.
    pub commit_seq: Option<u64>,
    /// Its id, in hexadecimal digits.
    pub commit_id: Option<String>,
    /// Its time.
    pub commit_ms: Option<i64>,
    /// The file id, in hexadecimal digits.
    pub file_id: Option<String>,
    /// The lineage id, in hexadecimal digits.
    pub lineage_id: Option<String>,
    /// Why this version of the library can read the file but not write it.
    pub read_only: Option<String>,
    /// Objects that were read.
    pub read: Tally,
    /// Commits after the base whose deltas were applied one by one, with the checksum right after each.
    pub commits: u64,
    /// Pages of the database, 4,096 bytes each.
    pub pages: u64,
    /// Jobs in it.
    pub jobs: u64,
    /// What HEAD refers to, itself included.
    pub referenced: Tally,
    /// What belongs to the queue file, and HEAD does not refer to: retired objects, leftovers of lost races and crashes,
    /// and uploads under way. None when listing is not allowed.
    pub unreferenced: Option<Tally>,
    /// Of those, what lies below the floor: the next collection deletes it.
    pub collectable: Option<Tally>,
    /// Objects under the name that belong to another file id, such as one that was lost; nothing ever deletes them.
    pub foreign: Option<Tally>,
    /// Bases and segments that are whole in themselves, if HEAD is not: what a restore could be made from.
    pub sound_objects: Vec<String>,
    /// Everything that is wrong. Empty: the queue file is sound.
    pub problems: Vec<Problem>,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }
}
