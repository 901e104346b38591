//! Operations on a whole queue file, without its writer: check it, restore it, fix its time, change its `max_skew`, read one commit of it.
//!
//! Called by programs directly, and not part of ordinary commits. In the bucket, these write only a restored state
//! (P23) and temporary objects.

mod check;
mod fix_time;
mod image;
mod max_skew;
#[cfg(feature = "archive")]
mod pinned;
mod report;
mod restore;

pub use check::{check, check_with};
pub use fix_time::{FixedTime, fix_time, fix_time_with};
pub use max_skew::{ChangedSkew, set_max_skew, set_max_skew_with};
#[cfg(feature = "archive")]
pub use pinned::{Objects, Pinned};
pub use report::{Problem, Report, Tally};
pub use restore::{Restored, restore, restore_with};
