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

/// What every object of this name begins with.
pub fn prefix(name: &str) -> String {
    format!("{name}.")
}

/// The deltas of commits `from` to `to`.
pub fn segment(name: &str, file_id: &[u8; 16], from: u64, to: u64, rand: &[u8; 8]) -> String {
    format!("{name}.seg-{}-{from:016x}-{to:016x}-{}", file8(file_id), hex(rand))
}

/// Finished lives that were read at commit `seq`. `file8` is that of the file that made it.
pub fn archive(name: &str, file8: &str, seq: u64, rand: &[u8; 8]) -> String {
    format!("{name}.arch-{file8}-{seq:016x}-{}.parquet", hex(rand))
}

/// Something put aside at this time, by the clock of who did it. What belongs together shares the `group`.
pub fn stage(name: &str, file_id: &[u8; 16], group: &[u8; 8], ms: i64, rand: &[u8; 8]) -> String {
    format!("{}{ms:016x}-{}.parquet", stage_prefix(name, file_id, group), hex(rand))
}

/// What everything put aside by a group begins with.
pub fn stage_prefix(name: &str, file_id: &[u8; 16], group: &[u8; 8]) -> String {
    format!("{name}.stage-{}-{}-", file8(file_id), hex(group))
}

/// For so long what was put aside is left to those who did it: longer than any of them should take.
pub const STAGED_MS: i64 = 7 * 24 * 3_600_000;

/// What an object beside HEAD is.
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
    /// See [`archive`].
    Archive {
        /// The commit its rows were read at.
        seq: u64,
        /// The random part.
        rand: [u8; 8],
    },
    /// See [`stage`].
    Stage {
        /// What it belongs to.
        group: [u8; 8],
        /// When it was put aside.
        ms: i64,
        /// The random part.
        rand: [u8; 8],
    },
}

/// What a key says: whose the object is, and what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The beginning of the file id, as [`file8`] gives it.
    pub file8: String,
    /// What it is.
    pub object: Object,
}

/// What the key of an object beside HEAD of this name says; none for every other key, HEAD's included.
pub fn parse(name: &str, key: &str) -> Option<Named> {
    let rest = key.strip_prefix(name)?.strip_prefix('.')?;
    let parts: Vec<&str> = rest.split('-').collect();
    let digits = |text: &str, n: usize| {
        text.len() == n && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let number = |text: &str| digits(text, 16).then(|| u64::from_str_radix(text, 16).ok()).flatten();
    let (file8, object) = match parts[..] {
        ["base", file8, seq, rand] => {
            (file8, Object::Base { seq: number(seq)?, rand: number(rand)?.to_be_bytes() })
        }
        ["seg", file8, from, to, rand] => {
            let rand = number(rand)?.to_be_bytes();
            (file8, Object::Segment { from: number(from)?, to: number(to)?, rand })
        }
        ["arch", file8, seq, rand] => {
            let rand = number(rand.strip_suffix(".parquet")?)?.to_be_bytes();
            (file8, Object::Archive { seq: number(seq)?, rand })
        }
        ["stage", file8, group, ms, rand] => {
            let (group, ms) = (number(group)?.to_be_bytes(), i64::try_from(number(ms)?).ok()?);
            (file8, Object::Stage { group, ms, rand: number(rand.strip_suffix(".parquet")?)?.to_be_bytes() })
        }
        _ => return None,
    };
    digits(file8, 8).then(|| Named { file8: file8.to_owned(), object })
}

impl Object {
    /// Its key.
    pub fn key(&self, name: &str, file_id: &[u8; 16]) -> String {
        match self {
            Self::Base { seq, rand } => base(name, file_id, *seq, rand),
            Self::Segment { from, to, rand } => segment(name, file_id, *from, *to, rand),
            Self::Archive { seq, rand } => archive(name, &file8(file_id), *seq, rand),
            Self::Stage { group, ms, rand } => stage(name, file_id, group, *ms, rand),
        }
    }

    /// The commit that decides by the floor whether the object may go (P13, P14).
    pub fn seq(&self) -> u64 {
        match *self {
            Self::Base { seq, .. } | Self::Segment { to: seq, .. } | Self::Archive { seq, .. } => seq,
            // No commit decides about it: see [`STAGED_MS`].
            Self::Stage { .. } => u64::MAX,
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

/// Hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut out, b| {
        let _ = write!(out, "{b:02x}");
        out
    })
}
