//! The changes of one commit to the pages, as bytes for other writers: built from changes, encoded, decoded, applied.
//!
//! A changed page is encoded as runs against its old content: literal bytes, or a copy of bytes from elsewhere in it,
//! because SQLite mostly moves cells and shifts pointers. Layout, every number an unsigned LEB128 of at most 5 bytes in
//! its shortest form (docs/format.md repeats it):
//!
//! `page_count` after, `patches`; per patch: page number minus the last one (from 0), `runs`; per run: `skip` since the
//! last run's end, `len * 2 + copy`, and if `copy`: zigzag of (source - target); finally all literal bytes.

use super::{PAGE, PageBytes};
use crate::noun::error::{Code, Error, Result};

/// Equal bytes that do not end a run: another run would cost more.
const GAP: usize = 4;
/// A shorter copy costs about as much as its bytes after compression.
const MIN_COPY: usize = 16;
/// Pages with fewer changed bytes are not searched for copies.
const MIN_SEARCH: usize = 24;
/// The distance between the places in the old page where a copy can be found; it is then extended in both directions.
/// Any `MIN_COPY` bytes include one whole word at such a place.
const STRIDE: usize = 8;
const TABLE_BITS: u32 = 11;

/// The pages of one commit as they differ from the state before. Valid by construction: its page numbers are ascending
/// and within its page count, and its runs within their pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delta {
    page_count: u32,
    patches: Vec<Patch>,
    literals: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Patch {
    /// Counted from 1.
    number: u32,
    runs: Vec<PatchRun>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PatchRun {
    at: usize,
    len: usize,
    /// Where the bytes are in the old page; otherwise they are the next literals.
    copy: Option<usize>,
}

impl Delta {
    /// Returns the length of the file afterwards, in pages.
    pub fn page_count(&self) -> u32 {
        self.page_count
    }

    /// Returns the number of pages it changes, without those only cut off or reserved.
    pub fn patched(&self) -> usize {
        self.patches.len()
    }

    /// Returns the delta of pages (number, before, after) in ascending order.
    pub(super) fn between<'a>(
        page_count: u32,
        pages: impl Iterator<Item = (u32, &'a PageBytes, &'a PageBytes)>,
    ) -> Self {
        let mut delta = Self { page_count, patches: Vec::new(), literals: Vec::new() };
        let mut table = [0; 1 << TABLE_BITS];
        for (number, old, new) in pages {
            let mut runs = differences(old, new);
            if runs.iter().map(|run| run.len).sum::<usize>() >= MIN_SEARCH {
                runs = with_copies(old, new, &runs, &mut table);
            }
            for run in runs.iter().filter(|run| run.copy.is_none()) {
                delta.literals.extend_from_slice(&new[run.at..run.at + run.len]);
            }
            if !runs.is_empty() {
                delta.patches.push(Patch { number, runs });
            }
        }
        delta
    }

    /// Returns each patched page: its number, and a function from its old to its new content.
    pub(super) fn patches(&self) -> impl Iterator<Item = (u32, impl Fn(&PageBytes) -> PageBytes)> {
        let mut literals = &self.literals[..];
        self.patches.iter().map(move |patch| {
            let own = literals;
            let used: usize = patch.runs.iter().filter(|r| r.copy.is_none()).map(|r| r.len).sum();
            literals = &literals[used..];
            (patch.number, move |old: &PageBytes| patch.make(old, own))
        })
    }

    /// Encodes the delta in the layout above.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.literals.len() + 8 * self.patches.len() + 16);
        put(&mut out, self.page_count);
        put(&mut out, self.patches.len() as u32);
        let mut last = 0;
        for patch in &self.patches {
            put(&mut out, patch.number - last);
            put(&mut out, patch.runs.len() as u32);
            last = patch.number;
            let mut end = 0;
            for run in &patch.runs {
                put(&mut out, (run.at - end) as u32);
                put(&mut out, (run.len as u32) << 1 | u32::from(run.copy.is_some()));
                if let Some(from) = run.copy {
                    let distance = from as i32 - run.at as i32;
                    put(&mut out, (distance << 1 ^ distance >> 31) as u32);
                }
                end = run.at + run.len;
            }
        }
        out.extend_from_slice(&self.literals);
        out
    }

    /// Decodes untrusted bytes; fails with Corrupt unless they are a delta for a file of at most `max_pages`. The
    /// length of the bytes bounds the memory it needs.
    pub fn decode(bytes: &[u8], max_pages: u32) -> Result<Self> {
        let mut input = Input(bytes);
        let page_count = input.number()?;
        if page_count > max_pages {
            return Err(corrupt(format!("it makes {page_count} pages where {max_pages} are allowed")));
        }
        let count = input.count(4)?;
        let mut patches = Vec::with_capacity(count);
        let mut number = 0_u32;
        let mut literals = 0;
        for _ in 0..count {
            let gap = input.number()?;
            number = match number.checked_add(gap) {
                Some(next) if gap > 0 && next <= page_count => next,
                _ => return Err(corrupt(format!("page {number} + {gap} of {page_count}"))),
            };
            let count = input.count(2)?;
            let mut runs = Vec::with_capacity(count);
            let mut end = 0;
            for _ in 0..count {
                let run = input.run(end)?;
                end = run.at + run.len;
                if run.copy.is_none() {
                    literals += run.len;
                }
                runs.push(run);
            }
            if runs.is_empty() {
                return Err(corrupt(format!("page {number} without a run")));
            }
            patches.push(Patch { number, runs });
        }
        if input.0.len() != literals {
            return Err(corrupt(format!("{} literal bytes where {literals} are named", input.0.len())));
        }
        Ok(Self { page_count, patches, literals: input.0.to_vec() })
    }
}

impl Patch {
    fn make(&self, old: &PageBytes, mut literals: &[u8]) -> PageBytes {
        let mut new = *old;
        for run in &self.runs {
            let source = if let Some(from) = run.copy {
                &old[from..from + run.len]
            } else {
                let (now, rest) = literals.split_at(run.len);
                literals = rest;
                now
            };
            new[run.at..run.at + run.len].copy_from_slice(source);
        }
        new
    }
}

/// Bytes not read yet.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn number(&mut self) -> Result<u32> {
        let mut value = 0_u64;
        for (at, &byte) in self.0.iter().take(5).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * at);
            if byte < 0x80 {
                self.0 = &self.0[at + 1..];
                let canonical = byte != 0 || at == 0;
                return u32::try_from(value)
                    .ok()
                    .filter(|_| canonical)
                    .ok_or_else(|| corrupt("a number is too long".to_owned()));
            }
        }
        Err(corrupt("a number does not end".to_owned()))
    }

    /// Reads a number of items of at least `size` bytes each, for which enough bytes must be left.
    fn count(&mut self, size: usize) -> Result<usize> {
        let count = self.number()? as usize;
        if count > self.0.len() / size {
            return Err(corrupt(format!("{count} items in {} bytes", self.0.len())));
        }
        Ok(count)
    }

    /// Reads a run that begins at or after `end`.
    fn run(&mut self, end: usize) -> Result<PatchRun> {
        let skip = self.number()? as usize;
        let head = self.number()? as usize;
        let (at, len) = (end.saturating_add(skip), head >> 1);
        if len == 0 || at.saturating_add(len) > PAGE {
            return Err(corrupt(format!("a run of {len} bytes at {at}")));
        }
        if head & 1 == 0 {
            return Ok(PatchRun { at, len, copy: None });
        }
        let zigzag = i64::from(self.number()?);
        let from = usize::try_from(at as i64 + (zigzag >> 1 ^ -(zigzag & 1)));
        match from {
            Ok(from) if from.saturating_add(len) <= PAGE => Ok(PatchRun { at, len, copy: Some(from) }),
            _ => Err(corrupt(format!("a copy of {len} bytes from outside the page"))),
        }
    }
}

fn corrupt(what: String) -> Error {
    Error::new(Code::Corrupt, what).during("delta")
}

fn put(out: &mut Vec<u8>, mut value: u32) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Returns the runs in which the pages differ.
fn differences(old: &PageBytes, new: &PageBytes) -> Vec<PatchRun> {
    let mut runs = Vec::new();
    let mut from = 0;
    while let Some(at) = next_difference(old, new, from) {
        let mut end = at;
        let mut next = at;
        while next < PAGE && next - end <= GAP {
            end = next + 1;
            while end < PAGE && old[end] != new[end] {
                end += 1;
            }
            next = next_difference(old, new, end).unwrap_or(PAGE);
        }
        runs.push(PatchRun { at, len: end - at, copy: None });
        from = end;
    }
    runs
}

fn next_difference(old: &PageBytes, new: &PageBytes, from: usize) -> Option<usize> {
    let mut at = from;
    while at + 8 <= PAGE {
        let bits = word(old, at) ^ word(new, at);
        if bits != 0 {
            return Some(at + bits.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    (at..PAGE).find(|&at| old[at] != new[at])
}

/// Returns the same runs, split where a part of them is elsewhere in the old page.
fn with_copies(
    old: &PageBytes,
    new: &PageBytes,
    runs: &[PatchRun],
    table: &mut [u16; 1 << TABLE_BITS],
) -> Vec<PatchRun> {
    // A slot without an entry looks like one for 0; each candidate is compared anyway.
    table.fill(0);
    for at in (0..=PAGE - 8).step_by(STRIDE) {
        table[slot(word(old, at))] = at as u16;
    }
    let mut out = Vec::with_capacity(runs.len());
    for run in runs {
        let end = run.at + run.len;
        let mut told = run.at;
        let mut at = run.at;
        let mut missed = 0;
        while at + 8 <= end {
            let looked = word(new, at);
            let from = usize::from(table[slot(looked)]);
            if word(old, from) != looked {
                // The longer no copy is found, the less likely the next byte has one: payloads are new.
                missed += 1;
                at += 1 + missed / 16;
                continue;
            }
            let room = (end - at).min(PAGE - from);
            let forward = (8..room).find(|&i| new[at + i] != old[from + i]).unwrap_or(room);
            let back = (0..(at - told).min(from)).find(|&i| new[at - 1 - i] != old[from - 1 - i]);
            let back = back.unwrap_or((at - told).min(from));
            if back + forward < MIN_COPY {
                at += 1;
                continue;
            }
            if told < at - back {
                out.push(PatchRun { at: told, len: at - back - told, copy: None });
            }
            out.push(PatchRun { at: at - back, len: back + forward, copy: Some(from - back) });
            at += forward;
            told = at;
            missed = 0;
        }
        if told < end {
            out.push(PatchRun { at: told, len: end - told, copy: None });
        }
    }
    out
}

fn word(page: &PageBytes, at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&page[at..at + 8]);
    u64::from_le_bytes(bytes)
}

fn slot(word: u64) -> usize {
    (word.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - TABLE_BITS)) as usize
}
