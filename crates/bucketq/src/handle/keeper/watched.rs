//! The state of one held job that its holder and the keeper's task share: stage, times of the lease, and the callback
//! for its loss. Nothing here waits or sends.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::noun::event::{At, Loss};
use crate::noun::op::Held;

/// An extend that failed is tried again after this share of the lease.
pub(super) const RETRY_SHARE: u32 = 12;

/// Shared by the task and the holder of a job.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) held: Held,
    /// False: the lease runs out unless its holder extends it.
    pub(super) is_extended: bool,
    /// False: its lease never runs out, and there is nothing to extend.
    pub(super) ends: bool,
    /// Extends by hand take turns, so that the newest reply is the newest state.
    pub(super) hand: tokio::sync::Mutex<()>,
    pub(super) stage: AtomicU8,
    pub(super) times: Mutex<LeaseTimes>,
    pub(super) notice: Mutex<Notice>,
    /// The job as it was claimed, and the commit that claimed it, for listeners.
    pub(super) job: At,
    pub(super) claimed: (u64, i64),
}

/// The callback for a lost lease; called once.
#[derive(Default)]
pub(super) struct Notice {
    pub(super) told: Option<Loss>,
    pub(super) to: Option<Box<dyn FnOnce(Loss) + Send>>,
}

impl fmt::Debug for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notice").field("told", &self.told).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseTimes {
    pub(super) lease: Duration,
    pub(super) deadline: Instant,
    /// Extends by hand that have begun, plus those that have ended. An extend by the keeper that overlapped one of them
    /// may have been shortened by it.
    pub(super) by_hand: u64,
    /// How long the holder may work on the job ...
    pub(super) max_run: Option<Duration>,
    /// ... and since when it does.
    pub(super) begun: Option<Instant>,
}

impl LeaseTimes {
    /// Returns when the attempt has taken too long.
    pub(super) fn over(&self) -> Option<Instant> {
        self.begun?.checked_add(self.max_run?)
    }
}

/// No code has touched the job yet.
pub(super) const UNTOUCHED: u8 = 0;
/// The job is being worked on.
pub(super) const WORKED_ON: u8 = 1;
/// The lease is certainly lost: another worker holds the job, or nobody does.
pub(super) const LOST: u8 = 2;
/// Acked, nacked, released or rejected.
pub(super) const ENDED: u8 = 3;

impl Watched {
    pub(super) fn times(&self) -> LeaseTimes {
        *self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut LeaseTimes)) {
        change(&mut self.times.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Records that the keeper extended the lease to at least this moment, unless an extend by hand has begun or ended
    /// since.
    pub(super) fn extended(&self, deadline: Instant, by_hand: u64) {
        self.change(|times| {
            if times.by_hand == by_hand {
                times.deadline = times.deadline.max(deadline);
            }
        });
    }

    /// Returns when the keeper extends the lease next: after a third of it, or sooner if much of it has passed already.
    pub(super) fn next(&self, now: Instant) -> Instant {
        let LeaseTimes { lease, deadline, .. } = self.times();
        let left = deadline.saturating_duration_since(now);
        now + if left.is_zero() { lease / RETRY_SHARE } else { (lease / 3).min(left / 2) }
    }

    pub(super) fn notice(&self) -> MutexGuard<'_, Notice> {
        self.notice.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.stage.load(SeqCst) == ENDED
    }

    /// Records that the job was claimed again, finished or deleted elsewhere, unless it has ended here. Returns true
    /// the first time.
    pub(super) fn lose_to_another(&self) -> bool {
        let is_held = self.stage.fetch_update(SeqCst, SeqCst, |now| (now != ENDED).then_some(LOST)).is_ok();
        is_held && self.lose(Loss::Taken)
    }

    /// Reports the loss to the holder. Returns true the first time.
    pub(super) fn lose(&self, how: Loss) -> bool {
        let mut notice = self.notice();
        if notice.told.is_some() {
            return false;
        }
        notice.told = Some(how);
        let to = notice.to.take();
        drop(notice);
        if let Some(tell) = to {
            tell(how);
        }
        true
    }
}
