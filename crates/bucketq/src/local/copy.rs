//! A settled copy of the database as a file that `sqlite3` opens read-only while the queue runs (P11): whole, and of one
//! commit. Several processes may share it; it never goes back.
//!
//! Called by the writer in Durable mode with a `cache`.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::env::Env;
use crate::head::Head;
use crate::pages::Image;

/// Writing takes at most this share of the time: one part in so many.
const SHARE: u32 = 10;

/// After trouble with the disk, at least this long.
const AGAIN: Duration = Duration::from_mins(1);

/// The copy, and when it is due.
#[derive(Debug)]
pub(crate) struct Settled {
    path: PathBuf,
    every: Duration,
    env: Env,
    /// The commit it shows, or that is on its way.
    shows: Option<[u8; 16]>,
    next: Instant,
    under_way: Option<JoinHandle<(bool, Duration)>>,
}

impl Settled {
    /// The copy of the queue file `name` in this directory, which is there.
    pub fn new(dir: &Path, name: &str, every: Duration, env: Env) -> Self {
        let next = env.monotonic();
        Self { path: dir.join(format!("{name}.sqlite")), every, env, shows: None, next, under_way: None }
    }

    /// Where the directory is.
    pub fn dir(&self) -> PathBuf {
        self.path.parent().map(Path::to_owned).unwrap_or_default()
    }

    /// When it should be brought to `head`; none when it is there.
    pub fn due(&self, head: &Head) -> Option<Instant> {
        (self.shows != Some(head.commit_id)).then_some(self.next)
    }

    /// Bring it to this settled state if it is due, beside everything else.
    pub fn keep(&mut self, head: &Head, image: impl FnOnce() -> Image) {
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
        let (path, stamp, env) = (self.path.clone(), Stamp::of(head), self.env.clone());
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

    /// Take in how long writing took, if it is over.
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

    /// Bring it to the state a process leaves behind.
    pub async fn last(&mut self, head: &Head, image: impl FnOnce() -> Image) {
        if let Some(task) = self.under_way.take() {
            let _ = task.await;
        }
        if self.due(head).is_some() {
            self.start(head, image());
            if let Some(task) = self.under_way.take() {
                let _ = task.await;
            }
        }
    }
}

/// Which commit of which file a copy shows: the text of the lock file beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    of: u128,
    seq: u64,
}

impl Stamp {
    fn of(head: &Head) -> Self {
        // A restore draws another lineage, and its copy may well go back.
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

/// Write the copy unless there is a newer one. False when another process is at it.
fn write(path: &Path, stamp: Stamp, image: &Image) -> io::Result<bool> {
    let beside = |end: &str| path.with_extension(format!("sqlite{end}"));
    let mut lock =
        File::options().create(true).truncate(false).read(true).write(true).open(beside(".lock"))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(fs::TryLockError::WouldBlock) => return Ok(false),
        Err(fs::TryLockError::Error(e)) => return Err(e),
    }
    let mut text = String::new();
    lock.read_to_string(&mut text)?;
    let there = Stamp::read(&text).filter(|there| there.of == stamp.of && path.exists());
    if there.is_some_and(|there| there.seq >= stamp.seq) {
        return Ok(true);
    }
    let unfinished = beside(".tmp");
    let written = File::create(&unfinished).and_then(|file| {
        let mut out = BufWriter::with_capacity(1 << 20, file);
        image.write_to(&mut out)?;
        out.flush()
    });
    if let Err(e) = written.and_then(|()| fs::rename(&unfinished, path)) {
        let _ = fs::remove_file(&unfinished);
        return Err(e);
    }
    lock.set_len(0)?;
    lock.seek(SeekFrom::Start(0))?;
    lock.write_all(format!("{:032x} {}\n", stamp.of, stamp.seq).as_bytes())?;
    Ok(true)
}
