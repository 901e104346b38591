//! The two ways an op can fail inside the db layer, kept apart by type.
//!
//! Used by every file here; never leaves the layer. A refusal happens before the op's first write, a break may
//! happen anywhere.

use crate::error::{Code, Error};

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
    /// Data that the schema does not allow.
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

/// SQLite's error as one of ours.
pub(super) fn from_sqlite(error: rusqlite::Error) -> Error {
    use rusqlite::ErrorCode;
    let (code, message) = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => (Code::FileFull, "the queue file has reached its size limit"),
        Some(ErrorCode::DatabaseCorrupt) => (Code::Corrupt, "the database is damaged"),
        Some(ErrorCode::NotADatabase) => (Code::Foreign, "this is not a SQLite database"),
        Some(_) => (Code::Internal, "SQLite failed"),
        // A column of an unexpected type: only a damaged or hostile database has one.
        None => (Code::Corrupt, "the database holds what its schema does not allow"),
    };
    Error::new(code, message).because(error)
}
