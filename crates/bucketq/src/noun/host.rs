//! Which process of this host writes for a handle, as a value. No I/O.

use serde::{Deserialize, Serialize};

/// The part of a process among those of its host that use the same queue file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "role")]
pub enum HostRole {
    /// It writes for itself only.
    Alone {
        /// Why it does not share a writer, unless its options say so.
        reason: Option<String>,
    },
    /// It writes for itself and for the others of its host.
    Leads {
        /// For how long.
        since_ms: u64,
        /// The number of other processes that it writes for now.
        processes: u64,
    },
    /// Another process of its host writes for it.
    Joined {
        /// That process.
        leader: String,
        /// For how long that one has written for the others.
        since_ms: u64,
    },
}
