//! Versions of the schema: what a new file is made of, and how an older one becomes the newest.
//!
//! A file is made of version 1 and then of every step since, so a migrated file and a new one have the same schema to
//! the letter. The first op that a newer library applies brings the file up, in the commit of that op; who may not
//! write sees an older file through a migration that is rolled back, so nothing else knows that there were older ones.

use rusqlite::Connection;

use super::fault::from_sqlite;
use crate::error::{Code, Error, Result};

const FIRST: &str = include_str!("schema/1.sql");
/// What brings a file from each version to the next, the first version first.
const STEPS: &[&str] = &[concat!(
    include_str!("schema/2_policies.sql"),
    include_str!("schema/2_archive.sql"),
    include_str!("schema/2_dedup.sql"),
    include_str!("schema/2_past.sql"),
)];

/// `PRAGMA user_version` of a queue file that this library writes.
pub const SCHEMA_VERSION: i32 = 1 + STEPS.len() as i32;

/// Make the newest schema in an empty database, within a transaction.
pub(super) fn make(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch(FIRST)?;
    bring_up(conn, 1)
}

/// Bring the schema up from this version, within a transaction.
pub(super) fn bring_up(conn: &Connection, from: i32) -> rusqlite::Result<()> {
    for step in STEPS.iter().skip(usize::try_from(from - 1).unwrap_or(usize::MAX)) {
        conn.execute_batch(step)?;
    }
    conn.pragma_update(None, "user_version", SCHEMA_VERSION)
}

/// The version of the schema.
pub(super) fn version(conn: &Connection) -> Result<i32> {
    let version = conn.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(from_sqlite)?;
    if version < 1 {
        return Err(Error::new(Code::Corrupt, format!("schema version {version} never existed")));
    }
    Ok(version)
}

/// Look at the database as it is once it is brought up. Nothing stays of it: what was remembered meanwhile is to be
/// forgotten.
pub(super) fn as_newest<T>(conn: &Connection, look: impl FnOnce() -> T) -> Result<T> {
    let from = version(conn)?;
    if from >= SCHEMA_VERSION || !conn.is_autocommit() {
        return Ok(look());
    }
    conn.execute_batch("BEGIN").map_err(from_sqlite)?;
    let found = bring_up(conn, from).map(|()| look());
    conn.execute_batch("ROLLBACK").map_err(from_sqlite)?;
    found.map_err(from_sqlite)
}
