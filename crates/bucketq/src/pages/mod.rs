//! The database as a list of pages in memory, and SQLite on top of it.
//!
//! The writer runs SQL on a [`PageFile`], takes the [`Changes`] of each commit, ships them as a [`Delta`], undoes
//! them when the race was lost and applies the winners' deltas. [`Pages`], [`Delta`] and [`Checksum`] are safe code
//! and know nothing of SQLite; `vfs.rs` is the only unsafe code of the crate.
//! Nothing here may know of buckets, jobs or the clock.

mod checksum;
mod delta;
mod file;
mod store;
mod vfs;

pub use checksum::Checksum;
pub use delta::Delta;
pub use file::PageFile;
pub use store::{Changes, Image, Pages};

/// Bytes of a page.
pub const PAGE: usize = 4096;

type Page = [u8; PAGE];

/// What a page is before anything is written to it.
const ZEROS: Page = [0; PAGE];
