//! Reads commits of other writers: the records since a commit, or the whole database, verified before use (P18, P21).
//!
//! Called by the writer at open, after a lost race and on refresh. Reads bases and segments; HEAD only in `head`.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::future::{FutureExt, try_join};
use futures_util::stream::{self, StreamExt, TryStreamExt};

use crate::bucket::head::{Head, SegmentRef};
use crate::bucket::record::Record;
use crate::bucket::wire::corrupt;
use crate::bucket::{base, keys, segment};
use crate::bytes::store::{Got, Store, Version};
use crate::noun::config::MAX_HEAD;
use crate::noun::error::{Code, Error, Result};
use crate::state::pages::{PAGE, PageChanges, PageFile, Pages};

/// Segments fetched at once, beside the base: enough to fill a connection, too few to hold the log in memory twice.
const AT_ONCE: usize = 8;
/// Bytes of recently read segments that are kept in memory.
const RECENT: usize = 1024 * 1024;

/// Returns the error for a store that has returned HEAD before and now says that there is none. One such reply proves
/// nothing: only the writer, which reads again and again, may conclude that HEAD is gone (P22).
pub fn absent_head(key: &str) -> Error {
    Error::new(Code::Unreachable, format!("the store says that there is no {key}: try again"))
}

/// Why an object that HEAD refers to could not be read.
#[derive(Debug)]
pub enum FetchError {
    /// The object is missing: read HEAD again. If HEAD has not changed, this is Corrupt.
    Missing(String),
    /// Any other error.
    Error(Error),
}

impl From<Error> for FetchError {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// The store of a queue file's objects, and the size limit of its database.
#[derive(Clone, Debug)]
pub struct Source {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The name of the queue file in it.
    pub name: String,
    /// Size limit of the database.
    pub max_pages: u32,
    /// Recently read segments: settling, checking and following one HEAD all need the same ones.
    recent: Arc<Recent>,
}

/// The last segments read, up to [`RECENT`] bytes of them. Keys are never used again, so a copy is never stale.
#[derive(Debug, Default)]
struct Recent(Mutex<VecDeque<(String, Bytes)>>);

impl Recent {
    fn get(&self, key: &str) -> Option<Bytes> {
        self.lock().iter().find(|(k, _)| k == key).map(|(_, bytes)| bytes.clone())
    }

    fn keep(&self, key: &str, bytes: &Bytes) {
        let mut kept = self.lock();
        if bytes.len() > RECENT || kept.iter().any(|(k, _)| k == key) {
            return;
        }
        kept.push_back((key.to_owned(), bytes.clone()));
        while kept.iter().map(|(_, b)| b.len()).sum::<usize>() > RECENT {
            kept.pop_front();
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(String, Bytes)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Source {
    pub fn new(store: Arc<dyn Store>, name: String, max_pages: u32) -> Self {
        Self { store, name, max_pages, recent: Arc::default() }
    }

    /// Reads an object of at most this many bytes.
    async fn object(&self, key: &str, len: u64) -> Result<Bytes, FetchError> {
        match self.store.get_at_most(key, None, len).await? {
            Got::Object { bytes, .. } => Ok(bytes),
            Got::Absent { .. } => Err(FetchError::Missing(key.to_owned())),
            Got::Unchanged { .. } => {
                Err(corrupt(key, "the store replied \"not modified\" to an unconditional GET").into())
            }
        }
    }

    /// Reads HEAD, unless it still has this version.
    pub async fn head(&self, unless: Option<&Version>) -> Result<Got> {
        self.store.get_at_most(&keys::head(&self.name), unless, MAX_HEAD as u64).await
    }

    /// Returns the most bytes to read of the base: its length in HEAD, limited by what `max_pages` pages can need.
    pub fn most_of_base(&self, head: &Head) -> u64 {
        let pages = u64::from(self.max_pages) * PAGE as u64;
        head.base.len.min(pages + pages / 64 + 64 * 1024)
    }

    /// Reads the records of a segment that HEAD refers to.
    pub async fn segment(&self, head: &Head, s: &SegmentRef) -> Result<Vec<Record>, FetchError> {
        let key = keys::segment(&self.name, &head.file_id, s.from, s.to, &s.rand);
        if let Some(bytes) = self.recent.get(&key) {
            return Ok(segment::decode(&key, &bytes, s, &head.file_id, &head.lineage_id)?);
        }
        let bytes = self.object(&key, s.len.into()).await?;
        let records = segment::decode(&key, &bytes, s, &head.file_id, &head.lineage_id)?;
        self.recent.keep(&key, &bytes);
        Ok(records)
    }

    /// Reads the records from commit `from` to HEAD's; `None` when the log no longer reaches back to `from`.
    pub async fn records(&self, head: &Head, from: u64) -> Result<Option<Vec<Record>>, FetchError> {
        if from > head.commit_seq {
            return Ok(Some(vec![]));
        }
        let first = head.segments.first().map_or_else(|| head.tail.first().map(|r| r.seq), |s| Some(s.from));
        if first.is_none_or(|f| f > from) {
            return Ok(None);
        }
        let mut out: Vec<Record> = vec![];
        let wanted = head.segments.iter().filter(|s| s.to >= from);
        let wanted: Vec<_> = wanted.map(|s| self.segment(head, s).boxed()).collect();
        let mut parts = stream::iter(wanted).buffered(AT_ONCE);
        while let Some(part) = parts.try_next().await? {
            out.extend(part);
        }
        out.extend(head.tail.iter().cloned());
        out.retain(|r| r.seq >= from);
        if out.windows(2).any(|w| w[1].prev_commit_id != w[0].commit_id)
            || out.last().is_none_or(|r| r.commit_id != head.commit_id)
        {
            return Err(
                corrupt(&keys::head(&self.name), "its segments and its tail do not form one chain").into()
            );
        }
        Ok(Some(out))
    }

    /// Returns the commit ids at `known` and at `k` from the segments, unless HEAD itself has both.
    pub async fn logged(&self, head: &Head, known: u64, k: u64) -> Result<[Option<[u8; 16]>; 2], FetchError> {
        let told = |seq: u64| seq > head.commit_seq || head.commit_id_at(seq).is_some();
        if told(known) && told(k) {
            return Ok([None, None]);
        }
        // The record after a commit has its id too.
        let records = self.records(head, known + 1).await?.unwrap_or_default();
        let after = |seq: u64| records.iter().find(|r| r.seq == seq + 1).map(|r| r.prev_commit_id);
        let at = |seq: u64| records.iter().find(|r| r.seq == seq).map(|r| r.commit_id);
        Ok([after(known), at(k).or_else(|| after(k))])
    }

    /// Loads the whole database as of HEAD. Returns it with the records after its base.
    pub async fn load(&self, head: &Head) -> Result<(Pages, Vec<Record>), FetchError> {
        let key = keys::base(&self.name, &head.file_id, head.base.seq, &head.base.rand);
        let (len, most) = (head.base.len, self.most_of_base(head));
        let base = async { if len == 0 { Ok(None) } else { self.object(&key, most).await.map(Some) } };
        let (base, records) = try_join(base, self.records(head, head.base.seq + 1)).await?;
        let Some(records) = records else {
            return Err(
                corrupt(&keys::head(&self.name), "it does not hold every commit after its base").into()
            );
        };
        let mut pages = match base {
            Some(bytes) => base::decode(&key, &bytes, &head.base, self.max_pages)?,
            None => Pages::new(),
        };
        for r in &records {
            pages.apply(&r.delta(self.max_pages)?)?;
        }
        verify(&pages, head, &self.name)?;
        Ok((pages, records))
    }

    /// Brings `pages` to HEAD with these records. On an error they are unchanged.
    pub fn apply(&self, pages: &PageFile, records: &[Record], head: &Head) -> Result<()> {
        let mut done: Vec<PageChanges> = vec![];
        let applied = pages.with(|p| {
            for r in records {
                done.push(p.apply(&r.delta(self.max_pages)?)?);
            }
            verify(p, head, &self.name)
        });
        if applied.is_err() {
            pages.with(|p| {
                while let Some(changes) = done.pop() {
                    // Nothing else is open here, so this cannot fail. If it did, everything would be loaded again.
                    let _ = p.undo(changes);
                }
            });
        }
        applied
    }
}

fn verify(pages: &Pages, head: &Head, name: &str) -> Result<()> {
    if pages.page_count() != head.page_count || pages.checksum().0 != head.checksum {
        return Err(corrupt(
            &keys::head(name),
            &format!("the database at commit {} has another checksum than its record", head.commit_seq),
        ));
    }
    Ok(())
}
