//! The state of a queue file as SQL: every op and every query, one after another, on one connection.
//!
//! Called by the writer, which owns the connection and decides what a commit is. Synchronous: nothing here awaits,
//! reads a clock or draws a number; the time is an argument. Knows nothing of buckets.
//! Parameters are numbered and not named: binding by name compares strings at every call.

mod archive;
mod attempts;
mod check;
mod claim;
mod dedup;
mod due;
mod enqueue;
mod fault;
mod given_up;
mod group;
mod keep;
mod leave;
mod list;
mod manage;
mod migrate;
mod names;
mod past;
mod policy;
mod queues;
mod read;
mod room;
mod row;
mod schedule;
mod settle;
mod shrink;
mod sound;
mod told;

use std::time::Duration;

use rusqlite::Connection;
use rusqlite::config::DbConfig;

pub use archive::Due;
pub use check::check;
use fault::{Fault, Try, from_sqlite};
pub use leave::{Gone, Leaving};
pub use migrate::SCHEMA_VERSION;
use queues::Gate;
pub use read::PLANNED;
pub use sound::{Unsound, extent, schema, unsound};
pub use told::Told;

use crate::broken::Broken;
use crate::error::{Code, Error, Result};
use crate::op::{Op, Outcome, Queues};
use crate::policy::Overflow;
use crate::query::{Answer, Query};

/// `PRAGMA application_id` of a queue file: "bktq".
pub const APPLICATION_ID: i32 = 0x626b_7471;

/// The commit that is being built; for reads, the one that is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Its time.
    pub now_ms: i64,
    /// Its number.
    pub commit_seq: u64,
}

/// What an op may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest payload or result, in bytes.
    pub max_payload: usize,
    /// Pages the database may have.
    pub max_pages: u32,
}

/// The database of a queue file, and what the writer remembers of it.
#[derive(Debug)]
pub struct Db {
    conn: Connection,
    cache: Cache,
    /// The schema's version, once asked for; a newer library may raise it beneath.
    version: Option<i32>,
    open: bool,
    poisoned: bool,
    max_pages: Option<u32>,
    /// Jobs that earlier transactions of the same commit have put at the end.
    ordinal: i64,
    /// Rows this connection had changed when the transaction began.
    changed: u64,
    /// How many pages the transaction may move to give some back.
    moves: shrink::Moves,
    /// A rule broken on purpose, never in what ships.
    broken: Option<Broken>,
    /// What happens to jobs is collected.
    watched: bool,
}

/// What is remembered between ops: all of it can be read again from the pages.
#[derive(Debug)]
struct Cache {
    names: names::Names,
    lines: queues::Lines,
    /// Jobs that this commit has put at the end so far.
    ordinal: i64,
    /// Bytes that certainly still fit; counted down by enqueues, measured again when it runs out.
    room: i64,
    /// No dedup window ends before this.
    sweep_ms: i64,
    places: dedup::Places,
    told: Told,
}

impl Default for Cache {
    fn default() -> Self {
        Self {
            names: names::Names::default(),
            lines: queues::Lines::default(),
            ordinal: 0,
            room: 0,
            sweep_ms: i64::MIN,
            places: dedup::Places::default(),
            told: Told::default(),
        }
    }
}

/// One op at work.
struct Turn<'a> {
    conn: &'a Connection,
    cache: &'a mut Cache,
    now_ms: i64,
    commit_seq: u64,
    limits: Limits,
    broken: Option<Broken>,
}

impl Db {
    /// Make the schema in an empty database, in one transaction.
    pub fn create(conn: Connection, now_ms: i64) -> Result<Self> {
        settings(&conn).map_err(from_sqlite)?;
        let made = || {
            conn.execute_batch(&format!("BEGIN; PRAGMA application_id = {APPLICATION_ID};"))?;
            migrate::make(&conn)?;
            conn.execute_batch(&format!(
                "INSERT INTO names VALUES ({}, ''); INSERT INTO meta VALUES ('created_ms', {now_ms}); COMMIT;",
                names::NOBODY
            ))
        };
        made().map_err(from_sqlite)?;
        Self::open(conn)
    }

    /// Take up an existing database. One with a newer schema can be read but not changed.
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
            broken: None,
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

    /// Bring an older schema up, in the transaction that is open.
    fn bring_up(&mut self) -> Try<()> {
        let from = self.schema_version()?;
        if from < SCHEMA_VERSION {
            migrate::bring_up(&self.conn, from)?;
            self.version = Some(SCHEMA_VERSION);
        }
        Ok(())
    }

    /// Answer from the pages as they are, or as they will be once their schema is brought up.
    fn look<T>(&mut self, at: &Moment, look: impl FnOnce(&mut Turn<'_>) -> Try<T>) -> Result<T> {
        let limits = Limits { max_payload: 0, max_pages: 0 };
        if self.open || self.schema_version()? >= SCHEMA_VERSION {
            return look(&mut self.turn(at, &limits)).map_err(Fault::into_error);
        }
        // The file has no room set aside for it, and needs none.
        self.limit_pages(u32::MAX - 1).map_err(Fault::into_error)?;
        let Self { conn, cache, broken, .. } = self;
        let broken = *broken;
        let found = migrate::as_newest(conn, || {
            let (now_ms, commit_seq) = (at.now_ms, at.commit_seq);
            look(&mut Turn { conn, cache, now_ms, commit_seq, limits, broken }).map_err(Fault::into_error)
        });
        self.forget();
        found?
    }

    /// Refuse with [`Code::TooNew`] when the schema is newer than this library: then it can only be read.
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

    /// True after a failure in the middle of an op: nothing but [`Db::rollback`] works then, and the batch has to be
    /// applied again without the op that failed.
    pub fn poisoned(&self) -> bool {
        self.poisoned
    }

    /// Open the transaction of one commit.
    pub fn begin(&mut self) -> Result<()> {
        self.run("BEGIN")?;
        self.open = true;
        self.cache.ordinal = self.ordinal;
        self.cache.room = 0;
        self.cache.told = Told::new(self.watched);
        self.changed = self.conn.total_changes();
        self.moves = shrink::Moves::ByRows;
        self.cache.places.begin(&self.conn).map_err(from_sqlite)
    }

    /// The next transactions go on with a commit that has put this many jobs at the end already (Local mode, where many
    /// transactions make one commit).
    pub fn go_on_from(&mut self, ordinal: u32) {
        self.ordinal = ordinal.into();
    }

    /// Jobs that this commit has put at the end, those of its earlier transactions included.
    pub fn ordinal(&self) -> u32 {
        u32::try_from(self.cache.ordinal).unwrap_or(u32::MAX)
    }

    /// Apply one op between `begin` and `commit`. On an error the op has left no trace, except when the database is
    /// [`Db::poisoned`] afterwards.
    ///
    /// All ops of a transaction have the same [`Moment`], whose number no earlier transaction had, unless
    /// [`Db::go_on_from`] says how far that one came.
    pub fn apply(&mut self, op: &Op, at: &Moment, limits: &Limits) -> Result<Outcome> {
        self.check_writable()?;
        if self.poisoned || !self.open {
            return Err(Error::new(Code::Internal, "an op outside a transaction, or after one that failed"));
        }
        check(op, limits)?;
        let ready = self.limit_pages(limits.max_pages).and_then(|()| self.bring_up());
        let done = ready.and_then(|()| self.turn(at, limits).apply(op));
        done.map_err(|fault| {
            self.poisoned |= matches!(fault, Fault::Broken(_));
            fault.into_error()
        })
    }

    /// Write the counts, give back some free pages and make the transaction final.
    pub fn commit(&mut self) -> Result<()> {
        if self.poisoned {
            return Err(Error::new(Code::Internal, "the transaction failed: only a rollback is left"));
        }
        let last = |db: &mut Self| {
            db.cache.lines.flush(&db.conn)?;
            shrink::shrink(&db.conn, db.conn.total_changes() - db.changed, db.moves)
        };
        let done = last(self).map_err(from_sqlite).and_then(|()| self.run("COMMIT"));
        self.poisoned = done.is_err();
        self.open &= done.is_err();
        done
    }

    /// However many rows this transaction changes, it is to be small: the next ones give back what it frees.
    pub fn move_few_pages(&mut self) {
        self.moves = shrink::Moves::Few;
    }

    /// Undo everything since `begin`. Harmless when SQLite has done so already.
    pub fn rollback(&mut self) -> Result<()> {
        let mut told = std::mem::take(&mut self.cache.told);
        self.cache.places.rolled_back();
        self.forget_but_places();
        told.back_to([0; 3]);
        self.cache.told = told;
        if !self.conn.is_autocommit() {
            self.run("ROLLBACK")?;
        }
        self.open = false;
        self.poisoned = false;
        Ok(())
    }

    /// Answer a question from the pages as they are.
    pub fn query(&mut self, query: &Query, at: &Moment) -> Result<Answer> {
        self.look(at, |turn| turn.query(query))
    }

    /// The earliest time at which a claim on these queues could find what it cannot find before: the first scheduled
    /// job or the first end of a lease. A time in the past means that a claim would find something now.
    pub fn next_due_ms(&mut self, queues: &Queues) -> Result<Option<i64>> {
        let at = Moment { now_ms: 0, commit_seq: 0 };
        self.look(&at, |turn| turn.next_due(queues))
    }

    /// How long an enqueue into this queue waits for room.
    pub fn block(&mut self, queue: &str) -> Result<Option<Duration>> {
        let at = Moment { now_ms: 0, commit_seq: 0 };
        let overflow = self.look(&at, |turn| Ok(turn.policy_of(queue)?.overflow))?;
        Ok(match overflow {
            Overflow::Block { timeout_ms } => Some(Duration::from_millis(timeout_ms.max(0) as u64)),
            Overflow::Raise | Overflow::DropOldest => None,
        })
    }

    /// Collect what happens to jobs from the next transaction on, or no longer.
    pub fn watch(&mut self, watched: bool) {
        self.watched = watched;
    }

    /// What the transaction that was committed did.
    pub fn take_told(&mut self) -> Told {
        std::mem::take(&mut self.cache.told)
    }

    /// Dedup keys whose places are remembered, those that have come and gone included.
    pub fn remembered_keys(&self) -> usize {
        self.cache.places.count()
    }

    /// Drop what is remembered: the pages have changed beneath.
    pub fn forget(&mut self) {
        self.cache = Cache::default();
        self.version = None;
    }

    /// The same when they are as of this commit, or of that commit and of what others did since: what is dear to read
    /// again stays.
    pub fn rewind(&mut self, commit_seq: u64) {
        self.cache.places.rewind(commit_seq);
        self.forget_but_places();
    }

    fn forget_but_places(&mut self) {
        let places = std::mem::take(&mut self.cache.places);
        self.forget();
        self.cache.places = places;
    }

    /// The token the job has now; only for a rule broken on purpose, so never in what ships.
    pub(crate) fn current_token(&self, id: crate::job::JobId) -> Option<crate::lease::Token> {
        if cfg!(not(feature = "broken")) {
            return None;
        }
        let sql = "SELECT token FROM jobs WHERE id = ?1";
        self.conn.query_row(sql, [id.as_bytes()], |row| row.get(0)).ok().map(crate::lease::Token)
    }

    /// Break the rule that the options name; only the simulation has such options.
    #[cfg(feature = "broken")]
    pub(crate) fn break_rule(&mut self, rule: Option<Broken>) {
        self.broken = rule;
    }

    /// The connection, for what concerns the file as a whole. Changes made through it need a [`Db::forget`].
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

    fn turn<'a>(&'a mut self, at: &Moment, limits: &Limits) -> Turn<'a> {
        Turn {
            conn: &self.conn,
            cache: &mut self.cache,
            now_ms: at.now_ms,
            commit_seq: at.commit_seq,
            limits: *limits,
            broken: self.broken,
        }
    }
}

/// What every connection to a queue file needs, whoever made the file.
fn settings(conn: &Connection) -> rusqlite::Result<()> {
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    // Without this the planner peeks at bound values when it weighs a partial index, and every binding of a new value
    // then prepares the statement again: a claim took 40 us instead of 6.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    conn.execute_batch("PRAGMA temp_store = MEMORY; PRAGMA cache_spill = OFF; PRAGMA cell_size_check = ON;")
}

impl Turn<'_> {
    fn apply(&mut self, op: &Op) -> Try<Outcome> {
        match op {
            Op::Enqueue { queue, jobs } => self.enqueue(queue, jobs).map(Outcome::Enqueued),
            Op::Claim(claim) => self.claim(claim).map(Outcome::Claimed),
            Op::Ack { held, result } => self.ack(held, result.as_ref()),
            Op::Nack { held, delay_ms, error } => self.nack(held, *delay_ms, error.as_deref()),
            Op::Release { held } => self.release(held),
            Op::Reject { held, error } => self.reject(held, error.as_deref()),
            Op::Extend { held, lease_ms } => self.extend(held, *lease_ms),
            Op::Cancel { id, leased } => self.cancel(id, *leased),
            Op::Requeue { id, run } => self.requeue(id, *run),
            Op::Purge { queue, states } => self.purge(queue, states),
            Op::Pause { queue } => self.gate(queue, Gate::Paused),
            Op::Resume { queue } => self.gate(queue, Gate::Open),
            Op::Drain { queue } => self.gate(queue, Gate::Draining),
            Op::Atomic(ops) => self.atomic(ops),
            Op::Configure { queue, changes } => self.configure(queue, changes),
            Op::RequeueMany { filter, limit } => self.requeue_many(filter, *limit),
            Op::Schedule { queue, name, schedule } => self.schedule(queue, name, schedule),
            Op::Unschedule { queue, name } => self.unschedule(queue, name),
        }
    }

    /// The only op that may find out halfway that it is refused; a savepoint costs more than most ops.
    fn atomic(&mut self, ops: &[Op]) -> Try<Outcome> {
        let run = |sql: &str| self.conn.prepare_cached(sql)?.execute([]).map(drop);
        run("SAVEPOINT atomic")?;
        let (ordinal, told) = (self.cache.ordinal, self.cache.told.mark());
        self.cache.lines.open_undo();
        let mut outcomes = Vec::with_capacity(ops.len());
        for (i, op) in ops.iter().enumerate() {
            match self.apply(op) {
                Ok(outcome) => outcomes.push(outcome),
                Err(Fault::Refused(e)) => {
                    run("ROLLBACK TO atomic")?;
                    run("RELEASE atomic")?;
                    self.cache.lines.close_undo(false);
                    self.cache.ordinal = ordinal;
                    self.cache.told.back_to(told);
                    // Texts stored since are gone, and swept dedup keys are back.
                    self.cache.names.clear();
                    self.cache.sweep_ms = i64::MIN;
                    self.cache.places.rolled_back();
                    return Err(Fault::Refused(
                        e.during(format_args!("op {i} of the atomic, {}", op.name())),
                    ));
                }
                Err(broken) => return Err(broken),
            }
        }
        run("RELEASE atomic")?;
        self.cache.lines.close_undo(true);
        Ok(Outcome::Atomic(outcomes))
    }

    /// Whether this rule is broken on purpose.
    fn is_broken(&self, rule: Broken) -> bool {
        cfg!(feature = "broken") && self.broken == Some(rule)
    }

    /// The place in the order of enqueues for one more job of this commit.
    fn next_seq(&mut self) -> i64 {
        let seq = (self.commit_seq << 24) as i64 + self.cache.ordinal;
        self.cache.ordinal += 1;
        seq
    }
}
