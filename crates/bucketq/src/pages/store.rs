//! The page store: a file of whole pages that remembers what changed since it was last asked.
//!
//! Called by the VFS shim (reads, writes, truncations) and by the writer (everything else). Pages are shared by
//! pointer and copied on the first write, so pre-images, changes and images cost a pointer a page.
//! It must not know what the pages mean, with one exception: the schema cookie, see [`Pages::undo`].

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use super::{Checksum, Delta, PAGE, Page, ZEROS};
use crate::error::{Code, Error, Result};

/// Where page 1 of an SQLite file holds the number that each change of the schema raises.
const SCHEMA_COOKIE: std::ops::Range<usize> = 40..44;

/// A file of whole pages. Its length is always a multiple of [`PAGE`].
///
/// The last take is the state as of the last [`take_changes`](Self::take_changes), [`undo`](Self::undo),
/// [`apply`](Self::apply) or construction; changes since then are open.
#[derive(Debug)]
pub struct Pages {
    now: Vec<Arc<Page>>,
    /// Pre-images of what was written or cut off since the last take, by index. Pages added since have none.
    before: BTreeMap<usize, Arc<Page>>,
    /// Pages at the last take.
    taken: usize,
    /// Of the last take.
    checksum: Checksum,
    /// Every page that was only ever reserved is this one.
    zeros: Arc<Page>,
    schema_moved: bool,
}

/// What one commit did: each changed page before and after.
#[derive(Clone, Debug)]
pub struct Changes {
    pages: Vec<Change>,
    old: (u32, Checksum),
    new: (u32, Checksum),
}

/// A changed page; at least one side is there.
#[derive(Clone, Debug)]
struct Change {
    index: usize,
    before: Option<Arc<Page>>,
    after: Option<Arc<Page>>,
}

/// A state frozen for reading, of whole pages; it stays what it is while the [`Pages`] go on.
#[derive(Clone, Debug)]
pub struct Image {
    pages: Vec<Arc<Page>>,
    checksum: Checksum,
}

impl Default for Pages {
    fn default() -> Self {
        Self::new()
    }
}

impl Pages {
    /// A file of no pages.
    pub fn new() -> Self {
        Self {
            now: Vec::new(),
            before: BTreeMap::new(),
            taken: 0,
            checksum: Checksum::default(),
            zeros: Arc::new(ZEROS),
            schema_moved: false,
        }
    }

    /// The file with exactly these bytes, nothing open; Corrupt unless they are whole pages.
    pub fn from_image(bytes: &[u8]) -> Result<Self> {
        let (whole, rest) = bytes.as_chunks::<PAGE>();
        if !rest.is_empty() || u32::try_from(whole.len()).is_err() {
            return Err(Error::new(
                Code::Corrupt,
                format!("a database of {} bytes is not made of whole pages of {PAGE}", bytes.len()),
            ));
        }
        let mut new = Self::new();
        new.now.extend(whole.iter().map(|page| Arc::new(*page)));
        new.taken = new.now.len();
        for (index, page) in new.now.iter().enumerate() {
            new.checksum.toggle(number(index), page);
        }
        Ok(new)
    }

    /// The file of this image, nothing open. Its pages are shared, not copied.
    pub fn thaw(image: &Image) -> Self {
        let mut new = Self::new();
        new.now.clone_from(&image.pages);
        (new.taken, new.checksum) = (new.now.len(), image.checksum);
        new
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        (self.now.len() * PAGE) as u64
    }

    /// Length in pages.
    pub fn page_count(&self) -> u32 {
        self.now.len() as u32
    }

    /// Fill `buf` from `offset` on, and say whether all of it was there; what lies past the end reads as zeros.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> bool {
        let mut done = 0;
        for (index, within, len) in spans(offset, buf.len()) {
            let Some(page) = self.now.get(index) else {
                buf[done..].fill(0);
                return false;
            };
            buf[done..done + len].copy_from_slice(&page[within..within + len]);
            done += len;
        }
        true
    }

    /// Put `data` at `offset`. The file grows to whole pages that hold it; what nobody wrote reads as zeros.
    /// The caller bounds the size: at most `u32::MAX` pages.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let mut done = 0;
        for (index, within, len) in spans(offset, data.len()) {
            if index >= self.now.len() {
                self.now.resize(index + 1, Arc::clone(&self.zeros));
            }
            let part = &data[done..done + len];
            match <&Page>::try_from(part) {
                Ok(whole) => self.replace(index, whole),
                Err(_) => self.page_mut(index)[within..within + len].copy_from_slice(part),
            }
            done += len;
        }
    }

    /// Make the file `bytes` long, rounded up to whole pages: cut, or grown with zeros. What lies between `bytes`
    /// and the end of its page becomes zeros.
    pub fn truncate(&mut self, bytes: u64) {
        let count = bytes.div_ceil(PAGE as u64) as usize;
        for index in count..self.now.len().min(self.taken) {
            self.keep(index);
        }
        self.now.resize(count, Arc::clone(&self.zeros));
        let within = (bytes % PAGE as u64) as usize;
        if within != 0 {
            self.page_mut(count - 1)[within..].fill(0);
        }
    }

    /// Of the last take; open changes do not count.
    pub fn checksum(&self) -> Checksum {
        self.checksum
    }

    /// Everything since the last take, which this state becomes. A page whose content is as before is no change.
    pub fn take_changes(&mut self) -> Changes {
        let old = (self.taken as u32, self.checksum);
        let taken = self.taken;
        let mut pages = Vec::with_capacity(self.before.len() + self.now.len().saturating_sub(taken));
        for (index, before) in std::mem::take(&mut self.before) {
            let after = self.now.get(index).cloned();
            if after.as_ref().is_none_or(|after| !Arc::ptr_eq(after, &before) && **after != *before) {
                pages.push(Change { index, before: Some(before), after });
            }
        }
        for (index, page) in self.now.iter().enumerate().skip(taken) {
            pages.push(Change { index, before: None, after: Some(Arc::clone(page)) });
        }
        for change in &pages {
            for side in [&change.before, &change.after].into_iter().flatten() {
                self.checksum.toggle(number(change.index), side);
            }
        }
        self.taken = self.now.len();
        Changes { pages, old, new: (self.page_count(), self.checksum) }
    }

    /// Go back to before `changes`, which must be the newest ones not undone yet, with nothing open: else the answer is
    /// Internal and nothing is done.
    ///
    /// SQLite caches pages and the schema: call [`PageFile::reset_cache`](super::PageFile::reset_cache) afterwards.
    /// That a schema cookie was put back is kept for it, for SQLite cannot tell two schemas with the same cookie.
    pub fn undo(&mut self, changes: Changes) -> Result<()> {
        self.settle("undo")?;
        if changes.new != (self.page_count(), self.checksum) {
            return Err(Error::new(Code::Internal, "undo of changes that are not the newest"));
        }
        let cookie = self.cookie();
        self.now.resize(changes.old.0 as usize, Arc::clone(&self.zeros));
        for change in changes.pages {
            if let Some(before) = change.before {
                self.now[change.index] = before;
            }
        }
        self.taken = self.now.len();
        self.checksum = changes.old.1;
        self.schema_moved |= cookie != self.cookie();
        Ok(())
    }

    /// Take in what another writer did to the state this store holds, and return what undoes it. With something open
    /// it is Internal and nothing is done. The caller compares the checksum; the same duty as after
    /// [`undo`](Self::undo).
    pub fn apply(&mut self, delta: &Delta) -> Result<Changes> {
        self.settle("apply")?;
        let cookie = self.cookie();
        self.truncate(u64::from(delta.page_count()) * PAGE as u64);
        for (number, new_from) in delta.patches() {
            // A delta only names pages from 1 to its own page count.
            let index = number as usize - 1;
            let page = new_from(&self.now[index]);
            self.replace(index, &page);
        }
        self.schema_moved |= cookie != self.cookie();
        Ok(self.take_changes())
    }

    /// Become this state, with nothing open: else it is Internal and nothing is done. The same duty as after
    /// [`undo`](Self::undo).
    pub fn go_to(&mut self, image: &Image) -> Result<()> {
        self.settle("going to an image")?;
        let cookie = self.cookie();
        self.now.clone_from(&image.pages);
        self.taken = self.now.len();
        self.checksum = image.checksum;
        self.schema_moved |= cookie != self.cookie();
        Ok(())
    }

    /// The state of the last take: open changes are not in it.
    pub fn image(&self) -> Image {
        let mut pages = self.now.clone();
        pages.resize(self.taken, Arc::clone(&self.zeros));
        for (&index, before) in &self.before {
            pages[index] = Arc::clone(before);
        }
        Image { pages, checksum: self.checksum }
    }

    /// Whether `undo` or `apply` moved the schema cookie since this was last asked.
    pub(super) fn take_schema_moved(&mut self) -> bool {
        std::mem::take(&mut self.schema_moved)
    }

    fn cookie(&self) -> Option<[u8; 4]> {
        self.now.first().and_then(|page| page[SCHEMA_COOKIE].try_into().ok())
    }

    /// Make sure that nothing is open. Pages written with what they held before do not count.
    fn settle(&mut self, what: &str) -> Result<()> {
        let same = self.now.len() == self.taken
            && self.before.iter().all(|(&index, before)| *self.now[index] == **before);
        if !same {
            return Err(Error::new(Code::Internal, format!("{what} with open changes")));
        }
        self.before.clear();
        Ok(())
    }

    /// Remember page `index` as it was at the last take.
    fn keep(&mut self, index: usize) {
        if index < self.taken {
            self.before.entry(index).or_insert_with(|| Arc::clone(&self.now[index]));
        }
    }

    fn page_mut(&mut self, index: usize) -> &mut Page {
        self.keep(index);
        Arc::make_mut(&mut self.now[index])
    }

    /// As writing all of `page_mut`, without copying first what is overwritten.
    fn replace(&mut self, index: usize, whole: &Page) {
        self.keep(index);
        match Arc::get_mut(&mut self.now[index]) {
            Some(page) => page.copy_from_slice(whole),
            None => self.now[index] = Arc::new(*whole),
        }
    }
}

impl Changes {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Pages that differ, cut off or new ones included.
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Length of the file before, in pages.
    pub fn old_count(&self) -> u32 {
        self.old.0
    }

    /// Length of the file after, in pages.
    pub fn new_count(&self) -> u32 {
        self.new.0
    }

    /// Checksum before.
    pub fn old_checksum(&self) -> Checksum {
        self.old.1
    }

    /// Checksum after.
    pub fn new_checksum(&self) -> Checksum {
        self.new.1
    }

    /// The same, for a store that holds the state before.
    pub fn delta(&self) -> Delta {
        Delta::between(
            self.new.0,
            self.pages.iter().filter_map(|change| {
                let after = change.after.as_deref()?;
                Some((number(change.index), change.before.as_deref().unwrap_or(&ZEROS), after))
            }),
        )
    }
}

impl Image {
    /// Length in pages.
    pub fn page_count(&self) -> u32 {
        self.pages.len() as u32
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        (self.pages.len() * PAGE) as u64
    }

    /// Checksum of the whole.
    pub fn checksum(&self) -> Checksum {
        self.checksum
    }

    /// What leads from `before` to this state. Pages that are shared cost a look at their pointers.
    pub fn since(&self, before: &Self) -> Changes {
        let count = self.pages.len().max(before.pages.len());
        let pages = (0..count).filter_map(|index| {
            let (before, after) = (before.pages.get(index), self.pages.get(index));
            let same = matches!((before, after), (Some(b), Some(a)) if Arc::ptr_eq(b, a) || b == a);
            (!same).then(|| Change { index, before: before.cloned(), after: after.cloned() })
        });
        Changes {
            pages: pages.collect(),
            old: (before.page_count(), before.checksum),
            new: (self.page_count(), self.checksum),
        }
    }

    /// Write all bytes: a plain SQLite file if SQLite made the pages.
    pub fn write_to(&self, mut out: impl io::Write) -> io::Result<()> {
        self.pages.iter().try_for_each(|page| out.write_all(&**page))
    }
}

/// Page number, counted from 1 as SQLite does. No store holds more than `u32::MAX` pages.
fn number(index: usize) -> u32 {
    index as u32 + 1
}

/// The parts of `len` bytes at `offset`, page by page: index, where in the page, how many bytes.
fn spans(offset: u64, len: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let mut offset = offset;
    let mut left = len;
    std::iter::from_fn(move || {
        if left == 0 {
            return None;
        }
        let within = (offset % PAGE as u64) as usize;
        let here = left.min(PAGE - within);
        let span = ((offset / PAGE as u64) as usize, within, here);
        offset += here as u64;
        left -= here;
        Some(span)
    })
}
