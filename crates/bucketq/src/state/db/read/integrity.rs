//! Checks the rules that hold for the database at every commit: SQLite's own check, then the rules of the schema that
//! no constraint expresses.
//!
//! Called when a queue file is checked and before an image is restored; the tests run it after every op. Reads
//! everything and writes nothing.

use std::collections::BTreeSet;

use rusqlite::Connection;

use crate::noun::error::Result;
use crate::state::db::columns::{row, sql};
use crate::state::db::fault::from_sqlite;
use crate::state::db::{APPLICATION_ID, SCHEMA_VERSION, migrate};

/// Most violations reported for one rule; a damaged file breaks some rules thousands of times.
const TOLD: usize = 10;

/// Each query finds violations of its rule, as one column for people. Each table is read a fixed number of times.
const RULES: &[(&str, &str)] = &[
    (
        "each counter of a queue equals its number of jobs",
        "SELECT 'queue ' || q.name FROM queues q LEFT JOIN (
           SELECT queue, count(*) FILTER (WHERE state = 2) AS a, count(*) FILTER (WHERE state = 3) AS b,
                  count(*) FILTER (WHERE state = 4) AS c, count(*) FILTER (WHERE state = 5) AS d,
                  count(*) FILTER (WHERE state = 6) AS e, count(*) FILTER (WHERE state = 7) AS f
           FROM jobs GROUP BY queue) j ON j.queue = q.id
         WHERE (scheduled, ready, leased, done, dead, cancelled) IS NOT
               (ifnull(a, 0), ifnull(b, 0), ifnull(c, 0), ifnull(d, 0), ifnull(e, 0), ifnull(f, 0))",
    ),
    (
        "every job belongs to a queue that is not deleted",
        "SELECT 'job ' || seq FROM jobs WHERE queue NOT IN (SELECT id FROM queues WHERE paused <> 3)",
    ),
    (
        "states are known",
        "SELECT 'job ' || seq FROM jobs WHERE state NOT BETWEEN 2 AND 7 OR tries < 2 OR blocked NOT IN (0, 1)",
    ),
    (
        "a job without a group is not blocked",
        "SELECT 'job ' || seq FROM jobs WHERE group_name IS NULL AND blocked <> 0",
    ),
    (
        "in each group the first unfinished jobs are not blocked, and no more than its queue allows",
        // While `group_concurrency` is being raised, they may be fewer.
        "SELECT 'job ' || seq FROM (
           SELECT j.seq, j.blocked, row_number() OVER members AS place, lag(blocked, 1, 0) OVER members AS before,
                  ifnull((SELECT policy ->> 'group_concurrency' FROM policies p WHERE p.queue = j.queue), 1) AS most,
                  ifnull((SELECT policy ->> 'group_batch' FROM policies p WHERE p.queue = j.queue), 1) AS batch,
                  state = 4 AS leased, max(state = 4) OVER (PARTITION BY j.queue, j.group_name) AS any_leased
           FROM jobs j NOT INDEXED WHERE group_name IS NOT NULL AND state <= 4
           WINDOW members AS (PARTITION BY j.queue, j.group_name ORDER BY j.seq))
         WHERE iif(batch > 1 AND any_leased, blocked = leased OR (leased AND place > batch),
                   blocked < before OR blocked < (place > most) OR blocked > (place > 1))",
    ),
    ("no blocked job is leased", "SELECT 'job ' || seq FROM jobs WHERE state = 4 AND blocked = 1"),
    (
        "jobs of a queue with overflow drop_oldest are marked for it",
        "SELECT 'job ' || seq FROM jobs j WHERE state <= 3 AND bounded < ifnull(
           (SELECT policy ->> 'overflow' = 'drop_oldest' FROM policies p WHERE p.queue = j.queue), 0)",
    ),
    (
        "every policy belongs to a queue and is valid",
        "SELECT 'queue ' || queue FROM policies WHERE queue NOT IN (SELECT id FROM queues) OR NOT json_valid(policy)",
    ),
    (
        "every schedule belongs to a queue and is valid",
        "SELECT 'schedule ' || name FROM schedules
         WHERE queue NOT IN (SELECT id FROM queues) OR NOT json_valid(schedule)",
    ),
    (
        "every payload is in the column of its kind and has the stated length",
        "SELECT 'job ' || seq FROM jobs WHERE NOT ifnull(iif(payload_kind = 0,
           body IS NULL AND length(payload) = payload_len,
           payload IS NULL AND payload_len = (SELECT length(bytes) FROM bodies WHERE id = body)), 0)",
    ),
    (
        "every large payload belongs to a job",
        "SELECT 'body ' || id FROM bodies WHERE id NOT IN (SELECT body FROM jobs WHERE body IS NOT NULL)",
    ),
    (
        "every result belongs to a job that is done",
        "SELECT 'result ' || seq FROM results WHERE seq NOT IN (SELECT seq FROM jobs WHERE state = 5)",
    ),
    (
        "every attempt has a job, a queue and an outcome",
        "SELECT 'attempt of ' || seq FROM attempts a WHERE seq NOT IN (SELECT seq FROM jobs)
           OR queue NOT IN (SELECT id FROM queues) OR worker NOT IN (SELECT id FROM names)
           OR ended NOT BETWEEN 2 AND 10 OR run > (SELECT run FROM jobs j WHERE j.seq = a.seq)",
    ),
    (
        "every claimed job has a lease token",
        "SELECT 'job ' || seq FROM jobs WHERE (tries > 2 OR state = 4) AND token = zeroblob(16)",
    ),
    (
        "every dedup key without a window belongs to a job",
        "SELECT 'key ' || key FROM dedup WHERE until_ms IS NULL AND (seq, id) NOT IN (SELECT seq, id FROM jobs)",
    ),
    (
        "no queue has a dedup key twice",
        "SELECT 'key ' || key FROM dedup GROUP BY queue, key HAVING count(*) > 1",
    ),
    (
        "no unfinished job has a place in the order of finishing",
        "SELECT 'job ' || seq FROM jobs WHERE state <= 4 AND finish_seq <> seq",
    ),
    (
        "no two jobs have one place in the order of finishing, and its times never fall",
        "WITH ended AS (SELECT seq, finish_seq, ends_ms FROM jobs WHERE state >= 5
           UNION ALL SELECT seq, finish_seq, ends_ms FROM past)
         SELECT 'job ' || max(seq) FROM ended GROUP BY finish_seq HAVING count(*) > 1
         UNION ALL SELECT 'job ' || seq FROM (SELECT seq, ends_ms, max(ends_ms) OVER (ORDER BY finish_seq) AS before
           FROM ended) WHERE ends_ms < before",
    ),
    (
        // Its job may be deleted and enqueued again with the same id.
        "every earlier run has a queue, an end and a later run",
        "SELECT 'past life at ' || place FROM past WHERE queue NOT IN (SELECT id FROM queues)
           OR state NOT BETWEEN 5 AND 7 OR worker NOT IN (SELECT id FROM names) OR seq >= place",
    ),
    (
        "every archive object has a queue and a valid range of finished jobs",
        "SELECT 'archive object ' || id FROM archives WHERE queue NOT IN (SELECT id FROM queues)
           OR jobs < 1 OR jobs > last_seq - first_seq + 1 OR first_ms > last_ms OR seq >= listed_seq
           OR length(file) <> 4 OR length(rand) <> 8 OR length(hash) <> 16",
    ),
    (
        "every remembered id is complete and belongs to no job",
        "WITH RECURSIVE one(place, bucket, ids, n) AS (
           SELECT place, bucket, ids, 1 FROM left_ids
           UNION ALL SELECT place, bucket, ids, n + 15 FROM one WHERE n + 15 < length(ids))
         SELECT 'remembered ids at ' || place FROM left_ids WHERE length(ids) = 0 OR length(ids) % 15 <> 0
         UNION ALL SELECT 'job ' || seq FROM one
           JOIN jobs ON jobs.id = unhex(printf('%010X', bucket) || hex(substr(ids, n, 11)))",
    ),
    (
        "every shared text that a job refers to exists",
        "SELECT 'job ' || seq FROM jobs WHERE worker NOT IN (SELECT id FROM names)
           OR backoff NOT IN (SELECT id FROM names) OR content_type NOT IN (SELECT id FROM names)
         UNION ALL SELECT 'result ' || seq FROM results WHERE content_type NOT IN (SELECT id FROM names)
         UNION ALL SELECT 'past life at ' || place FROM past
           WHERE result_type IS NOT NULL AND result_type NOT IN (SELECT id FROM names)",
    ),
];

/// Every row that mentions commits, with the newest of them.
const OF_COMMITS: &str = "SELECT 'job ' || seq AS what, max(seq >> 24, fence, finish_seq >> 24) AS commit_seq FROM jobs
     UNION ALL SELECT 'past life at ' || place, max(place >> 24, fence, finish_seq >> 24) FROM past
     UNION ALL SELECT 'key ' || key, seq >> 24 FROM dedup
     UNION ALL SELECT 'archive object ' || id, max(seq, last_seq >> 24, listed_seq, ifnull(dropped_seq, 0)) FROM archives";

/// A rule of the database that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule.
    pub rule: &'static str,
    /// The row or value that breaks it.
    pub what: String,
}

/// Returns what is wrong with the database of a queue file; empty if it is sound. `newest` is the commit of the
/// database, if it is known: no row may mention a later one.
pub fn violations(conn: &Connection, newest: Option<u64>) -> Vec<Violation> {
    let mut found = vec![];
    let pragma = |name| conn.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
    match pragma("application_id") {
        Ok(APPLICATION_ID) => {}
        Ok(other) => found.push(Violation {
            rule: "application_id marks a queue file",
            what: format!("it is {other:#x} and not {APPLICATION_ID:#x}"),
        }),
        Err(error) => found.push(unreadable(&error)),
    }
    gather(conn, "SQLite finds no damage", "PRAGMA integrity_check(10)", &mut found);
    found.retain(|f| f.what != "ok");
    // A newer schema may have other rules, and a damaged tree would break every rule.
    let known = pragma("user_version").is_ok_and(|version| (1..=SCHEMA_VERSION).contains(&version));
    if !known || !found.is_empty() {
        return found;
    }
    let rules = migrate::as_newest(conn, || {
        let mut broken = vec![];
        for (rule, sql) in RULES {
            gather(conn, rule, sql, &mut broken);
        }
        if let Some(newest) = newest {
            let sql = format!("SELECT what FROM ({OF_COMMITS}) WHERE commit_seq > {newest}");
            gather(conn, "no row is of a later commit", &sql, &mut broken);
        }
        broken
    });
    match rules {
        Ok(broken) => found.extend(broken),
        Err(error) => {
            found.push(Violation { rule: "the schema can be upgraded", what: error.message().into() });
        }
    }
    found
}

/// Returns the number of jobs, and the newest commit that any row mentions.
pub fn extent(conn: &Connection) -> Result<(u64, u64)> {
    row! {
        struct Extent {
            jobs: i64 = "(SELECT count(*) FROM jobs)",
            newest: i64 = sql!("ifnull((SELECT max(commit_seq) FROM (", OF_COMMITS, ")), 0)"),
        }
    }
    let look = || conn.query_row(sql!("SELECT ", Extent::COLUMNS), [], Extent::read);
    let extent = migrate::as_newest(conn, look)?.map_err(from_sqlite)?;
    Ok((extent.jobs as u64, extent.newest as u64))
}

/// Returns every table and index by name, with its statement, once the schema is migrated.
pub fn schema(conn: &Connection) -> Result<BTreeSet<(String, String)>> {
    row! { struct SchemaEntry { name: String, sql: String = "ifnull(sql, '')" } }
    migrate::as_newest(conn, || {
        let mut stmt = conn.prepare(sql!("SELECT ", SchemaEntry::COLUMNS, " FROM sqlite_schema"))?;
        let named = |row: &rusqlite::Row<'_>| SchemaEntry::read(row).map(|entry| (entry.name, entry.sql));
        stmt.query_map([], named)?.collect::<rusqlite::Result<_>>()
    })?
    .map_err(from_sqlite)
}

fn gather(conn: &Connection, rule: &'static str, sql: &str, found: &mut Vec<Violation>) {
    let mut told = || -> rusqlite::Result<()> {
        let mut stmt = conn.prepare(sql)?;
        let mut rows = stmt.query([])?;
        while let Some(row) = rows.next()? {
            if found.iter().filter(|f| f.rule == rule).count() == TOLD {
                found.push(Violation { rule, what: "and more".into() });
                break;
            }
            let what = row.get::<_, Option<String>>(0)?.unwrap_or_default();
            found.push(Violation { rule, what });
        }
        Ok(())
    };
    if let Err(error) = told() {
        found.push(Violation { rule, what: error.to_string() });
    }
}

fn unreadable(error: &rusqlite::Error) -> Violation {
    Violation { rule: "SQLite can read it", what: error.to_string() }
}
