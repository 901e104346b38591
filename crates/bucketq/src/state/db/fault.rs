//! The two ways in which an op can fail inside the db layer, separated by type.
//!
//! Used by every file here; never leaves the layer. A refusal happens before the op's first write, a failure may happen
//! anywhere.

use crate::noun::error::{Code, Error};

/// Why an op did not happen.
#[derive(Debug)]
pub(super) enum Fault {
    /// The op is refused; it has written nothing.
    Refused(Error),
    /// SQLite or the data failed; the transaction is unusable.
    Broken(Error),
}

pub(super) type Try<T> = Result<T, Fault>;

impl Fault {
    /// Returns the fault for data that the schema does not allow.
    pub fn corrupt(what: impl Into<String>) -> Self {
        Self::Broken(Error::new(Code::Corrupt, what))
    }

    pub fn into_error(self) -> Error {
        match self {
            Self::Refused(e) | Self::Broken(e) => e,
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Broken(from_sqlite(error))
    }
}

/// The message when SQLite itself finds no page left.
const FULL: &str =
    "the queue file is full: delete finished jobs (purge), keep fewer (keep), or raise the option max_file";

/// Converts SQLite's error to one of ours.
pub(super) fn from_sqlite(error: rusqlite::Error) -> Error {
    use rusqlite::ErrorCode;
    if let rusqlite::Error::FromSqlConversionFailure(.., cause) = &error
        && let Some(ours) = cause.downcast_ref::<Error>()
    {
        return Error::new(ours.code(), ours.message());
    }
    let (code, message) = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => (Code::FileFull, FULL),
        Some(ErrorCode::DatabaseCorrupt) => (Code::Corrupt, "the database is damaged"),
        Some(ErrorCode::NotADatabase) => (Code::Foreign, "this is not a SQLite database"),
        Some(_) => (Code::Internal, "SQLite failed"),
        // A column of an unexpected type: only a damaged or hostile database has one.
        None => (Code::Corrupt, "the database holds what its schema does not allow"),
    };
    Error::new(code, message).because(error)
}
