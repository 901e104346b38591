//! The options by name: what each is called, what it takes, what it is when nobody says, and what it means.
//!
//! For whoever gets options from a file, the environment or another language. Which values make sense is
//! [`Options::check`]'s to say. No I/O.

use std::path::PathBuf;
use std::time::Duration;

use crate::config::{BaseCodec, Credentials, Fsync, Mode, Options, S3Checksum};
use crate::error::{Code, Error, Result};

/// What a setting takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// On or off.
    Switch,
    /// A whole number.
    Count,
    /// A length of time; seconds in text.
    Span,
    /// The same, or one of these words.
    SpanOr(&'static [&'static str]),
    /// Words.
    Text,
    /// Words that are never shown.
    Secret,
    /// One of these words.
    OneOf(&'static [&'static str]),
}

/// A value of a setting.
#[derive(Clone, PartialEq, Eq)]
pub enum Value {
    /// For [`Kind::Switch`].
    Switch(bool),
    /// For [`Kind::Count`].
    Count(u64),
    /// For [`Kind::Span`], and [`Kind::SpanOr`] without a word.
    Span(Duration),
    /// For all others.
    Text(String),
}

/// One option by name.
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// What it takes.
    pub kind: Kind,
    /// What it means.
    pub says: &'static str,
    get: fn(&mut Options) -> Option<Value>,
    set: fn(&mut Options, Value) -> bool,
}

impl Setting {
    /// The setting of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        SETTINGS.iter().find(|setting| setting.name == name)
    }

    /// What it is when nobody says; none when that depends on the store or the surroundings.
    pub fn default(&self) -> Option<Value> {
        (self.get)(&mut Options::default())
    }

    /// Set it. A value of another kind is refused and not shown.
    pub fn set(&self, options: &mut Options, value: Value) -> Result<()> {
        if (self.set)(options, value) { Ok(()) } else { Err(self.refused()) }
    }

    /// The value that a text means, as in the environment.
    pub fn parse(&self, text: &str) -> Result<Value> {
        let text = text.trim();
        let value = match self.kind {
            Kind::Switch => match text.to_ascii_lowercase().as_str() {
                "1" | "true" | "yes" | "on" => Some(Value::Switch(true)),
                "0" | "false" | "no" | "off" => Some(Value::Switch(false)),
                _ => None,
            },
            Kind::Count => text.parse().ok().map(Value::Count),
            Kind::SpanOr(words) if words.contains(&text) => Some(Value::Text(text.to_owned())),
            Kind::Span | Kind::SpanOr(_) => {
                text.parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok()).map(Value::Span)
            }
            Kind::OneOf(words) => words.contains(&text).then(|| Value::Text(text.to_owned())),
            Kind::Text | Kind::Secret => Some(Value::Text(text.to_owned())),
        };
        value.ok_or_else(|| self.refused())
    }

    /// The error for a value that it cannot take; says what it takes, not what was given.
    pub fn refused(&self) -> Error {
        let wanted = match self.kind {
            Kind::Switch => "true or false".to_owned(),
            Kind::Count => "a whole number that is not negative".to_owned(),
            Kind::Span => "a number of seconds".to_owned(),
            Kind::SpanOr(words) => format!("{} or a number of seconds", words.join(", ")),
            Kind::Text | Kind::Secret => "text".to_owned(),
            Kind::OneOf(words) => format!("one of {}", words.join(", ")),
        };
        Error::new(Code::Option, format!("{} takes {wanted}", self.name))
    }
}

/// A field of [`Options`] as a [`Value`]. What does not fit is refused.
trait Field {
    fn read(&self) -> Option<Value>;
    fn write(&mut self, value: Value) -> bool;
}

macro_rules! field {
    ($($type:ty: $kind:ident, $out:expr, $into:expr;)*) => { $(
        impl Field for $type {
            fn read(&self) -> Option<Value> {
                Some(Value::$kind($out(self)))
            }
            fn write(&mut self, value: Value) -> bool {
                let Value::$kind(value) = value else { return false };
                let Some(value) = $into(value) else { return false };
                *self = value;
                true
            }
        }
    )* };
}

field! {
    bool: Switch, |v: &bool| *v, Some;
    u64: Count, |v: &u64| *v, Some;
    u32: Count, |v: &u32| u64::from(*v), |v: u64| v.try_into().ok();
    usize: Count, |v: &usize| *v as u64, |v: u64| v.try_into().ok();
    Duration: Span, |v: &Duration| *v, Some;
    String: Text, String::clone, Some;
    PathBuf: Text, |v: &PathBuf| v.to_string_lossy().into_owned(), |v: String| Some(v.into());
    S3Checksum: Text, |v: &S3Checksum| word(CHECKSUMS, &CHECKSUM_VALUES, v), |v: String| meant(CHECKSUMS, &CHECKSUM_VALUES, &v);
    Mode: Text, |v: &Mode| word(MODES, &MODE_VALUES, v), |v: String| meant(MODES, &MODE_VALUES, &v);
    BaseCodec: Text, |v: &BaseCodec| word(BASE_CODECS, &BASE_CODEC_VALUES, v), |v: String| meant(BASE_CODECS, &BASE_CODEC_VALUES, &v);
}

impl Field for Fsync {
    fn read(&self) -> Option<Value> {
        Some(match self {
            Self::Interval(every) => Value::Span(*every),
            other => Value::Text(word(FSYNCS, &FSYNC_VALUES, other)),
        })
    }

    fn write(&mut self, value: Value) -> bool {
        let meant = match value {
            Value::Span(every) => Some(Self::Interval(every)),
            Value::Text(text) => meant(FSYNCS, &FSYNC_VALUES, &text),
            _ => None,
        };
        meant.map(|fsync| *self = fsync).is_some()
    }
}

impl<T: Field + Default> Field for Option<T> {
    fn read(&self) -> Option<Value> {
        self.as_ref().and_then(Field::read)
    }

    fn write(&mut self, value: Value) -> bool {
        let mut inner = T::default();
        let fits = inner.write(value);
        if fits {
            *self = Some(inner);
        }
        fits
    }
}

const CHECKSUMS: &[&str] = &["crc32", "sha256", "none"];
const CHECKSUM_VALUES: [S3Checksum; 3] = [S3Checksum::Crc32, S3Checksum::Sha256, S3Checksum::None];
const MODES: &[&str] = &["durable", "local"];
const MODE_VALUES: [Mode; 2] = [Mode::Durable, Mode::Local];
const FSYNCS: &[&str] = &["each_commit", "never"];
const FSYNC_VALUES: [Fsync; 2] = [Fsync::EachCommit, Fsync::Never];
const BASE_CODECS: &[&str] = &["zstd", "none"];
const BASE_CODEC_VALUES: [BaseCodec; 2] = [BaseCodec::Zstd, BaseCodec::None];

/// The word for a value.
fn word<T: PartialEq>(words: &[&str], values: &[T], value: &T) -> String {
    words
        .iter()
        .zip(values)
        .find(|(_, one)| *one == value)
        .map(|(word, _)| (*word).to_owned())
        .unwrap_or_default()
}

/// The value that a word stands for.
fn meant<T: Copy>(words: &[&str], values: &[T], text: &str) -> Option<T> {
    words.iter().zip(values).find(|(word, _)| **word == text).map(|(_, value)| *value)
}

/// The credentials, empty at first: [`Options::check`] refuses half of a pair.
fn credentials(options: &mut Options) -> &mut Credentials {
    options.s3.credentials.get_or_insert_default()
}

macro_rules! settings {
    ($( $(#[doc = $doc:literal])* $name:literal: $kind:expr, |$options:ident| $field:expr; )*) => {
        /// Every setting, in the order of the documentation.
        pub const SETTINGS: &[Setting] = &[ $( Setting {
            name: $name,
            kind: $kind,
            says: concat!($($doc),*).trim_ascii(),
            get: |$options| Field::read(&$field).filter(|value| *value != Value::Text(String::new())),
            set: |$options, value| Field::write(&mut $field, value),
        }, )* ];
    };
}

settings! {
    /// Make the queue file when there is none.
    "create": Kind::Switch, |o| o.create;
    /// Only look: nothing is ever written, and every change is refused.
    "read_only": Kind::Switch, |o| o.read_only;
    /// Largest payload and result accepted, in bytes.
    "max_payload": Kind::Count, |o| o.max_payload;
    /// Size limit of the database, in bytes.
    "max_file": Kind::Count, |o| o.max_file;
    /// Largest difference between two writers' clocks; taken when the queue file is created. What the store says when not set: 0 on one machine, 5 s for S3.
    "max_skew": Kind::Span, |o| o.max_skew;
    /// A call gets an answer within this time, if need be "outcome unknown".
    "deadline": Kind::Span, |o| o.deadline;
    /// At least this long between two commits: saves requests.
    "commit_interval": Kind::Span, |o| o.commit_interval;
    /// The writer waits for more ops at most this share of the average PUT, in percent, and on a fast store a little longer while callers come back; 0 turns both off ...
    "gather_percent": Kind::Count, |o| o.gather_percent;
    /// ... and at most this long.
    "gather_max": Kind::Span, |o| o.gather_max;
    /// Ops that may wait in this process; one more is refused.
    "mailbox": Kind::Count, |o| o.mailbox;
    /// The tail that HEAD aims for, in bytes.
    "tail": Kind::Count, |o| o.tail;
    /// HEAD stays under this size, in bytes.
    "max_head": Kind::Count, |o| o.max_head;
    /// A log shorter than this gets no base, in bytes.
    "base_after": Kind::Count, |o| o.base_after;
    /// How bases are stored: compressed, or as SQLite files.
    "base_codec": Kind::OneOf(BASE_CODECS), |o| o.base_codec;
    /// What a queue file no longer needs stays for this long, for those who are still reading it.
    "grace": Kind::Span, |o| o.grace;
    /// Finished jobs that may leave for the archive wait about this long for others, while anything is committed.
    "archive_every": Kind::Span, |o| o.archive_every;
    /// A waiting claim asks the store this often at first ...
    "poll_min": Kind::Span, |o| o.poll_min;
    /// ... and this often after a while.
    "poll_max": Kind::Span, |o| o.poll_max;
    /// When a call that changes something returns: once its change is in the store, or once it is in a directory of this machine.
    "mode": Kind::OneOf(MODES), |o| o.mode;
    /// Local mode: the disk has it before a call returns, at least this often, or when the system likes.
    "fsync": Kind::SpanOr(FSYNCS), |o| o.fsync;
    /// A directory of this machine. Local mode keeps its state there, in the platform's place for state when not set. Durable mode reopens faster with one, and keeps a copy for `sqlite3` there.
    "cache": Kind::Text, |o| o.cache;
    /// Bytes of bases and segments kept there; the longest unused go first.
    "cache_bytes": Kind::Count, |o| o.cache_bytes;
    /// The copy there is at most this old, while the queue file moves.
    "copy_interval": Kind::Span, |o| o.copy_interval;
    /// The S3 server, when it is not AWS.
    "endpoint": Kind::Text, |o| o.s3.endpoint;
    /// The region of the bucket; the usual environment and profile files of AWS when not set.
    "region": Kind::Text, |o| o.s3.region;
    /// `http://host/bucket/key` instead of `http://bucket.host/key`; on when an endpoint is set.
    "path_style": Kind::Switch, |o| o.s3.path_style;
    /// The public half of the credentials; the usual chain of AWS when not set.
    "access_key": Kind::Text, |o| credentials(o).access_key;
    /// The secret half.
    "secret_key": Kind::Secret, |o| credentials(o).secret_key;
    /// For temporary credentials.
    "session_token": Kind::Secret, |o| credentials(o).session_token;
    /// The checksum sent with each body; others are for servers that refuse CRC32.
    "checksum": Kind::OneOf(CHECKSUMS), |o| o.s3.checksum;
    /// Time for connecting; 3.1 s when not set.
    "connect_timeout": Kind::Span, |o| o.s3.connect_timeout;
    /// Time for one request as a whole; 10 s when not set.
    "request_timeout": Kind::Span, |o| o.s3.request_timeout;
}
