//! Bounds-checked reading and writing of the little-endian bytes of objects.
//!
//! Called by head, segment and base. A read past the end is Corrupt and names the field.

use crate::noun::error::{Code, Error, Result};

/// XXH3-128 with seed 0: the hash of every object and frame.
pub fn hash(bytes: &[u8]) -> [u8; 16] {
    twox_hash::XxHash3_128::oneshot(bytes).to_le_bytes()
}

/// Returns whether a zstd frame of `frame` bytes can expand to `claimed` bytes: a block has at most 128 KiB and takes
/// at least 4 bytes. Checked before memory is allocated for a claim.
pub fn can_hold(frame: usize, claimed: u64) -> bool {
    claimed <= (frame as u64 / 4) << 17
}

/// Appends fields to a buffer.
#[derive(Debug, Default)]
pub struct ByteWriter(pub Vec<u8>);

impl ByteWriter {
    /// Appends eight bits.
    pub fn u8(&mut self, n: u8) {
        self.0.push(n);
    }
    /// Appends sixteen bits.
    pub fn u16(&mut self, n: u16) {
        self.0.extend_from_slice(&n.to_le_bytes());
    }
    /// Appends thirty-two bits.
    pub fn u32(&mut self, n: u32) {
        self.0.extend_from_slice(&n.to_le_bytes());
    }
    /// Appends sixty-four bits.
    pub fn u64(&mut self, n: u64) {
        self.0.extend_from_slice(&n.to_le_bytes());
    }
    /// Appends sixty-four bits, two's complement.
    pub fn i64(&mut self, n: i64) {
        self.0.extend_from_slice(&n.to_le_bytes());
    }
    /// Appends plain bytes.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
    /// Appends the hash of everything so far and returns the bytes.
    pub fn seal(mut self) -> Vec<u8> {
        let sum = hash(&self.0);
        self.0.extend_from_slice(&sum);
        self.0
    }
}

/// Takes fields from a slice.
#[derive(Debug)]
pub struct ByteReader<'a> {
    bytes: &'a [u8],
    what: &'a str,
}

impl<'a> ByteReader<'a> {
    /// Returns a reader of the object that errors call `what`.
    pub fn new(what: &'a str, bytes: &'a [u8]) -> Self {
        Self { bytes, what }
    }

    /// Checks the hash at the end and returns a reader of everything before it.
    pub fn sealed(what: &'a str, bytes: &'a [u8]) -> Result<Self> {
        let Some((body, sum)) = bytes.split_last_chunk::<16>() else {
            return Err(corrupt(what, "it is shorter than its own hash"));
        };
        if hash(body) != *sum {
            return Err(corrupt(what, "its hash does not match its bytes"));
        }
        Ok(Self { bytes: body, what })
    }

    /// Returns the Corrupt error for this object and check.
    pub fn bad(&self, check: &str) -> Error {
        corrupt(self.what, check)
    }

    /// Reads the next `n` bytes.
    pub fn raw(&mut self, n: usize, field: &str) -> Result<&'a [u8]> {
        if n > self.bytes.len() {
            return Err(self.bad(&format!("it ends within {field}")));
        }
        let (head, rest) = self.bytes.split_at(n);
        self.bytes = rest;
        Ok(head)
    }

    /// Reads the next `N` bytes.
    pub fn array<const N: usize>(&mut self, field: &str) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.raw(N, field)?);
        Ok(out)
    }

    /// Reads eight bits.
    pub fn u8(&mut self, field: &str) -> Result<u8> {
        Ok(self.array::<1>(field)?[0])
    }
    /// Reads sixteen bits.
    pub fn u16(&mut self, field: &str) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array(field)?))
    }
    /// Reads thirty-two bits.
    pub fn u32(&mut self, field: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }
    /// Reads sixty-four bits.
    pub fn u64(&mut self, field: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }
    /// Reads sixty-four bits, two's complement.
    pub fn i64(&mut self, field: &str) -> Result<i64> {
        Ok(i64::from_le_bytes(self.array(field)?))
    }

    /// Fails if bytes are left over.
    pub fn end(&self) -> Result<()> {
        if self.bytes.is_empty() { Ok(()) } else { Err(self.bad("bytes are left over after its last field")) }
    }
}

/// Returns a Corrupt error that names the object and the failed check.
pub fn corrupt(what: &str, check: &str) -> Error {
    Error::new(Code::Corrupt, format!("{what} is corrupt: {check}"))
}
