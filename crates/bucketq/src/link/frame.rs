//! Frames: pieces of messages, and heartbeats, on a stream of bytes.
//!
//! A frame is one byte for its kind, three for its length (little-endian) and that many bytes. Messages are cut into
//! pieces, so a heartbeat gets through between two pieces of a large message. A reader allocates for bytes that have
//! arrived and never for bytes that a length promises.

use bytes::Bytes;

use crate::noun::error::{Code, Error, Result};

/// Bytes before the content of a frame.
pub const FRAME_HEAD: usize = 4;
/// Most bytes in one frame.
pub const PIECE: usize = 256 * 1024;
/// Most bytes of the first message of a connection, before the other side has proven anything.
pub const HELLO_MAX: usize = 16 * 1024;

const MORE: u8 = 1;
const LAST: u8 = 2;
const BEAT: u8 = 3;

/// A complete unit that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrived {
    /// A message.
    Message(Bytes),
    /// A heartbeat with the sender's clock, in milliseconds since the connection began.
    Beat(u64),
}

/// Adds a message to the bytes that are to be sent.
pub fn put_message(out: &mut Vec<u8>, message: &[u8]) {
    let mut left = message;
    while left.len() > PIECE {
        let (piece, rest) = left.split_at(PIECE);
        put_frame(out, MORE, piece);
        left = rest;
    }
    put_frame(out, LAST, left);
}

/// Adds a heartbeat to the bytes that are to be sent.
pub fn put_beat(out: &mut Vec<u8>, stamp: u64) {
    put_frame(out, BEAT, &stamp.to_le_bytes());
}

fn put_frame(out: &mut Vec<u8>, kind: u8, content: &[u8]) {
    let [a, b, c, _] = (content.len() as u32).to_le_bytes();
    out.extend([kind, a, b, c]);
    out.extend(content);
}

/// Collects what arrives on one connection.
#[derive(Debug)]
pub struct FrameReader {
    /// The start of a frame that is not complete.
    partial: Vec<u8>,
    /// The pieces of a message that is not complete.
    message: Vec<u8>,
    most: usize,
    damaged: bool,
}

impl FrameReader {
    /// Returns a reader that accepts messages of up to `most` bytes.
    pub fn new(most: usize) -> Self {
        Self { partial: vec![], message: vec![], most, damaged: false }
    }

    /// Accepts larger messages from now on: the other side has proven who it is.
    pub fn accept(&mut self, most: usize) {
        self.most = most;
    }

    /// Returns the bytes that wait for the rest of their frame or message.
    pub fn held(&self) -> usize {
        self.partial.len() + self.message.len()
    }

    /// Takes bytes in, and adds what they complete to `out`. After an error the connection is of no more use.
    pub fn feed(&mut self, mut bytes: &[u8], out: &mut Vec<Arrived>) -> Result<()> {
        if self.damaged {
            return Err(damaged("it comes after a damaged frame"));
        }
        let fed = self.take_frames(&mut bytes, out);
        self.damaged = fed.is_err();
        fed
    }

    fn take_frames(&mut self, bytes: &mut &[u8], out: &mut Vec<Arrived>) -> Result<()> {
        while !bytes.is_empty() {
            if self.partial.is_empty()
                && let Some((kind, content)) = whole(bytes)?
            {
                *bytes = &bytes[FRAME_HEAD + content.len()..];
                self.take_frame(kind, content, out)?;
                continue;
            }
            let wanted = match self.partial.first_chunk::<FRAME_HEAD>() {
                Some(head) => FRAME_HEAD + checked(*head)?.1,
                None => FRAME_HEAD,
            };
            let (now, later) = bytes.split_at(bytes.len().min(wanted - self.partial.len()));
            self.partial.extend(now);
            *bytes = later;
            if let Some((kind, content)) = whole(&self.partial)? {
                let content = content.to_vec();
                self.partial = vec![];
                self.take_frame(kind, &content, out)?;
            }
        }
        Ok(())
    }

    fn take_frame(&mut self, kind: u8, content: &[u8], out: &mut Vec<Arrived>) -> Result<()> {
        if kind == BEAT {
            let stamp = content.try_into().map_err(|_| damaged("a heartbeat has eight bytes"))?;
            out.push(Arrived::Beat(u64::from_le_bytes(stamp)));
            return Ok(());
        }
        if self.message.len() + content.len() > self.most {
            return Err(damaged(format!("a message has more than {} bytes", self.most)));
        }
        if kind == LAST && self.message.is_empty() {
            out.push(Arrived::Message(Bytes::copy_from_slice(content)));
            return Ok(());
        }
        self.message.extend(content);
        if kind == LAST {
            out.push(Arrived::Message(std::mem::take(&mut self.message).into()));
        }
        Ok(())
    }
}

/// Returns the kind and the content of the frame at the start of these bytes, if it is complete.
fn whole(bytes: &[u8]) -> Result<Option<(u8, &[u8])>> {
    let Some((head, rest)) = bytes.split_first_chunk::<FRAME_HEAD>() else { return Ok(None) };
    let (kind, len) = checked(*head)?;
    Ok(rest.get(..len).map(|content| (kind, content)))
}

/// Returns the kind and the length that the head of a frame names.
fn checked([kind, a, b, c]: [u8; FRAME_HEAD]) -> Result<(u8, usize)> {
    let len = u32::from_le_bytes([a, b, c, 0]) as usize;
    match kind {
        // With pieces without content a message might never end.
        MORE if len == 0 => Err(damaged("a piece is empty")),
        MORE | LAST if len <= PIECE => Ok((kind, len)),
        MORE | LAST => Err(damaged(format!("a piece has {len} bytes"))),
        BEAT if len == size_of::<u64>() => Ok((kind, len)),
        BEAT => Err(damaged(format!("a heartbeat has {len} bytes"))),
        _ => Err(damaged(format!("no frame has kind {kind}"))),
    }
}

fn damaged(why: impl std::fmt::Display) -> Error {
    Error::new(Code::Internal, format!("the other side of the connection sent a damaged frame: {why}"))
}
