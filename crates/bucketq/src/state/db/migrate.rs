//! Versions of the schema: how a new file is created, and how an older one is migrated.
//!
//! A file is created with version 1 and then every step since, so a migrated file and a new one have the same schema to
//! the letter. The first op that a newer library applies migrates the file, in the commit of that op. Readers migrate
//! an older file in a transaction that is rolled back, so no other code knows that there were older ones.

use rusqlite::Connection;

use super::fault::from_sqlite;
use crate::noun::error::{Code, Error, Result};

const FIRST: &str = include_str!("schema/1.sql");
/// The steps from each version to the next, in order.
const STEPS: &[&str] = &[
    concat!(
        include_str!("schema/2_policies.sql"),
        include_str!("schema/2_archive.sql"),
        include_str!("schema/2_dedup.sql"),
        include_str!("schema/2_past.sql"),
    ),
    concat!(include_str!("schema/3_left.sql"), include_str!("schema/3_names.sql")),
    include_str!("schema/4_sessions.sql"),
    include_str!("schema/5_expiry.sql"),
    include_str!("schema/6_retention.sql"),
];

/// `PRAGMA user_version` of a queue file that this library writes.
pub const SCHEMA_VERSION: i32 = 1 + STEPS.len() as i32;

/// Creates the newest schema in an empty database, within a transaction.
pub(super) fn make(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch(FIRST)?;
    bring_up(conn, 1)
}

/// Migrates the schema from this version, within a transaction.
pub(super) fn bring_up(conn: &Connection, from: i32) -> rusqlite::Result<()> {
    for step in STEPS.iter().skip(usize::try_from(from - 1).unwrap_or(usize::MAX)) {
        conn.execute_batch(step)?;
    }
    conn.pragma_update(None, "user_version", SCHEMA_VERSION)
}

/// Returns the version of the schema.
pub(super) fn version(conn: &Connection) -> Result<i32> {
    let version = conn.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(from_sqlite)?;
    if version < 1 {
        return Err(Error::new(Code::Corrupt, format!("schema version {version} never existed")));
    }
    Ok(version)
}

/// Reads the database as if it were migrated. The migration is rolled back, so the caller must drop its cache.
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
