//! The state of a queue file as SQL: runs every op and every query, one after another, on one connection.
//!
//! Called by the writer, which owns the connection and decides what a commit contains. Synchronous: no code here
//! awaits, reads a clock or draws a random number; the time is an argument. Knows nothing of buckets. Parameters are
//! numbered, not named: binding by name compares strings on every call. Columns have names (columns.rs).

mod attempts;
mod backpressure;
mod check;
mod columns;
mod dedup;
mod due;
mod earlier_runs;
mod expired_archives;
mod expiry;
mod fault;
mod fix_time;
mod group;
mod job_row;
mod left_ids;
mod migrate;
mod names;
mod names_cleanup;
mod op;
mod queues;
mod read;
mod reported;
mod retention;
mod savepoint;
mod sessions;
mod shrink;

use std::time::Duration;

use rusqlite::Connection;
use rusqlite::config::DbConfig;

pub use check::check;
use fault::{Fault, Try, from_sqlite};
pub use fix_time::BroughtBack;
pub use migrate::SCHEMA_VERSION;
pub use op::archive::ArchiveDue;
use queues::Gate;
pub use read::PLANNED;
pub use read::archive_batch::{ArchiveBatch, Gone};
pub use read::integrity::{Violation, extent, schema, violations};
pub use reported::Reported;
pub use sessions::Delivered;

use crate::noun::error::{Code, Error, Result};
use crate::noun::event::Happened;
use crate::noun::op::{Op, Outcome, Queues};
use crate::noun::policy::Overflow;
use crate::noun::query::{Answer, Query};

/// `PRAGMA application_id` of a queue file: "bktq".
pub const APPLICATION_ID: i32 = 0x626b_7471;

/// The commit that is being built; for reads, the settled one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Its time.
    pub now_ms: i64,
    /// Its number.
    pub commit_seq: u64,
}

/// Limits for an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest payload or result, in bytes.
    pub max_payload: usize,
    /// Most pages of the database.
    pub max_pages: u32,
}

/// The database of a queue file, and the writer's cache of it.
#[derive(Debug)]
pub struct Db {
    conn: Connection,
    cache: Cache,
    /// The schema's version, once it was read; a newer library may raise it in the pages.
    version: Option<i32>,
    open: bool,
    poisoned: bool,
    max_pages: Option<u32>,
    /// Ordinals that earlier transactions of the same commit have used.
    ordinal: i64,
    /// Rows that this connection had changed when the transaction began.
    changed: u64,
    /// How many pages the transaction may move to free others.
    moves: shrink::Moves,
    /// Events of jobs are collected.
    watched: bool,
}

/// The cache between ops: all of it can be read again from the pages.
#[derive(Debug)]
struct Cache {
    names: names::Names,
    lines: queues::Lines,
    /// Ordinals that this commit has used so far.
    ordinal: i64,
    /// Bytes that certainly still fit; counted down by enqueues, measured again at zero.
    room: i64,
    /// No dedup window ends before this.
    sweep_ms: i64,
    /// No job expires before this.
    expiry_ms: i64,
    places: dedup::Places,
    left: left_ids::LeftIdsBounds,
    paused: op::schedule::Paused,
    pass: Option<names_cleanup::Pass>,
    sessions: sessions::Sessions,
    reported: Reported,
}

impl Default for Cache {
    fn default() -> Self {
        Self {
            names: names::Names::default(),
            lines: queues::Lines::default(),
            ordinal: 0,
            room: 0,
            sweep_ms: i64::MIN,
            expiry_ms: i64::MIN,
            places: dedup::Places::default(),
            left: left_ids::LeftIdsBounds::default(),
            paused: op::schedule::Paused::default(),
            pass: None,
            sessions: sessions::Sessions::default(),
            reported: Reported::default(),
        }
    }
}

/// The context of one running op.
struct Tx<'a> {
    conn: &'a Connection,
    cache: &'a mut Cache,
    now_ms: i64,
    commit_seq: u64,
    limits: Limits,
}

impl Db {
    /// Creates the schema in an empty database, in one transaction.
    pub fn create(conn: Connection, now_ms: i64) -> Result<Self> {
        settings(&conn).map_err(from_sqlite)?;
        let made = || {
            conn.execute_batch(&format!("BEGIN; PRAGMA application_id = {APPLICATION_ID};"))?;
            migrate::make(&conn)?;
            conn.execute_batch(&format!(
                "INSERT INTO names (id, name) VALUES ({}, ''); INSERT INTO meta VALUES ('created_ms', {now_ms}); COMMIT;",
                names::NOBODY
            ))
        };
        made().map_err(from_sqlite)?;
        Self::open(conn)
    }

    /// Opens an existing database. One with a newer schema can be read but not changed.
    pub fn open(conn: Connection) -> Result<Self> {
        settings(&conn).map_err(from_sqlite)?;
        let pragma =
            |name| conn.pragma_query_value(None, name, |row| row.get::<_, i32>(0)).map_err(from_sqlite);
        let application = pragma("application_id")?;
        if application != APPLICATION_ID {
            return Err(Error::new(
                Code::Foreign,
                format!("application_id is {application:#x} and not {APPLICATION_ID:#x}: not a queue file"),
            ));
        }
        conn.set_prepared_statement_cache_capacity(128);
        let mut db = Self {
            conn,
            cache: Cache::default(),
            version: None,
            open: false,
            poisoned: false,
            max_pages: None,
            ordinal: 0,
            changed: 0,
            moves: shrink::Moves::ByRows,
            watched: false,
        };
        db.schema_version()?;
        Ok(db)
    }

    fn schema_version(&mut self) -> Result<i32> {
        if let Some(version) = self.version {
            return Ok(version);
        }
        let version = migrate::version(&self.conn)?;
        self.version = Some(version);
        Ok(version)
    }

    /// Migrates an older schema, in the open transaction.
    fn bring_up(&mut self) -> Try<()> {
        let from = self.schema_version()?;
        if from < SCHEMA_VERSION {
            migrate::bring_up(&self.conn, from)?;
            self.version = Some(SCHEMA_VERSION);
        }
        Ok(())
    }

    /// Reads the current pages, migrated for the read if their schema is older.
    fn look<T>(&mut self, at: &Moment, look: impl FnOnce(&mut Tx<'_>) -> Try<T>) -> Result<T> {
        let limits = Limits { max_payload: 0, max_pages: 0 };
        if self.open || self.schema_version()? >= SCHEMA_VERSION {
            return look(&mut self.tx(at, &limits)).map_err(Fault::into_error);
        }
        // The migration for a read may exceed the file's size limit: it is rolled back.
        self.limit_pages(u32::MAX - 1).map_err(Fault::into_error)?;
        let Self { conn, cache, .. } = self;
        let found = migrate::as_newest(conn, || {
            let (now_ms, commit_seq) = (at.now_ms, at.commit_seq);
            look(&mut Tx { conn, cache, now_ms, commit_seq, limits }).map_err(Fault::into_error)
        });
        self.forget();
        found?
    }

    /// Fails with [`Code::TooNew`] when the schema is newer than this library: then it can only be read.
    pub fn check_writable(&mut self) -> Result<()> {
        let version = self.schema_version()?;
        if version <= SCHEMA_VERSION {
            return Ok(());
        }
        Err(Error::new(
            Code::TooNew,
            format!(
                "the queue file has schema version {version} and this library writes {SCHEMA_VERSION}: upgrade bucketq, or only read"
            ),
        ))
    }

    /// Returns true after a failure in the middle of an op: then only [`Db::rollback`] works, and the batch must be
    /// applied again without that op.
    pub fn poisoned(&self) -> bool {
        self.poisoned
    }

    /// Begins the transaction of one commit.
    pub fn begin(&mut self) -> Result<()> {
        self.run("BEGIN")?;
        self.open = true;
        self.cache.ordinal = self.ordinal;
        self.cache.room = 0;
        self.cache.reported = Reported::new(self.watched);
        self.changed = self.conn.total_changes();
        self.moves = shrink::Moves::ByRows;
        self.cache.places.begin(&self.conn).map_err(from_sqlite)
    }

    /// Sets how many ordinals the commit of the next transactions has used already (in Local mode many transactions
    /// make one commit).
    pub fn go_on_from(&mut self, ordinal: u32) {
        self.ordinal = ordinal.into();
    }

    /// Returns how many ordinals this commit has used, those of its earlier transactions included.
    pub fn ordinal(&self) -> u32 {
        u32::try_from(self.cache.ordinal).unwrap_or(u32::MAX)
    }

    /// Applies one op between `begin` and `commit`. On an error the op has left no trace, unless the database is
    /// [`Db::poisoned`] afterwards.
    ///
    /// All ops of a transaction have the same [`Moment`]. No earlier transaction may have had its number, unless
    /// [`Db::go_on_from`] says how many ordinals that one has used.
    pub fn apply(&mut self, op: &Op, at: &Moment, limits: &Limits) -> Result<Outcome> {
        check(op, limits)?;
        self.begin_change(limits)?;
        let done = self.tx(at, limits).apply(op, &[]);
        self.checked(done)
    }

    /// Prepares for an op: this library may write the file, and its schema is the newest.
    fn begin_change(&mut self, limits: &Limits) -> Result<()> {
        self.check_writable()?;
        if self.poisoned || !self.open {
            return Err(Error::bug("an op outside a transaction, or after one that failed"));
        }
        let ready = self.limit_pages(limits.max_pages).and_then(|()| self.bring_up());
        self.checked(ready)
    }

    /// Notes a failure in the middle of an op, after which only a rollback works.
    fn checked<T>(&mut self, done: Try<T>) -> Result<T> {
        done.map_err(|fault| {
            self.poisoned |= matches!(fault, Fault::Broken(_));
            fault.into_error()
        })
    }

    /// Writes the counts, frees some unused pages and commits the transaction.
    pub fn commit(&mut self) -> Result<()> {
        if self.poisoned {
            return Err(Error::bug("the transaction failed: only a rollback is left"));
        }
        let last = |db: &mut Self| {
            db.cache.lines.flush(&db.conn)?;
            db.cache.sessions.flush(&db.conn)?;
            if db.conn.total_changes() > db.changed {
                names_cleanup::step(&db.conn, &mut db.cache.pass, &mut db.cache.names)?;
            }
            shrink::shrink(&db.conn, db.conn.total_changes() - db.changed, db.moves)
        };
        let done = last(self).map_err(from_sqlite).and_then(|()| self.run("COMMIT"));
        self.poisoned = done.is_err();
        self.open &= done.is_err();
        done
    }

    /// Keeps this transaction small, however many rows it changes: later ones free its unused pages.
    pub fn move_few_pages(&mut self) {
        self.moves = shrink::Moves::Few;
    }

    /// Rolls back everything since `begin`. Harmless when SQLite has rolled back already.
    pub fn rollback(&mut self) -> Result<()> {
        let mut told = std::mem::take(&mut self.cache.reported);
        self.cache.places.rolled_back();
        self.forget_but_places();
        told.back_to([0; 4]);
        self.cache.reported = told;
        if !self.conn.is_autocommit() {
            self.run("ROLLBACK")?;
        }
        self.open = false;
        self.poisoned = false;
        Ok(())
    }

    /// Runs a query on the current pages.
    pub fn query(&mut self, query: &Query, at: &Moment) -> Result<Answer> {
        self.look(at, |tx| tx.query(query))
    }

    /// Returns the earliest time at which a claim on these queues could find more: the first scheduled job or the first
    /// end of a lease. A time in the past means that a claim would find something now.
    pub fn next_due_ms(&mut self, queues: &Queues) -> Result<Option<i64>> {
        let at = Moment { now_ms: 0, commit_seq: 0 };
        self.look(&at, |tx| tx.next_due(queues))
    }

    /// Returns whether all of these queues exist and are drained: claims get no jobs until they are resumed.
    pub fn are_drained(&mut self, queues: &Queues) -> Result<bool> {
        let Queues::Named(names) = queues else { return Ok(false) };
        let at = Moment { now_ms: 0, commit_seq: 0 };
        self.look(&at, |tx| {
            for name in names {
                let line = tx.find_line(name)?;
                if line.is_none_or(|line| tx.line(line).marks.gate != Gate::Draining) {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    /// Returns how long an enqueue into this queue waits for room; none if it does not wait.
    pub fn block(&mut self, queue: &str) -> Result<Option<Duration>> {
        let at = Moment { now_ms: 0, commit_seq: 0 };
        let overflow = self.look(&at, |tx| Ok(tx.policy_of(queue)?.overflow))?;
        Ok(match overflow {
            Overflow::Block { timeout_ms } => Some(Duration::from_millis(timeout_ms.max(0) as u64)),
            Overflow::Raise | Overflow::DropOldest => None,
        })
    }

    /// Sets whether events of jobs are collected from the next transaction on.
    pub fn watch(&mut self, watched: bool) {
        self.watched = watched;
    }

    /// Returns what the committed transaction reported.
    pub fn take_reported(&mut self) -> Reported {
        std::mem::take(&mut self.cache.reported)
    }

    /// Returns where the report of the open transaction ends, for [`Db::take_reported_since`].
    pub fn reported_mark(&self) -> [usize; 4] {
        self.cache.reported.mark()
    }

    /// Takes the events and times out that were reported since the mark, because they belong to another process.
    pub fn take_reported_since(&mut self, mark: [usize; 4]) -> (Vec<Happened>, Vec<i64>, Vec<i64>) {
        self.cache.reported.take_since(mark)
    }

    /// Returns the number of hints for dedup keys, outdated ones included.
    pub fn remembered_keys(&self) -> usize {
        self.cache.places.count()
    }

    /// Drops the cache, because the pages have changed.
    pub fn forget(&mut self) {
        let mut paused = std::mem::take(&mut self.cache.paused);
        paused.forget();
        self.cache = Cache { paused, ..Cache::default() };
        self.version = None;
    }

    /// Drops the cache when the pages are those of this commit, or of that commit and later commits of other writers:
    /// keeps the part that is expensive to read again.
    pub fn rewind(&mut self, commit_seq: u64) {
        self.cache.places.rewind(commit_seq);
        self.forget_but_places();
    }

    fn forget_but_places(&mut self) {
        let places = std::mem::take(&mut self.cache.places);
        self.forget();
        self.cache.places = places;
    }

    /// Returns the connection, for operations on the whole file. Changes made through it need a [`Db::forget`].
    pub fn connection(&self) -> &Connection {
        &self.conn
    }

    fn run(&self, sql: &str) -> Result<()> {
        self.conn.prepare_cached(sql).and_then(|mut s| s.execute([])).map(drop).map_err(from_sqlite)
    }

    fn limit_pages(&mut self, max: u32) -> Try<()> {
        if self.max_pages != Some(max) {
            self.conn.pragma_update(None, "max_page_count", max)?;
            self.max_pages = Some(max);
        }
        Ok(())
    }

    fn tx<'a>(&'a mut self, at: &Moment, limits: &Limits) -> Tx<'a> {
        Tx {
            conn: &self.conn,
            cache: &mut self.cache,
            now_ms: at.now_ms,
            commit_seq: at.commit_seq,
            limits: *limits,
        }
    }
}

/// Sets what every connection to a queue file needs.
fn settings(conn: &Connection) -> rusqlite::Result<()> {
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    // Without this the planner looks at bound values when it considers a partial index, and each new value prepares the
    // statement again: a claim took 40 us instead of 6.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    conn.execute_batch("PRAGMA temp_store = MEMORY; PRAGMA cache_spill = OFF; PRAGMA cell_size_check = ON;")
}

impl Tx<'_> {
    fn apply(&mut self, op: &Op, later: &[Op]) -> Try<Outcome> {
        match op {
            Op::Enqueue { queue, jobs } => self.enqueue(queue, jobs).map(Outcome::Enqueued),
            Op::Claim(claim) => self.claim(claim).map(Outcome::Claimed),
            Op::ClaimWith(with) => self.claim_with(with).map(with.outcome()),
            Op::Ack { held, result } => self.ack(held, result.as_ref()),
            Op::Nack { held, delay_ms, error } => self.nack(held, *delay_ms, error.as_deref()),
            Op::Release { held } => self.release(held),
            Op::Reject { held, error } => self.reject(held, error.as_deref()),
            Op::Extend { held, lease_ms, at_least } => self.extend(held, *lease_ms, *at_least),
            // If the atomic is repeated, this must not end the run that the first time began after it.
            Op::Cancel { id, leased } => self.cancel(id, *leased, savepoint::requeued_after(later, id)),
            Op::Requeue { id, run } => self.requeue(id, *run),
            // If the atomic is repeated, the purge must not delete the jobs that the first time enqueued after it.
            Op::Purge { queue, states } => self.purge(queue, states, &savepoint::enqueued(later)),
            Op::Pause { queue } => self.gate(queue, Gate::Paused),
            Op::Resume { queue } => self.gate(queue, Gate::Open),
            Op::Drain { queue } => self.gate(queue, Gate::Draining),
            Op::Atomic(ops) => self.atomic(ops),
            Op::Configure { queue, changes } => self.configure(queue, changes),
            Op::ConfigureSome { queue, raised: Some(group), limit, .. } => {
                self.unblock_some(queue, group, *limit)
            }
            Op::ConfigureSome { queue, changes, after, raised: None, limit } => {
                self.configure_some(queue, changes, *after, *limit)
            }
            Op::RequeueMany { filter, limit } => self.requeue_many(filter, *limit),
            Op::Schedule { queue, name, schedule } => self.schedule(queue, name, schedule),
            Op::Unschedule { queue, name } => self.unschedule(queue, name),
            Op::PurgeSome { queue, states, before, limit } => self.purge_some(queue, states, *before, *limit),
            Op::Move { id, run, to } => self.move_job(id, *run, to),
            Op::MoveSome { filter, redrive, to, after, before, limit } => {
                self.move_some(filter, *redrive, to.as_deref(), *after, *before, *limit)
            }
            // If the atomic is repeated, this must not delete the job that the first time enqueued after it.
            Op::Delete { id, .. } if savepoint::enqueued(later).contains(id) => {
                Ok(Outcome::Deleted { was: None })
            }
            Op::Delete { id, leased } => self.delete_job(id, *leased),
            Op::CreateQueue { queue } => self.create_queue(queue),
            Op::DeleteQueue { queue, limit } => self.delete_queue(queue, *limit),
            Op::StrictQueues { strict } => self.set_strict(*strict),
            Op::AckLate { id, run, result } => self.ack_late(id, *run, result.as_ref()),
        }
    }

    /// Returns the next place in the order of enqueues, or of finishes, in this commit.
    fn next_seq(&mut self) -> i64 {
        let seq = (self.commit_seq << 24) as i64 + self.cache.ordinal;
        self.cache.ordinal += 1;
        seq
    }
}
