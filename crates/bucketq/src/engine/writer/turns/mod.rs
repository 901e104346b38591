//! Turns: how this writer and others of the same queue file let each other commit (decisions 29 and 32).
//!
//! `line` is the order in which they take turns, `knock` asks for a place in it, `gap` is for commits that take long to
//! build. Correctness depends only on the compare-and-swap. Holds times, and never changes HEAD or the database.

mod gap;
mod knock;
mod line;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

pub(super) use gap::changes;

use crate::bucket::head::Head;
use crate::bucket::record::Record;
use crate::door::Slot;
use crate::engine::time::Timekeeper;
use crate::noun::config::Options;
use crate::noun::env::Env;

/// The first estimate of the time of a put.
const A_PUT: Duration = Duration::from_millis(5);
/// The average of put times gives the newest one at least this share: one of eight.
const WEIGHT: u32 = 8;
/// Another writer that has not committed for this long counts as gone.
const LATELY_MS: i64 = 10_000;
/// Timers count whole milliseconds: two back-offs end later than requested by up to this.
const TIMERS: Duration = Duration::from_millis(2);
/// How many puts a writer waits for one that has its turn: until that one has seen HEAD and its put has been seen.
const SLOT: u32 = 6;
/// Reads of HEAD for each put, while a writer waits for its turn.
const READS: u32 = 3;

pub(super) struct Turns {
    /// Moving average of the time of a put that got a reply.
    put: Duration,
    /// How many puts it is made of, at most [`WEIGHT`].
    learned: u32,
    last_put: Option<Instant>,
    line: line::WriterLine,
    /// Another writer has knocked: nothing is sent on top of this commit before this.
    gives_way: Option<(u64, Instant)>,
    /// When HEAD was last seen to move.
    moved: Instant,
    knocks: knock::Knocks,
    building: gap::Building,
    options: Arc<Options>,
    env: Env,
}

/// When HEAD is read while a writer waits for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reads {
    /// The first.
    pub first: Instant,
    /// The time to each further one.
    pub every: Duration,
}

impl Turns {
    /// `read`: when HEAD was read.
    pub fn new(read: Instant, options: &Arc<Options>, env: &Env) -> Self {
        Self {
            put: A_PUT,
            learned: 0,
            last_put: None,
            line: line::WriterLine::default(),
            gives_way: None,
            moved: read,
            knocks: knock::Knocks::default(),
            building: gap::Building::new(),
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
        self.put = (self.put * self.learned + took) / (self.learned + 1);
        self.learned = (self.learned + 1).min(WEIGHT - 1);
    }

    /// Returns how long the put that was sent last has taken until now.
    pub fn since_last_put(&self) -> Duration {
        self.last_put.map_or(Duration::ZERO, |sent| self.env.monotonic().saturating_duration_since(sent))
    }

    /// Returns when the interval between commits is over, if one lasts.
    pub fn next_put(&self) -> Option<Instant> {
        let interval = self.options.commit_interval;
        let due = self.last_put.filter(|_| !interval.is_zero()).map(|last| last + interval);
        due.filter(|due| *due > self.env.monotonic())
    }

    /// Notes that the writer `id` has stored commit `seq`.
    pub fn stored(&mut self, seq: u64, id: [u8; 8]) {
        self.line.committed(seq, id);
        self.moved = self.env.monotonic();
        self.count_streak();
    }

    /// Notes commits of others after commit `known`: HEAD is now this one.
    pub fn followed(&mut self, known: u64, head: &Head, records: &[Record]) {
        let new = records.iter().filter(|r| r.seq > known);
        let all = new.clone().count() as u64 == head.commit_seq.saturating_sub(known);
        if all {
            new.for_each(|r| self.line.committed(r.seq, r.writer));
        } else {
            self.line = line::WriterLine::default();
        }
        if head.commit_seq > known {
            self.moved = self.env.monotonic();
        }
    }

    /// Returns the time of a read and a put.
    pub fn trip(&self) -> Duration {
        self.put * 2
    }

    /// Returns whether the writer `id` waits for others that will not wait for it: it has come only once.
    pub fn is_unknown(&self, id: [u8; 8]) -> bool {
        self.line.ahead_of(id).is_some_and(|ahead| ahead > 0) && !self.line.is_sure(id)
    }

    /// Returns whether others wait for the writer `id` when it is its turn: it need not knock.
    pub fn is_sure(&self, id: [u8; 8]) -> bool {
        self.line.is_sure(id)
    }

    /// Returns until when this batch is not sent: other writers have their turn first, or one has asked for a gap.
    pub fn held_until(&self, batch: &[Slot], head: &Head, id: [u8; 8], time: &Timekeeper) -> Option<Instant> {
        let end = self.gap_of_another(head, id, time).max(self.turn(head, id, time))?;
        let latest = batch.iter().filter_map(|slot| Some(slot.arrived + gap::patience(slot)?)).min();
        let end = latest.map_or(end, |latest| end.min(latest));
        (end > self.env.monotonic()).then_some(end)
    }

    /// Returns when this writer's turn begins at the latest.
    fn turn(&self, head: &Head, id: [u8; 8], time: &Timekeeper) -> Option<Instant> {
        let in_line = self.line.ahead_of(id).filter(|ahead| *ahead > 0).map(|ahead| {
            let wait = (self.put * SLOT + TIMERS) * ahead;
            (self.moved + wait, wait)
        });
        // A line that is found long afterwards has dissolved.
        let since_ms = time.now_ms() - head.commit_ms - i64::from(head.max_skew_ms);
        let lasts = |wait: Duration| u128::try_from(since_ms).is_ok_and(|ms| ms > wait.as_millis());
        let in_line = in_line.filter(|(_, wait)| !lasts(*wait)).map(|(until, _)| until);
        in_line.max(self.gives_way.filter(|(seq, _)| *seq == head.commit_seq).map(|(_, until)| until))
    }

    /// Returns when to read HEAD while this writer waits for its turn.
    pub fn reads(&self, head: &Head, id: [u8; 8], time: &Timekeeper) -> Reads {
        let now = self.env.monotonic();
        if self.gap_of_another(head, id, time).is_some_and(|end| end > now) {
            let every = self.poll_gap();
            return Reads { first: now + every, every };
        }
        let every = (self.put / READS).max(TIMERS);
        // Each of them needs a put; the last one is watched closely, because this writer is the next.
        let first = match self.line.ahead_of(id) {
            Some(ahead) => self.moved + self.put * ahead.saturating_sub(1),
            None => now,
        };
        Reads { first: first.max(now), every }
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
