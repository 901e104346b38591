//! Options, limits and defaults, each with its reason. No I/O.

use std::path::PathBuf;
use std::time::Duration;

use crate::noun::error::{Code, Error, Result};

/// Longest name of a queue, a worker, a group or a dedup key, in bytes.
pub const MAX_NAME: usize = 200;
/// Longest content type, in bytes.
pub const MAX_CONTENT_TYPE: usize = 100;
/// All headers of a job together, in bytes: they are stored in the job's row.
pub const MAX_HEADERS: usize = 256 * 1024;
/// Longest error text kept; longer ones are cut.
pub const MAX_ERROR_TEXT: usize = 4 * 1024;
/// No payload or result is larger, whatever the option says.
pub const MAX_PAYLOAD_CEILING: usize = 16 * 1024 * 1024;
/// Payloads up to this size are stored in the job's row, larger ones in a table of their own.
pub const INLINE_PAYLOAD: usize = 1024;
/// No HEAD is larger, whatever the option says.
pub const MAX_HEAD: usize = 1024 * 1024;
/// Jobs in one enqueue, and ops in one atomic: the ordinal has 24 bits.
pub const MAX_JOBS_PER_OP: usize = 1_000_000;
/// Jobs that one commit deletes, marks or unblocks: more would stop the writer for seconds.
pub const MAX_JOBS_AT_ONCE: u64 = 50_000;
/// For this long after its enqueue a job's id stays reserved, even if the job has left the queue file: an hour.
pub const REMEMBERED_MS: i64 = 3_600_000;
/// Jobs in one claim.
pub const MAX_CLAIM: u32 = 10_000;
/// No delay, lease or window is longer: a hundred years.
pub const MAX_SPAN_MS: i64 = 100 * 366 * 24 * 3_600_000;
/// The last millisecond of the year 9999: later times cannot be formatted.
pub(crate) const LAST_MS: i64 = 253_402_300_799_999;

/// How to reach an S3 store. Options that are not set come from the usual environment variables and profile files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct S3Options {
    /// The server, when it is not AWS.
    pub endpoint: Option<String>,
    /// The region; `us-east-1` when it is set nowhere.
    pub region: Option<String>,
    /// `http://host/bucket/key` instead of `http://bucket.host/key`; on by default when an endpoint is set.
    pub path_style: Option<bool>,
    /// Credentials; the usual chain of AWS when not set. Never printed by `Debug`.
    pub credentials: Option<Credentials>,
    /// Checksum sent with each body.
    pub checksum: S3Checksum,
    /// Time for connecting; when not set 3.1 s, the default of the SDK.
    pub connect_timeout: Option<Duration>,
    /// Time for one request as a whole; 10 s when not set: a hung PUT must leave time for settling.
    pub request_timeout: Option<Duration>,
}

/// A key and its secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    /// The public half.
    pub access_key: String,
    /// The secret half.
    pub secret_key: String,
    /// For temporary credentials.
    pub session_token: Option<String>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Credentials(...)")
    }
}

/// The checksum header of a PUT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum S3Checksum {
    /// CRC32, the SDK's own default.
    #[default]
    Crc32,
    /// SHA-256, for servers that refuse CRC32.
    Sha256,
    /// No checksum and no `Content-MD5`, for servers that refuse both. TLS and our own hashes still guard the body.
    None,
}

/// Where the writer runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Host {
    /// A thread of its own with its own small runtime: handles may be used from any runtime and outlive it.
    #[default]
    OwnThread,
    /// A task of the runtime that opens the queue file: for simulations with paused time.
    CurrentRuntime,
}

/// When a call that changes something returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Once its change is in the store.
    #[default]
    Durable,
    /// Once its change is in a directory of this machine. `sync` publishes these changes, `snapshot` fetches what
    /// others published.
    Local,
}

/// When Local mode syncs to disk. A killed process never loses anything; this matters for power cuts and crashes of the
/// operating system. Unpublished changes are on the disk before a body with them is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fsync {
    /// Before a call returns: no acknowledged call is lost.
    #[default]
    EachCommit,
    /// At least this often: at most the calls of this last span of time may be lost.
    Interval(Duration),
    /// When the operating system decides: everything since the last sync may be lost.
    Never,
}

/// How a base is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BaseCodec {
    /// One zstd frame: the smallest; other programs read it with `zstd -d` first.
    #[default]
    Zstd,
    /// Uncompressed: a downloaded base is a SQLite file.
    None,
}

/// How a queue file is opened.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Create the queue file if it does not exist.
    pub create: bool,
    /// Only read: the handle writes nothing, creates no queue file and refuses every op. Credentials that allow only
    /// GET suffice. For dashboards and exports.
    pub read_only: bool,
    /// Largest payload and result accepted through this handle, in bytes.
    pub max_payload: usize,
    /// Size limit of the database, in bytes.
    pub max_file: u64,
    /// Largest difference between any two writers' clocks. Stored in the file when it is created, so that all writers
    /// agree. Not set: the default of the store (0 on one machine, 5 s for S3).
    pub max_skew: Option<Duration>,
    /// A call returns or fails within this time, possibly with "outcome unknown".
    pub deadline: Duration,
    /// Least time between two commits: saves requests, and respects stores that allow one write per second and key.
    pub commit_interval: Duration,
    /// The writer waits for more ops at most this share of the average PUT. On a fast store it waits up to 4 ms, but no
    /// longer than a PUT, while callers that just got their replies soon send new ops ...
    pub gather_percent: u32,
    /// ... and at most this long.
    pub gather_max: Duration,
    /// Ops that may wait in this process; further ones fail with Full.
    pub mailbox: usize,
    /// Bytes of payloads, headers, keys and results that may wait in this process; an op beyond that fails with Full,
    /// unless no other op waits.
    pub mailbox_bytes: usize,
    /// Target size of the tail in HEAD, in bytes; it grows with the commits up to `max_head`.
    pub tail: usize,
    /// HEAD stays under this size: a PUT of it still costs one round trip.
    pub max_head: usize,
    /// A log shorter than this gets no base, in bytes. A longer one gets a base whenever it is longer than the last
    /// base.
    pub base_after: u64,
    /// How this process stores the bases it writes.
    pub base_codec: BaseCodec,
    /// How long objects that HEAD no longer refers to are kept, for readers that still need them. At least `deadline`.
    /// A slower reader starts over; nothing else depends on it.
    pub grace: Duration,
    /// A finished job that may be archived waits about this long for others to share an archive object with. The writer
    /// archives beside the commits, so not while there are none.
    pub archive_every: Duration,
    /// How often a waiting claim asks the store for new commits at first ...
    pub poll_min: Duration,
    /// ... and this often after a while.
    pub poll_max: Duration,
    /// When a call returns.
    pub mode: Mode,
    /// When Local mode syncs to disk.
    pub fsync: Fsync,
    /// A directory of this machine, in which each queue file has its own directory. Local mode keeps its state there;
    /// when not set, where the platform keeps state. Durable mode opens faster with it and keeps a copy there for
    /// `sqlite3`; when not set, it keeps nothing.
    pub cache: Option<PathBuf>,
    /// Bytes of bases and segments that Durable mode keeps in `cache`; the least recently used are deleted first.
    pub cache_bytes: u64,
    /// Greatest age of the copy in `cache` for `sqlite3`, while there are commits.
    pub copy_interval: Duration,
    /// Share one writer with the other processes of this user on this host that open the same queue file.
    pub share: bool,
    /// The directory in which the processes of a host find each other; containers can share one. When not set, a private
    /// directory of the user.
    pub host_dir: Option<PathBuf>,
    /// Where the writer runs.
    pub host: Host,
    /// How to reach S3.
    pub s3: S3Options,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            create: true,
            read_only: false,
            max_payload: 1024 * 1024,
            max_file: 1024 * 1024 * 1024,
            max_skew: None,
            deadline: Duration::from_secs(30),
            commit_interval: Duration::ZERO,
            gather_percent: 15,
            gather_max: Duration::from_millis(10),
            mailbox: 10_000,
            mailbox_bytes: 128 * 1024 * 1024,
            tail: 32 * 1024,
            max_head: 128 * 1024,
            base_after: 512 * 1024,
            base_codec: BaseCodec::default(),
            grace: Duration::from_hours(24),
            archive_every: Duration::from_hours(1),
            poll_min: Duration::from_millis(200),
            poll_max: Duration::from_secs(1),
            mode: Mode::default(),
            fsync: Fsync::default(),
            cache: None,
            cache_bytes: 4 * 1024 * 1024 * 1024,
            copy_interval: Duration::from_secs(1),
            share: true,
            host_dir: None,
            host: Host::default(),
            s3: S3Options::default(),
        }
    }
}

impl Options {
    /// Refuses invalid options with an error that names the option and the valid values.
    pub fn check(&self) -> Result<()> {
        let bad = |what: &str| Err(Error::new(Code::Option, what.to_owned()));
        if self.max_payload > MAX_PAYLOAD_CEILING {
            return bad("max_payload must be at most 16 MiB");
        }
        if self.max_file < 256 * 1024 || self.max_file > 64 * 1024 * 1024 * 1024 {
            return bad("max_file must be between 256 KiB and 64 GiB");
        }
        if self.max_skew.is_some_and(|s| s > Duration::from_hours(1)) {
            return bad("max_skew must be at most one hour");
        }
        if self.deadline.is_zero() || self.deadline > Duration::from_hours(1) {
            return bad("deadline must be between 1 ms and one hour");
        }
        if self.commit_interval > Duration::from_mins(1) || self.commit_interval > self.deadline / 2 {
            return bad("commit_interval must be at most one minute, and at most half the deadline");
        }
        if self.gather_percent > 100 || self.gather_max > Duration::from_secs(1) {
            return bad("gather_percent must be at most 100, and gather_max at most one second");
        }
        if self.mailbox == 0 || self.mailbox_bytes == 0 {
            return bad("mailbox and mailbox_bytes must be at least 1");
        }
        if self.tail < 1024 || self.max_head < self.tail + 20 * 1024 || self.max_head > MAX_HEAD {
            return bad("tail must be at least 1 KiB, and max_head at least 20 KiB more and at most 1 MiB");
        }
        if self.base_after < 4096 {
            return bad("base_after must be at least 4 KiB");
        }
        if self.grace < self.deadline || self.grace > Duration::from_hours(24 * 366) {
            return bad(
                "grace must be at least the deadline, so that a process that has read HEAD finds the objects that HEAD names, and at most a year",
            );
        }
        if self.archive_every < Duration::from_millis(1)
            || self.archive_every > Duration::from_hours(24 * 366)
        {
            return bad("archive_every must be between 1 ms and a year");
        }
        if self.poll_min.is_zero() || self.poll_max < self.poll_min {
            return bad("poll_min must be more than zero and at most poll_max");
        }
        if matches!(self.fsync, Fsync::Interval(every) if every.is_zero() || every > Duration::from_hours(1))
        {
            return bad("the interval of fsync must be more than zero and at most one hour");
        }
        if self.read_only && self.mode == Mode::Local {
            return bad("read_only needs Durable mode: a handle in Local mode writes its local state");
        }
        if self.copy_interval < Duration::from_millis(1) {
            return bad("copy_interval must be at least 1 ms");
        }
        if self.s3.credentials.as_ref().is_some_and(|c| c.access_key.is_empty() || c.secret_key.is_empty()) {
            return bad("access_key and secret_key go together: give both or neither");
        }
        Ok(())
    }
}
