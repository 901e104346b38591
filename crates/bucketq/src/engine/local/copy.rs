//! A settled copy of the database in a file that `sqlite3` opens read-only while the queue runs (P11): always whole and
//! of one commit. Several processes may share it; it never goes back to an older commit.
//!
//! Called by the writer in Durable mode with a `cache`.

use std::fs;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::bucket::head::Head;
use crate::bytes::disk;
use crate::fork;
use crate::noun::env::Env;
use crate::state::pages::Image;

/// Writing takes at most one part in this many of the time.
const SHARE: u32 = 10;

/// Pause after a disk error, at least.
const AGAIN: Duration = Duration::from_mins(1);

/// The copy, and when it is due.
#[derive(Debug)]
pub(crate) struct Settled {
    path: PathBuf,
    every: Duration,
    env: Env,
    /// The commit in the copy, or the one being written to it.
    shows: Option<[u8; 16]>,
    next: Instant,
    under_way: Option<JoinHandle<(bool, Duration)>>,
}

impl Settled {
    /// Returns the copy of the queue file `name` in this directory, which must exist.
    pub fn new(dir: &Path, name: &str, every: Duration, env: Env) -> Self {
        let next = env.monotonic();
        Self { path: dir.join(format!("{name}.sqlite")), every, env, shows: None, next, under_way: None }
    }

    /// Returns its directory.
    pub fn dir(&self) -> PathBuf {
        self.path.parent().map(Path::to_owned).unwrap_or_default()
    }

    /// Returns when it should be updated to `head`; `None` when it is up to date.
    pub fn due(&self, head: &Head) -> Option<Instant> {
        (self.shows != Some(head.commit_id)).then_some(self.next)
    }

    /// Starts to update it to this settled state in the background, if an update is due.
    pub fn update(&mut self, head: &Head, image: impl FnOnce() -> Image) {
        let now = self.env.monotonic();
        if self.due(head).is_none_or(|due| now < due) {
            return;
        }
        self.next = now + self.every;
        if self.under_way.as_ref().is_none_or(JoinHandle::is_finished) {
            self.start(head, image());
        }
    }

    fn start(&mut self, head: &Head, image: Image) {
        self.shows = Some(head.commit_id);
        let (path, stamp, env) = (self.path.clone(), CopyStamp::of(head), self.env.clone());
        let every = self.every;
        self.under_way = Some(tokio::task::spawn_blocking(move || {
            let began = env.monotonic();
            match write(&path, stamp, &image) {
                Ok(there) => (there, (env.monotonic().saturating_duration_since(began) * SHARE).max(every)),
                Err(error) => {
                    tracing::warn!(%error, path = %path.display(), "the settled copy could not be written");
                    (false, every.max(AGAIN))
                }
            }
        }));
    }

    /// Takes in how long the last write took, if it is over.
    pub async fn poll(&mut self) {
        if let Some(task) = self.under_way.take_if(|task| task.is_finished())
            && let Ok((there, pause)) = task.await
        {
            if !there {
                self.shows = None;
            }
            self.next = self.next.max(self.env.monotonic() + pause - self.every);
        }
    }

    /// Starts to update it to the last state of this process, if it is older.
    pub fn last(&mut self, head: &Head, image: impl FnOnce() -> Image) {
        if self.due(head).is_some() {
            self.start(head, image());
        }
    }

    /// Waits until nothing is being written.
    pub async fn finish(&mut self) {
        if let Some(task) = self.under_way.take() {
            let _ = task.await;
        }
    }
}

/// The commit and the file of a copy: the text of the lock file beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CopyStamp {
    of: u128,
    seq: u64,
}

impl CopyStamp {
    fn of(head: &Head) -> Self {
        // A restore draws another lineage, and its copy may go back to an older commit.
        Self {
            of: u128::from_le_bytes(head.file_id) ^ u128::from_be_bytes(head.lineage_id),
            seq: head.commit_seq,
        }
    }

    fn read(text: &str) -> Option<Self> {
        let (of, seq) = text.trim().split_once(' ')?;
        Some(Self { of: u128::from_str_radix(of, 16).ok()?, seq: seq.parse().ok()? })
    }
}

/// Writes the copy unless it is as new already. Returns false when another process is writing it.
fn write(path: &Path, stamp: CopyStamp, image: &Image) -> io::Result<bool> {
    let beside = |end: &str| path.with_extension(format!("sqlite{end}"));
    let lock = disk::making().truncate(false).read(true).open(beside(".lock"))?;
    let Some(lock) = fork::hold(lock)? else { return Ok(false) };
    let mut text = String::new();
    lock.with(|mut lock| lock.read_to_string(&mut text))?;
    let there = CopyStamp::read(&text).filter(|there| there.of == stamp.of && path.exists());
    if there.is_some_and(|there| there.seq >= stamp.seq) {
        return Ok(true);
    }
    let unfinished = beside(".tmp");
    let written = disk::create(&unfinished).and_then(|file| {
        let mut out = BufWriter::with_capacity(1 << 20, file);
        image.write_to(&mut out)?;
        out.flush()
    });
    if let Err(e) = written.and_then(|()| fs::rename(&unfinished, path)) {
        let _ = fs::remove_file(&unfinished);
        return Err(e);
    }
    lock.with(|mut lock| {
        lock.set_len(0)?;
        lock.seek(SeekFrom::Start(0))?;
        lock.write_all(format!("{:032x} {}\n", stamp.of, stamp.seq).as_bytes())
    })?;
    Ok(true)
}
