//! Reads the runs in the bytes of an archive object.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};

use super::{META_FILE, META_SEQ, META_VERSION, VERSION};
use crate::bucket::wire::corrupt;
use crate::noun::error::{Code, Error, Result};
use crate::noun::job::State;
use crate::noun::life::Life;

/// The metadata of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// Version of its columns.
    pub version: u32,
    /// The queue file's id, in hexadecimal digits.
    pub file_id: String,
    /// The commit its rows were read at.
    pub commit_seq: u64,
}

/// Decodes an object; `what` is its key. For tests and small tools: programs that analyse archives read Parquet
/// themselves.
pub fn decode(what: &str, bytes: Bytes) -> Result<(About, Vec<Life>)> {
    // The parquet crate panics on some invalid files, such as one with columns that begin before the file.
    catch_unwind(AssertUnwindSafe(|| read(what, bytes)))
        .unwrap_or_else(|_| Err(corrupt(what, "it is not a valid Parquet file")))
}

fn read(what: &str, bytes: Bytes) -> Result<(About, Vec<Life>)> {
    let bad = |e| corrupt(what, "it is not a Parquet file that can be read").because(e);
    let file = SerializedFileReader::new(bytes).map_err(bad)?;
    let about = about(what, &file)?;
    let mut shared = SharedTexts::default();
    let mut lives = vec![];
    for row in file.get_row_iter(None).map_err(bad)? {
        lives.push(Cells::of(what, &row.map_err(bad)?).life(&mut shared)?);
    }
    Ok((about, lives))
}

fn about(what: &str, file: &SerializedFileReader<Bytes>) -> Result<About> {
    let pairs = file.metadata().file_metadata().key_value_metadata();
    let meta = |key: &str| {
        let pair = pairs.and_then(|all| all.iter().find(|p| p.key == key));
        let missing = || corrupt(what, &format!("its metadata has no {key}"));
        pair.and_then(|p| p.value.clone()).ok_or_else(missing)
    };
    let number = |key: &str| {
        meta(key)?.parse::<u64>().map_err(|e| corrupt(what, &format!("its {key} is no number")).because(e))
    };
    let version = u32::try_from(number(META_VERSION)?).unwrap_or(u32::MAX);
    if version == 0 || version > VERSION {
        let told =
            format!("{what} has columns of version {version}; this library reads {VERSION}: upgrade bucketq");
        return Err(Error::new(Code::TooNew, told));
    }
    Ok(About { version, file_id: meta(META_FILE)?, commit_seq: number(META_SEQ)? })
}

/// Texts shared by many rows.
#[derive(Default)]
struct SharedTexts(HashSet<Arc<str>>);

impl SharedTexts {
    fn text(&mut self, text: String) -> Arc<str> {
        if let Some(there) = self.0.get(text.as_str()) {
            return there.clone();
        }
        let text: Arc<str> = text.into();
        self.0.insert(text.clone());
        text
    }
}

/// The cells of one row by name.
struct Cells<'a> {
    what: &'a str,
    row: &'a Row,
}

impl<'a> Cells<'a> {
    const fn of(what: &'a str, row: &'a Row) -> Self {
        Self { what, row }
    }

    fn cell(&self, name: &str) -> Result<&'a Field> {
        let found = self.row.get_column_iter().find(|(column, _)| *column == name);
        found.map(|(_, field)| field).ok_or_else(|| corrupt(self.what, &format!("it has no column {name}")))
    }

    fn odd(&self, name: &str) -> Error {
        corrupt(self.what, &format!("a value of its column {name} has another type or range"))
    }

    fn maybe_int<T: TryFrom<i64>>(&self, name: &str) -> Result<Option<T>> {
        match self.cell(name)? {
            Field::Null => Ok(None),
            Field::Long(n) | Field::TimestampMillis(n) => {
                T::try_from(*n).map(Some).map_err(|_| self.odd(name))
            }
            _ => Err(self.odd(name)),
        }
    }

    fn int<T: TryFrom<i64>>(&self, name: &str) -> Result<T> {
        self.maybe_int(name)?.ok_or_else(|| self.odd(name))
    }

    fn maybe_text(&self, name: &str) -> Result<Option<String>> {
        match self.cell(name)? {
            Field::Null => Ok(None),
            Field::Str(text) => Ok(Some(text.clone())),
            _ => Err(self.odd(name)),
        }
    }

    fn text(&self, name: &str) -> Result<String> {
        self.maybe_text(name)?.ok_or_else(|| self.odd(name))
    }

    fn maybe_bytes(&self, name: &str) -> Result<Option<Bytes>> {
        match self.cell(name)? {
            Field::Null => Ok(None),
            Field::Bytes(bytes) => Ok(Some(Bytes::copy_from_slice(bytes.data()))),
            _ => Err(self.odd(name)),
        }
    }

    fn life(&self, shared: &mut SharedTexts) -> Result<Life> {
        let state = self.text("state")?;
        let state = State::ALL.into_iter().find(|s| s.as_str() == state && s.is_finished());
        Ok(Life {
            finish_seq: self.int("finish_seq")?,
            id: self
                .text("id")?
                .parse()
                .map_err(|e: Error| corrupt(self.what, "an id is none").because(e))?,
            run: self.int("run")?,
            queue: shared.text(self.text("queue")?),
            group: self.maybe_text("group")?.map(|t| shared.text(t)),
            state: state.ok_or_else(|| self.odd("state"))?,
            priority: self.int("priority")?,
            attempts: self.int("attempts")?,
            max_attempts: self.int("max_attempts")?,
            worker: self.maybe_text("worker")?.map(|t| shared.text(t)),
            enqueued_ms: self.int("enqueued_at")?,
            run_at_ms: self.int("run_at")?,
            first_claimed_ms: self.maybe_int("first_claimed_at")?,
            claimed_ms: self.maybe_int("claimed_at")?,
            finished_ms: self.int("finished_at")?,
            seq: self.int("seq")?,
            fence: self.maybe_int("claim_commit_seq")?,
            payload_len: self.int("payload_len")?,
            payload: self.maybe_bytes("payload")?,
            payload_type: self.maybe_text("payload_type")?.map(|t| shared.text(t)),
            result: self.maybe_bytes("result")?,
            result_type: self.maybe_text("result_type")?.map(|t| shared.text(t)),
            last_error: self.maybe_text("last_error")?,
        })
    }
}
