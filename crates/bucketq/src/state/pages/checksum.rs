//! One number for the whole database, updated page by page: writers compare it after every catch-up.
//!
//! Called by the page store. Protects against faults, not against forgers: anyone who can write to the bucket can also
//! write a matching checksum.

use std::fmt;

use twox_hash::XxHash3_128;

use super::PAGE;

/// XOR over all pages of XXH3-128 of the page with its number, counted from 1, as the seed; little-endian.
/// A database without pages has zero.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Checksum(pub [u8; 16]);

impl Checksum {
    /// Adds one page to this checksum, or removes it if it was added before.
    pub(super) fn toggle(&mut self, number: u32, page: &[u8; PAGE]) {
        let mixed = u128::from_le_bytes(self.0) ^ XxHash3_128::oneshot_with_seed(u64::from(number), page);
        self.0 = mixed.to_le_bytes();
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Checksum({self})")
    }
}
