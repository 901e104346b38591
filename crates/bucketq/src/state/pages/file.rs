//! A [`Pages`] with the one SQLite connection on it: opens and configures the connection, and resets its cache.
//!
//! Called by the writer, which owns the connection. This file and docs/decisions/0003-vfs.md decide what SQLite may do
//! with the pages; `vfs.rs` implements the access.

use std::ffi::c_int;
use std::sync::Arc;

use rusqlite::{Connection, OpenFlags, ffi};

use super::vfs::{self, SharedPages};
use super::{PAGE, Pages};
use crate::noun::error::{Code, Error, Result};

/// Limit for one value or one statement: the largest payload and some overhead.
const MAX_VALUE: c_int = 32 * 1024 * 1024;

/// Pages that SQLite may cache itself, 1 MiB: enough for the inner nodes and the hot end of each tree. It copies the
/// others from the store when needed, so that memory does not have every page twice.
const CACHE_PAGES: i32 = 256;

/// Statements kept prepared.
const STATEMENTS: usize = 128;

/// A [`Pages`] on which one SQLite connection can be opened. Clones share the file.
#[derive(Clone, Debug)]
pub struct PageFile(Arc<SharedPages>);

impl PageFile {
    /// Registers these pages under a unique name, as long as this value, a clone or a connection lives.
    pub fn new(pages: Pages) -> Self {
        Self(SharedPages::register(pages))
    }

    /// Opens the one connection; fails with Internal while another is open. Writes nothing, except that an empty file
    /// gets its first page, so that it can shrink later. The file grows to at most `max_pages` (or its current size).
    pub fn connect(&self, max_pages: u32) -> Result<Connection> {
        vfs::register()?;
        let empty = self.with(|pages| pages.page_count() == 0);
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags_and_vfs(self.0.name(), flags, vfs::NAME)
            .map_err(|e| failed("open", e))?;
        self.0.set_max_pages(max_pages);
        configure(&connection, max_pages, empty).map_err(|e| failed("configure", e))?;
        let page_size: i64 = connection
            .query_row("PRAGMA page_size", [], |row| row.get(0))
            .map_err(|e| failed("read the page size", e))?;
        if page_size != PAGE as i64 {
            return Err(Error::new(
                Code::Corrupt,
                format!("the database has pages of {page_size} bytes, not {PAGE}"),
            ));
        }
        Ok(connection)
    }

    /// Reads or changes the pages. Do not use the connection inside: it waits for the same lock.
    pub fn with<R>(&self, f: impl FnOnce(&mut Pages) -> R) -> R {
        f(&mut self.0.lock())
    }

    /// Drops the connection's page cache. Necessary after every undo and every delta of another writer, before the next
    /// statement: SQLite's own change counter may have its old value although the pages differ. Fails with Internal,
    /// and drops nothing, while a transaction or a statement is open.
    pub fn reset_cache(&self, connection: &Connection) -> Result<()> {
        if !vfs::idle(connection) {
            // SQLite would return "ok" here and do nothing.
            return Err(Error::bug("reset of the page cache inside a transaction"));
        }
        vfs::reset_page_cache(connection)?;
        if self.with(Pages::take_schema_moved) {
            // The cookie may have gone back and forth to the number that this connection knows.
            connection
                .execute_batch("PRAGMA writable_schema=RESET")
                .map_err(|e| failed("reset the schema", e))?;
        }
        Ok(())
    }
}

fn configure(connection: &Connection, max_pages: u32, empty: bool) -> rusqlite::Result<()> {
    use rusqlite::config::DbConfig;

    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false)?;
    for (limit, value) in [
        (ffi::SQLITE_LIMIT_LENGTH, MAX_VALUE),
        (ffi::SQLITE_LIMIT_SQL_LENGTH, 64 * 1024),
        (ffi::SQLITE_LIMIT_COLUMN, 100),
        (ffi::SQLITE_LIMIT_EXPR_DEPTH, 100),
        (ffi::SQLITE_LIMIT_COMPOUND_SELECT, 20),
        (ffi::SQLITE_LIMIT_VDBE_OP, 100_000),
        (ffi::SQLITE_LIMIT_FUNCTION_ARG, 16),
        (ffi::SQLITE_LIMIT_ATTACHED, 0),
        (ffi::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1_000),
        (ffi::SQLITE_LIMIT_VARIABLE_NUMBER, 1_000),
        (ffi::SQLITE_LIMIT_TRIGGER_DEPTH, 1),
        (ffi::SQLITE_LIMIT_WORKER_THREADS, 0),
    ] {
        vfs::limit(connection, limit, value);
    }
    connection.execute_batch(&format!(
        "PRAGMA journal_mode=MEMORY; PRAGMA cache_spill=OFF; PRAGMA temp_store=MEMORY; PRAGMA synchronous=OFF;
         PRAGMA foreign_keys=OFF; PRAGMA cell_size_check=ON; PRAGMA cache_size={CACHE_PAGES};
         PRAGMA max_page_count={max_pages}"
    ))?;
    if empty {
        // After the journal mode, because this writes: no journal file can be opened here.
        connection.execute_batch("PRAGMA page_size=4096; PRAGMA auto_vacuum=INCREMENTAL")?;
    }
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(())
}

fn failed(what: &str, error: rusqlite::Error) -> Error {
    let code = match error.sqlite_error_code() {
        Some(ffi::ErrorCode::DatabaseCorrupt | ffi::ErrorCode::NotADatabase) => Code::Corrupt,
        _ => Code::Internal,
    };
    Error::new(code, format!("cannot {what} the database in memory: {error}")).because(error)
}
