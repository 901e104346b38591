//! The objects in the bucket, byte by byte: names of objects, HEAD, records, segments, bases, archive objects.
//!
//! Pure: bytes in, values out. docs/format.md describes every byte.

#[cfg(feature = "archive")]
pub mod archive;
pub mod base;
pub mod head;
pub mod keys;
pub mod record;
pub mod segment;
pub mod wire;
