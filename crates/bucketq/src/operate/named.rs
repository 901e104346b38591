//! Whose an object is and what it is, by its key. Pure.

/// What a key says: whose the object is, and what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The beginning of the file id, as [`file8`] gives it.
    pub file8: String,
    /// What it is.
    pub object: Object,
}

/// What an object beside HEAD is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object {
    /// A full image as of a commit.
    Base {
        /// That commit.
        seq: u64,
    },
    /// The deltas of a range of commits.
    Segment {
        /// The first.
        from: u64,
        /// The last.
        to: u64,
    },
}

impl Object {
    /// The commit that decides by the floor whether the object may go (P13, P14).
    pub fn seq(self) -> u64 {
        match self {
            Self::Base { seq } | Self::Segment { to: seq, .. } => seq,
        }
    }
}

/// What the key of a base or a segment of this name says; none for every other key, HEAD's included.
pub fn parse(name: &str, key: &str) -> Option<Named> {
    let rest = key.strip_prefix(name)?.strip_prefix('.')?;
    let parts: Vec<&str> = rest.split('-').collect();
    let digits = |text: &str, n: usize| {
        text.len() == n && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let number = |text: &str| digits(text, 16).then(|| u64::from_str_radix(text, 16).ok()).flatten();
    let (file8, object, rand) = match parts[..] {
        ["base", file8, seq, rand] => (file8, Object::Base { seq: number(seq)? }, rand),
        ["seg", file8, from, to, rand] => {
            (file8, Object::Segment { from: number(from)?, to: number(to)? }, rand)
        }
        _ => return None,
    };
    (digits(file8, 8) && digits(rand, 16)).then(|| Named { file8: file8.to_owned(), object })
}
