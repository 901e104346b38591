//! A record: one commit's delta and its identity, as stored in HEAD's tail and in segments.
//!
//! Called by head and segment for the bytes, by commit and catchup for packing and unpacking the delta.

use bytes::Bytes;

use crate::bucket::wire::{ByteReader, ByteWriter, can_hold, corrupt};
use crate::noun::error::Result;
use crate::state::pages::Delta;

/// The frame is the plain delta.
pub const CODEC_NONE: u8 = 0;
/// The frame is a zstd frame of the delta.
pub const CODEC_ZSTD: u8 = 1;
// 2 is reserved for encrypted frames.

const FIXED: usize = 8 + 16 + 16 + 8 + 8 + 4 + 4 + 16 + 1 + 7 + 4 + 4;

/// One commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its number.
    pub seq: u64,
    /// Its id.
    pub commit_id: [u8; 16],
    /// The id of the previous commit.
    pub prev_commit_id: [u8; 16],
    /// Its time.
    pub commit_ms: i64,
    /// The writer's id.
    pub writer: [u8; 8],
    /// Number of its ops, for people.
    pub ops: u32,
    /// Pages of the database after it.
    pub page_count: u32,
    /// Checksum of the database after it.
    pub checksum: [u8; 16],
    /// Codec of `frame`.
    pub codec: u8,
    /// Length of the decoded delta.
    pub raw_len: u32,
    /// The encoded delta.
    pub frame: Bytes,
}

impl Record {
    /// Returns the size of this record.
    pub fn encoded_len(&self) -> usize {
        FIXED + self.frame.len()
    }

    /// Appends the bytes of this record.
    pub fn encode(&self, w: &mut ByteWriter) {
        w.u64(self.seq);
        w.raw(&self.commit_id);
        w.raw(&self.prev_commit_id);
        w.i64(self.commit_ms);
        w.raw(&self.writer);
        w.u32(self.ops);
        w.u32(self.page_count);
        w.raw(&self.checksum);
        w.u8(self.codec);
        w.raw(&[0; 7]);
        w.u32(self.raw_len);
        w.u32(self.frame.len() as u32);
        w.raw(&self.frame);
    }

    /// Decodes one record.
    pub fn decode(r: &mut ByteReader<'_>) -> Result<Self> {
        Ok(Self {
            seq: r.u64("record seq")?,
            commit_id: r.array("record commit id")?,
            prev_commit_id: r.array("record previous commit id")?,
            commit_ms: r.i64("record time")?,
            writer: r.array("record writer")?,
            ops: r.u32("record ops")?,
            page_count: r.u32("record page count")?,
            checksum: r.array("record checksum")?,
            codec: r.u8("record codec")?,
            raw_len: {
                r.raw(7, "reserved")?;
                r.u32("record delta length")?
            },
            frame: {
                let n = r.u32("record frame length")?;
                Bytes::copy_from_slice(r.raw(n as usize, "record frame")?)
            },
        })
    }

    /// Decodes the delta of this commit; refuses one that would need more than `max_pages` pages.
    pub fn delta(&self, max_pages: u32) -> Result<Delta> {
        let what = format!("the delta of commit {}", self.seq);
        // A delta has at most every page twice: do not allocate memory for a larger claim.
        let most = u64::from(max_pages) * 4200 + 4096;
        if u64::from(self.raw_len) > most {
            return Err(corrupt(&what, "it states a size over the limit of the queue file"));
        }
        match self.codec {
            CODEC_NONE if self.frame.len() == self.raw_len as usize => Delta::decode(&self.frame, max_pages),
            CODEC_ZSTD if can_hold(self.frame.len(), self.raw_len.into()) => {
                let raw = zstd::bulk::decompress(&self.frame, self.raw_len as usize)
                    .map_err(|e| corrupt(&what, "it does not decompress").because(e))?;
                if raw.len() != self.raw_len as usize {
                    return Err(corrupt(&what, "its decompressed length is not the stated one"));
                }
                Delta::decode(&raw, max_pages)
            }
            CODEC_NONE | CODEC_ZSTD => {
                Err(corrupt(&what, "its bytes cannot decompress to the stated length"))
            }
            other => Err(corrupt(&what, &format!("its codec {other} is not known"))),
        }
    }
}
