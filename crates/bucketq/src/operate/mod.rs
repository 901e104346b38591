//! What is done to a queue file as a whole, without its writer: check it, restore it, keep an image of it, hold one commit
//! of it fast for those who analyse it.
//!
//! Called by programs directly, and by the writer for images and for the history. Nothing here takes part in ordinary
//! commits; what is written in a bucket is what a restore makes (P23), and what is put aside for a while.

mod check;
mod history;
mod image;
#[cfg(feature = "archive")]
mod pinned;
mod report;
mod restore;

pub use check::{check, check_with};
pub(crate) use history::history;
pub(crate) use image::export;
#[cfg(feature = "archive")]
pub use pinned::{Objects, Pinned};
pub use report::{Problem, Report, Tally};
pub use restore::{Restored, restore, restore_with};
