//! The local state in memory and on the disk. A generation is a file with the base and the log since.
//!
//! Called by the writer. Memory is right while the process runs: when a write leaves the file in doubt, a new
//! generation is made from memory before anything else is acknowledged. One entry is one atomic step.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use super::dir::{Dir, Lock, failed};
use super::entry::LogEntry;
use super::replay::{self, ReplayedLog};
use crate::bucket::head::Head;
use crate::bucket::record::Record;
use crate::engine::commit::{self, CommitAttempt};
use crate::noun::config::{Fsync, Options};
use crate::noun::env::Env;
use crate::noun::error::{Code, Error, Result};
use crate::state::pages::{Image, PageChanges, Pages};

/// The beginning of every generation's file name.
const PREFIX: &str = "gen-";
/// A log shorter than this is not worth a new generation, however small the base is.
const LOG_MIN: u64 = 4 * 1024 * 1024;

/// A position in the local commits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Local commits since the directory was made.
    pub commits: u64,
    /// Ops since the base of the generation that this process opened.
    pub ops: u64,
    /// Bytes of their deltas.
    pub bytes: u64,
}

/// A body that may have been sent and is not settled.
#[derive(Clone, Debug)]
pub(crate) struct Intent {
    /// The writer id it was built under.
    pub writer: [u8; 8],
    /// The HEAD in the body.
    pub head: Head,
    /// The bytes of the body.
    pub body: Bytes,
    /// It publishes the local commits up to here.
    pub at: Mark,
    /// The pages of the state that it publishes.
    pub image: Image,
    /// Its record, only in the process that built it.
    pub record: Option<Record>,
}

/// Why an entry was not written.
#[derive(Debug)]
pub(crate) struct Failed {
    pub error: Error,
    /// The entry may still be in the file, until a new generation is made.
    pub in_doubt: bool,
}

/// A directory that this process has locked.
#[derive(Debug)]
pub(crate) struct LockedDir {
    dir: Arc<dyn Dir>,
    /// Released when this is dropped.
    _lock: Lock,
    options: Arc<Options>,
    env: Env,
}

pub(crate) struct Log {
    locked: LockedDir,
    number: u64,
    salt: u64,
    /// Valid bytes of the file.
    len: u64,
    /// How many of these are surely on the disk.
    synced: u64,
    /// Bytes before the log.
    image_len: u64,
    /// When the oldest unsynced entry was written.
    waiting: Option<Instant>,
    /// The file does not match memory.
    behind: bool,
    zstd: zstd::bulk::Compressor<'static>,
    head: Head,
    base: Image,
    at_base: Mark,
    now: Mark,
    intents: Vec<Intent>,
    ordinal: u32,
    last_ms: i64,
}

impl LockedDir {
    /// Locks the directory.
    pub fn take(dir: Arc<dyn Dir>, options: Arc<Options>, env: Env) -> Result<Self> {
        let lock = dir.lock()?;
        Ok(Self { dir, _lock: lock, options, env })
    }

    /// Reads the newest generation: returns its log and its current pages, or the directory if it has none.
    pub fn restore(self, max_pages: u32) -> Result<std::result::Result<(Log, Pages), Self>> {
        let names = self.dir.names().map_err(|e| failed("read", &self.dir.path(), &e))?;
        let Some(number) = names.iter().filter_map(|n| number(n)).max() else { return Ok(Err(self)) };
        let path = self.dir.path().join(name(number));
        let bytes = self.dir.read(&name(number)).map_err(|e| failed("read", &path, &e))?;
        let there = replay::read(&path.display().to_string(), &bytes, max_pages).map_err(|e| {
            if e.code() != Code::Corrupt {
                return e;
            }
            let after = "nothing was changed: restore the directory, or move it away to start again from the store without the changes that were not synced";
            Error::new(Code::Corrupt, format!("{}; {after}", e.message())).because(e)
        })?;
        let ReplayedLog { salt, head, base, at_base, now, intents, ordinal, last_ms, pages, len, image_len } =
            there;
        // Cut off an entry that a crash left incomplete. The rest counts as synced only after a sync.
        let torn = len < bytes.len() as u64;
        let mut log = Log {
            locked: self,
            number,
            salt,
            len,
            synced: 0,
            image_len,
            waiting: None,
            behind: false,
            zstd: compressor()?,
            head,
            base,
            at_base,
            now,
            intents,
            ordinal,
            last_ms,
        };
        if torn {
            tracing::warn!(path = %path.display(), bytes = bytes.len() as u64 - len, "the end of the local log was cut short by a crash");
            log.locked.dir.cut(&log.name(), len).map_err(|e| failed("cut", &path, &e))?;
        }
        log.locked.dir.sync(&log.name()).map_err(|e| failed("sync", &path, &e))?;
        log.synced = len;
        for old in names.iter().filter(|n| self::number(n).is_some_and(|n| n < number)) {
            // Left by a crash. If this fails, the next opening tries again.
            let _ = log.locked.dir.remove(old);
        }
        Ok(Ok((log, pages)))
    }

    /// Begins a log with this base.
    pub fn begin(self, head: Head, base: &Image) -> Result<Log> {
        let last_ms = head.commit_ms;
        let mut log = Log {
            locked: self,
            number: 0,
            salt: 0,
            len: 0,
            synced: 0,
            image_len: 0,
            waiting: None,
            behind: true,
            zstd: compressor()?,
            head,
            base: base.clone(),
            at_base: Mark::default(),
            now: Mark::default(),
            intents: vec![],
            ordinal: 0,
            last_ms,
        };
        log.roll(base)?;
        Ok(log)
    }
}

impl Log {
    /// Returns the commit that the local state is based on.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Returns the pages of that commit.
    pub fn base(&self) -> &Image {
        &self.base
    }

    /// Returns the bodies on this base that may have been sent, oldest first.
    pub fn intents(&self) -> &[Intent] {
        &self.intents
    }

    /// Returns the position of the newest local commit.
    pub fn now(&self) -> Mark {
        self.now
    }

    /// Returns the position up to which the base contains local commits.
    pub fn at_base(&self) -> Mark {
        self.at_base
    }

    /// Returns the unpublished local commits, as far as is known.
    pub fn pending(&self) -> Mark {
        let (now, base) = (self.now, self.at_base);
        Mark { commits: now.commits - base.commits, ops: now.ops - base.ops, bytes: now.bytes - base.bytes }
    }

    /// Returns how many places in the order of jobs the commit that is to be published has used.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Returns a time no earlier than that of any local commit.
    pub fn last_ms(&self) -> i64 {
        self.last_ms
    }

    /// Notes that no time in the local commits is later than this any more.
    pub fn is_at(&mut self, now_ms: i64) {
        self.last_ms = now_ms;
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> PathBuf {
        self.locked.dir.path()
    }

    fn name(&self) -> String {
        name(self.number)
    }

    fn fsync(&self) -> Fsync {
        self.locked.options.fsync
    }

    /// Makes a new generation if the file cannot take an entry. `now` is the state as of the last local commit.
    pub fn ready(&mut self, now: impl FnOnce() -> Image) -> Result<()> {
        if self.behind { self.roll(&now()) } else { Ok(()) }
    }

    /// Writes a local commit. When this returns, it survives as much as the fsync policy promises.
    pub fn commit(
        &mut self,
        changes: &PageChanges,
        ops: u32,
        commit_ms: i64,
        ordinal: u32,
    ) -> Result<(), Failed> {
        let seq = self.now.commits + 1;
        let record = self.record(changes, seq, ops, commit_ms).map_err(surely_not)?;
        let bytes = record.frame.len() as u64;
        self.append(&LogEntry::Commit { ordinal, record }, false)?;
        let now = self.now;
        self.now = Mark { commits: seq, ops: now.ops + u64::from(ops), bytes: now.bytes + bytes };
        self.ordinal = ordinal;
        self.last_ms = self.last_ms.max(commit_ms);
        Ok(())
    }

    /// Writes down a body before it is sent, so that after a crash the next opening knows of it (P19).
    pub fn intend(&mut self, intent: Intent) -> Result<(), Failed> {
        let Intent { writer, at, ref body, .. } = intent;
        self.append(&LogEntry::Intent { writer, position: at.commits, body: body.clone() }, true)?;
        self.intents.push(intent);
        Ok(())
    }

    /// Makes the body with this commit id, which is in the chain, the base: its local commits are published,
    /// and the other intents are void (P20). Returns `None` if the body is not known.
    pub fn settle(&mut self, commit_id: &[u8; 16]) -> Option<Intent> {
        let at = self.intents.iter().position(|i| i.head.commit_id == *commit_id)?;
        let intent = self.intents.swap_remove(at);
        self.intents.clear();
        self.head = intent.head.clone();
        self.base = intent.image.clone();
        self.at_base = intent.at;
        self.ordinal = 0;
        if let Err(failed) = self.append(&LogEntry::Settled { commit_id: *commit_id }, true) {
            // The commit is in the store anyway; the next process would find that out again.
            tracing::warn!(error = %failed.error, "a sync could not be noted locally");
            self.behind = true;
        }
        Some(intent)
    }

    /// Makes another commit the base; nothing is unpublished and no intent open. On an error, memory has changed and the
    /// file may not have.
    pub fn moved(&mut self, head: Head, base: Image) -> Result<()> {
        let changes = base.since(&self.base);
        let record = self.record(&changes, self.now.commits, 0, head.commit_ms)?;
        let entry = LogEntry::Moved { head: head.encode().into(), record };
        self.last_ms = head.commit_ms;
        self.head = head;
        self.base = base;
        self.at_base = self.now;
        self.intents.clear();
        self.ordinal = 0;
        if !self.behind {
            let Err(failed) = self.append(&entry, true) else { return Ok(()) };
            tracing::warn!(error = %failed.error, "the new state could not be recorded; writing it again");
        }
        self.behind = true;
        let base = self.base.clone();
        self.roll(&base)
    }

    /// Makes a new generation of this state, which replaces the one before.
    pub fn roll(&mut self, now: &Image) -> Result<()> {
        let (number, salt) = (self.number + 1, u64::from_le_bytes(self.locked.env.bytes()));
        let mut bytes = replay::header(salt, self.at_base.commits, &self.head, &self.base)?;
        let image_len = bytes.len() as u64;
        let mut on = (self.at_base, self.base.clone());
        for intent in self.intents.clone() {
            self.go_on(&mut bytes, salt, &mut on, (intent.at, &intent.image))?;
            let Intent { writer, at, body, .. } = intent;
            bytes.extend(LogEntry::Intent { writer, position: at.commits, body }.encode(salt, 0));
        }
        self.go_on(&mut bytes, salt, &mut on, (self.now, now))?;
        let path = self.path().join(name(number));
        if let Err(e) = self.locked.dir.create(&name(number), &bytes) {
            // If it exists nevertheless, the next opening takes it: nothing more is written to the one before.
            let absent = self.locked.dir.names().is_ok_and(|names| !names.contains(&name(number)));
            self.behind |= !absent;
            return Err(failed("write", &path, &e));
        }
        if self.number > 0 {
            // If this fails, the next opening takes the newer one and removes this one.
            let _ = self.locked.dir.remove(&self.name());
        }
        (self.number, self.salt, self.image_len) = (number, salt, image_len);
        (self.len, self.synced) = (bytes.len() as u64, bytes.len() as u64);
        (self.behind, self.waiting) = (false, None);
        Ok(())
    }

    /// Appends one entry for all local commits between two marks.
    fn go_on(
        &mut self,
        bytes: &mut Vec<u8>,
        salt: u64,
        on: &mut (Mark, Image),
        to: (Mark, &Image),
    ) -> Result<()> {
        if to.0.commits > on.0.commits {
            let ops = u32::try_from(to.0.ops - on.0.ops).unwrap_or(u32::MAX);
            let record = self.record(&to.1.since(&on.1), to.0.commits, ops, self.last_ms)?;
            bytes.extend(LogEntry::Commit { ordinal: self.ordinal, record }.encode(salt, 0));
            *on = (to.0, to.1.clone());
        }
        Ok(())
    }

    /// Returns whether a new generation would make the next opening quicker.
    pub fn outgrown(&self) -> bool {
        self.len - self.image_len > LOG_MIN.max(self.image_len)
    }

    /// Returns when the fsync policy requires the next sync.
    pub fn due(&self) -> Option<Instant> {
        match self.fsync() {
            Fsync::Interval(every) => self.waiting.map(|since| since + every),
            _ => None,
        }
    }

    /// Syncs if it is due. If that fails, the file is in doubt: a new generation is made before the next entry.
    pub fn tick(&mut self) {
        if self.due().is_some_and(|due| due <= self.locked.env.monotonic())
            && let Err(failed) = self.sync()
        {
            tracing::warn!(error = %failed.error, "the local log could not be synced; writing it again");
        }
    }

    /// Syncs a last time, if the policy wants syncs.
    pub fn close(&mut self) {
        if !matches!(self.fsync(), Fsync::Never)
            && self.waiting.is_some()
            && let Err(failed) = self.sync()
        {
            tracing::warn!(error = %failed.error, "the local log could not be synced at the end");
        }
    }

    fn sync(&mut self) -> Result<(), Failed> {
        let name = self.name();
        if let Err(e) = self.locked.dir.sync(&name) {
            // The system may drop data that it could not write: the whole file is in doubt.
            (self.behind, self.waiting) = (true, None);
            let error = failed("sync", &self.path().join(name), &e);
            return Err(Failed { error, in_doubt: true });
        }
        self.synced = self.len;
        self.waiting = None;
        Ok(())
    }

    /// Appends one entry, and syncs it if `at_once` or the policy says so. On an error the entry does not count.
    fn append(&mut self, entry: &LogEntry, at_once: bool) -> Result<(), Failed> {
        if self.behind {
            return Err(surely_not(Error::new(Code::Disk, "an earlier error left the local log in doubt")));
        }
        let (name, before) = (self.name(), self.len);
        let bytes = entry.encode(self.salt, self.synced);
        if let Err(e) = self.locked.dir.append(&name, before, &bytes) {
            // A partial entry is not valid, but takes up room that may be needed.
            let _ = self.locked.dir.cut(&name, before);
            return Err(surely_not(failed("write", &self.path().join(name), &e)));
        }
        self.len += bytes.len() as u64;
        let waiting = *self.waiting.get_or_insert(self.locked.env.monotonic());
        let now = match self.fsync() {
            _ if at_once => true,
            Fsync::EachCommit => !matches!(entry, LogEntry::Intent { .. }),
            Fsync::Interval(every) => self.locked.env.monotonic() >= waiting + every,
            Fsync::Never => false,
        };
        if now && let Err(failed) = self.sync() {
            self.len = before;
            let _ = self.locked.dir.cut(&name, before);
            return Err(failed);
        }
        Ok(())
    }

    fn record(&mut self, changes: &PageChanges, seq: u64, ops: u32, commit_ms: i64) -> Result<Record> {
        let attempt = CommitAttempt { writer: [0; 8], number: 0, commit_id: [0; 16], commit_ms };
        let after = (changes.new_count(), changes.new_checksum());
        let record = commit::record(&self.head, &attempt, changes, after, ops, &mut self.zstd)?;
        Ok(Record { seq, prev_commit_id: [0; 16], ..record })
    }
}

fn surely_not(error: Error) -> Failed {
    Failed { error, in_doubt: false }
}

fn compressor() -> Result<zstd::bulk::Compressor<'static>> {
    zstd::bulk::Compressor::new(1).map_err(|e| Error::bug("zstd cannot be set up").because(e))
}

fn name(number: u64) -> String {
    format!("{PREFIX}{number:016x}")
}

fn number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX).filter(|d| d.len() == 16)?;
    u64::from_str_radix(digits, 16).ok()
}
