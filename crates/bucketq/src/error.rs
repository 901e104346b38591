//! The one error type. Every kind says what the caller does next; every code names one cause.
//!
//! Called by everything. [`TABLE`] is the single source for kinds, codes, exit codes, HTTP statuses and Python
//! class names; docs/errors.md is compared with it by a test. An error must never carry payloads or credentials.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Shorthand used by the whole crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Kind {
    /// Fix the call.
    Invalid,
    /// The thing named is not there.
    NotFound,
    /// Drop the work: somebody else holds the job, or it is finished.
    LeaseLost,
    /// Too many writers: back off, or use a broker.
    Contended,
    /// Local changes lost the race: snapshot and redo.
    Diverged,
    /// Surely not applied: retry.
    Unavailable,
    /// May have been applied: look first.
    Unknown,
    /// A limit or backpressure: make room or wait.
    Full,
    /// Stop, and restore.
    Corrupt,
    /// The handle is closed: open a new one.
    Closed,
}

macro_rules! codes {
    ($( $(#[doc = $doc:literal])* $name:ident = $text:literal : $kind:ident, )*) => {
        /// The cause, stable across versions; its text form is snake case.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum Code { $( $(#[doc = $doc])* $name, )* }

        impl Code {
            /// The stable text of this code.
            pub const fn as_str(self) -> &'static str { match self { $( Self::$name => $text, )* } }
            /// The kind every error with this code has.
            pub const fn kind(self) -> Kind { match self { $( Self::$name => Kind::$kind, )* } }
            /// What the code means, as in docs/errors.md.
            pub const fn says(self) -> &'static str { match self { $( Self::$name => concat!($($doc),*), )* } }
        }

        /// Every code in the order of the documentation.
        pub const CODES: &[Code] = &[ $( Code::$name, )* ];
    };
}

codes! {
    /// An argument makes no sense or is out of range.
    Argument = "argument": Invalid,
    /// The URL of a queue file cannot be understood.
    Url = "url": Invalid,
    /// An option is out of range or contradicts another.
    Option = "option": Invalid,
    /// The payload is over the size limit of the queue file handle.
    PayloadTooLarge = "payload_too_large": Invalid,
    /// The same queue file is already open in this process with other options.
    OptionsDiffer = "options_differ": Invalid,
    /// The queue file was opened with the option `read_only`.
    ReadOnly = "read_only": Invalid,
    /// There is a file at this path already.
    FileExists = "file_exists": Invalid,
    /// The image is not a whole queue file, and cannot be restored.
    Image = "image": Invalid,
    /// The job is in a state in which this operation has no meaning.
    State = "state": Invalid,
    /// What was changed locally is not published: sync first, or discard it.
    Unsynced = "unsynced": Invalid,
    /// The policy contradicts itself, or cannot be changed like this while there are jobs.
    Policy = "policy": Invalid,
    /// There is no such job.
    NoSuchJob = "no_such_job": NotFound,
    /// There is no such queue.
    NoSuchQueue = "no_such_queue": NotFound,
    /// There is no queue file at this URL and it was not to be created.
    NoSuchFile = "no_such_file": NotFound,
    /// What was asked for is too old: it was given up or collected.
    Collected = "collected": NotFound,
    /// The lease token is not the current one: the job was claimed again, finished or taken away.
    LeaseLost = "lease_lost": LeaseLost,
    /// Other writers won every race within the deadline; nothing was applied.
    Contended = "contended": Contended,
    /// Somebody else committed where the local changes should have gone: they can no longer be published.
    Diverged = "diverged": Diverged,
    /// The store cannot be reached or answers with an error.
    Unreachable = "unreachable": Unavailable,
    /// The store refuses these credentials or this action.
    Denied = "denied": Unavailable,
    /// The bucket or directory does not exist.
    NoSuchBucket = "no_such_bucket": Unavailable,
    /// The store asks to slow down.
    Throttled = "throttled": Unavailable,
    /// A file of this machine, such as an image, cannot be read or written.
    LocalFile = "local_file": Unavailable,
    /// The clock of this machine disagrees with the store or with the queue file.
    ClockSkew = "clock_skew": Unavailable,
    /// The store has no working compare-and-swap: it is refused, not trusted.
    NoCompareAndSwap = "no_compare_and_swap": Unavailable,
    /// The local directory cannot be read or written.
    Disk = "disk": Unavailable,
    /// Another process has the local directory open.
    InUse = "in_use": Unavailable,
    /// The deadline passed before the operation could be tried.
    Timeout = "timeout": Unavailable,
    /// The operation may or may not have been applied.
    OutcomeUnknown = "outcome_unknown": Unknown,
    /// The queue file has reached its size limit.
    FileFull = "file_full": Full,
    /// The disk with the local directory is full.
    DiskFull = "disk_full": Full,
    /// Too many operations are waiting in this process.
    MailboxFull = "mailbox_full": Full,
    /// As many jobs are pending in the queue as its policy allows; nothing was enqueued.
    QueueFull = "queue_full": Full,
    /// The queue was full for as long as its policy lets an enqueue wait; nothing was enqueued.
    Blocked = "blocked": Full,
    /// Something read from the store fails a check.
    Corrupt = "corrupt": Corrupt,
    /// The queue file needs a newer version of this library.
    TooNew = "too_new": Corrupt,
    /// The object is not a queue file.
    Foreign = "foreign": Corrupt,
    /// The queue file went back behind a commit this process knows.
    RolledBack = "rolled_back": Corrupt,
    /// The queue file this process knows is gone.
    HeadMissing = "head_missing": Corrupt,
    /// The store lost a commit it had acknowledged.
    StoreBroken = "store_broken": Corrupt,
    /// The engine found itself in a state it cannot explain.
    Internal = "internal": Corrupt,
    /// The handle was closed.
    Closed = "closed": Closed,
    /// The queue is being drained: it takes no jobs until it is resumed.
    Draining = "draining": Closed,
}

/// One row of the table that Rust, Python, the command line and HTTP share.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The kind this row is about.
    pub kind: Kind,
    /// Its stable name.
    pub name: &'static str,
    /// What the caller does next.
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
    /// This kind's row of [`TABLE`].
    pub fn row(self) -> &'static Row {
        // The table has one row a kind, in the order of the enum; tests/house checks it.
        &TABLE[self as usize]
    }
}

/// What went wrong, what kind of thing that is, and what lies beneath.
#[derive(Clone, Serialize, Deserialize)]
pub struct Error {
    code: Code,
    message: String,
    #[serde(skip)]
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error with this code and message.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), source: None }
    }

    /// An argument that makes no sense: the commonest case.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::Argument, message)
    }

    /// The same error with what lies beneath it.
    #[must_use]
    pub fn because(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// The same error told with its surroundings: `context: message`.
    #[must_use]
    pub fn during(mut self, context: impl fmt::Display) -> Self {
        self.message = format!("{context}: {}", self.message);
        self
    }

    /// What the caller does next.
    pub fn kind(&self) -> Kind {
        self.code.kind()
    }

    /// The cause.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The sentence for a person.
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
