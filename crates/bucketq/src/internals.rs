//! Parts of the engine for its own tests, benchmarks and simulation. Not public: they change in any release.

#[cfg(feature = "archive")]
pub use crate::bucket::archive;
pub use crate::bucket::{base, head, keys, record, segment, wire};
pub use crate::engine::{commit, gap, local, settle};
pub use crate::host::{place, proof};
pub use crate::link::{client, frame, message};
pub use crate::noun::session;
pub use crate::state::{db, pages};
