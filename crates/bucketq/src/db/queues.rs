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

/// Place of a ready job in the order of claims: priority, then seq.
pub(super) type Place = (i32, i64);

/// Before every place: nothing is known.
const ANYWHERE: Place = (i32::MIN, i64::MIN);
/// After every place: there is none.
pub(super) const NOWHERE: Place = (i32::MAX, i64::MAX);
/// After every time: never.
pub(super) const NEVER: i64 = i64::MAX;

/// What changes about a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks {
    pub paused: bool,
    /// Done and cancelled jobs to keep.
    pub retain: i64,
    counts: [i64; 6],
    /// No claimable job stands before this place.
    pub best: Place,
    /// No scheduled job that is not held is due before this.
    pub due_ms: i64,
    /// No lease ends before this.
    pub expiry_ms: i64,
}

const fn slot(state: State) -> usize {
    state as usize - State::Scheduled as usize
}

impl Marks {
    fn fresh(paused: bool, retain: i64, counts: [i64; 6]) -> Self {
        let none = |state: State| counts[slot(state)] == 0;
        Self {
            paused,
            retain,
            counts,
            best: if none(State::Ready) { NOWHERE } else { ANYWHERE },
            due_ms: if none(State::Scheduled) { NEVER } else { i64::MIN },
            expiry_ms: if none(State::Leased) { NEVER } else { i64::MIN },
        }
    }

    pub const fn count(&self, state: State) -> i64 {
        self.counts[slot(state)]
    }

    pub const fn total(&self) -> i64 {
        let c = &self.counts;
        c[0] + c[1] + c[2] + c[3] + c[4] + c[5]
    }

    /// A job came into being in this state.
    pub const fn add(&mut self, state: State) {
        self.counts[slot(state)] += 1;
    }

    /// A job in this state is gone.
    pub const fn remove(&mut self, state: State) {
        self.counts[slot(state)] -= 1;
    }

    /// `n` jobs went from one state to another.
    pub const fn shift(&mut self, from: State, to: State, n: i64) {
        self.counts[slot(from)] -= n;
        self.counts[slot(to)] += n;
    }

    /// A claimable job stands here.
    pub fn offer(&mut self, place: Place) {
        self.best = self.best.min(place);
    }
}

/// A queue.
#[derive(Debug)]
pub(super) struct Line {
    pub id: i64,
    pub name: Arc<str>,
    pub marks: Marks,
    stored: [i64; 6],
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
        self.undo = Some(Undo { loaded: self.loaded, len: self.all.len(), marks: BTreeMap::new() });
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
    }

    /// Write the counts that changed.
    pub fn flush(&mut self, conn: &Connection) -> rusqlite::Result<()> {
        for line in self.all.iter_mut().filter(|l| l.stored != l.marks.counts) {
            let c = line.marks.counts;
            conn.prepare_cached(
                "UPDATE queues SET scheduled = ?2, ready = ?3, leased = ?4, done = ?5, dead = ?6, cancelled = ?7 \
                 WHERE id = ?1",
            )?
            .execute(params![line.id, c[0], c[1], c[2], c[3], c[4], c[5]])?;
            line.stored = c;
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
        let mut stmt = self.conn.prepare_cached(
            "SELECT id, name, paused, retain, scheduled, ready, leased, done, dead, cancelled \
             FROM queues ORDER BY id",
        )?;
        let mut rows = stmt.query([])?;
        while let Some(row) = rows.next()? {
            let mut counts = [0; 6];
            for (i, count) in counts.iter_mut().enumerate() {
                *count = row.get(i + 4)?;
            }
            let name: String = row.get(1)?;
            self.cache.lines.push(Line {
                id: row.get(0)?,
                name: name.into(),
                marks: Marks::fresh(row.get::<_, i64>(2)? != 0, row.get(3)?, counts),
                stored: counts,
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
        let retain = self
            .conn
            .prepare_cached("SELECT retain FROM queues WHERE id = ?1")?
            .query_row([id], |row| row.get(0))?;
        let marks = Marks::fresh(false, retain, [0; 6]);
        Ok(self.cache.lines.push(Line { id, name: name.into(), marks, stored: [0; 6] }))
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
