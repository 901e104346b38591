//! Turns: how this writer and others of the same queue file let each other commit (decision 29).
//!
//! `share` leaves gaps, `knock` asks a writer that never rests for one, `gap` is for commits that take long to build.
//! Correctness depends only on the compare-and-swap. Holds times, and never changes HEAD or the database.

mod gap;
mod knock;
mod share;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

pub(super) use gap::changes;

use crate::bucket::head::Head;
use crate::bucket::record::Record;
use crate::engine::time::Timekeeper;
use crate::noun::config::Options;
use crate::noun::env::Env;

/// The first estimate of the time of a put.
const A_PUT: Duration = Duration::from_millis(5);
/// Another writer that has not committed for this long counts as gone.
const LATELY_MS: i64 = 10_000;
/// Timers count whole milliseconds: two back-offs end later than requested by up to this.
const TIMERS: Duration = Duration::from_millis(2);

pub(super) struct Turns {
    /// Moving average of the time of a put that got a reply.
    put: Duration,
    last_put: Option<Instant>,
    /// A gap for other writers: nothing is sent before this.
    gap_until: Option<Instant>,
    sharing: share::Sharing,
    knocks: knock::Knocks,
    building: gap::Building,
    options: Arc<Options>,
    env: Env,
}

impl Turns {
    /// `read`: when HEAD was read.
    pub fn new(read: Instant, options: &Arc<Options>, env: &Env) -> Self {
        Self {
            put: A_PUT,
            last_put: None,
            gap_until: None,
            sharing: share::Sharing::new(),
            knocks: knock::Knocks::default(),
            building: gap::Building::new(read),
            options: Arc::clone(options),
            env: env.clone(),
        }
    }

    /// Returns how long a put usually takes.
    pub fn put_time(&self) -> Duration {
        self.put
    }

    pub fn last_put(&self) -> Option<Instant> {
        self.last_put
    }

    /// Notes that a put is sent now.
    pub fn sends(&mut self) {
        self.last_put = Some(self.env.monotonic());
    }

    /// Learns from a commit that took this long.
    pub fn learn(&mut self, took: Duration) {
        self.put = (self.put * 7 + took) / 8;
    }

    /// Returns how long the put that was sent last has taken until now.
    pub fn since_last_put(&self) -> Duration {
        self.last_put.map_or(Duration::ZERO, |sent| self.env.monotonic().saturating_duration_since(sent))
    }

    /// Returns until when nothing is sent: the interval between commits and the gap for others, if one lasts.
    pub fn next_put(&self) -> Option<Instant> {
        let interval = self.options.commit_interval;
        let due = self.last_put.filter(|_| !interval.is_zero()).map(|last| last + interval);
        due.max(self.gap_until).filter(|due| *due > self.env.monotonic())
    }

    /// Decides after a stored commit whether to leave a gap.
    pub fn stored(&mut self, file_id: &[u8; 16]) {
        let Some(sent) = self.last_put else { return };
        let (now, put) = (self.env.monotonic(), self.put);
        self.gap_until = match self.heard(file_id) {
            Some(wanted) => Some(self.sharing.knocked(now, put, wanted)),
            None => self.sharing.stored(sent, now, put),
        };
    }

    /// Notes new commits, some `of_others`.
    pub fn moved(&mut self, forward: bool, of_others: bool) {
        if of_others {
            self.sharing.met(self.put);
        }
        if forward {
            self.building.moved = self.env.monotonic();
        }
    }

    /// Returns the time of a read and a put.
    pub fn trip(&self) -> Duration {
        self.put * 2
    }

    /// Returns the commit of another writer after which it is worth to look before a put: the known state, read at
    /// `fresh`, is old, and the other never rests.
    pub fn worth_a_look(&self, head: &Head, id: [u8; 8], fresh: Instant, time: &Timekeeper) -> Option<u64> {
        let stale = self.env.monotonic().saturating_duration_since(fresh) > self.trip();
        let (seq, at_ms) = theirs(head, id).last().map(|r| (r.seq, r.commit_ms))?;
        let rests = self.knocks.rests_since == Some(seq) || time.now_ms() - at_ms >= LATELY_MS;
        (stale && !rests && others_never_rest(head, id, self.trip())).then_some(seq)
    }

    /// Notes that the others have not committed since this commit of theirs: no need to look before every put.
    pub fn they_rest(&mut self, since: u64) {
        self.knocks.rests_since = Some(since);
    }
}

/// Returns the tail up to the newest commit of another writer: this writer's own came in a gap that the other left.
fn theirs(head: &Head, id: [u8; 8]) -> &[Record] {
    let tail = &head.tail;
    tail.iter().rposition(|r| r.writer != id).map_or(&[][..], |last| &tail[..=last])
}

/// Returns whether the newest commits of others followed each other too closely for a read and a put in between.
pub(super) fn others_never_rest(head: &Head, id: [u8; 8], trip: Duration) -> bool {
    let pause = i64::try_from(trip.as_millis()).unwrap_or(i64::MAX);
    let newest = theirs(head, id).rchunks(3).next().unwrap_or_default();
    newest.len() == 3
        && newest.iter().all(|r| r.writer != id)
        && newest.windows(2).all(|w| w[1].commit_ms - w[0].commit_ms < pause.max(2))
}
