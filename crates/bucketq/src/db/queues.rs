//! The queues of the file as the writer remembers them: ids, counts, and bounds that spare claims a look.
//!
//! Called by every op. Counts are changed here and written once, before COMMIT. Bounds are never stored: each is at
//! most the true value, so a claim may trust "nothing before this" and nothing more.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use rusqlite::{Connection, params};

use super::Turn;
use super::fault::{Fault, Try};
use crate::job::State;
use crate::policy::Policy;

/// By this the first job of one queue goes before the first one of another: priority, then seq.
pub(super) type Place = (i32, i64);

/// Before every place: nothing is known.
const ANYWHERE: Place = (i32::MIN, i64::MIN);
/// After every place: there is none.
pub(super) const NOWHERE: Place = (i32::MAX, i64::MAX);
/// After every time: never.
pub(super) const NEVER: i64 = i64::MAX;

/// Turn of every job in a queue that never had groups.
pub(super) const FIRST_TURN: i64 = 1 << 23;

/// Whether jobs pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    Open = 0,
    /// In but not out.
    Paused = 1,
    /// Neither in nor out.
    Draining = 2,
}

impl Gate {
    fn from_code(code: i64) -> Try<Self> {
        [Self::Open, Self::Paused, Self::Draining]
            .into_iter()
            .find(|gate| *gate as i64 == code)
            .ok_or_else(|| Fault::corrupt(format!("a queue is paused in the way {code}")))
    }
}

/// What is written when it has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    counts: [i64; 6],
    /// The highest turn that was claimed; [`FIRST_TURN`] while no job of a group was ever here.
    pub turn: i64,
    /// Until when, in nanoseconds, the claims so far have used up the rate.
    pub rate_ns: i64,
    /// Jobs cancelled to make room.
    pub dropped: i64,
}

/// What changes about a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks {
    pub gate: Gate,
    /// No job that ended well, and no dead one, leaves by its age before these.
    pub aged_ms: [i64; 2],
    pub kept: Kept,
    /// The first claimable job has no place before this one.
    pub best: Place,
    /// No scheduled job that is not held is due before this.
    pub due_ms: i64,
    /// No lease ends before this.
    pub expiry_ms: i64,
    /// No schedule enqueues before this.
    pub schedule_ms: i64,
}

/// Every queue with its policy and its next schedule.
const LINES: &str = "SELECT id, name, paused, scheduled, ready, leased, done, dead, cancelled, \
     turn, rate_ns, dropped, (SELECT policy FROM policies WHERE queue = id), \
     (SELECT min(next_ms) FROM schedules WHERE queue = id) FROM queues ORDER BY id";

const fn slot(state: State) -> usize {
    state as usize - State::Scheduled as usize
}

impl Marks {
    fn fresh(gate: Gate, kept: Kept, schedule_ms: i64) -> Self {
        let none = |state: State| kept.counts[slot(state)] == 0;
        Self {
            gate,
            aged_ms: [i64::MIN; 2],
            kept,
            best: if none(State::Ready) { NOWHERE } else { ANYWHERE },
            due_ms: if none(State::Scheduled) { NEVER } else { i64::MIN },
            expiry_ms: if none(State::Leased) { NEVER } else { i64::MIN },
            schedule_ms,
        }
    }

    pub const fn count(&self, state: State) -> i64 {
        self.kept.counts[slot(state)]
    }

    pub const fn total(&self) -> i64 {
        let c = &self.kept.counts;
        c[0] + c[1] + c[2] + c[3] + c[4] + c[5]
    }

    /// A job came into being in this state.
    pub const fn add(&mut self, state: State) {
        self.kept.counts[slot(state)] += 1;
    }

    /// A job in this state is gone.
    pub const fn remove(&mut self, state: State) {
        self.kept.counts[slot(state)] -= 1;
    }

    /// So many jobs in this state are gone.
    pub const fn drop_many(&mut self, state: State, n: i64) {
        self.kept.counts[slot(state)] -= n;
    }

    /// `n` jobs went from one state to another.
    pub const fn shift(&mut self, from: State, to: State, n: i64) {
        self.kept.counts[slot(from)] -= n;
        self.kept.counts[slot(to)] += n;
    }

    /// A claimable job stands here.
    pub fn offer(&mut self, place: Place) {
        self.best = self.best.min(place);
    }

    /// A job that could be claimed is gone otherwise. Where turns are taken, an older one may stand behind it.
    pub fn withdraw(&mut self) {
        if self.takes_turns() {
            self.best = ANYWHERE;
        }
    }

    /// Jobs of groups are or were in the queue.
    pub const fn takes_turns(&self) -> bool {
        self.kept.turn > FIRST_TURN
    }
}

/// A queue.
#[derive(Debug)]
pub(super) struct Line {
    pub id: i64,
    pub name: Arc<str>,
    pub policy: Arc<Policy>,
    pub marks: Marks,
    stored: Kept,
}

/// Every queue, by its place in the list: places are stable until the lines are forgotten.
#[derive(Debug, Default)]
pub(super) struct Lines {
    loaded: bool,
    all: Vec<Line>,
    by_name: HashMap<Arc<str>, usize>,
    by_id: HashMap<i64, usize>,
    undo: Option<Undo>,
}

/// How to forget what an atomic did.
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

    /// Begin to remember how things were.
    pub fn open_undo(&mut self) {
        let (loaded, len) = (self.loaded, self.all.len());
        self.undo = Some(Undo { loaded, len, marks: BTreeMap::new(), policies: BTreeMap::new() });
    }

    /// What happened since `open_undo` stays, or is forgotten.
    pub fn close_undo(&mut self, keep: bool) {
        let Some(undo) = self.undo.take() else { return };
        if keep {
            return;
        }
        if !undo.loaded {
            // What was read meanwhile goes as well, so it has to be read again.
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

    /// Write the counts that changed.
    pub fn flush(&mut self, conn: &Connection) -> rusqlite::Result<()> {
        for line in self.all.iter_mut().filter(|l| l.stored != l.marks.kept) {
            let Kept { counts: c, turn, rate_ns, dropped } = line.marks.kept;
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
            line.stored = line.marks.kept;
        }
        Ok(())
    }
}

impl Turn<'_> {
    /// Make sure that the queues are known.
    fn load_lines(&mut self) -> Try<()> {
        if self.cache.lines.loaded {
            return Ok(());
        }
        let mut stmt = self.conn.prepare_cached(LINES)?;
        let mut rows = stmt.query([])?;
        while let Some(row) = rows.next()? {
            let mut counts = [0; 6];
            for (i, count) in counts.iter_mut().enumerate() {
                *count = row.get(i + 3)?;
            }
            let kept = Kept { counts, turn: row.get(9)?, rate_ns: row.get(10)?, dropped: row.get(11)? };
            let name: String = row.get(1)?;
            let policy = match row.get_ref(12)?.as_str_or_null().map_err(rusqlite::Error::from)? {
                Some(text) => super::policy::read(text)?,
                None => Arc::default(),
            };
            let schedule_ms = row.get::<_, Option<i64>>(13)?.unwrap_or(NEVER);
            self.cache.lines.push(Line {
                id: row.get(0)?,
                name: name.into(),
                policy,
                marks: Marks::fresh(Gate::from_code(row.get(2)?)?, kept, schedule_ms),
                stored: kept,
            });
        }
        self.cache.lines.loaded = true;
        Ok(())
    }

    /// All places.
    pub fn all_lines(&mut self) -> Try<std::ops::Range<usize>> {
        self.load_lines()?;
        Ok(0..self.cache.lines.all.len())
    }

    /// The place of the queue with this name.
    pub fn find_line(&mut self, name: &str) -> Try<Option<usize>> {
        self.load_lines()?;
        Ok(self.cache.lines.by_name.get(name).copied())
    }

    /// The place of the queue with this name, made now if there was none.
    pub fn make_line(&mut self, name: &str) -> Try<usize> {
        if let Some(at) = self.find_line(name)? {
            return Ok(at);
        }
        let id = self.conn.prepare_cached("INSERT INTO queues (name) VALUES (?1)")?.insert([name])?;
        let kept = self
            .conn
            .prepare_cached("SELECT turn, rate_ns, dropped FROM queues WHERE id = ?1")?
            .query_row([id], |row| {
                let (turn, rate_ns, dropped) = (row.get(0)?, row.get(1)?, row.get(2)?);
                Ok(Kept { counts: [0; 6], turn, rate_ns, dropped })
            })?;
        let marks = Marks::fresh(Gate::Open, kept, NEVER);
        let policy = Arc::default();
        Ok(self.cache.lines.push(Line { id, name: name.into(), policy, marks, stored: kept }))
    }

    /// The place of the queue with this id.
    pub fn line_of(&mut self, id: i64) -> Try<usize> {
        self.load_lines()?;
        self.cache
            .lines
            .by_id
            .get(&id)
            .copied()
            .ok_or_else(|| Fault::corrupt(format!("there is no queue {id}")))
    }

    /// The policy of the queue at this place is another one from now on.
    pub fn set_policy(&mut self, at: usize, policy: Arc<Policy>) {
        let lines = &mut self.cache.lines;
        let old = std::mem::replace(&mut lines.all[at].policy, policy);
        if let Some(undo) = &mut lines.undo {
            undo.policies.entry(at).or_insert(old);
        }
    }

    /// The queue at this place.
    pub fn line(&self, at: usize) -> &Line {
        &self.cache.lines.all[at]
    }

    /// The marks of the queue at this place, to be changed.
    pub fn marks(&mut self, at: usize) -> &mut Marks {
        let lines = &mut self.cache.lines;
        let marks = &mut lines.all[at].marks;
        if let Some(undo) = &mut lines.undo {
            undo.marks.entry(at).or_insert(*marks);
        }
        marks
    }
}
