//! The names of the objects of a queue file. No key is ever a path prefix of another (P12).

use crate::bucket::head::{BASE, Retired};

/// Returns the first four bytes of the file id as eight hexadecimal digits.
pub fn file8(file_id: &[u8; 16]) -> String {
    hex(&file_id[..4])
}

/// Returns the key of HEAD, the only object of the file that commits overwrite.
pub fn head(name: &str) -> String {
    format!("{name}.head")
}

/// Returns the key that a writer overwrites when it loses races to one that never rests. HEAD never refers to it, and
/// it is never collected.
pub fn knock(name: &str) -> String {
    format!("{name}.knock")
}

/// Returns the key of a full image of commit `seq`.
pub fn base(name: &str, file_id: &[u8; 16], seq: u64, rand: &[u8; 8]) -> String {
    format!("{name}.base-{}-{seq:016x}-{}", file8(file_id), hex(rand))
}

/// Returns the beginnings of the keys of bases, segments and archive objects.
pub fn content_prefixes(name: &str) -> [String; 3] {
    ["base", "seg", "arch"].map(|kind| format!("{name}.{kind}-"))
}

/// Returns the beginning of every object's key.
pub fn prefix(name: &str) -> String {
    format!("{name}.")
}

/// Returns the key of the deltas of commits `from` to `to`.
pub fn segment(name: &str, file_id: &[u8; 16], from: u64, to: u64, rand: &[u8; 8]) -> String {
    format!("{name}.seg-{}-{from:016x}-{to:016x}-{}", file8(file_id), hex(rand))
}

/// Returns a key that is never written: a GET of it asks the store for its time.
pub fn never(name: &str, rand: &[u8; 8]) -> String {
    format!("{name}.probe-{}", hex(rand))
}

/// Returns the key of finished runs read at commit `seq`. `file8` is that of the file that wrote the object.
pub fn archive(name: &str, file8: &str, seq: u64, rand: &[u8; 8]) -> String {
    format!("{name}.arch-{file8}-{seq:016x}-{}.parquet", hex(rand))
}

/// Returns the key of a temporary object created at this time, by its writer's clock. Objects of one task share the
/// `group`.
pub fn stage(name: &str, file_id: &[u8; 16], group: &[u8; 8], ms: i64, rand: &[u8; 8]) -> String {
    format!("{}{ms:016x}-{}.parquet", stage_prefix(name, file_id, group), hex(rand))
}

/// Returns the beginning of the keys of a group's temporary objects.
pub fn stage_prefix(name: &str, file_id: &[u8; 16], group: &[u8; 8]) -> String {
    format!("{name}.stage-{}-{}-", file8(file_id), hex(group))
}

/// A temporary object is collected only after this time: longer than any task should take.
pub const STAGED_MS: i64 = 7 * 24 * 3_600_000;

/// The kind of an object beside HEAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object {
    /// See [`base`].
    Base {
        /// The commit of the image.
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
        /// The group that it belongs to.
        group: [u8; 8],
        /// When it was created.
        ms: i64,
        /// The random part.
        rand: [u8; 8],
    },
}

/// A parsed key: the file that the object belongs to, and its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The beginning of the file id, as [`file8`] returns it.
    pub file8: String,
    /// The object.
    pub object: Object,
}

/// Parses the key of an object beside HEAD of this name; none for every other key, HEAD's included.
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
    /// Returns its key.
    pub fn key(&self, name: &str, file_id: &[u8; 16]) -> String {
        match self {
            Self::Base { seq, rand } => base(name, file_id, *seq, rand),
            Self::Segment { from, to, rand } => segment(name, file_id, *from, *to, rand),
            Self::Archive { seq, rand } => archive(name, &file8(file_id), *seq, rand),
            Self::Stage { group, ms, rand } => stage(name, file_id, group, *ms, rand),
        }
    }

    /// Returns the commit that is compared with the floor to decide whether the object may be deleted (P13, P14).
    pub fn seq(&self) -> u64 {
        match *self {
            Self::Base { seq, .. } | Self::Segment { to: seq, .. } | Self::Archive { seq, .. } => seq,
            // Commits do not decide about it: see [`STAGED_MS`].
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

/// Formats bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut out, b| {
        let _ = write!(out, "{b:02x}");
        out
    })
}
