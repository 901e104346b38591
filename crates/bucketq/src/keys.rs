//! The names of the objects of a queue file. No key is ever a path prefix of another (P12).

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

/// Hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut out, b| {
        let _ = write!(out, "{b:02x}");
        out
    })
}
