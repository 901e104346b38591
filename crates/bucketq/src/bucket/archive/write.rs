//! Encodes rows as the bytes of one Parquet file.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{Compression, Encoding, LogicalType, Repetition, TimeUnit, Type as Physical, ZstdLevel};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{ColumnPath, Type};

use super::columns::{COLUMNS, Column, ColumnKind, JOB_COLUMNS, Means, WholeJob};
use super::{META_FILE, META_SEQ, META_VERSION, VERSION, internal};
use crate::bucket::keys;
use crate::noun::error::Result;
use crate::noun::life::Life;

/// Encodes the object of these runs, read at commit `seq` of the queue file.
pub fn encode(lives: &[Life], file_id: &[u8; 16], seq: u64) -> Result<Vec<u8>> {
    properties(file_id, seq).and_then(|stored| write(&COLUMNS, lives, stored)).map_err(internal)
}

/// Encodes jobs for a reader in this process, as quickly as possible.
pub fn encode_jobs(jobs: &[WholeJob]) -> Result<Vec<u8>> {
    let passing = WriterProperties::builder().set_statistics_enabled(EnabledStatistics::None);
    write(&JOB_COLUMNS, jobs, passing.set_dictionary_enabled(false).build()).map_err(internal)
}

fn write<R>(
    columns: &[Column<R>],
    rows: &[R],
    properties: WriterProperties,
) -> parquet::errors::Result<Vec<u8>> {
    let bytes = Vec::with_capacity(rows.len() * 64 + 8192);
    let mut file = SerializedFileWriter::new(bytes, Arc::new(schema(columns)?), Arc::new(properties))?;
    let mut group = file.next_row_group()?;
    for column in columns {
        let Some(mut writer) = group.next_column()? else { break };
        match writer.untyped() {
            ColumnWriter::Int64ColumnWriter(w) => {
                let (values, levels) = numbers(column, rows);
                w.write_batch(&values, levels.as_deref(), None)?;
            }
            ColumnWriter::ByteArrayColumnWriter(w) => {
                let (values, levels) = bytes_of(column, rows);
                w.write_batch(&values, levels.as_deref(), None)?;
            }
            _ => return Err(parquet::errors::ParquetError::General("a column of another type".into())),
        }
        writer.close()?;
    }
    group.close()?;
    file.into_inner()
}

fn properties(file_id: &[u8; 16], seq: u64) -> parquet::errors::Result<WriterProperties> {
    let meta = |key: &str, value: String| KeyValue::new(key.to_owned(), value);
    let mut properties = WriterProperties::builder()
        .set_created_by("bucketq".into())
        .set_key_value_metadata(Some(vec![
            meta(META_VERSION, VERSION.to_string()),
            meta(META_FILE, keys::hex(file_id)),
            meta(META_SEQ, seq.to_string()),
        ]))
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(1)?))
        // Readers skip whole objects by these; one object has too few pages for an index.
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true)
        .set_dictionary_enabled(false);
    for column in &COLUMNS {
        let path = ColumnPath::from(column.name);
        properties = match column.kind {
            ColumnKind::Int | ColumnKind::Time => {
                properties.set_column_encoding(path, Encoding::DELTA_BINARY_PACKED)
            }
            ColumnKind::Text | ColumnKind::Bytes if column.repeats => {
                properties.set_column_dictionary_enabled(path, true)
            }
            ColumnKind::Bytes => properties.set_column_statistics_enabled(path, EnabledStatistics::None),
            ColumnKind::Text => properties,
        };
    }
    Ok(properties.build())
}

fn schema<R>(columns: &[Column<R>]) -> parquet::errors::Result<Type> {
    let field = |column: &Column<R>| {
        let (physical, logical) = match column.kind {
            ColumnKind::Int => (Physical::INT64, None),
            ColumnKind::Time => (Physical::INT64, Some(LogicalType::timestamp(true, TimeUnit::MILLIS))),
            ColumnKind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            ColumnKind::Bytes => (Physical::BYTE_ARRAY, None),
        };
        let repetition = if column.optional() { Repetition::OPTIONAL } else { Repetition::REQUIRED };
        Type::primitive_type_builder(column.name, physical)
            .with_repetition(repetition)
            .with_logical_type(logical)
            .build()
            .map(Arc::new)
    };
    let fields = columns.iter().map(field).collect::<parquet::errors::Result<Vec<_>>>()?;
    Type::group_type_builder("life").with_fields(fields).build()
}

/// The present values, and for each row whether it has one.
type ColumnValues<T> = (Vec<T>, Option<Vec<i16>>);

fn numbers<R>(column: &Column<R>, rows: &[R]) -> ColumnValues<i64> {
    match column.means {
        Means::Number(of) => (rows.iter().map(of).collect(), None),
        Means::MaybeNumber(of) => some(rows.iter().map(of)),
        _ => (vec![], None),
    }
}

fn bytes_of<R>(column: &Column<R>, rows: &[R]) -> ColumnValues<ByteArray> {
    match column.means {
        Means::Text(of) => (texts(rows.iter().map(|l| Some(of(l)))).0, None),
        Means::MaybeText(of) => {
            let (there, levels) = texts(rows.iter().map(|l| of(l).map(Cow::Borrowed)));
            (there, Some(levels))
        }
        Means::MaybeBytes(of) => some(rows.iter().map(|l| of(l).cloned().map(ByteArray::from))),
        _ => (vec![], None),
    }
}

/// Puts texts into one piece of memory; a text equal to the one before it is stored once.
fn texts<'a>(values: impl Iterator<Item = Option<Cow<'a, str>>>) -> (Vec<ByteArray>, Vec<i16>) {
    let (mut all, mut places, mut levels) = (Vec::new(), Vec::new(), Vec::new());
    let mut last = 0..0;
    for value in values {
        levels.push(i16::from(value.is_some()));
        let Some(text) = value else { continue };
        if all[last.clone()] != *text.as_bytes() {
            last = all.len()..all.len() + text.len();
            all.extend_from_slice(text.as_bytes());
        }
        places.push(last.clone());
    }
    let all = Bytes::from(all);
    (places.into_iter().map(|place| ByteArray::from(all.slice(place))).collect(), levels)
}

fn some<T>(values: impl Iterator<Item = Option<T>>) -> ColumnValues<T> {
    let mut levels = Vec::with_capacity(values.size_hint().0);
    let there = values.inspect(|v| levels.push(i16::from(v.is_some()))).flatten().collect();
    (there, Some(levels))
}
