//! The right to work on a job until it expires: token, fencing token, deadline. No I/O.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Random proof of a lease. All jobs of one claim share the claim's token; the token and the job's id are the proof.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Token(pub [u8; 16]);

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({self})")
    }
}

impl std::str::FromStr for Token {
    type Err = crate::noun::error::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed =
            if text.len() == 32 && text.is_ascii() { u128::from_str_radix(text, 16).ok() } else { None };
        parsed
            .map(|n| Self(n.to_be_bytes()))
            .ok_or_else(|| crate::noun::error::Error::invalid("a lease token must be 32 hexadecimal digits"))
    }
}

/// The end, in commit time, of a lease that never runs out: a time in the year 6429, the latest that takes no more
/// space in a row than today's times. A claim requests such a lease with the same number.
pub const FOREVER_MS: i64 = (1 << 47) - 1;

/// A lease as the database has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Proof of the lease.
    pub token: Token,
    /// When the job becomes claimable again, in commit time.
    pub expires_ms: i64,
    /// The fencing token: `commit_seq` of the claim. Grows with every claim of the job, to guard outside resources.
    pub fence: u64,
    /// How long its holder may work on the job, by the policy of the queue: then it ends the attempt as failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_run_ms: Option<i64>,
}

/// The error text of an attempt that took longer than it may.
pub const TIMED_OUT: &str = "timed out";
