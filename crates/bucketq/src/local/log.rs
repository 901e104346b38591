//! The local state in memory, and what is written of it: a generation, which is a file with the base and the log since.
//!
//! Called by the writer. The memory is the truth while the process runs; when a write leaves the file in doubt, a new
//! generation is made from memory before anything else is acknowledged. One entry is one atomic step.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use super::dir::{Dir, Lock, failed};
use super::entry::Entry;
use super::replay::{self, Restored};
use crate::broken::{self, Broken};
use crate::commit::{self, Attempt};
use crate::config::{Fsync, Options};
use crate::env::Env;
use crate::error::{Code, Error, Result};
use crate::head::Head;
use crate::pages::{Changes, Image, Pages};
use crate::record::Record;

/// What every generation's name begins with.
const PREFIX: &str = "gen-";
/// A log shorter than this is not worth a new generation, however small the base is.
const LOG_MIN: u64 = 4 * 1024 * 1024;

/// How far the local state had come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Local commits since the directory was made.
    pub commits: u64,
    /// Ops, since this generation began.
    pub ops: u64,
    /// Bytes of their deltas.
    pub bytes: u64,
}

/// A body that may have been sent and is not settled.
#[derive(Clone, Debug)]
pub(crate) struct Intent {
    /// Under which writer id.
    pub writer: [u8; 8],
    /// What it says.
    pub head: Head,
    /// Its bytes.
    pub body: Bytes,
    /// What it publishes.
    pub at: Mark,
    /// The pages it leads to.
    pub image: Image,
    /// Its record, in the process that built it.
    pub record: Option<Record>,
}

/// Why an entry was not written.
#[derive(Debug)]
pub(crate) struct Failed {
    pub error: Error,
    /// It may be in the file all the same, until a new generation is made.
    pub in_doubt: bool,
}

/// A directory that belongs to this process.
#[derive(Debug)]
pub(crate) struct Taken {
    dir: Arc<dyn Dir>,
    /// Given back when this is dropped.
    _lock: Lock,
    options: Arc<Options>,
    env: Env,
}

pub(crate) struct Log {
    taken: Taken,
    number: u64,
    salt: u64,
    /// Bytes of the file that count.
    len: u64,
    /// Of those, bytes that surely are on the disk.
    synced: u64,
    /// Bytes before the log.
    image_len: u64,
    /// When the oldest entry that is not synced was written.
    waiting: Option<Instant>,
    /// The file does not hold what the memory does.
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

impl Taken {
    /// Take the directory.
    pub fn take(dir: Arc<dyn Dir>, options: Arc<Options>, env: Env) -> Result<Self> {
        let lock = dir.lock()?;
        Ok(Self { dir, _lock: lock, options, env })
    }

    /// What it holds, if it holds anything, with the pages as of now.
    pub fn restore(self, max_pages: u32) -> Result<std::result::Result<(Log, Pages), Self>> {
        let names = self.dir.names().map_err(|e| failed("read", &self.dir.path(), &e))?;
        let Some(number) = names.iter().filter_map(|n| number(n)).max() else { return Ok(Err(self)) };
        let path = self.dir.path().join(name(number));
        let bytes = self.dir.read(&name(number)).map_err(|e| failed("read", &path, &e))?;
        let wrong = replay::Wrong {
            newest_only: broken::is(&self.options, Broken::NewestIntentOnly),
            no_position: broken::is(&self.options, Broken::IntentWithoutPosition),
        };
        let there = replay::read(&path.display().to_string(), &bytes, max_pages, wrong).map_err(|e| {
            if e.code() != Code::Corrupt {
                return e;
            }
            let after = "nothing was changed: put the directory back as it was, or move it away to begin again from the store without what was not synced";
            Error::new(Code::Corrupt, format!("{}; {after}", e.message())).because(e)
        })?;
        let Restored { salt, head, base, at_base, now, intents, ordinal, last_ms, pages, len, image_len } =
            there;
        // What a crash cut short, and what was not read back, is not taken for synced before it has been.
        let torn = len < bytes.len() as u64;
        let mut log = Log {
            taken: self,
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
            log.taken.dir.cut(&log.name(), len).map_err(|e| failed("cut", &path, &e))?;
        }
        log.taken.dir.sync(&log.name()).map_err(|e| failed("sync", &path, &e))?;
        log.synced = len;
        for old in names.iter().filter(|n| self::number(n).is_some_and(|n| n < number)) {
            // Litter of a crash; the next opening tries again.
            let _ = log.taken.dir.remove(old);
        }
        Ok(Ok((log, pages)))
    }

    /// Begin with this base.
    pub fn begin(self, head: Head, base: &Image) -> Result<Log> {
        let last_ms = head.commit_ms;
        let mut log = Log {
            taken: self,
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
    /// The commit all of this stands on.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Its pages.
    pub fn base(&self) -> &Image {
        &self.base
    }

    /// Bodies on this base that may have been sent, oldest first.
    pub fn intents(&self) -> &[Intent] {
        &self.intents
    }

    /// How far the local state has come.
    pub fn now(&self) -> Mark {
        self.now
    }

    /// How far the base reaches.
    pub fn at_base(&self) -> Mark {
        self.at_base
    }

    /// What is not published, as far as is known.
    pub fn pending(&self) -> Mark {
        let (now, base) = (self.now, self.at_base);
        Mark { commits: now.commits - base.commits, ops: now.ops - base.ops, bytes: now.bytes - base.bytes }
    }

    /// Jobs at the end of the commit that is to be published.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// No local commit is later than this.
    pub fn last_ms(&self) -> i64 {
        self.last_ms
    }

    /// Where it lies.
    pub fn path(&self) -> PathBuf {
        self.taken.dir.path()
    }

    fn name(&self) -> String {
        name(self.number)
    }

    fn fsync(&self) -> Fsync {
        self.taken.options.fsync
    }

    /// Make sure that the file can take an entry. `now` is the state as of the last local commit.
    pub fn ready(&mut self, now: impl FnOnce() -> Image) -> Result<()> {
        if self.behind { self.roll(&now()) } else { Ok(()) }
    }

    /// A local commit: after this it survives what the fsync policy says.
    pub fn commit(
        &mut self,
        changes: &Changes,
        ops: u32,
        commit_ms: i64,
        ordinal: u32,
    ) -> Result<(), Failed> {
        let seq = self.now.commits + 1;
        let record = self.record(changes, seq, ops, commit_ms).map_err(surely_not)?;
        let bytes = record.frame.len() as u64;
        self.append(&Entry::Commit { ordinal, record }, false)?;
        let now = self.now;
        self.now = Mark { commits: seq, ops: now.ops + u64::from(ops), bytes: now.bytes + bytes };
        self.ordinal = ordinal;
        self.last_ms = self.last_ms.max(commit_ms);
        Ok(())
    }

    /// A body is about to be sent: whatever happens to this process, its next life knows of it (P19).
    pub fn intend(&mut self, intent: Intent) -> Result<(), Failed> {
        if broken::is(&self.taken.options, Broken::NewestIntentOnly) {
            self.intents.clear();
        }
        let at_once = !broken::is(&self.taken.options, Broken::UnsyncedIntent);
        let Intent { writer, at, ref body, .. } = intent;
        self.append(&Entry::Intent { writer, position: at.commits, body: body.clone() }, at_once)?;
        self.intents.push(intent);
        Ok(())
    }

    /// The body with this commit id is in the chain: it is the base now, what it published is no longer pending, and the
    /// other intents are void (P20). None if it is not known.
    pub fn settle(&mut self, commit_id: &[u8; 16], now: impl FnOnce() -> Image) -> Option<Intent> {
        let at = self.intents.iter().position(|i| i.head.commit_id == *commit_id)?;
        let mut intent = self.intents.swap_remove(at);
        if broken::is(&self.taken.options, Broken::IntentWithoutPosition) {
            (intent.at, intent.image) = (self.now, now());
        }
        self.intents.clear();
        self.head = intent.head.clone();
        self.base = intent.image.clone();
        self.at_base = intent.at;
        self.ordinal = 0;
        if let Err(failed) = self.append(&Entry::Settled { commit_id: *commit_id }, true) {
            // It is in the store, so it is true; a next life would find out again.
            tracing::warn!(error = %failed.error, "a sync could not be noted locally");
            self.behind = true;
        }
        Some(intent)
    }

    /// Another commit is the base now; nothing is pending and no intent open. On an error the memory has moved and the
    /// file may not have.
    pub fn moved(&mut self, head: Head, base: Image) -> Result<()> {
        let changes = base.since(&self.base);
        let record = self.record(&changes, self.now.commits, 0, head.commit_ms)?;
        let entry = Entry::Moved { head: head.encode().into(), record };
        self.last_ms = head.commit_ms;
        self.head = head;
        self.base = base;
        self.at_base = self.now;
        self.intents.clear();
        self.ordinal = 0;
        if !self.behind {
            let Err(failed) = self.append(&entry, true) else { return Ok(()) };
            tracing::warn!(error = %failed.error, "the new state could not be noted; it is written anew");
        }
        self.behind = true;
        let base = self.base.clone();
        self.roll(&base)
    }

    /// Make a new generation of this state, which becomes the only one.
    pub fn roll(&mut self, now: &Image) -> Result<()> {
        let (number, salt) = (self.number + 1, u64::from_le_bytes(self.taken.env.bytes()));
        let mut bytes = replay::header(salt, self.at_base.commits, &self.head, &self.base)?;
        let image_len = bytes.len() as u64;
        let mut on = (self.at_base, self.base.clone());
        for intent in self.intents.clone() {
            self.go_on(&mut bytes, salt, &mut on, (intent.at, &intent.image))?;
            let Intent { writer, at, body, .. } = intent;
            bytes.extend(Entry::Intent { writer, position: at.commits, body }.encode(salt, 0));
        }
        self.go_on(&mut bytes, salt, &mut on, (self.now, now))?;
        let path = self.path().join(name(number));
        if let Err(e) = self.taken.dir.create(&name(number), &bytes) {
            // If it is there all the same, the next opening takes it: nothing more goes into the one before.
            let absent = self.taken.dir.names().is_ok_and(|names| !names.contains(&name(number)));
            self.behind |= !absent;
            return Err(failed("write", &path, &e));
        }
        if self.number > 0 {
            // If it stays, the next opening takes the newer one and removes it.
            let _ = self.taken.dir.remove(&self.name());
        }
        (self.number, self.salt, self.image_len) = (number, salt, image_len);
        (self.len, self.synced) = (bytes.len() as u64, bytes.len() as u64);
        (self.behind, self.waiting) = (false, None);
        Ok(())
    }

    /// One entry for all local commits between two marks.
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
            bytes.extend(Entry::Commit { ordinal: self.ordinal, record }.encode(salt, 0));
            *on = (to.0, to.1.clone());
        }
        Ok(())
    }

    /// Whether a new generation would make reopening quicker.
    pub fn outgrown(&self) -> bool {
        self.len - self.image_len > LOG_MIN.max(self.image_len)
    }

    /// When the policy wants the disk to have what was written.
    pub fn due(&self) -> Option<Instant> {
        match self.fsync() {
            Fsync::Interval(every) => self.waiting.map(|since| since + every),
            _ => None,
        }
    }

    /// Sync what is due. When that fails nobody knows what the disk has: a new generation is made before the next entry.
    pub fn tick(&mut self) {
        if self.due().is_some_and(|due| due <= self.taken.env.monotonic())
            && let Err(failed) = self.sync()
        {
            tracing::warn!(error = %failed.error, "the local log could not be synced; it is written anew");
        }
    }

    /// The last thing this process does with it.
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
        if let Err(e) = self.taken.dir.sync(&name) {
            // The system may forget what it could not write: all of the file is in doubt.
            (self.behind, self.waiting) = (true, None);
            let error = failed("sync", &self.path().join(name), &e);
            return Err(Failed { error, in_doubt: true });
        }
        self.synced = self.len;
        self.waiting = None;
        Ok(())
    }

    /// Write one entry behind the others, and sync it if it is to be on the disk at once or the policy says so. On an
    /// error it does not count.
    fn append(&mut self, entry: &Entry, at_once: bool) -> Result<(), Failed> {
        if self.behind {
            return Err(surely_not(Error::new(
                Code::Disk,
                "the local log was left in doubt by an earlier error",
            )));
        }
        let (name, before) = (self.name(), self.len);
        let bytes = entry.encode(self.salt, self.synced);
        if let Err(e) = self.taken.dir.append(&name, before, &bytes) {
            // What is there of it is no entry. It takes up room that may be needed.
            let _ = self.taken.dir.cut(&name, before);
            return Err(surely_not(failed("write", &self.path().join(name), &e)));
        }
        self.len += bytes.len() as u64;
        let waiting = *self.waiting.get_or_insert(self.taken.env.monotonic());
        let now = match self.fsync() {
            _ if at_once => true,
            Fsync::EachCommit => !matches!(entry, Entry::Intent { .. }),
            Fsync::Interval(every) => self.taken.env.monotonic() >= waiting + every,
            Fsync::Never => false,
        };
        if now && let Err(failed) = self.sync() {
            self.len = before;
            let _ = self.taken.dir.cut(&name, before);
            return Err(failed);
        }
        Ok(())
    }

    fn record(&mut self, changes: &Changes, seq: u64, ops: u32, commit_ms: i64) -> Result<Record> {
        let attempt = Attempt { writer: [0; 8], number: 0, commit_id: [0; 16], commit_ms };
        let after = (changes.new_count(), changes.new_checksum());
        let record = commit::record(&self.head, &attempt, changes, after, ops, &mut self.zstd)?;
        Ok(Record { seq, prev_commit_id: [0; 16], ..record })
    }
}

fn surely_not(error: Error) -> Failed {
    Failed { error, in_doubt: false }
}

fn compressor() -> Result<zstd::bulk::Compressor<'static>> {
    zstd::bulk::Compressor::new(1).map_err(|e| Error::new(Code::Internal, "zstd cannot be set up").because(e))
}

fn name(number: u64) -> String {
    format!("{PREFIX}{number:016x}")
}

fn number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX).filter(|d| d.len() == 16)?;
    u64::from_str_radix(digits, 16).ok()
}
