//! The safe part of `bucketq::internals::pages`, from its own sources, as a crate of the same name.

#[path = "../../crates/bucketq/src/noun"]
pub mod noun {
    pub mod error;
}

#[path = "../../crates/bucketq/src/state/pages"]
pub mod pages {
    mod checksum;
    mod delta;
    mod store;

    pub use checksum::Checksum;
    pub use delta::Delta;
    pub use store::{Image, PageChanges, Pages};

    pub const PAGE: usize = 4096;
    type PageBytes = [u8; PAGE];
    const ZEROS: PageBytes = [0; PAGE];
}

pub use noun::error;

pub mod internals {
    pub use crate::pages;
}
