//! The one error type. A kind says what the caller does next; a code names one cause.
//!
//! Used everywhere. [`TABLE`] and [`CODES`] are the single source for kinds, codes, advice, exit codes, HTTP statuses
//! and Python class names; a test compares docs/errors.md with them. An error must never carry payloads or credentials.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Shorthand used by the whole crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The next step for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Kind {
    /// Fix the call.
    Invalid,
    /// The named thing does not exist.
    NotFound,
    /// Drop the work: another worker holds the job, or it is finished.
    LeaseLost,
    /// Too many writers: back off, or use a broker.
    Contended,
    /// Local changes lost the race: take a snapshot and redo them.
    Diverged,
    /// Certainly not applied: retry.
    Unavailable,
    /// May have been applied: look first.
    Unknown,
    /// A limit is reached: make room or wait.
    Full,
    /// Stop, and restore.
    Corrupt,
    /// The handle is closed: open a new one.
    Closed,
}

macro_rules! codes {
    ($( $(#[doc = $doc:literal])* $name:ident = $text:literal : $kind:ident => $advice:literal, )*) => {
        /// The cause, stable across versions; its text form is snake case.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum Code { $( $(#[doc = $doc])* $name, )* }

        impl Code {
            /// The stable text of this code.
            pub const fn as_str(self) -> &'static str { match self { $( Self::$name => $text, )* } }
            /// The code with this text.
            pub fn from_text(text: &str) -> Option<Self> { match text { $( $text => Some(Self::$name), )* _ => None } }
            /// The kind of every error with this code.
            pub const fn kind(self) -> Kind { match self { $( Self::$name => Kind::$kind, )* } }
            /// The meaning of the code, as in docs/errors.md.
            pub const fn says(self) -> &'static str { match self { $( Self::$name => concat!($($doc),*), )* } }
            /// The next step for the caller or the operator, as in docs/errors.md.
            pub const fn advice(self) -> &'static str { match self { $( Self::$name => $advice, )* } }
        }

        /// Every code in the order of the documentation.
        pub const CODES: &[Code] = &[ $( Code::$name, )* ];
    };
}

codes! {
    /// An argument has a wrong form or is out of range.
    Argument = "argument": Invalid => "Correct the argument that the message names.",
    /// The URL of a queue file cannot be parsed.
    Url = "url": Invalid => "Write the URL as a path, `s3://bucket/path/name` or `memory://name`.",
    /// An option is out of range or contradicts another option.
    Option = "option": Invalid => "Correct the option that the message names; docs/settings.md lists all options.",
    /// The payload or result is larger than `max_payload` of this handle.
    PayloadTooLarge = "payload_too_large": Invalid =>
        "Raise `max_payload`, or store the data elsewhere and enqueue a reference to it.",
    /// This process already has the queue file open with other options.
    OptionsDiffer = "options_differ": Invalid => "Open it with the same options, or close the other handles first.",
    /// The handle was opened with the option `read_only`.
    ReadOnly = "read_only": Invalid => "Open the queue file without `read_only` to change it.",
    /// A file already exists at this path.
    FileExists = "file_exists": Invalid => "Choose another path, or set `replace` to overwrite the file.",
    /// The image is not a complete queue file and cannot be restored.
    Image = "image": Invalid => "Restore another image: an export, or a base that a check reports as sound.",
    /// The operation is not possible in the present state of the job or object.
    State = "state": Invalid => "Check the state that the message names, and call an operation that it allows.",
    /// There are local changes that are not published yet.
    Unsynced = "unsynced": Invalid => "Call `sync` first, or discard the local changes.",
    /// The policy contradicts itself, or this change is not allowed while the queue has jobs.
    Policy = "policy": Invalid => "Correct the field that the message names, or wait until the queue is empty.",
    /// Another job, with other content, already has this id.
    IdTaken = "id_taken": Invalid => "Draw a new id for each new job.",
    /// The job does not exist.
    NoSuchJob = "no_such_job": NotFound => "Check the id; a finished job may have left the queue file.",
    /// The queue does not exist.
    NoSuchQueue = "no_such_queue": NotFound => "Check the name; the first enqueue creates a queue.",
    /// There is no queue file at this URL, and the call does not create one.
    NoSuchFile = "no_such_file": NotFound => "Check the URL or path; `bucketq init` or `create=True` makes a new one.",
    /// The requested object or commit is too old: it has expired or was collected.
    Collected = "collected": NotFound => "Read from a newer commit; raise `grace` or `archive_for` to keep more.",
    /// The lease token is no longer valid: the job was claimed again, finished or cancelled.
    LeaseLost = "lease_lost": LeaseLost => "Stop working on the job; use a longer lease if it ran out.",
    /// Other writers won every race until the deadline; nothing was applied.
    Contended = "contended": Contended => "Try again later; use fewer writing processes or a longer `commit_interval`.",
    /// Another writer committed first, so the local changes can no longer be published.
    Diverged = "diverged": Diverged =>
        "Call `export_pending` if the changes matter, then `snapshot(discard=True)`, and do the work again.",
    /// The store cannot be reached or replies with an error.
    Unreachable = "unreachable": Unavailable => "Check the endpoint, the network and the region, then try again.",
    /// The store refuses these credentials or this action.
    Denied = "denied": Unavailable =>
        "Check the credentials (AWS_ACCESS_KEY_ID, a profile, or BUCKETQ_ACCESS_KEY) and that they may \
         get, put, delete and list here; for a directory, check its permissions.",
    /// The bucket or directory does not exist.
    NoSuchBucket = "no_such_bucket": Unavailable => "Create the bucket or the directory, or correct the URL.",
    /// Another process has locked the queue file in the directory and does not continue.
    Locked = "locked": Unavailable => "Continue the stopped process, or end it.",
    /// The store asks for fewer requests.
    Throttled = "throttled": Unavailable => "Try again later; set a longer `commit_interval` if this happens often.",
    /// A file of this machine, such as an image, cannot be read or written.
    LocalFile = "local_file": Unavailable => "Check the path and its permissions.",
    /// The clock of this machine disagrees with the store or with the newest commit.
    ClockSkew = "clock_skew": Unavailable =>
        "Set this machine's clock, with NTP; if it is right and the newest commit is ahead of it, run \
         `bucketq fix-time`.",
    /// The store has no working compare-and-swap, so it cannot hold a queue file.
    NoCompareAndSwap = "no_compare_and_swap": Unavailable => "Use another store; docs/stores.md lists those that work.",
    /// The local directory cannot be read or written.
    Disk = "disk": Unavailable => "Check the path in `cache` and its permissions.",
    /// Another process has the local directory open.
    InUse = "in_use": Unavailable => "Close the queue file there, or give this process another `cache`.",
    /// This process has no file descriptors, threads or memory left.
    Exhausted = "exhausted": Unavailable =>
        "Raise the limits of the process (ulimit -n, ulimit -u), or close unused files and handles.",
    /// The deadline passed; certainly nothing was applied.
    Timeout = "timeout": Unavailable => "Try again; raise `deadline` if the store is slow.",
    /// The operation may or may not have been applied.
    OutcomeUnknown = "outcome_unknown": Unknown =>
        "Repeat the call with the same ids, or call `settle` and then look at the job.",
    /// The queue file has reached `max_file`, or one commit is too large.
    FileFull = "file_full": Full => "Delete finished jobs (`purge`), keep fewer (`keep`), or raise `max_file`.",
    /// The disk with the directory is full.
    DiskFull = "disk_full": Full => "Free space on the disk of the directory, then try again.",
    /// Too many operations wait in this process.
    MailboxFull = "mailbox_full": Full => "Slow down, or raise `mailbox` or `mailbox_bytes`.",
    /// The queue has as many pending jobs or schedules as it allows; nothing was added.
    QueueFull = "queue_full": Full => "Try again when jobs were claimed, start more workers, or raise `max_pending`.",
    /// The queue stayed full for as long as its policy lets an enqueue wait; nothing was enqueued.
    Blocked = "blocked": Full => "Start more workers, raise `max_pending`, or let the policy block for longer.",
    /// Data read from the store fails a check.
    Corrupt = "corrupt": Corrupt => "Run `bucketq check`; undelete the object that the message names, or restore.",
    /// The queue file needs a newer version of this library.
    TooNew = "too_new": Corrupt => "Upgrade bucketq in this process; nothing is damaged.",
    /// The object is not a queue file.
    Foreign = "foreign": Corrupt => "Check the URL, or choose another name.",
    /// The queue file is older than this process knows it: it was restored, or an old HEAD was put back.
    RolledBack = "rolled_back": Corrupt =>
        "After a restore or `fix-time`, open the queue file again; otherwise stop every process and restore.",
    /// HEAD, the main object of a queue file that this process knows, was deleted.
    HeadMissing = "head_missing": Corrupt => "Undelete HEAD if the bucket keeps versions; otherwise restore.",
    /// The store lost a commit that it had acknowledged.
    StoreBroken = "store_broken": Corrupt => "Stop every process and restore on another store.",
    /// The engine is in a state that it cannot explain.
    Internal = "internal": Corrupt => "Run `bucketq check` and report this error with its message and source.",
    /// The handle is closed.
    Closed = "closed": Closed => "Open a new handle; a forked process opens its own.",
    /// The queue is drained: it accepts no jobs until it is resumed.
    Draining = "draining": Closed => "Run `bucketq resume`, or enqueue into another queue.",
}

/// One row of the table that Rust, Python, the command line and HTTP share.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The kind that this row describes.
    pub kind: Kind,
    /// Its stable name.
    pub name: &'static str,
    /// The next step for the caller.
    pub next: &'static str,
    /// The Python exception.
    pub python: &'static str,
    /// The exit code of the command line.
    pub exit: u8,
    /// The HTTP status.
    pub http: u16,
}

/// The error table, one row a kind.
pub const TABLE: &[Row] = &[
    Row { kind: Kind::Invalid, name: "invalid", next: "fix the call", python: "Invalid", exit: 2, http: 400 },
    Row {
        kind: Kind::NotFound,
        name: "not_found",
        next: "look elsewhere, or create it",
        python: "NotFound",
        exit: 3,
        http: 404,
    },
    Row {
        kind: Kind::LeaseLost,
        name: "lease_lost",
        next: "drop the work",
        python: "LeaseLost",
        exit: 4,
        http: 409,
    },
    Row {
        kind: Kind::Contended,
        name: "contended",
        next: "back off, or use a broker",
        python: "Contended",
        exit: 5,
        http: 503,
    },
    Row {
        kind: Kind::Diverged,
        name: "diverged",
        next: "snapshot and redo",
        python: "Diverged",
        exit: 6,
        http: 409,
    },
    Row {
        kind: Kind::Unavailable,
        name: "unavailable",
        next: "surely not applied: retry",
        python: "Unavailable",
        exit: 7,
        http: 503,
    },
    Row {
        kind: Kind::Unknown,
        name: "unknown",
        next: "may have been applied: look first",
        python: "OutcomeUnknown",
        exit: 8,
        http: 504,
    },
    Row {
        kind: Kind::Full,
        name: "full",
        next: "make room, or wait",
        python: "QueueFull",
        exit: 9,
        http: 429,
    },
    Row {
        kind: Kind::Corrupt,
        name: "corrupt",
        next: "stop, and restore",
        python: "Corrupt",
        exit: 10,
        http: 500,
    },
    Row {
        kind: Kind::Closed,
        name: "closed",
        next: "open a new handle",
        python: "Closed",
        exit: 11,
        http: 503,
    },
];

impl Kind {
    /// Returns this kind's row of [`TABLE`].
    pub fn row(self) -> &'static Row {
        // The table has one row a kind, in the order of the enum; tests/house checks it.
        &TABLE[self as usize]
    }
}

/// A failure: its code, a message for people, and its source.
#[derive(Clone, Serialize, Deserialize)]
pub struct Error {
    code: Code,
    message: String,
    #[serde(skip)]
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// Returns what the expected variant of a value has. Every other variant is a bug.
macro_rules! only {
    ($value:expr, $( $expected:pat => $result:expr ),+) => {
        match $value {
            $( $expected => { #[allow(unreachable_code, reason = "a row may return")] { Ok($result) } } )+
            _ => Err($crate::noun::error::Error::bug(concat!("this is no ", $( stringify!($expected) ),+))),
        }
    };
}
pub(crate) use only;

impl Error {
    /// Returns an error for a state that only a bug in bucketq can lead to.
    pub fn bug(what: impl fmt::Display) -> Self {
        Self::new(Code::Internal, format!("bug in bucketq, please report it: {what}"))
    }

    /// Returns an error with this code and message.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), source: None }
    }

    /// Returns the error for a part of this process, such as a thread, that could not start. The usual cause is a lack
    /// of file descriptors.
    pub fn exhausted(what: &str, cause: &std::io::Error) -> Self {
        let left = "this process has no file descriptors, threads or memory left";
        let advice =
            "raise its limits (ulimit -n, ulimit -u), or close unused files and handles, and try again";
        Self::new(Code::Exhausted, format!("{what}: {cause}; {left}: {advice}"))
    }

    /// Returns the error for an invalid argument, the most common case.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::Argument, message)
    }

    /// Returns the same error with its source.
    #[must_use]
    pub fn because(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Returns the same error with its context before the message: `context: message`.
    #[must_use]
    pub fn during(mut self, context: impl fmt::Display) -> Self {
        self.message = format!("{context}: {}", self.message);
        self
    }

    /// Returns the kind, which says what the caller does next.
    pub fn kind(&self) -> Kind {
        self.code.kind()
    }

    /// Returns the code, which names the cause.
    pub fn code(&self) -> Code {
        self.code
    }

    /// Returns the message for a person.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}]", self.message, self.code.as_str())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}/{}: {}", self.kind(), self.code.as_str(), self.message)?;
        let mut source = std::error::Error::source(self);
        while let Some(e) = source {
            write!(f, "; because {e}")?;
            source = e.source();
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|s| s.as_ref() as &(dyn std::error::Error + 'static))
    }
}

impl PartialEq for Error {
    fn eq(&self, other: &Self) -> bool {
        self.code == other.code && self.message == other.message
    }
}
