//! The database as a list of pages in memory, and SQLite on top of it.
//!
//! The writer runs SQL on a [`PageFile`], takes the [`PageChanges`] of each commit and sends them as a [`Delta`]. When
//! it loses a race it undoes them and applies the winners' deltas. [`Pages`], [`Delta`] and [`Checksum`] are safe code
//! and know nothing of SQLite; `vfs.rs` is the only unsafe code of the crate. No code here may know of buckets, jobs or
//! the clock.

mod checksum;
mod delta;
mod file;
mod store;
mod vfs;

pub use checksum::Checksum;
pub use delta::Delta;
pub use file::PageFile;
pub use store::{Image, PageChanges, Pages};

/// Bytes of a page.
pub const PAGE: usize = 4096;

type PageBytes = [u8; PAGE];

/// The content of a page before the first write.
const ZEROS: PageBytes = [0; PAGE];
