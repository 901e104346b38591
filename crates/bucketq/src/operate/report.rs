//! The result of a check: plain data for people and programs. No logic.

use serde::Serialize;

/// A number of objects and their size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Objects.
    pub count: u64,
    /// Bytes of those.
    pub bytes: u64,
}

impl Tally {
    pub(super) fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
    }
}

/// A check that an object did not pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The object: a key, or `database` for the database that the objects form.
    pub object: String,
    /// The rule that should hold.
    pub check: String,
    /// The content found instead.
    pub found: String,
}

/// The report of a check of a queue file.
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
    /// Commits after the base whose deltas were applied one by one, with the right checksum after each.
    pub commits: u64,
    /// Pages of the database, 4,096 bytes each.
    pub pages: u64,
    /// Jobs in it.
    pub jobs: u64,
    /// Objects that HEAD refers to, HEAD included.
    pub referenced: Tally,
    /// Objects of the queue file that HEAD does not refer to: retired objects, leftovers of lost races and crashes, and
    /// uploads under way. None when listing is not allowed.
    pub unreferenced: Option<Tally>,
    /// Those that the next collection deletes.
    pub collectable: Option<Tally>,
    /// Objects under the name that belong to another file id, such as a lost one; they are never deleted.
    pub foreign: Option<Tally>,
    /// Bases and segments that are intact, if HEAD is not: material for a restore.
    pub sound_objects: Vec<String>,
    /// Every problem. Empty: the queue file is sound.
    pub problems: Vec<Problem>,
}

impl Report {
    /// Returns true if there are no problems.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }
}
