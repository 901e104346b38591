//! The names of the objects of a queue file. No key is ever a path prefix of another (P12).

use crate::head::{BASE, Retired};

/// First four bytes of the file id as eight hexadecimal digits.
pub fn file8(file_id: &[u8; 16]) -> String {
    hex(&file_id[..4])
}

/// The only object ever overwritten.
pub fn head(name: &str) -> String {
    format!("{name}.head")
}

/// A full image as of commit `seq`.
pub fn base(name: &str, file_id: &[u8; 16], seq: u64, rand: &[u8; 8]) -> String {
    format!("{name}.base-{}-{seq:016x}-{}", file8(file_id), hex(rand))
}

/// What every base of this name begins with.
pub fn base_prefix(name: &str) -> String {
    format!("{name}.base-")
}

/// The deltas of commits `from` to `to`.
pub fn segment(name: &str, file_id: &[u8; 16], from: u64, to: u64, rand: &[u8; 8]) -> String {
    format!("{name}.seg-{}-{from:016x}-{to:016x}-{}", file8(file_id), hex(rand))
}

/// An object that is written once, by its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object {
    /// See [`base`].
    Base {
        /// The commit it shows.
        seq: u64,
        /// The random part.
        rand: [u8; 8],
    },
    /// See [`segment`].
    Segment {
        /// First commit.
        from: u64,
        /// Last commit.
        to: u64,
        /// The random part.
        rand: [u8; 8],
    },
}

impl Object {
    /// The base or segment of this file with this key; none for everything else.
    pub fn parse(name: &str, file_id: &[u8; 16], key: &str) -> Option<Self> {
        let rest = key.strip_prefix(name)?.strip_prefix('.')?;
        let parts: Vec<&str> = rest.split('-').collect();
        let object = match parts[..] {
            ["base", _, seq, rand] => Self::Base { seq: number(seq)?, rand: number(rand)?.to_be_bytes() },
            ["seg", _, from, to, rand] => {
                Self::Segment { from: number(from)?, to: number(to)?, rand: number(rand)?.to_be_bytes() }
            }
            _ => return None,
        };
        // The same letters, so that no other spelling of a number passes.
        (object.key(name, file_id) == key).then_some(object)
    }

    /// Its key.
    pub fn key(&self, name: &str, file_id: &[u8; 16]) -> String {
        match self {
            Self::Base { seq, rand } => base(name, file_id, *seq, rand),
            Self::Segment { from, to, rand } => segment(name, file_id, *from, *to, rand),
        }
    }

    /// The number that the floor is compared with (P13).
    pub fn seq(&self) -> u64 {
        match *self {
            Self::Base { seq, .. } => seq,
            Self::Segment { to, .. } => to,
        }
    }
}

impl From<Retired> for Object {
    fn from(r: Retired) -> Self {
        match r.kind {
            BASE => Self::Base { seq: r.seq, rand: r.rand },
            _ => Self::Segment { from: r.from, to: r.seq, rand: r.rand },
        }
    }
}

/// Sixteen digits.
fn number(digits: &str) -> Option<u64> {
    u64::from_str_radix(digits, 16).ok()
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut out, b| {
        let _ = write!(out, "{b:02x}");
        out
    })
}
