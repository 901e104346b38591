//! The columns, in their order: the one table that writing, reading and the documentation go by.

use std::borrow::Cow;

use bytes::Bytes;

use crate::life::Life;

/// The type of a column, as docs/archive.md calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A 64-bit integer.
    Int,
    /// A time in UTC, in milliseconds.
    Time,
    /// Text.
    Text,
    /// Bytes.
    Bytes,
}

impl Kind {
    /// Its name in the documentation.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Int => "int64",
            Self::Time => "timestamp",
            Self::Text => "string",
            Self::Bytes => "binary",
        }
    }
}

/// Where a column's value comes from.
#[derive(Clone, Copy, Debug)]
pub enum Means {
    /// A number or a time that is always there.
    Number(fn(&Life) -> i64),
    /// One that may be missing.
    MaybeNumber(fn(&Life) -> Option<i64>),
    /// Text that is always there.
    Text(fn(&Life) -> Cow<'_, str>),
    /// Text that may be missing.
    MaybeText(fn(&Life) -> Option<&str>),
    /// Bytes that may be missing.
    MaybeBytes(fn(&Life) -> Option<&Bytes>),
}

/// One column.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// Its values.
    pub means: Means,
    /// Few values, often repeated.
    pub repeats: bool,
}

impl Column {
    /// Whether a value may be missing.
    pub const fn optional(&self) -> bool {
        !matches!(self.means, Means::Number(_) | Means::Text(_))
    }
}

const fn int(name: &'static str, of: fn(&Life) -> i64) -> Column {
    Column { name, kind: Kind::Int, means: Means::Number(of), repeats: false }
}

const fn maybe_int(name: &'static str, of: fn(&Life) -> Option<i64>) -> Column {
    Column { name, kind: Kind::Int, means: Means::MaybeNumber(of), repeats: false }
}

const fn time(name: &'static str, of: fn(&Life) -> i64) -> Column {
    Column { name, kind: Kind::Time, means: Means::Number(of), repeats: false }
}

const fn maybe_time(name: &'static str, of: fn(&Life) -> Option<i64>) -> Column {
    Column { name, kind: Kind::Time, means: Means::MaybeNumber(of), repeats: false }
}

const fn text(name: &'static str, repeats: bool, of: fn(&Life) -> Cow<'_, str>) -> Column {
    Column { name, kind: Kind::Text, means: Means::Text(of), repeats }
}

const fn maybe_text(name: &'static str, repeats: bool, of: fn(&Life) -> Option<&str>) -> Column {
    Column { name, kind: Kind::Text, means: Means::MaybeText(of), repeats }
}

const fn maybe_bytes(name: &'static str, of: fn(&Life) -> Option<&Bytes>) -> Column {
    Column { name, kind: Kind::Bytes, means: Means::MaybeBytes(of), repeats: false }
}

/// Every column. The order and the names never change; a later version adds at the end.
pub const COLUMNS: [Column; 27] = [
    int("finish_seq", |l| l.finish_seq.cast_signed()),
    text("id", false, |l| Cow::Owned(l.id.to_string())),
    int("run", |l| l.run.into()),
    text("queue", true, |l| Cow::Borrowed(&l.queue)),
    maybe_text("group", true, |l| l.group.as_deref()),
    text("state", true, |l| Cow::Borrowed(l.state.as_str())),
    int("priority", |l| l.priority.into()),
    int("attempts", |l| l.attempts.into()),
    int("max_attempts", |l| l.max_attempts.into()),
    maybe_text("worker", true, |l| l.worker.as_deref()),
    time("enqueued_at", |l| l.enqueued_ms),
    time("run_at", |l| l.run_at_ms),
    maybe_time("first_claimed_at", |l| l.first_claimed_ms),
    maybe_time("claimed_at", |l| l.claimed_ms),
    time("finished_at", |l| l.finished_ms),
    maybe_int("wait_ms", Life::wait_ms),
    maybe_int("run_ms", Life::run_ms),
    int("seq", |l| l.seq.cast_signed()),
    int("enqueue_commit_seq", |l| l.enqueue_commit().cast_signed()),
    maybe_int("claim_commit_seq", |l| l.fence.map(u64::cast_signed)),
    int("finish_commit_seq", |l| l.finish_commit().cast_signed()),
    int("payload_len", |l| l.payload_len.cast_signed()),
    maybe_bytes("payload", |l| l.payload.as_ref()),
    maybe_text("payload_type", true, |l| l.payload_type.as_deref()),
    maybe_bytes("result", |l| l.result.as_ref()),
    maybe_text("result_type", true, |l| l.result_type.as_deref()),
    maybe_text("last_error", false, |l| l.last_error.as_deref()),
];
