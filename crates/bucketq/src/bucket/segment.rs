//! A segment: the records of a range of commits, moved out of HEAD's tail into an object of their own.
//!
//! Called by upload (writes them) and catchup (reads them).

use crate::bucket::head::SegmentRef;
use crate::bucket::record::Record;
use crate::bucket::wire::{ByteReader, ByteWriter, corrupt, hash};
use crate::noun::error::Result;

/// The first bytes of every segment.
pub const MAGIC: &[u8; 8] = b"BUCKETQS";

/// Encodes a segment of these records, which form one chain and are not empty.
pub fn encode(file_id: &[u8; 16], lineage_id: &[u8; 16], records: &[Record]) -> Vec<u8> {
    let mut w = ByteWriter(Vec::with_capacity(128 + records.iter().map(Record::encoded_len).sum::<usize>()));
    w.raw(MAGIC);
    w.u16(crate::bucket::head::FORMAT);
    w.u16(1);
    w.u32(records.len() as u32);
    w.raw(file_id);
    w.raw(lineage_id);
    for r in records {
        r.encode(&mut w);
    }
    w.seal()
}

/// Decodes and verifies the segment that HEAD refers to by `r`; `what` is its key.
pub fn decode(
    what: &str,
    bytes: &[u8],
    r: &SegmentRef,
    file_id: &[u8; 16],
    lineage_id: &[u8; 16],
) -> Result<Vec<Record>> {
    if bytes.len() != r.len as usize {
        return Err(corrupt(what, &format!("it has {} bytes where HEAD says {}", bytes.len(), r.len)));
    }
    if hash(bytes) != r.hash {
        return Err(corrupt(what, "its hash is not the one in HEAD"));
    }
    if r.codec != 0 {
        return Err(corrupt(what, &format!("its codec {} is not known", r.codec)));
    }
    let mut rd = ByteReader::sealed(what, bytes)?;
    if rd.raw(8, "magic")? != MAGIC {
        return Err(corrupt(what, "its first bytes are not those of a segment"));
    }
    rd.u16("format")?;
    if rd.u16("min_reader")? > crate::bucket::head::FORMAT {
        return Err(crate::noun::error::Error::new(
            crate::noun::error::Code::TooNew,
            format!("{what} needs a newer reader: upgrade bucketq"),
        ));
    }
    let count = rd.u32("record count")?;
    if &rd.array::<16>("file id")? != file_id || &rd.array::<16>("lineage id")? != lineage_id {
        return Err(corrupt(what, "it belongs to another queue file"));
    }
    let mut records: Vec<Record> = vec![];
    for _ in 0..count {
        let record = Record::decode(&mut rd)?;
        if let Some(last) = records.last()
            && (Some(record.seq) != last.seq.checked_add(1) || record.prev_commit_id != last.commit_id)
        {
            return Err(corrupt(what, "its records do not form one chain"));
        }
        records.push(record);
    }
    rd.end()?;
    if records.first().map(|r| r.seq) != Some(r.from) || records.last().map(|r| r.seq) != Some(r.to) {
        return Err(corrupt(what, "its commits are not those that HEAD names"));
    }
    Ok(records)
}
