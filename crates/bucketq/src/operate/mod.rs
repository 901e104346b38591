//! What an operator does to a queue file as a whole, without its writer: check it, restore it, keep an image of it.
//!
//! Called by programs directly, and by the writer for images and for the history. Nothing here takes part in ordinary
//! commits; the only object written in a bucket is what a restore makes (P23).

mod check;
mod history;
mod image;
mod report;
mod restore;

pub use check::{check, check_with};
pub(crate) use history::history;
pub(crate) use image::export;
pub use report::{Problem, Report, Tally};
pub use restore::{Restored, restore, restore_with};
