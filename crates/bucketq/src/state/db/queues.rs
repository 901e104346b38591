//! The writer's cache of the queues: ids, counts, and bounds that save claims a lookup.
//!
//! Called by every op. Counts change here and are written once, before COMMIT. Bounds are never stored. Each is at most
//! the true value, so a claim may rely on "no job before this" and on nothing more.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use rusqlite::{Connection, params};

use super::Tx;
use super::columns::{row, sql};
use super::fault::{Fault, Try};
use crate::noun::job::State;
use crate::noun::policy::Policy;

/// The rank that compares the first jobs of two queues: priority, then seq.
pub(super) type JobRank = (i32, i64);

/// Before every rank: nothing is known.
const ANYWHERE: JobRank = (i32::MIN, i64::MIN);
/// After every rank: there is no job.
pub(super) const NOWHERE: JobRank = (i32::MAX, i64::MAX);
/// After every time: never.
pub(super) const NEVER: i64 = i64::MAX;

/// The turn of every job in a queue that never had groups.
pub(super) const FIRST_TURN: i64 = 1 << 23;

/// Whether jobs go in and out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    Open = 0,
    /// In but not out.
    Paused = 1,
    /// Neither in nor out.
    Draining = 2,
    /// Deleted: it has no jobs, and nobody sees it. Its row stays, because other rows name the queue.
    Deleted = 3,
}

impl Gate {
    fn from_code(code: i64) -> Try<Self> {
        [Self::Open, Self::Paused, Self::Draining, Self::Deleted]
            .into_iter()
            .find(|gate| *gate as i64 == code)
            .ok_or_else(|| Fault::corrupt(format!("a queue has the unknown state {code}")))
    }
}

/// The marks that are written when they have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SavedMarks {
    counts: [i64; 6],
    /// The highest claimed turn; [`FIRST_TURN`] while the queue never had a job of a group.
    pub turn: i64,
    /// Until when, in nanoseconds, the claims so far have used up the rate.
    pub rate_ns: i64,
    /// Jobs cancelled to make room.
    pub dropped: i64,
}

/// The changing values of a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks {
    pub gate: Gate,
    /// No finished job leaves by its age before these times, one for each kind of retention.
    pub aged_ms: [i64; 3],
    pub saved: SavedMarks,
    /// No claimable job ranks before this.
    pub best: JobRank,
    /// No scheduled, unblocked job is due before this.
    pub due_ms: i64,
    /// No lease ends before this.
    pub expiry_ms: i64,
    /// No schedule fires before this.
    pub schedule_ms: i64,
}

row! { struct TurnColumns { turn: i64, rate_ns: i64, dropped: i64 } }
row! {
    struct LineColumns {
        id: i64, name: String, paused: i64,
        scheduled: i64, ready: i64, leased: i64, done: i64, dead: i64, cancelled: i64,
        saved: TurnColumns = TurnColumns::COLUMNS,
        policy: Option<String> = "(SELECT policy FROM policies WHERE queue = id)",
        schedule_ms: Option<i64> = "(SELECT min(next_ms) FROM schedules WHERE queue = id)",
    }
}
/// Every queue with its policy and its next schedule.
const LINES: &str = sql!("SELECT ", LineColumns::COLUMNS, " FROM queues ORDER BY id");

impl LineColumns {
    const fn saved(&self) -> SavedMarks {
        let TurnColumns { turn, rate_ns, dropped } = self.saved;
        let counts = [self.scheduled, self.ready, self.leased, self.done, self.dead, self.cancelled];
        SavedMarks { counts, turn, rate_ns, dropped }
    }
}

const fn slot(state: State) -> usize {
    state as usize - State::Scheduled as usize
}

impl Marks {
    fn fresh(gate: Gate, saved: SavedMarks, schedule_ms: i64) -> Self {
        let none = |state: State| saved.counts[slot(state)] == 0;
        Self {
            gate,
            aged_ms: [i64::MIN; 3],
            saved,
            best: if none(State::Ready) { NOWHERE } else { ANYWHERE },
            due_ms: if none(State::Scheduled) { NEVER } else { i64::MIN },
            expiry_ms: if none(State::Leased) { NEVER } else { i64::MIN },
            schedule_ms,
        }
    }

    pub const fn count(&self, state: State) -> i64 {
        self.saved.counts[slot(state)]
    }

    pub const fn total(&self) -> i64 {
        let c = &self.saved.counts;
        c[0] + c[1] + c[2] + c[3] + c[4] + c[5]
    }

    /// Counts a new job in this state.
    pub const fn add(&mut self, state: State) {
        self.saved.counts[slot(state)] += 1;
    }

    /// Counts out a job in this state.
    pub const fn remove(&mut self, state: State) {
        self.saved.counts[slot(state)] -= 1;
    }

    /// Counts out `n` jobs in this state.
    pub const fn drop_many(&mut self, state: State, n: i64) {
        self.saved.counts[slot(state)] -= n;
    }

    /// Moves `n` jobs from one state to another.
    pub const fn shift(&mut self, from: State, to: State, n: i64) {
        self.saved.counts[slot(from)] -= n;
        self.saved.counts[slot(to)] += n;
    }

    /// Notes a claimable job of this rank.
    pub fn offer(&mut self, place: JobRank) {
        self.best = self.best.min(place);
    }

    /// Notes that a claimable job left without a claim. If the queue takes turns, an older job may now be first.
    pub fn withdraw(&mut self) {
        if self.takes_turns() {
            self.best = ANYWHERE;
        }
    }

    /// Returns whether the queue has or had jobs of groups.
    pub const fn takes_turns(&self) -> bool {
        self.saved.turn > FIRST_TURN
    }
}

/// A queue.
#[derive(Debug)]
pub(super) struct Line {
    pub id: i64,
    pub name: Arc<str>,
    pub policy: Arc<Policy>,
    pub marks: Marks,
    stored: SavedMarks,
}

/// Every queue, by its index in the list: indexes are stable until the list is dropped.
#[derive(Debug, Default)]
pub(super) struct Lines {
    loaded: bool,
    all: Vec<Line>,
    by_name: HashMap<Arc<str>, usize>,
    by_id: HashMap<i64, usize>,
    undo: Option<Undo>,
}

/// The data to undo an atomic.
#[derive(Debug)]
struct Undo {
    loaded: bool,
    len: usize,
    marks: BTreeMap<usize, Marks>,
    policies: BTreeMap<usize, Arc<Policy>>,
}

impl Lines {
    fn push(&mut self, line: Line) -> usize {
        let at = self.all.len();
        self.by_name.insert(line.name.clone(), at);
        self.by_id.insert(line.id, at);
        self.all.push(line);
        at
    }

    /// Returns whether the current work can be undone as a whole.
    pub const fn has_undo(&self) -> bool {
        self.undo.is_some()
    }

    /// Begins to record old values.
    pub fn open_undo(&mut self) {
        let (loaded, len) = (self.loaded, self.all.len());
        self.undo = Some(Undo { loaded, len, marks: BTreeMap::new(), policies: BTreeMap::new() });
    }

    /// Keeps the changes since `open_undo`, or undoes them.
    pub fn close_undo(&mut self, keep: bool) {
        let Some(undo) = self.undo.take() else { return };
        if keep {
            return;
        }
        if !undo.loaded {
            // Queues that were read meanwhile are dropped as well: read them again.
            *self = Self::default();
            return;
        }
        for line in self.all.drain(undo.len..) {
            self.by_name.remove(&line.name);
            self.by_id.remove(&line.id);
        }
        for (at, marks) in undo.marks {
            if let Some(line) = self.all.get_mut(at) {
                line.marks = marks;
            }
        }
        for (at, policy) in undo.policies {
            if let Some(line) = self.all.get_mut(at) {
                line.policy = policy;
            }
        }
    }

    /// Writes the changed counts.
    pub fn flush(&mut self, conn: &Connection) -> rusqlite::Result<()> {
        for line in self.all.iter_mut().filter(|l| l.stored != l.marks.saved) {
            let SavedMarks { counts: c, turn, rate_ns, dropped } = line.marks.saved;
            let (old, id) = (line.stored, line.id);
            if c != old.counts {
                conn.prepare_cached(
                    "UPDATE queues SET scheduled = ?2, ready = ?3, leased = ?4, done = ?5, dead = ?6, \
                     cancelled = ?7 WHERE id = ?1",
                )?
                .execute(params![id, c[0], c[1], c[2], c[3], c[4], c[5]])?;
            }
            if (turn, rate_ns, dropped) != (old.turn, old.rate_ns, old.dropped) {
                conn.prepare_cached("UPDATE queues SET turn = ?2, rate_ns = ?3, dropped = ?4 WHERE id = ?1")?
                    .execute([id, turn, rate_ns, dropped])?;
            }
            line.stored = line.marks.saved;
        }
        Ok(())
    }
}

impl Tx<'_> {
    /// Reads the queues, unless they are cached.
    fn load_lines(&mut self) -> Try<()> {
        if self.cache.lines.loaded {
            return Ok(());
        }
        let mut stmt = self.conn.prepare_cached(LINES)?;
        let mut rows = stmt.query([])?;
        while let Some(row) = rows.next()? {
            let row = LineColumns::read(row)?;
            let stored = row.saved();
            let policy = match &row.policy {
                Some(text) => super::op::policy::read(text)?,
                None => Arc::default(),
            };
            let marks = Marks::fresh(Gate::from_code(row.paused)?, stored, row.schedule_ms.unwrap_or(NEVER));
            self.cache.lines.push(Line { id: row.id, name: row.name.into(), policy, marks, stored });
        }
        self.cache.lines.loaded = true;
        Ok(())
    }

    /// Returns all indexes, those of deleted queues too.
    pub fn all_lines(&mut self) -> Try<std::ops::Range<usize>> {
        self.load_lines()?;
        Ok(0..self.cache.lines.all.len())
    }

    /// Returns the index of the queue with this name.
    pub fn find_line(&mut self, name: &str) -> Try<Option<usize>> {
        self.load_lines()?;
        let found = self.cache.lines.by_name.get(name).copied();
        Ok(found.filter(|line| self.line(*line).marks.gate != Gate::Deleted))
    }

    /// Returns the index of the queue with this name; creates the queue if it does not exist.
    pub fn make_line(&mut self, name: &str) -> Try<usize> {
        self.load_lines()?;
        if let Some(at) = self.cache.lines.by_name.get(name).copied() {
            if self.line(at).marks.gate == Gate::Deleted {
                self.set_gate(at, Gate::Open)?;
            }
            return Ok(at);
        }
        let id = self.conn.prepare_cached("INSERT INTO queues (name) VALUES (?1)")?.insert([name])?;
        let sql = sql!("SELECT ", TurnColumns::COLUMNS, " FROM queues WHERE id = ?1");
        let TurnColumns { turn, rate_ns, dropped } =
            self.conn.prepare_cached(sql)?.query_row([id], TurnColumns::read)?;
        let saved = SavedMarks { counts: [0; 6], turn, rate_ns, dropped };
        let marks = Marks::fresh(Gate::Open, saved, NEVER);
        let policy = Arc::default();
        Ok(self.cache.lines.push(Line { id, name: name.into(), policy, marks, stored: saved }))
    }

    /// Returns the index of the queue with this id.
    pub fn line_of(&mut self, id: i64) -> Try<usize> {
        self.load_lines()?;
        self.cache
            .lines
            .by_id
            .get(&id)
            .copied()
            .ok_or_else(|| Fault::corrupt(format!("there is no queue {id}")))
    }

    /// Replaces the policy of the queue at this index.
    pub fn set_policy(&mut self, at: usize, policy: Arc<Policy>) {
        let lines = &mut self.cache.lines;
        let old = std::mem::replace(&mut lines.all[at].policy, policy);
        if let Some(undo) = &mut lines.undo {
            undo.policies.entry(at).or_insert(old);
        }
    }

    /// Returns the queue at this index.
    pub fn line(&self, at: usize) -> &Line {
        &self.cache.lines.all[at]
    }

    /// Returns the marks of the queue at this index, for changes.
    pub fn marks(&mut self, at: usize) -> &mut Marks {
        let lines = &mut self.cache.lines;
        let marks = &mut lines.all[at].marks;
        if let Some(undo) = &mut lines.undo {
            undo.marks.entry(at).or_insert(*marks);
        }
        marks
    }
}
