//! The page store: a file of whole pages that records what changed since the last take.
//!
//! Called by the VFS shim (reads, writes, truncations) and by the writer (everything else). Pages are shared by pointer
//! and copied on the first write, so pre-images, changes and images cost a pointer per page. It does not know what the
//! pages mean, with one exception: the schema cookie, see [`Pages::undo`].

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use super::{Checksum, Delta, PAGE, PageBytes, ZEROS};
use crate::noun::error::{Code, Error, Result};

/// Where page 1 of an SQLite file has the number that each change of the schema raises.
const SCHEMA_COOKIE: std::ops::Range<usize> = 40..44;

/// A file of whole pages. Its length is always a multiple of [`PAGE`].
///
/// The last take is the state as of the last [`take_changes`](Self::take_changes), [`undo`](Self::undo),
/// [`apply`](Self::apply) or construction; changes since then are open.
#[derive(Debug)]
pub struct Pages {
    now: Vec<Arc<PageBytes>>,
    /// Pre-images of pages written or cut off since the last take, by index. Pages added since have none.
    before: BTreeMap<usize, Arc<PageBytes>>,
    /// Number of pages at the last take.
    len_at_take: usize,
    /// Checksum at the last take.
    checksum: Checksum,
    /// The page shared by all pages that were only reserved.
    zeros: Arc<PageBytes>,
    schema_moved: bool,
}

/// The changes of one commit: each changed page before and after.
#[derive(Clone, Debug)]
pub struct PageChanges {
    pages: Vec<ChangedPage>,
    old: (u32, Checksum),
    new: (u32, Checksum),
}

/// A changed page; at least one side is present.
#[derive(Clone, Debug)]
struct ChangedPage {
    index: usize,
    before: Option<Arc<PageBytes>>,
    after: Option<Arc<PageBytes>>,
}

/// A frozen state of whole pages, for reading; later changes of the [`Pages`] do not affect it.
#[derive(Clone, Debug)]
pub struct Image {
    pages: Vec<Arc<PageBytes>>,
    checksum: Checksum,
}

impl Default for Pages {
    fn default() -> Self {
        Self::new()
    }
}

impl Pages {
    /// Returns a file without pages.
    pub fn new() -> Self {
        Self {
            now: Vec::new(),
            before: BTreeMap::new(),
            len_at_take: 0,
            checksum: Checksum::default(),
            zeros: Arc::new(ZEROS),
            schema_moved: false,
        }
    }

    /// Returns the file with exactly these bytes and no open changes; fails with Corrupt unless they are whole pages.
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
        new.len_at_take = new.now.len();
        for (index, page) in new.now.iter().enumerate() {
            new.checksum.toggle(number(index), page);
        }
        Ok(new)
    }

    /// Returns the file of this image, without open changes. Its pages are shared, not copied.
    pub fn thaw(image: &Image) -> Self {
        let mut new = Self::new();
        new.now.clone_from(&image.pages);
        (new.len_at_take, new.checksum) = (new.now.len(), image.checksum);
        new
    }

    /// Returns the length in bytes.
    pub fn bytes(&self) -> u64 {
        (self.now.len() * PAGE) as u64
    }

    /// Returns the length in pages.
    pub fn page_count(&self) -> u32 {
        self.now.len() as u32
    }

    /// Fills `buf` from `offset` on, with zeros past the end. Returns whether the file has all of these bytes.
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

    /// Writes `data` at `offset`. The file grows by whole pages as needed; unwritten bytes read as zeros. The caller
    /// limits the size to `u32::MAX` pages.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let mut done = 0;
        for (index, within, len) in spans(offset, data.len()) {
            if index >= self.now.len() {
                self.now.resize(index + 1, Arc::clone(&self.zeros));
            }
            let part = &data[done..done + len];
            match <&PageBytes>::try_from(part) {
                Ok(whole) => self.replace(index, whole),
                Err(_) => self.page_mut(index)[within..within + len].copy_from_slice(part),
            }
            done += len;
        }
    }

    /// Sets the length to `bytes`, rounded up to whole pages: cuts the file, or extends it with zeros. The bytes
    /// between `bytes` and the end of its page become zeros.
    pub fn truncate(&mut self, bytes: u64) {
        let count = bytes.div_ceil(PAGE as u64) as usize;
        for index in count..self.now.len().min(self.len_at_take) {
            self.save_before(index);
        }
        self.now.resize(count, Arc::clone(&self.zeros));
        let within = (bytes % PAGE as u64) as usize;
        if within != 0 {
            self.page_mut(count - 1)[within..].fill(0);
        }
    }

    /// Returns the checksum at the last take; open changes do not count.
    pub fn checksum(&self) -> Checksum {
        self.checksum
    }

    /// Returns everything since the last take; the current state becomes the last take. A page with the same content as
    /// before is no change.
    pub fn take_changes(&mut self) -> PageChanges {
        let old = (self.len_at_take as u32, self.checksum);
        let len_at_take = self.len_at_take;
        let mut pages = Vec::with_capacity(self.before.len() + self.now.len().saturating_sub(len_at_take));
        for (index, before) in std::mem::take(&mut self.before) {
            let after = self.now.get(index).cloned();
            if after.as_ref().is_none_or(|after| !Arc::ptr_eq(after, &before) && **after != *before) {
                pages.push(ChangedPage { index, before: Some(before), after });
            }
        }
        for (index, page) in self.now.iter().enumerate().skip(len_at_take) {
            pages.push(ChangedPage { index, before: None, after: Some(Arc::clone(page)) });
        }
        for change in &pages {
            for side in [&change.before, &change.after].into_iter().flatten() {
                self.checksum.toggle(number(change.index), side);
            }
        }
        self.len_at_take = self.now.len();
        PageChanges { pages, old, new: (self.page_count(), self.checksum) }
    }

    /// Undoes `changes`, which must be the newest ones not undone yet, with no open changes; otherwise fails with
    /// Internal and changes nothing.
    ///
    /// SQLite caches pages and the schema: call [`PageFile::reset_cache`](super::PageFile::reset_cache) afterwards. The
    /// undo of a schema cookie is recorded for it, because SQLite cannot distinguish two schemas with the same cookie.
    pub fn undo(&mut self, changes: PageChanges) -> Result<()> {
        self.refuse_open_changes("undo")?;
        if changes.new != (self.page_count(), self.checksum) {
            return Err(Error::bug("undo of changes that are not the newest"));
        }
        let cookie = self.cookie();
        self.now.resize(changes.old.0 as usize, Arc::clone(&self.zeros));
        for change in changes.pages {
            if let Some(before) = change.before {
                self.now[change.index] = before;
            }
        }
        self.len_at_take = self.now.len();
        self.checksum = changes.old.1;
        self.schema_moved |= cookie != self.cookie();
        Ok(())
    }

    /// Applies another writer's changes to the current state, and returns the changes to undo them. Fails with Internal
    /// and changes nothing while there are open changes. The caller compares the checksum, and resets the cache as
    /// after [`undo`](Self::undo).
    pub fn apply(&mut self, delta: &Delta) -> Result<PageChanges> {
        self.refuse_open_changes("apply")?;
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

    /// Replaces the state by this image. Fails with Internal and changes nothing while there are open changes. The
    /// caller resets the cache as after [`undo`](Self::undo).
    pub fn go_to(&mut self, image: &Image) -> Result<()> {
        self.refuse_open_changes("going to an image")?;
        let cookie = self.cookie();
        self.now.clone_from(&image.pages);
        self.len_at_take = self.now.len();
        self.checksum = image.checksum;
        self.schema_moved |= cookie != self.cookie();
        Ok(())
    }

    /// Returns the state of the last take, without open changes.
    pub fn image(&self) -> Image {
        let mut pages = self.now.clone();
        pages.resize(self.len_at_take, Arc::clone(&self.zeros));
        for (&index, before) in &self.before {
            pages[index] = Arc::clone(before);
        }
        Image { pages, checksum: self.checksum }
    }

    /// Returns whether `undo` or `apply` moved the schema cookie since the last call.
    pub(super) fn take_schema_moved(&mut self) -> bool {
        std::mem::take(&mut self.schema_moved)
    }

    fn cookie(&self) -> Option<[u8; 4]> {
        self.now.first().and_then(|page| page[SCHEMA_COOKIE].try_into().ok())
    }

    /// Fails if there are open changes. Pages written with their old content do not count.
    fn refuse_open_changes(&mut self, what: &str) -> Result<()> {
        let same = self.now.len() == self.len_at_take
            && self.before.iter().all(|(&index, before)| *self.now[index] == **before);
        if !same {
            return Err(Error::bug(format!("{what} with open changes")));
        }
        self.before.clear();
        Ok(())
    }

    /// Saves page `index` as it was at the last take.
    fn save_before(&mut self, index: usize) {
        if index < self.len_at_take {
            self.before.entry(index).or_insert_with(|| Arc::clone(&self.now[index]));
        }
    }

    fn page_mut(&mut self, index: usize) -> &mut PageBytes {
        self.save_before(index);
        Arc::make_mut(&mut self.now[index])
    }

    /// Writes a whole page, without first copying the bytes that it overwrites.
    fn replace(&mut self, index: usize, whole: &PageBytes) {
        self.save_before(index);
        match Arc::get_mut(&mut self.now[index]) {
            Some(page) => page.copy_from_slice(whole),
            None => self.now[index] = Arc::new(*whole),
        }
    }
}

impl PageChanges {
    /// Returns whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Returns the number of changed pages, including new ones and those cut off.
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Returns the length of the file before, in pages.
    pub fn old_count(&self) -> u32 {
        self.old.0
    }

    /// Returns the length of the file after, in pages.
    pub fn new_count(&self) -> u32 {
        self.new.0
    }

    /// Returns the checksum before.
    pub fn old_checksum(&self) -> Checksum {
        self.old.1
    }

    /// Returns the checksum after.
    pub fn new_checksum(&self) -> Checksum {
        self.new.1
    }

    /// Returns the changes as a delta, for a store with the state before.
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
    /// Returns the length in pages.
    pub fn page_count(&self) -> u32 {
        self.pages.len() as u32
    }

    /// Returns the length in bytes.
    pub fn bytes(&self) -> u64 {
        (self.pages.len() * PAGE) as u64
    }

    /// Returns the checksum of the whole.
    pub fn checksum(&self) -> Checksum {
        self.checksum
    }

    /// Returns the changes from `before` to this state. Shared pages cost only a comparison of pointers.
    pub fn since(&self, before: &Self) -> PageChanges {
        let count = self.pages.len().max(before.pages.len());
        let pages = (0..count).filter_map(|index| {
            let (before, after) = (before.pages.get(index), self.pages.get(index));
            let same = matches!((before, after), (Some(b), Some(a)) if Arc::ptr_eq(b, a) || b == a);
            (!same).then(|| ChangedPage { index, before: before.cloned(), after: after.cloned() })
        });
        PageChanges {
            pages: pages.collect(),
            old: (before.page_count(), before.checksum),
            new: (self.page_count(), self.checksum),
        }
    }

    /// Writes all bytes: a plain SQLite file if SQLite made the pages.
    pub fn write_to(&self, mut out: impl io::Write) -> io::Result<()> {
        self.pages.iter().try_for_each(|page| out.write_all(&**page))
    }
}

/// Returns the page number, counted from 1 as SQLite does. A store has at most `u32::MAX` pages.
fn number(index: usize) -> u32 {
    index as u32 + 1
}

/// Returns the parts of `len` bytes at `offset`, page by page: index, offset in the page, number of bytes.
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
