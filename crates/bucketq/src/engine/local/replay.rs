//! Reads a generation back: its base, then its log, verified before use. A last entry that a crash cut short does not
//! count; damage anywhere else is Corrupt.
//!
//! Called by log when a directory is opened. Writes nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::entry::{self, LogEntry};
use super::log::{Intent, Mark};
use crate::bucket::head::Head;
use crate::bucket::record::Record;
use crate::bucket::wire::{ByteReader, ByteWriter, corrupt};
use crate::noun::error::{Code, Error, Result};
use crate::state::pages::{Image, PAGE, Pages};

/// The first bytes of every generation.
const MAGIC: &[u8; 8] = b"BUCKETQL";
/// The format this version writes, and the newest it reads.
const FORMAT: u16 = 1;
/// Bytes before the encoded HEAD.
const HEADER: usize = 48;

/// The content of a generation.
pub(super) struct ReplayedLog {
    pub salt: u64,
    pub head: Head,
    pub base: Image,
    pub at_base: Mark,
    pub now: Mark,
    pub intents: Vec<Intent>,
    pub ordinal: u32,
    pub last_ms: i64,
    pub pages: Pages,
    /// Valid bytes of the file.
    pub len: u64,
    /// Bytes before the log.
    pub image_len: u64,
}

/// Returns the beginning of a generation: everything before its log.
pub(super) fn header(salt: u64, position: u64, head: &Head, base: &Image) -> Result<Vec<u8>> {
    let body = head.encode();
    let mut w = ByteWriter(Vec::with_capacity(HEADER + body.len() + 16 + base.bytes() as usize));
    w.raw(MAGIC);
    w.u16(FORMAT);
    w.u16(1);
    w.u32(body.len() as u32);
    w.u64(salt);
    w.u64(position);
    w.u64(base.bytes());
    w.raw(&[0; 8]);
    w.raw(&body);
    let mut bytes = w.seal();
    base.write_to(&mut bytes).map_err(|e| Error::bug("a vector cannot be written to").because(e))?;
    Ok(bytes)
}

/// Reads and verifies a generation; `what` names it in errors.
pub(super) fn read(what: &str, bytes: &[u8], max_pages: u32) -> Result<ReplayedLog> {
    let bad = |check: &str| corrupt(what, check);
    if bytes.len() < HEADER || &bytes[..8] != MAGIC {
        return Err(bad("its first bytes are not those of a local state"));
    }
    let mut r = ByteReader::new(what, bytes);
    r.raw(8, "magic")?;
    r.u16("format")?;
    if r.u16("min_reader")? > FORMAT {
        return Err(Error::new(Code::TooNew, format!("{what} needs a newer version: upgrade bucketq")));
    }
    let head_len = r.u32("head length")? as usize;
    let begin = HEADER.saturating_add(head_len).saturating_add(16);
    if begin > bytes.len() {
        return Err(bad("it ends within its header"));
    }
    let mut r = ByteReader::sealed(what, &bytes[..begin])?;
    r.raw(16, "header")?;
    let (salt, position, image_bytes) = (r.u64("salt")?, r.u64("position")?, r.u64("image length")?);
    r.raw(8, "reserved")?;
    let head = Head::decode(what, r.raw(head_len, "head")?)?;
    let image_len = begin as u64 + image_bytes;
    let image = usize::try_from(image_len).ok().and_then(|end| bytes.get(begin..end));
    let pages = Pages::from_image(image.ok_or_else(|| bad("it ends within its pages"))?)?;
    if pages.page_count() != head.page_count || pages.checksum().0 != head.checksum {
        return Err(bad("its pages have another checksum than its header"));
    }
    if head.page_count > max_pages {
        return Err(Error::new(
            Code::FileFull,
            format!("{what} holds {} pages; this handle allows {max_pages}: raise max_file", head.page_count),
        ));
    }
    let (entries, len) = entries(what, bytes, image_len as usize, salt)?;
    let at_base = Mark { commits: position, ..Mark::default() };
    let base = pages.image();
    let wanted = entries.iter().filter_map(|e| match e {
        LogEntry::Intent { position, .. } => Some(*position),
        _ => None,
    });
    let mut replay = Replay {
        what,
        max_pages,
        wanted: wanted.collect(),
        seen: BTreeMap::from([(position, (at_base, base.clone()))]),
        to: ReplayedLog {
            salt,
            last_ms: head.commit_ms,
            head,
            base,
            at_base,
            now: at_base,
            intents: vec![],
            ordinal: 0,
            pages,
            len: len as u64,
            image_len,
        },
    };
    for entry in entries {
        replay.apply(entry)?;
    }
    Ok(replay.to)
}

/// Returns the entries from `at` on, and where they end.
fn entries(what: &str, bytes: &[u8], mut at: usize, salt: u64) -> Result<(Vec<LogEntry>, usize)> {
    let mut found = vec![];
    while let Some((entry, len, _)) = LogEntry::decode(what, &bytes[at..], salt)? {
        found.push(entry);
        at += len;
    }
    // A crash may leave later entries intact and earlier ones not, as long as neither was synced.
    for from in at + 1..bytes.len().saturating_sub(entry::MAGIC.len()) {
        if bytes[from..].starts_with(&entry::MAGIC)
            && let Some((_, _, synced)) = LogEntry::decode(what, &bytes[from..], salt)?
            && synced > at as u64
        {
            return Err(corrupt(what, &format!("the entry at byte {at} is damaged, and later ones are not")));
        }
    }
    Ok((found, at))
}

struct Replay<'a> {
    what: &'a str,
    max_pages: u32,
    /// The positions in intents ...
    wanted: BTreeSet<u64>,
    /// ... and the states there.
    seen: BTreeMap<u64, (Mark, Image)>,
    to: ReplayedLog,
}

impl Replay<'_> {
    fn bad(&self, check: &str) -> Error {
        corrupt(self.what, check)
    }

    fn apply(&mut self, entry: LogEntry) -> Result<()> {
        match entry {
            LogEntry::Commit { ordinal, record } => {
                if record.seq <= self.to.now.commits {
                    return Err(self.bad("its local commits are not in order"));
                }
                self.change(&record)?;
                let now = self.to.now;
                self.to.now = Mark {
                    commits: record.seq,
                    ops: now.ops + u64::from(record.ops),
                    bytes: now.bytes + record.frame.len() as u64,
                };
                self.to.ordinal = ordinal;
                self.to.last_ms = self.to.last_ms.max(record.commit_ms);
                if self.wanted.contains(&record.seq) {
                    self.seen.insert(record.seq, (self.to.now, self.to.pages.image()));
                }
            }
            LogEntry::Intent { writer, position, body } => {
                let state = self.seen.get(&position).cloned();
                let (at, image) = state.ok_or_else(|| self.bad("an intent names no local commit"))?;
                let head = Head::decode(self.what, &body)?;
                self.to.intents.push(Intent { writer, head, body, at, image, record: None });
            }
            LogEntry::Settled { commit_id } => {
                let intent = self.to.intents.drain(..).find(|i| i.head.commit_id == commit_id);
                let intent = intent.ok_or_else(|| self.bad("a settled commit was never intended"))?;
                self.to.head = intent.head;
                (self.to.at_base, self.to.base) = (intent.at, intent.image);
                self.to.ordinal = 0;
                self.remember_base();
            }
            LogEntry::Moved { head, record } => {
                self.to.pages.go_to(&self.to.base)?;
                self.change(&record)?;
                self.to.head = Head::decode(self.what, &head)?;
                (self.to.base, self.to.at_base) = (self.to.pages.image(), self.to.now);
                self.to.intents.clear();
                self.to.ordinal = 0;
                self.to.last_ms = self.to.head.commit_ms;
                self.remember_base();
            }
        }
        Ok(())
    }

    /// Remembers the state of the base, which is the state of a body that changes nothing.
    fn remember_base(&mut self) {
        self.seen.insert(self.to.at_base.commits, (self.to.at_base, self.to.base.clone()));
    }

    fn change(&mut self, record: &Record) -> Result<()> {
        self.to.pages.apply(&record.delta(self.max_pages)?)?;
        if self.to.pages.page_count() != record.page_count || self.to.pages.checksum().0 != record.checksum {
            return Err(self.bad("a local commit does not lead to the checksum in its entry"));
        }
        Ok(())
    }
}

const _: () = assert!(HEADER.is_multiple_of(16) && PAGE.is_multiple_of(16));
