//! The columns in order: of archive objects, the one table for writing, reading and the documentation; and of the jobs
//! in the queue file.

use std::borrow::Cow;

use bytes::Bytes;

use crate::noun::job::{Job, Payload};
use crate::noun::life::Life;

/// The type of a column, as named in docs/archive.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// A 64-bit integer.
    Int,
    /// A time in UTC, in milliseconds.
    Time,
    /// Text.
    Text,
    /// Bytes.
    Bytes,
}

impl ColumnKind {
    /// Returns its name in the documentation.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Int => "int64",
            Self::Time => "timestamp",
            Self::Text => "string",
            Self::Bytes => "binary",
        }
    }
}

/// The source of a column's values in a row.
#[derive(Debug)]
pub enum Means<R> {
    /// A required number or time.
    Number(fn(&R) -> i64),
    /// An optional number or time.
    MaybeNumber(fn(&R) -> Option<i64>),
    /// Required text.
    Text(fn(&R) -> Cow<'_, str>),
    /// Optional text.
    MaybeText(fn(&R) -> Option<&str>),
    /// Optional bytes.
    MaybeBytes(fn(&R) -> Option<&Bytes>),
}

/// One column.
#[derive(Debug)]
pub struct Column<R> {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub kind: ColumnKind,
    /// Its values.
    pub means: Means<R>,
    /// The column has few distinct values, often repeated.
    pub repeats: bool,
}

impl<R> Column<R> {
    /// Returns whether a value may be missing.
    pub const fn optional(&self) -> bool {
        !matches!(self.means, Means::Number(_) | Means::Text(_))
    }
}

const fn int<R>(name: &'static str, of: fn(&R) -> i64) -> Column<R> {
    Column { name, kind: ColumnKind::Int, means: Means::Number(of), repeats: false }
}

const fn maybe_int<R>(name: &'static str, of: fn(&R) -> Option<i64>) -> Column<R> {
    Column { name, kind: ColumnKind::Int, means: Means::MaybeNumber(of), repeats: false }
}

const fn time<R>(name: &'static str, of: fn(&R) -> i64) -> Column<R> {
    Column { name, kind: ColumnKind::Time, means: Means::Number(of), repeats: false }
}

const fn maybe_time<R>(name: &'static str, of: fn(&R) -> Option<i64>) -> Column<R> {
    Column { name, kind: ColumnKind::Time, means: Means::MaybeNumber(of), repeats: false }
}

const fn text<R>(name: &'static str, repeats: bool, of: fn(&R) -> Cow<'_, str>) -> Column<R> {
    Column { name, kind: ColumnKind::Text, means: Means::Text(of), repeats }
}

const fn maybe_text<R>(name: &'static str, repeats: bool, of: fn(&R) -> Option<&str>) -> Column<R> {
    Column { name, kind: ColumnKind::Text, means: Means::MaybeText(of), repeats }
}

const fn maybe_bytes<R>(name: &'static str, of: fn(&R) -> Option<&Bytes>) -> Column<R> {
    Column { name, kind: ColumnKind::Bytes, means: Means::MaybeBytes(of), repeats: false }
}

/// Every column of an archive object. The order and the names never change; a later version adds at the end.
pub const COLUMNS: [Column<Life>; 27] = [
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

/// A job in the queue file, whole.
pub type WholeJob = (Job, Payload);

/// Every column of the jobs in the queue file: `expired` is 0 or 1, `headers` a JSON object.
pub(super) const JOB_COLUMNS: [Column<WholeJob>; 24] = [
    text("id", false, |(job, _)| Cow::Owned(job.id.to_string())),
    int("run", |(job, _)| job.run.into()),
    text("queue", true, |(job, _)| Cow::Borrowed(&job.queue)),
    maybe_text("group", true, |(job, _)| job.group.as_deref()),
    text("state", true, |(job, _)| Cow::Borrowed(job.state.as_str())),
    int("expired", |(job, _)| job.expired.into()),
    int("priority", |(job, _)| job.priority.into()),
    int("attempts", |(job, _)| job.attempt.into()),
    int("max_attempts", |(job, _)| job.max_attempts.into()),
    maybe_text("worker", true, |(job, _)| job.worker.as_deref()),
    time("enqueued_at", |(job, _)| job.enqueued_ms),
    time("run_at", |(job, _)| job.run_at_ms),
    maybe_time("claimed_at", |(job, _)| job.claimed_ms),
    maybe_time("expires_at", |(job, _)| job.expires_ms),
    maybe_time("finished_at", |(job, _)| job.finished_ms),
    maybe_text("dedup", false, |(job, _)| job.dedup.as_deref()),
    text("headers", true, |(job, _)| Cow::Owned(serde_json::json!(job.headers).to_string())),
    int("seq", |(job, _)| job.seq.cast_signed()),
    int("enqueue_commit_seq", |(job, _)| job.commit_seq().cast_signed()),
    maybe_int("claim_commit_seq", |(job, _)| job.fence.map(u64::cast_signed)),
    int("payload_len", |(job, _)| job.payload_len.cast_signed()),
    maybe_bytes("payload", |(_, payload)| Some(&payload.bytes)),
    text("payload_type", true, |(_, payload)| Cow::Borrowed(&payload.content_type)),
    maybe_text("last_error", false, |(job, _)| job.last_error.as_deref()),
];
