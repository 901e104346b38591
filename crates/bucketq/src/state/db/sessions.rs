//! Executes each op of a session once, however often and over however many writers it arrives (P29 to P33, P38, P39).
//!
//! Called by the writer for ops that come over a connection. The result stands in the commit of the op; the lookup is
//! part of the transaction that would execute the op, and is repeated whenever that transaction is.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension, params};

use super::columns::{row, sql};
use super::fault::Try;
use super::{Db, Limits, Moment, Tx};
use crate::noun::error::{Code, Error, Result};
use crate::noun::op::{Op, Outcome};
use crate::noun::session::{Delivery, SessionId};

mod result;

use result::SessionResult;

row! {
    struct SessionColumns { born: i64, floor: i64, results: Vec<u8> }
}
row! {
    struct SessionExtent { count: i64 = "count(*)", oldest_ms: i64 = "min(used_ms)" }
}
row! {
    struct DroppedSession { id: [u8; 16], born: i64 }
}
/// The row of a session.
pub(super) const SESSION: &str = sql!("SELECT ", SessionColumns::COLUMNS, " FROM sessions WHERE id = ?1");
/// Name in `meta` of the newest `born` of a dropped row.
const FORGOTTEN: &str = "forgotten";
/// A session without an op for this long may be dropped.
const IDLE_MS: i64 = 24 * 3_600_000;
/// Most sessions that are kept; the longest unused ones are dropped first.
const MOST: i64 = 4_096;
/// Most rows that one commit drops.
const SWEEP: i64 = 64;

/// The fate of one delivery of an op.
#[derive(Clone, Debug, PartialEq)]
pub enum Delivered {
    /// It was executed now, or refused. Unless it is `recorded`, the result is final only if the op was sent once.
    Executed {
        /// The return value.
        result: Result<Outcome>,
        /// The commit that is being built records it.
        recorded: bool,
    },
    /// It was executed or given up before: this is its result.
    Recorded {
        /// The return value.
        result: Result<Outcome>,
        /// The commit that has it.
        commit_seq: u64,
        /// The time of that commit.
        commit_ms: i64,
        /// The stamp that its leases count from.
        stamp: u64,
    },
    /// Its session may have been dropped: it is not executed, and it may have been executed before.
    Forgotten,
}

/// One session in the cache.
#[derive(Debug)]
struct SessionRow {
    born: u64,
    floor: u64,
    results: HashMap<u64, SessionResult>,
    changed: bool,
}

/// The sessions that this writer has read, and those that the open transaction has changed.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    rows: HashMap<SessionId, SessionRow>,
    forgotten: Option<u64>,
    /// The open transaction has changed rows ...
    changed: bool,
    /// ... and added some.
    added: bool,
    /// The time of that transaction.
    now_ms: i64,
}

impl Db {
    /// Executes an op of a session between `begin` and `commit`, or finds that it was executed before. `parks` says
    /// that a claim without a job, or an enqueue without room, continues to wait: then it has no result yet.
    ///
    /// As with [`Db::apply`], an error may leave the database [`Db::poisoned`].
    pub fn deliver(
        &mut self,
        delivery: &Delivery,
        op: &Op,
        parks: bool,
        at: &Moment,
        limits: &Limits,
    ) -> Result<Delivered> {
        let is_number = |n: u64| i64::try_from(n).is_ok();
        if delivery.n == 0 || !is_number(delivery.n) || !is_number(delivery.born) {
            return Err(Error::invalid(
                "the number of an op in its session, or the birth of the session, is out of range",
            ));
        }
        self.begin_change(limits)?;
        let found = self.tx(at, limits).recorded(delivery, op);
        if let Some(found) = self.checked(found)? {
            return Ok(found);
        }
        let before = self.conn.total_changes();
        let (result, given_up) = if delivery.cancel {
            (Err(given_up()), true)
        } else if at.now_ms > delivery.last_ms {
            (Err(too_late()), false)
        } else {
            let result = self.apply(op, at, limits);
            if self.poisoned {
                return result.map(|outcome| Delivered::Executed { result: Ok(outcome), recorded: false });
            }
            (result, false)
        };
        let changed = self.conn.total_changes() > before;
        let waits = parks
            && match &result {
                Ok(Outcome::Claimed(jobs)) => jobs.is_empty(),
                Ok(_) => false,
                Err(error) => error.code() == Code::Blocked,
            };
        let recorded = changed || given_up || (delivery.again && !waits);
        if recorded {
            let noted = self.tx(at, limits).record(delivery, &result);
            self.checked(noted)?;
        }
        Ok(Delivered::Executed { result, recorded })
    }

    /// Drops every session, because the chain before this commit is replaced (P23).
    pub fn drop_sessions(&mut self, commit_seq: u64) -> Result<()> {
        self.cache.sessions = Sessions::default();
        self.conn
            .execute("DELETE FROM sessions", [])
            .and_then(|_| raise_forgotten(&self.conn, commit_seq))
            .map_err(super::from_sqlite)
    }
}

impl Tx<'_> {
    /// Returns the result of an op that is not to be executed (P31).
    fn recorded(&mut self, delivery: &Delivery, op: &Op) -> Try<Option<Delivered>> {
        let forgotten = self.forgotten()?;
        let Some(row) = self.session(delivery.session)? else {
            return Ok((delivery.born <= forgotten).then_some(Delivered::Forgotten));
        };
        if delivery.n <= row.floor {
            return Ok(Some(Delivered::Forgotten));
        }
        let Some(found) = row.results.get(&delivery.n).cloned() else { return Ok(None) };
        let (commit_seq, commit_ms, stamp) = (found.commit_seq, found.commit_ms, found.stamp);
        let result = self.outcome(found, op)?;
        Ok(Some(Delivered::Recorded { result, commit_seq, commit_ms, stamp }))
    }

    /// Records the result of an op, and drops the results that the client has.
    fn record(&mut self, delivery: &Delivery, result: &Result<Outcome>) -> Try<()> {
        self.cache.sessions.added |= self.session(delivery.session)?.is_none();
        self.cache.sessions.changed = true;
        self.cache.sessions.now_ms = self.now_ms;
        let result = SessionResult::new(result, self.commit_seq, self.now_ms, delivery.stamp);
        let row = self.cache.sessions.rows.entry(delivery.session).or_insert_with(|| SessionRow {
            born: delivery.born,
            floor: 0,
            results: HashMap::new(),
            changed: false,
        });
        row.floor = row.floor.max(delivery.have.min(delivery.n - 1));
        let floor = row.floor;
        row.results.retain(|n, _| *n > floor);
        row.results.insert(delivery.n, result);
        row.changed = true;
        Ok(())
    }

    /// Returns the session's row, if it has one.
    fn session(&mut self, id: SessionId) -> Try<Option<&SessionRow>> {
        if !self.cache.sessions.rows.contains_key(&id) {
            let found =
                self.conn.prepare_cached(SESSION)?.query_row([id.0], SessionColumns::read).optional()?;
            let Some(SessionColumns { born, floor, results }) = found else { return Ok(None) };
            let (born, floor) = (born as u64, floor as u64);
            let row = SessionRow { born, floor, results: result::decode(&results, floor)?, changed: false };
            self.cache.sessions.rows.insert(id, row);
        }
        Ok(self.cache.sessions.rows.get(&id))
    }

    fn forgotten(&mut self) -> Try<u64> {
        if let Some(forgotten) = self.cache.sessions.forgotten {
            return Ok(forgotten);
        }
        let sql = "SELECT value FROM meta WHERE name = ?1";
        let found: Option<i64> =
            self.conn.prepare_cached(sql)?.query_row([FORGOTTEN], |row| row.get(0)).optional()?;
        Ok(*self.cache.sessions.forgotten.insert(found.unwrap_or(0) as u64))
    }

    /// Turns a recorded value into the outcome of `op`.
    fn outcome(&mut self, recorded: SessionResult, op: &Op) -> Try<Result<Outcome>> {
        use result::SessionValue;
        let SessionResult { commit_seq, commit_ms, value, .. } = recorded;
        Ok(match (value, op) {
            (SessionValue::Whole(outcome), _) => Ok(outcome),
            (SessionValue::Failed(error), _) => Err(error),
            (SessionValue::EnqueuedAll, Op::Enqueue { jobs, .. }) => {
                let told = jobs.iter().map(|job| result::enqueued(job.id, commit_seq, commit_ms));
                Ok(Outcome::Enqueued(told.collect()))
            }
            (SessionValue::Claimed(seqs), Op::Claim(claim)) => {
                Ok(Outcome::Claimed(self.held_at(&seqs, claim.token)?))
            }
            (SessionValue::Claimed(seqs), Op::ClaimWith(with)) if with.done => {
                Ok(with.outcome()(self.done_at(&seqs, with.claim.token)?))
            }
            (SessionValue::Claimed(seqs), Op::ClaimWith(with)) => {
                Ok(with.outcome()(self.held_at(&seqs, with.claim.token)?))
            }
            (SessionValue::EnqueuedAll | SessionValue::Claimed(_), _) => {
                Err(Error::invalid("this number of the session belongs to another op"))
            }
        })
    }
}

impl Sessions {
    /// Writes the rows that the transaction has changed, at its end.
    pub fn flush(&mut self, conn: &Connection) -> rusqlite::Result<()> {
        if !std::mem::take(&mut self.changed) {
            return Ok(());
        }
        let sql = "INSERT INTO sessions VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (id) DO UPDATE SET
                     floor = excluded.floor, used_ms = excluded.used_ms, results = excluded.results";
        let mut stmt = conn.prepare_cached(sql)?;
        for (id, row) in self.rows.iter_mut().filter(|(_, row)| row.changed) {
            let results = result::encode(&row.results, row.floor);
            stmt.execute(params![id.0, row.born as i64, row.floor as i64, self.now_ms, results])?;
            row.changed = false;
        }
        if std::mem::take(&mut self.added) { self.drop_unused(conn) } else { Ok(()) }
    }

    /// Drops sessions that were not used for a day, and the longest unused ones of too many (P33).
    fn drop_unused(&mut self, conn: &Connection) -> rusqlite::Result<()> {
        let SessionExtent { count, oldest_ms } = conn
            .prepare_cached(sql!("SELECT ", SessionExtent::COLUMNS, " FROM sessions"))?
            .query_row([], SessionExtent::read)?;
        let too_many = count - MOST;
        let (until_ms, limit) = if too_many > 0 {
            (self.now_ms - 1, too_many.min(SWEEP))
        } else if oldest_ms <= self.now_ms - IDLE_MS {
            (self.now_ms - IDLE_MS, SWEEP)
        } else {
            return Ok(());
        };
        let sql = sql!(
            "DELETE FROM sessions WHERE id IN (
               SELECT id FROM sessions WHERE used_ms <= ?1 ORDER BY used_ms, id LIMIT ?2) RETURNING ",
            DroppedSession::COLUMNS
        );
        let mut stmt = conn.prepare_cached(sql)?;
        let mut dropped = stmt.query([until_ms, limit])?;
        let mut newest = 0;
        while let Some(row) = dropped.next()? {
            let DroppedSession { id, born } = DroppedSession::read(row)?;
            self.rows.remove(&SessionId(id));
            newest = newest.max(born);
        }
        self.forgotten = None;
        raise_forgotten(conn, newest as u64)
    }
}

fn raise_forgotten(conn: &Connection, born: u64) -> rusqlite::Result<()> {
    let sql = "INSERT INTO meta VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)";
    conn.prepare_cached(sql)?.execute(params![FORGOTTEN, born as i64]).map(drop)
}

fn given_up() -> Error {
    Error::new(Code::Timeout, "not applied: its caller gave it up")
}

fn too_late() -> Error {
    Error::new(Code::Timeout, "not applied: it arrived after the last time at which its caller allows it")
}
