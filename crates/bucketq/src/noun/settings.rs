//! The options by name: the name, kind, default and meaning of each.
//!
//! For programs that read options from a file, the environment or another language. [`Options::check`] decides which
//! values are valid. No I/O.

use std::path::PathBuf;
use std::time::Duration;

use crate::noun::config::{BaseCodec, Credentials, Fsync, Mode, Options, S3Checksum};
use crate::noun::error::{Code, Error, Result};

/// The kind of value that a setting takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingKind {
    /// On or off.
    Switch,
    /// A whole number.
    Count,
    /// A duration; seconds in text.
    Span,
    /// A duration, or one of these words.
    SpanOr(&'static [&'static str]),
    /// Text.
    Text,
    /// Text that is never shown.
    Secret,
    /// One of these words.
    OneOf(&'static [&'static str]),
}

/// A value of a setting.
#[derive(Clone, PartialEq, Eq)]
pub enum Value {
    /// For [`SettingKind::Switch`].
    Switch(bool),
    /// For [`SettingKind::Count`].
    Count(u64),
    /// For [`SettingKind::Span`], and [`SettingKind::SpanOr`] without a word.
    Span(Duration),
    /// For all other kinds.
    Text(String),
}

/// Returns a value as messages show it.
fn shown(value: Option<Value>) -> String {
    match value {
        None => "not set".to_owned(),
        Some(Value::Switch(on)) => on.to_string(),
        Some(Value::Count(count)) => count.to_string(),
        Some(Value::Span(span)) => format!("{span:?}"),
        Some(Value::Text(text)) => format!("{text:?}"),
    }
}

/// One option by name.
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// The kind of value it takes.
    pub kind: SettingKind,
    /// Its meaning.
    pub says: &'static str,
    get: fn(&mut Options) -> Option<Value>,
    set: fn(&mut Options, Value) -> bool,
}

impl Setting {
    /// Returns the setting of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        SETTINGS.iter().find(|setting| setting.name == name)
    }

    /// Returns its default; none when that depends on the store or the environment.
    pub fn default(&self) -> Option<Value> {
        (self.get)(&mut Options::default())
    }

    /// Sets it. A value of another kind is refused; the error does not show the value.
    pub fn set(&self, options: &mut Options, value: Value) -> Result<()> {
        if (self.set)(options, value) { Ok(()) } else { Err(self.refused()) }
    }

    /// Returns every setting in which two openings differ, with both values. Credentials are named and not shown.
    pub(crate) fn differences(there: &Options, here: &Options) -> String {
        let (mut there, mut here) = (there.clone(), here.clone());
        let mut found = vec![];
        for setting in SETTINGS {
            let (one, other) = ((setting.get)(&mut there), (setting.get)(&mut here));
            if one == other {
                continue;
            }
            if setting.kind == SettingKind::Secret || setting.name == "access_key" {
                found.push(format!("`{}` differs", setting.name));
            } else {
                found.push(format!("`{}` is {} there and {} here", setting.name, shown(one), shown(other)));
            }
        }
        // All other fields of the options can only be set in Rust.
        if found.is_empty() { "`host` differs".to_owned() } else { found.join(", ") }
    }

    /// Parses a value from text, as in the environment.
    pub fn parse(&self, text: &str) -> Result<Value> {
        let text = text.trim();
        let value = match self.kind {
            SettingKind::Switch => match text.to_ascii_lowercase().as_str() {
                "1" | "true" | "yes" | "on" => Some(Value::Switch(true)),
                "0" | "false" | "no" | "off" => Some(Value::Switch(false)),
                _ => None,
            },
            SettingKind::Count => text.parse().ok().map(Value::Count),
            SettingKind::SpanOr(words) if words.contains(&text) => Some(Value::Text(text.to_owned())),
            SettingKind::Span | SettingKind::SpanOr(_) => {
                text.parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok()).map(Value::Span)
            }
            SettingKind::OneOf(words) => words.contains(&text).then(|| Value::Text(text.to_owned())),
            SettingKind::Text | SettingKind::Secret => Some(Value::Text(text.to_owned())),
        };
        value.ok_or_else(|| self.refused())
    }

    /// Returns the error for an invalid value; it says what the setting takes, and does not show the value.
    pub fn refused(&self) -> Error {
        let wanted = match self.kind {
            SettingKind::Switch => "true or false".to_owned(),
            SettingKind::Count => "a whole number that is not negative".to_owned(),
            SettingKind::Span => "a number of seconds".to_owned(),
            SettingKind::SpanOr(words) => format!("{} or a number of seconds", words.join(", ")),
            SettingKind::Text | SettingKind::Secret => "text".to_owned(),
            SettingKind::OneOf(words) => format!("one of {}", words.join(", ")),
        };
        Error::new(Code::Option, format!("{} takes {wanted}", self.name))
    }
}

/// A field of [`Options`] as a [`Value`]. Refuses a value of another kind or range.
trait SettingField {
    fn read(&self) -> Option<Value>;
    fn write(&mut self, value: Value) -> bool;
}

macro_rules! field {
    ($($type:ty: $kind:ident, $out:expr, $into:expr;)*) => { $(
        impl SettingField for $type {
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

impl SettingField for Fsync {
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

impl<T: SettingField + Default> SettingField for Option<T> {
    fn read(&self) -> Option<Value> {
        self.as_ref().and_then(SettingField::read)
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

/// Returns the word for a value.
fn word<T: PartialEq>(words: &[&str], values: &[T], value: &T) -> String {
    words
        .iter()
        .zip(values)
        .find(|(_, one)| *one == value)
        .map(|(word, _)| (*word).to_owned())
        .unwrap_or_default()
}

/// Returns the value of a word.
fn meant<T: Copy>(words: &[&str], values: &[T], text: &str) -> Option<T> {
    words.iter().zip(values).find(|(word, _)| **word == text).map(|(_, value)| *value)
}

/// Returns the credentials, empty at first: [`Options::check`] refuses half of a pair.
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
            get: |$options| SettingField::read(&$field).filter(|value| *value != Value::Text(String::new())),
            set: |$options, value| SettingField::write(&mut $field, value),
        }, )* ];
    };
}

settings! {
    /// Create the queue file if it does not exist.
    "create": SettingKind::Switch, |o| o.create;
    /// Never write: every change fails.
    "read_only": SettingKind::Switch, |o| o.read_only;
    /// Largest payload and result accepted, in bytes.
    "max_payload": SettingKind::Count, |o| o.max_payload;
    /// Size limit of the database, in bytes.
    "max_file": SettingKind::Count, |o| o.max_file;
    /// Largest difference between two writers' clocks, fixed when the queue file is created. By default the store decides: 0 on one machine, 5 s for S3.
    "max_skew": SettingKind::Span, |o| o.max_skew;
    /// A call returns within this time, if necessary with `outcome_unknown`.
    "deadline": SettingKind::Span, |o| o.deadline;
    /// Shortest time between two commits: saves requests.
    "commit_interval": SettingKind::Span, |o| o.commit_interval;
    /// The writer waits for more ops at most this share of the average PUT, in percent, and on a fast store a little longer while callers come back; 0 turns both off ...
    "gather_percent": SettingKind::Count, |o| o.gather_percent;
    /// ... and at most this long.
    "gather_max": SettingKind::Span, |o| o.gather_max;
    /// Ops that may wait in this process; further ones fail with `mailbox_full`.
    "mailbox": SettingKind::Count, |o| o.mailbox;
    /// Bytes of payloads, headers, keys and results that may wait in this process; an op beyond fails with
    /// `mailbox_full`, unless nothing else waits.
    "mailbox_bytes": SettingKind::Count, |o| o.mailbox_bytes;
    /// Size of the tail that HEAD aims for, in bytes.
    "tail": SettingKind::Count, |o| o.tail;
    /// Upper limit for the size of HEAD, in bytes.
    "max_head": SettingKind::Count, |o| o.max_head;
    /// A log shorter than this gets no base, in bytes.
    "base_after": SettingKind::Count, |o| o.base_after;
    /// Format of bases in the store: compressed, or plain SQLite files.
    "base_codec": SettingKind::OneOf(BASE_CODECS), |o| o.base_codec;
    /// Objects that the queue file no longer needs stay for this long, for processes that still read them.
    "grace": SettingKind::Span, |o| o.grace;
    /// Finished jobs on their way to the archive wait about this long for others, while anything is committed.
    "archive_every": SettingKind::Span, |o| o.archive_every;
    /// A waiting claim asks the store this often at first ...
    "poll_min": SettingKind::Span, |o| o.poll_min;
    /// ... and this often after a while.
    "poll_max": SettingKind::Span, |o| o.poll_max;
    /// When a changing call returns: once its change is in the store (durable), or in a directory of this machine (local).
    "mode": SettingKind::OneOf(MODES), |o| o.mode;
    /// Local mode: write to the disk before each call returns, at this interval, or when the system does.
    "fsync": SettingKind::SpanOr(FSYNCS), |o| o.fsync;
    /// A directory of this machine. Local mode keeps its state there, by default where the platform keeps state. Durable mode reopens faster with one, and keeps a copy for `sqlite3` there.
    "cache": SettingKind::Text, |o| o.cache;
    /// Bytes of bases and segments kept in `cache`; the least recently used are deleted first.
    "cache_bytes": SettingKind::Count, |o| o.cache_bytes;
    /// Largest age of the copy for `sqlite3` in `cache`, while the queue file changes.
    "copy_interval": SettingKind::Span, |o| o.copy_interval;
    /// Share one writer with the other processes of this user on this host that use the same queue file.
    "share": SettingKind::Switch, |o| o.share;
    /// The directory in which the processes of a host find each other, for containers that share one; by default a private directory of the user.
    "host_dir": SettingKind::Text, |o| o.host_dir;
    /// The S3 server, if it is not AWS.
    "endpoint": SettingKind::Text, |o| o.s3.endpoint;
    /// The region of the bucket; by default from the usual environment and profile files of AWS.
    "region": SettingKind::Text, |o| o.s3.region;
    /// `http://host/bucket/key` instead of `http://bucket.host/key`; on by default when an endpoint is set.
    "path_style": SettingKind::Switch, |o| o.s3.path_style;
    /// The public half of the credentials; by default from the usual chain of AWS.
    "access_key": SettingKind::Text, |o| credentials(o).access_key;
    /// The secret half.
    "secret_key": SettingKind::Secret, |o| credentials(o).secret_key;
    /// The token of temporary credentials.
    "session_token": SettingKind::Secret, |o| credentials(o).session_token;
    /// The checksum sent with each body; the others are for servers that refuse CRC32.
    "checksum": SettingKind::OneOf(CHECKSUMS), |o| o.s3.checksum;
    /// Time limit for connecting; 3.1 s by default.
    "connect_timeout": SettingKind::Span, |o| o.s3.connect_timeout;
    /// Time limit for one request; 10 s by default.
    "request_timeout": SettingKind::Span, |o| o.s3.request_timeout;
}
