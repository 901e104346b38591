//! The database of a queue file in memory with a virtual clock, and the checks that must pass at every commit.

#![expect(clippy::missing_panics_doc, reason = "a helper of tests panics when the test has failed")]

use std::collections::BTreeMap;

use bucketq::error::{Error, Result};
use bucketq::internals::db::{self, Db, Limits, Moment};
use bucketq::job::{Claimed, Dedup, DedupScope, Job, JobId, New, Payload, State};
use bucketq::lease::Token;
use bucketq::op::{Claim, Held, Op, Outcome, Queues};
use bucketq::query::{Answer, Detail, Filter, Query, QueueInfo};
use rusqlite::Connection;

/// Time at which worlds begin.
pub const START_MS: i64 = 1_790_000_000_000;

/// The id with this number.
pub fn id(n: u32) -> JobId {
    let mut random = [0; 10];
    random[6..].copy_from_slice(&n.to_be_bytes());
    JobId::new(START_MS, random)
}

/// The token with this number; 0 is not a token.
pub fn token(n: u8) -> Token {
    Token([n; 16])
}

/// A job with a small payload.
pub fn job(n: u32) -> New {
    New::new(id(n), Payload::text(format!("payload {n}")))
}

/// The same job with a dedup key.
pub fn keyed(n: u32, key: &str, scope: DedupScope) -> New {
    New { dedup: Some(Dedup { key: key.into(), scope }), ..job(n) }
}

/// The same job in a group.
pub fn grouped(n: u32, group: &str) -> New {
    New { group: Some(group.into()), ..job(n) }
}

/// An enqueue of these jobs.
pub fn enqueue(queue: &str, jobs: impl IntoIterator<Item = New>) -> Op {
    Op::Enqueue { queue: queue.into(), jobs: jobs.into_iter().collect() }
}

/// A claim on one queue for a minute.
pub fn claim(queue: &str, max: u32, t: u8) -> Claim {
    Claim {
        queues: Queues::Named(vec![queue.into()]),
        max,
        lease_ms: Some(60_000),
        worker: "worker".into(),
        token: token(t),
        again: false,
    }
}

/// Proof of holding job `n` with token `t`.
pub fn held(n: u32, t: u8) -> Held {
    Held { id: id(n), token: token(t) }
}

/// A database with its clock; each op is its own commit unless noted.
#[derive(Debug)]
pub struct World {
    /// The database under test.
    pub db: Db,
    /// Time of the next commit.
    pub now_ms: i64,
    /// Number of the next commit.
    pub commit_seq: u64,
    /// Limits of every op.
    pub limits: Limits,
}

impl Default for World {
    fn default() -> Self {
        Self::on(Connection::open_in_memory().expect("SQLite opens"))
    }
}

impl World {
    /// A new queue file on this connection.
    pub fn on(conn: Connection) -> Self {
        conn.pragma_update(None, "page_size", 4096).expect("the page size is set");
        Self {
            db: Db::create(conn, START_MS).expect("the schema is made"),
            now_ms: START_MS,
            commit_seq: 1,
            limits: Limits { max_payload: 256 * 1024, max_pages: 262_144 },
        }
    }

    /// The commit being built.
    pub fn at(&self) -> Moment {
        Moment { now_ms: self.now_ms, commit_seq: self.commit_seq }
    }

    /// Let time pass.
    pub fn wait(&mut self, ms: i64) {
        self.now_ms += ms;
    }

    /// Apply one op in an open transaction.
    pub fn apply(&mut self, op: &Op) -> Result<Outcome> {
        let (at, limits) = (self.at(), self.limits);
        self.db.apply(op, &at, &limits)
    }

    /// Run one op as a commit, then check every invariant.
    pub fn run(&mut self, op: &Op) -> Result<Outcome> {
        self.db.begin().expect("begins");
        let outcome = self.apply(op);
        assert!(!self.db.poisoned(), "{op:?} broke the transaction: {outcome:?}");
        self.db.commit().expect("commits");
        self.commit_seq += 1;
        check(self.db.connection());
        outcome
    }

    /// Run an op that must succeed.
    pub fn ok(&mut self, op: &Op) -> Outcome {
        self.run(op).unwrap_or_else(|e| panic!("{op:?}: {e}"))
    }

    /// Run an op that must be refused and must change nothing.
    pub fn refused(&mut self, op: &Op) -> Error {
        let before = dump(self.db.connection());
        let error = match self.run(op) {
            Err(error) => error,
            Ok(outcome) => panic!("{op:?} was not refused: {outcome:?}"),
        };
        assert_eq!(before, dump(self.db.connection()), "{op:?} was refused and left a trace");
        error
    }

    /// Claim; returns the jobs.
    pub fn claim(&mut self, claim: Claim) -> Vec<Claimed> {
        match self.ok(&Op::Claim(claim)) {
            Outcome::Claimed(jobs) => jobs,
            other => panic!("a claim gave {other:?}"),
        }
    }

    /// Claim; returns the numbers of the jobs.
    pub fn claim_numbers(&mut self, claim: Claim) -> Vec<u32> {
        self.claim(claim).iter().map(|c| number(c.job.id)).collect()
    }

    /// One job.
    pub fn detail(&mut self, n: u32) -> Option<Detail> {
        match self.query(&Query::Get(id(n))) {
            Answer::Job(detail) => detail.map(|d| *d),
            other => panic!("a get gave {other:?}"),
        }
    }

    /// One existing job.
    pub fn job(&mut self, n: u32) -> Job {
        self.detail(n).unwrap_or_else(|| panic!("job {n} is gone")).job
    }

    /// The state of an existing job.
    pub fn state(&mut self, n: u32) -> State {
        self.job(n).state
    }

    /// Every job that passes the filter, in pages of three.
    pub fn list(&mut self, filter: &Filter) -> Vec<Job> {
        let (mut jobs, mut after) = (Vec::new(), None);
        loop {
            match self.query(&Query::List { filter: filter.clone(), after, limit: 3 }) {
                Answer::Page(page) => {
                    jobs.extend(page.jobs);
                    after = page.next;
                }
                other => panic!("a list gave {other:?}"),
            }
            if after.is_none() {
                return jobs;
            }
        }
    }

    /// One existing queue.
    pub fn queue(&mut self, name: &str) -> QueueInfo {
        match self.query(&Query::Queues) {
            Answer::Queues(queues) => {
                queues.into_iter().find(|q| q.name == name).unwrap_or_else(|| panic!("no queue {name}"))
            }
            other => panic!("queues gave {other:?}"),
        }
    }

    /// A query that must succeed.
    pub fn query(&mut self, query: &Query) -> Answer {
        let at = self.at();
        self.db.query(query, &at).unwrap_or_else(|e| panic!("{query:?}: {e}"))
    }
}

/// The number in an id made by [`id`].
pub fn number(id: JobId) -> u32 {
    let bytes = id.as_bytes();
    u32::from_be_bytes([bytes[12], bytes[13], bytes[14], bytes[15]])
}

/// All rows of every table, to compare two states.
pub fn dump(conn: &Connection) -> BTreeMap<String, Vec<String>> {
    let tables = [
        "meta",
        "queues",
        "names",
        "jobs",
        "bodies",
        "results",
        "attempts",
        "dedup",
        "policies",
        "schedules",
        "archives",
        "sessions",
        "expiries",
    ];
    tables
        .into_iter()
        .map(|table| (table.to_owned(), rows(conn, &format!("SELECT * FROM {table}"))))
        .collect()
}

fn rows(conn: &Connection, sql: &str) -> Vec<String> {
    let mut stmt = conn.prepare(sql).expect("prepares");
    let columns = stmt.column_count();
    stmt.query_map([], |row| {
        let cells: Vec<_> = (0..columns).map(|i| format!("{:?}|", row.get_ref_unwrap(i))).collect();
        Ok(cells.concat())
    })
    .expect("runs")
    .map(|row| row.expect("reads"))
    .collect()
}

/// Panic unless the file is sound.
pub fn check(conn: &Connection) {
    let violations = db::violations(conn, None);
    assert!(violations.is_empty(), "{violations:?}");
}
