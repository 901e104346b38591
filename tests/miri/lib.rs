//! The safe part of `bucketq::pages`, from its own sources, under its own name.

#[path = "../../crates/bucketq/src/error.rs"]
pub mod error;

#[path = "../../crates/bucketq/src/pages"]
pub mod pages {
    mod checksum;
    mod delta;
    mod store;

    pub use checksum::Checksum;
    pub use delta::Delta;
    pub use store::{Changes, Image, Pages};

    pub const PAGE: usize = 4096;
    type Page = [u8; PAGE];
    const ZEROS: Page = [0; PAGE];
}
