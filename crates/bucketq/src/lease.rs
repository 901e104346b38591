//! The right to work a job until it expires: token, fence, deadline. No I/O.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Random proof of a lease. All jobs of one claim share the claim's token; with the job's id it is the proof.
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
    type Err = crate::error::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed =
            if text.len() == 32 && text.is_ascii() { u128::from_str_radix(text, 16).ok() } else { None };
        parsed
            .map(|n| Self(n.to_be_bytes()))
            .ok_or_else(|| crate::error::Error::invalid("a lease token is 32 hexadecimal digits"))
    }
}

/// The end, in commit time, of a lease that never runs out: a time in the year 6429, the latest that takes no more room
/// in a row than one of today. Asked for by the same number.
pub const FOREVER_MS: i64 = (1 << 47) - 1;

/// A live lease as the state knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Proof of holding it.
    pub token: Token,
    /// When the job becomes claimable again, in commit time.
    pub expires_ms: i64,
    /// `commit_seq` of the claim: grows with every claim of the job, for guarding outside resources.
    pub fence: u64,
}
