//! The state that the writer and the handles of a queue file share, apart from mail: counters, listeners, trouble.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::sync::watch;
use tokio::time::Instant;

use super::{Unsynced, Watchers, millis};
use crate::bytes::metrics::{Counters, Observed};
use crate::noun::error::Error;
use crate::noun::host::HostRole;

/// The part of this process among those of its host.
#[derive(Clone, Debug)]
pub(crate) enum HostPart {
    Alone(Option<String>),
    /// Since this moment.
    Leads(Instant),
    Joined {
        leader: String,
        since: Instant,
    },
}

impl Default for HostPart {
    fn default() -> Self {
        Self::Alone(None)
    }
}

/// State that the writer and the handles share, apart from mail.
#[derive(Debug)]
pub(crate) struct Shared {
    pub counters: Arc<Counters>,
    pub observed: Observed,
    pub watchers: Watchers,
    pub(super) waiting: AtomicUsize,
    /// Bytes of payload in the waiting ops.
    pub(super) waiting_bytes: AtomicUsize,
    trouble: Mutex<Option<Error>>,
    /// The writer has permanently stopped writing: opening the queue file again starts a new one.
    dead: AtomicBool,
    unsynced: Mutex<Unsynced>,
    part: Mutex<HostPart>,
    /// The directory in which the processes of this host meet.
    host_dir: OnceLock<PathBuf>,
    /// The newest commit that the writer has settled.
    newest: AtomicU64,
    /// Grows while the writer of another process is at work on a request.
    pub(super) progress: AtomicU64,
    /// True while a base is being written.
    pub base_under_way: watch::Sender<bool>,
}

impl Shared {
    pub fn new(counters: Arc<Counters>) -> Self {
        Self {
            counters,
            observed: Observed::default(),
            watchers: Watchers::default(),
            waiting: AtomicUsize::new(0),
            waiting_bytes: AtomicUsize::new(0),
            trouble: Mutex::new(None),
            dead: AtomicBool::new(false),
            unsynced: Mutex::default(),
            part: Mutex::default(),
            host_dir: OnceLock::new(),
            newest: AtomicU64::new(0),
            progress: AtomicU64::new(0),
            base_under_way: watch::Sender::new(false),
        }
    }

    pub fn is_dead(&self) -> bool {
        self.dead.load(SeqCst)
    }

    pub fn die(&self) {
        self.dead.store(true, SeqCst);
    }

    /// Returns whether the ops go to the writer of another process of this machine.
    pub fn is_joined(&self) -> bool {
        matches!(*self.part.lock().unwrap_or_else(PoisonError::into_inner), HostPart::Joined { .. })
    }

    pub fn set_part(&self, part: HostPart) {
        *self.part.lock().unwrap_or_else(PoisonError::into_inner) = part;
    }

    /// Returns the role of this process among those of its host.
    pub fn host_role(&self, now: Instant) -> HostRole {
        match self.part.lock().unwrap_or_else(PoisonError::into_inner).clone() {
            HostPart::Alone(reason) => HostRole::Alone { reason },
            HostPart::Leads(since) => HostRole::Leads {
                since_ms: millis(since, now),
                processes: self.counters.processes.load(SeqCst),
            },
            HostPart::Joined { leader, since } => HostRole::Joined { leader, since_ms: millis(since, now) },
        }
    }

    /// Returns the newest commit that the writer has settled.
    pub fn newest(&self) -> u64 {
        self.newest.load(SeqCst)
    }

    pub fn set_newest(&self, commit_seq: u64) {
        self.newest.fetch_max(commit_seq, SeqCst);
    }

    /// Adds to the number of other processes that share this writer.
    pub fn joined_by(&self, change: isize) {
        // A negative change wraps around, and so subtracts.
        self.counters.processes.fetch_add(change as u64, SeqCst);
    }

    /// Returns the directory in which the processes of this host meet, if they do.
    pub fn host_dir(&self) -> Option<&Path> {
        self.host_dir.get().map(PathBuf::as_path)
    }

    /// Sets that directory, once.
    #[cfg(unix)]
    pub fn set_host_dir(&self, dir: &Path) {
        let _ = self.host_dir.set(dir.to_owned());
    }

    /// Notes that the writer of another process is at work.
    pub fn progress(&self) {
        self.progress.fetch_add(1, SeqCst);
    }

    /// Sets what is pending, before the writer replies to any caller.
    pub fn set_unsynced(&self, commits: u64, ops: u64, bytes: u64) {
        *self.unsynced.lock().unwrap_or_else(PoisonError::into_inner) = Unsynced { commits, ops, bytes };
    }

    pub fn unsynced(&self) -> Unsynced {
        *self.unsynced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the last error of the store, for callers whose deadline passes; `None` once the store works again.
    pub fn trouble(&self, error: Option<Error>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    pub fn last_trouble(&self) -> Option<Error> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
