//! An archive object: finished runs as an immutable Parquet file. docs/archive.md has the columns. Jobs of the queue
//! file take the same form on their way to another program.
//!
//! Called by the writer's archiver (writes them) and by programs that read an archive through this crate. Knows neither
//! the store nor the database: rows in, bytes out, and back.

mod columns;
mod read;
mod write;

pub use columns::{COLUMNS, ColumnKind, Means, WholeJob};
pub use read::{About, decode};
pub use write::{encode, encode_jobs};

/// Version of the columns, in the object's metadata under `bucketq.archive`. A later version only adds columns.
pub const VERSION: u32 = 1;

/// Keys of the object's own metadata.
const META_VERSION: &str = "bucketq.archive";
const META_FILE: &str = "bucketq.file_id";
const META_SEQ: &str = "bucketq.commit_seq";

fn internal(error: parquet::errors::ParquetError) -> crate::noun::error::Error {
    let told = "an archive object could not be written";
    crate::noun::error::Error::bug(told).because(error)
}
