//! Rows of a table as enqueues, for `bucketq.spark`: columns arrive as the buffers of Arrow arrays, so that no row
//! becomes a Python object. Called by the driver of a write for each chunk.

use std::collections::BTreeMap;

use bucketq::{Error, Payload, Result};
use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::OrRaise;
use crate::file::File;
use crate::op::{Extras, New, Op};

/// The buffers of a column: which rows have a value (none: all), offsets if values differ in length, the values; and
/// the first row of the column.
type Buffers<'py> = (Option<Bytea<'py>>, Option<Bytea<'py>>, Option<Bytea<'py>>, usize);
type Bytea<'py> = Bound<'py, PyBytes>;

struct Column<'a> {
    valid: Option<&'a [u8]>,
    offsets: &'a [u8],
    values: &'a [u8],
    first: usize,
}

fn short() -> Error {
    Error::invalid("a column is shorter than its table")
}

impl<'a> Column<'a> {
    fn of((valid, offsets, values, first): &'a Buffers<'_>) -> Self {
        let [valid, offsets, values] =
            [valid, offsets, values].map(|b| b.as_ref().map(PyBytesMethods::as_bytes));
        Self {
            valid,
            offsets: offsets.unwrap_or_default(),
            values: values.unwrap_or_default(),
            first: *first,
        }
    }

    fn has(&self, row: usize) -> Result<bool> {
        let Some(valid) = self.valid else { return Ok(true) };
        let place = self.first + row;
        valid.get(place / 8).map(|byte| byte >> (place % 8) & 1 == 1).ok_or_else(short)
    }

    fn range(&self, row: usize) -> Result<Option<std::ops::Range<usize>>> {
        if !self.has(row)? {
            return Ok(None);
        }
        let at = |place: usize| {
            let bytes = self.offsets.get(4 * place..4 * place + 4).ok_or_else(short)?;
            let offset = i32::from_le_bytes(bytes.try_into().map_err(|_| short())?);
            usize::try_from(offset).map_err(|_| short())
        };
        let range = at(self.first + row)?..at(self.first + row + 1)?;
        if range.start > range.end || range.end > self.values.len() { Err(short()) } else { Ok(Some(range)) }
    }

    fn text(&self, row: usize) -> Result<Option<&'a str>> {
        let Some(range) = self.range(row)? else { return Ok(None) };
        let text = str::from_utf8(&self.values[range]);
        text.map(Some).map_err(|e| Error::invalid("a text is no UTF-8").because(e))
    }

    fn number<T: TryFrom<i64>>(&self, row: usize) -> Result<Option<T>> {
        if !self.has(row)? {
            return Ok(None);
        }
        let at = 8 * (self.first + row);
        let bytes = self.values.get(at..at + 8).ok_or_else(short)?;
        let number = i64::from_le_bytes(bytes.try_into().map_err(|_| short())?);
        T::try_from(number).map(Some).map_err(|_| Error::invalid(format!("{number} is out of range")))
    }
}

/// Returns `rows` rows as enqueues in their order, one per sequence of rows of the same queue. The columns: queue,
/// payload, content type, priority, delay and time to run in ms, dedup, group, headers as JSON, attempts.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "Python hands over lists")]
pub fn enqueues(py: Python<'_>, file: &File, columns: Vec<Buffers<'_>>, rows: usize) -> PyResult<Vec<Op>> {
    let columns: Vec<Column<'_>> = columns.iter().map(Column::of).collect();
    enqueues_of(file, &columns, rows).or_raise(py)
}

fn enqueues_of(file: &File, columns: &[Column<'_>], rows: usize) -> Result<Vec<Op>> {
    let [queue, payload, kind, priority, delay, at, dedup, group, headers, attempts] = columns else {
        return Err(Error::invalid(format!("{} columns are no jobs", columns.len())));
    };
    // One copy for all payloads of the table.
    let bytes = Bytes::copy_from_slice(payload.values);
    let mut ops = vec![];
    let mut run: Option<(&str, Vec<bucketq::New>)> = None;
    for row in 0..rows {
        let name = queue.text(row)?.ok_or_else(short)?;
        let body = bytes.slice(payload.range(row)?.ok_or_else(short)?);
        let extras = Extras {
            id: None,
            priority: priority.number(row)?,
            delay_ms: delay.number(row)?,
            at_ms: at.number(row)?,
            max_attempts: attempts.number(row)?,
            backoff: None,
            dedup: dedup.text(row)?.map(str::to_owned),
            dedup_window_ms: None,
            dedup_unfinished: false,
            group: group.text(row)?.map(str::to_owned),
            headers: headers.text(row)?.map(headers_of).transpose()?,
            expires_ms: None,
            max_run_ms: None,
        };
        let content_type = kind.text(row)?.ok_or_else(short)?.to_owned();
        let New { job } = New::with(file.fresh(Payload { bytes: body, content_type })?, extras)?;
        match &mut run {
            Some((same, jobs)) if *same == name => jobs.push(job),
            _ => ops.extend(run.replace((name, vec![job])).map(enqueue)),
        }
    }
    ops.extend(run.map(enqueue));
    Ok(ops)
}

fn enqueue((queue, jobs): (&str, Vec<bucketq::New>)) -> Op {
    Op::of_jobs(queue.to_owned(), jobs)
}

fn headers_of(text: &str) -> Result<BTreeMap<String, String>> {
    serde_json::from_str(text).map_err(|e| Error::invalid("headers are no JSON object of texts").because(e))
}
