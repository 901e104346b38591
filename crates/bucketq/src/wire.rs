//! Bounds-checked reading and writing of the little-endian bytes that lie in the bucket.
//!
//! Called by head, segment and base. Every read that would pass the end is Corrupt, naming the field.

use crate::error::{Code, Error, Result};

/// XXH3-128 with seed 0: the hash of every object and frame.
pub fn hash(bytes: &[u8]) -> [u8; 16] {
    twox_hash::XxHash3_128::oneshot(bytes).to_le_bytes()
}

/// Whether a zstd frame of `frame` bytes can hold `claimed` bytes at all: no block has more than 128 KiB, and none takes
/// fewer than 4 bytes. Asked before anything is allocated for a claim.
pub fn can_hold(frame: usize, claimed: u64) -> bool {
    claimed <= (frame as u64 / 4) << 17
}

/// Appends fields to a buffer.
#[derive(Debug, Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    /// Eight bits.
    pub fn u8(&mut self, n: u8) {
        self.0.push(n);
    }
    /// Sixteen bits.
    pub fn u16(&mut self, n: u16) {
        self.0.extend_from_slice(&n.to_le_bytes());
    }
    /// Thirty-two bits.
    pub fn u32(&mut self, n: u32) {
        self.0.extend_from_slice(&n.to_le_bytes());
    }
    /// Sixty-four bits.
    pub fn u64(&mut self, n: u64) {
        self.0.extend_from_slice(&n.to_le_bytes());
    }
    /// Sixty-four bits, two's complement.
    pub fn i64(&mut self, n: i64) {
        self.0.extend_from_slice(&n.to_le_bytes());
    }
    /// Bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
    /// The hash of everything so far, as the trailer.
    pub fn seal(mut self) -> Vec<u8> {
        let sum = hash(&self.0);
        self.0.extend_from_slice(&sum);
        self.0
    }
}

/// Takes fields from a slice.
#[derive(Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    what: &'a str,
}

impl<'a> Reader<'a> {
    /// A reader of the object called `what` in errors.
    pub fn new(what: &'a str, bytes: &'a [u8]) -> Self {
        Self { bytes, what }
    }

    /// A reader of everything before the trailing hash, once that hash is found right.
    pub fn sealed(what: &'a str, bytes: &'a [u8]) -> Result<Self> {
        let Some((body, sum)) = bytes.split_last_chunk::<16>() else {
            return Err(corrupt(what, "it is shorter than its own hash"));
        };
        if hash(body) != *sum {
            return Err(corrupt(what, "its hash does not match its bytes"));
        }
        Ok(Self { bytes: body, what })
    }

    /// Corrupt, naming the object and the check.
    pub fn bad(&self, check: &str) -> Error {
        corrupt(self.what, check)
    }

    /// The next `n` bytes.
    pub fn raw(&mut self, n: usize, field: &str) -> Result<&'a [u8]> {
        if n > self.bytes.len() {
            return Err(self.bad(&format!("it ends within {field}")));
        }
        let (head, rest) = self.bytes.split_at(n);
        self.bytes = rest;
        Ok(head)
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self, field: &str) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.raw(N, field)?);
        Ok(out)
    }

    /// Eight bits.
    pub fn u8(&mut self, field: &str) -> Result<u8> {
        Ok(self.array::<1>(field)?[0])
    }
    /// Sixteen bits.
    pub fn u16(&mut self, field: &str) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array(field)?))
    }
    /// Thirty-two bits.
    pub fn u32(&mut self, field: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }
    /// Sixty-four bits.
    pub fn u64(&mut self, field: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }
    /// Sixty-four bits, two's complement.
    pub fn i64(&mut self, field: &str) -> Result<i64> {
        Ok(i64::from_le_bytes(self.array(field)?))
    }

    /// Nothing may be left over.
    pub fn end(&self) -> Result<()> {
        if self.bytes.is_empty() { Ok(()) } else { Err(self.bad("bytes are left over after its last field")) }
    }
}

/// Corrupt, naming the object and the check that failed.
pub fn corrupt(what: &str, check: &str) -> Error {
    Error::new(Code::Corrupt, format!("{what} is corrupt: {check}"))
}
