//! Encodes and decodes the entries of the local log. docs/local-format.md describes every byte.
//!
//! Called by log (writes them) and replay (reads them). Decides nothing.

use bytes::Bytes;
use twox_hash::XxHash3_128;

use crate::bucket::record::Record;
use crate::bucket::wire::{ByteReader, ByteWriter};
use crate::noun::error::Result;

/// The first bytes of every entry.
pub(super) const MAGIC: [u8; 4] = *b"BQLE";
/// Bytes before the content of an entry.
const HEADER: usize = 24;
/// Bytes after it.
const HASH: usize = 16;

const COMMIT: u8 = 1;
const INTENT: u8 = 2;
const SETTLED: u8 = 3;
const MOVED: u8 = 4;

/// One step of the local state.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum LogEntry {
    /// Local commits, usually one: `record.seq` is the number of the last one, `ordinal` how many places in the order
    /// of jobs are used so far in the commit that will publish them.
    Commit { ordinal: u32, record: Record },
    /// A body that publishes everything up to the local commit `position` is about to be sent (P19).
    Intent { writer: [u8; 8], position: u64, body: Bytes },
    /// The body with this commit id is in the chain: it is now the base (P20).
    Settled { commit_id: [u8; 16] },
    /// Another commit is now the base, and unpublished changes are dropped. `record` leads to it from the base before.
    Moved { head: Bytes, record: Record },
}

impl LogEntry {
    /// Returns the bytes of this entry in a file with this salt, of which `synced` bytes are surely on the disk.
    pub fn encode(&self, salt: u64, synced: u64) -> Vec<u8> {
        let mut says = ByteWriter::default();
        let kind = match self {
            Self::Commit { ordinal, record } => {
                says.u32(*ordinal);
                record.encode(&mut says);
                COMMIT
            }
            Self::Intent { writer, position, body } => {
                says.raw(writer);
                says.u64(*position);
                says.u32(body.len() as u32);
                says.raw(body);
                INTENT
            }
            Self::Settled { commit_id } => {
                says.raw(commit_id);
                SETTLED
            }
            Self::Moved { head, record } => {
                says.u32(head.len() as u32);
                says.raw(head);
                record.encode(&mut says);
                MOVED
            }
        };
        let mut w = ByteWriter(Vec::with_capacity(HEADER + says.0.len() + HASH));
        w.raw(&MAGIC);
        w.u8(kind);
        w.raw(&[0; 3]);
        w.u64(says.0.len() as u64);
        w.u64(synced);
        w.raw(&says.0);
        let sum = hash(salt, &w.0);
        w.raw(&sum);
        w.0
    }

    /// Returns the entry at the beginning of these bytes, its length, and how much of the file was on the disk when it
    /// was written; `None` if no intact entry is there. An intact entry that makes no sense is Corrupt.
    pub fn decode(what: &str, bytes: &[u8], salt: u64) -> Result<Option<(Self, usize, u64)>> {
        let Some(len) = sound(bytes, salt) else { return Ok(None) };
        let mut r = ByteReader::new(what, &bytes[..len - HASH]);
        r.raw(4, "entry magic")?;
        let kind = r.u8("entry kind")?;
        r.raw(3 + 8, "entry length")?;
        let synced = r.u64("synced length")?;
        let entry = match kind {
            COMMIT => Self::Commit { ordinal: r.u32("ordinal")?, record: Record::decode(&mut r)? },
            INTENT => Self::Intent {
                writer: r.array("writer")?,
                position: r.u64("position")?,
                body: {
                    let n = r.u32("body length")?;
                    Bytes::copy_from_slice(r.raw(n as usize, "body")?)
                },
            },
            SETTLED => Self::Settled { commit_id: r.array("commit id")? },
            MOVED => Self::Moved {
                head: {
                    let n = r.u32("head length")?;
                    Bytes::copy_from_slice(r.raw(n as usize, "head")?)
                },
                record: Record::decode(&mut r)?,
            },
            other => return Err(r.bad(&format!("entries of kind {other} are not known: upgrade bucketq"))),
        };
        r.end()?;
        Ok(Some((entry, len, synced)))
    }
}

/// Returns the length of the entry at the beginning of these bytes, if it is whole and its hash is right.
fn sound(bytes: &[u8], salt: u64) -> Option<usize> {
    let says = bytes.get(8..16)?;
    let says = usize::try_from(u64::from_le_bytes(says.try_into().ok()?)).ok()?;
    let len = says.checked_add(HEADER + HASH)?;
    let (body, sum) = bytes.get(..len)?.split_last_chunk::<HASH>()?;
    (body.starts_with(&MAGIC) && hash(salt, body) == *sum).then_some(len)
}

/// Returns a salted hash, so that bytes of another file or of a payload are never an entry of this file.
pub(super) fn hash(salt: u64, bytes: &[u8]) -> [u8; 16] {
    XxHash3_128::oneshot_with_seed(salt, bytes).to_le_bytes()
}
