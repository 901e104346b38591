//! What lies in an archive object: finished lives as an immutable Parquet file. docs/archive.md has the columns.
//!
//! Called by the writer's archiver (writes them) and by whoever reads an archive through this crate. Knows neither the
//! store nor the database: rows in, bytes out, and back.

mod columns;
mod read;
mod write;

pub use columns::{COLUMNS, Kind, Means};
pub use read::{About, decode};
pub use write::encode;

/// Version of the columns, in the object's metadata under `bucketq.archive`. A later version only adds columns.
pub const VERSION: u32 = 1;

/// Keys of the object's own metadata.
const META_VERSION: &str = "bucketq.archive";
const META_FILE: &str = "bucketq.file_id";
const META_SEQ: &str = "bucketq.commit_seq";

fn internal(error: parquet::errors::ParquetError) -> crate::error::Error {
    let told = "an archive object could not be written";
    crate::error::Error::new(crate::error::Code::Internal, told).because(error)
}
