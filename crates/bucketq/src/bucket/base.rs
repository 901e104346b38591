//! A base: the whole database as a plain SQLite image, compressed or not. `zstd -d` and `sqlite3` open it.
//!
//! Called by upload (writes them) and catchup (reads them).

use std::io::Write;

use crate::bucket::head::BaseRef;
use crate::bucket::wire::{can_hold, corrupt, hash};
use crate::noun::config::BaseCodec;
use crate::noun::error::{Error, Result};
use crate::state::pages::{Image, PAGE, Pages};

/// The image is stored uncompressed.
pub const CODEC_NONE: u8 = 0;
/// The image is one zstd frame.
pub const CODEC_ZSTD: u8 = 1;

/// Pages between two yields: about half a millisecond of compression.
const BREATH: usize = 64;

/// Encodes a base with this codec; returns its bytes and the codec's number in the reference.
pub fn coded(image: &Image, codec: BaseCodec) -> Result<(Vec<u8>, u8)> {
    match codec {
        BaseCodec::Zstd => Ok((encode(image)?, CODEC_ZSTD)),
        BaseCodec::None => {
            let mut plain = Vec::with_capacity(image.bytes() as usize);
            image.write_to(&mut plain).map_err(internal)?;
            Ok((plain, CODEC_NONE))
        }
    }
}

/// Encodes a base with zstd level 1.
pub fn encode(image: &Image) -> Result<Vec<u8>> {
    let mut encoder =
        zstd::Encoder::new(Vec::with_capacity(image.bytes() as usize / 4), 1).map_err(internal)?;
    encoder.set_pledged_src_size(Some(image.bytes())).map_err(internal)?;
    encoder.include_contentsize(true).map_err(internal)?;
    // With it `zstd -t` verifies a base even if HEAD, which has our own hash of it, is lost.
    encoder.include_checksum(true).map_err(internal)?;
    image.write_to(Breathing { out: &mut encoder, pages: 0 }).map_err(internal)?;
    encoder.finish().map_err(internal)
}

/// Yields to other threads now and then. A base is compressed while commits continue, and on a machine with few cores a
/// commit would otherwise wait for the end of a time slice, several milliseconds.
struct Breathing<W> {
    out: W,
    pages: usize,
}

impl<W: Write> Write for Breathing<W> {
    fn write(&mut self, page: &[u8]) -> std::io::Result<usize> {
        self.pages += 1;
        if self.pages.is_multiple_of(BREATH) {
            std::thread::yield_now();
        }
        self.out.write(page)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

fn internal(e: std::io::Error) -> Error {
    Error::bug("a base could not be compressed").because(e)
}

/// Decodes and verifies the base that HEAD refers to by `r`; `what` is its key.
pub fn decode(what: &str, bytes: &[u8], r: &BaseRef, max_pages: u32) -> Result<Pages> {
    if bytes.len() as u64 != r.len {
        return Err(corrupt(what, &format!("it has {} bytes where HEAD says {}", bytes.len(), r.len)));
    }
    if hash(bytes) != r.hash {
        return Err(corrupt(what, "its hash is not the one in HEAD"));
    }
    let most = max_pages as usize * PAGE;
    match r.codec {
        CODEC_NONE if bytes.len() <= most => Pages::from_image(bytes),
        CODEC_ZSTD => {
            // The frame states its size; a hostile size is refused before memory is allocated for it.
            let size = zstd::zstd_safe::get_frame_content_size(bytes).ok().flatten().unwrap_or(u64::MAX);
            if size > most as u64 || !can_hold(bytes.len(), size) {
                return Err(corrupt(
                    what,
                    "its stated size is missing, or beyond its bytes or the size limit of the queue file",
                ));
            }
            let image = zstd::bulk::decompress(bytes, size as usize)
                .map_err(|e| corrupt(what, "it does not decompress").because(e))?;
            Pages::from_image(&image)
        }
        CODEC_NONE => Err(corrupt(what, "it is larger than the size limit of the queue file")),
        other => Err(corrupt(what, &format!("its codec {other} is not known"))),
    }
}
