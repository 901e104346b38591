//! Reading what others wrote: the records since a commit, or the whole database, verified before use (P18, P21).
//!
//! Called by the writer at open, after a lost race and on refresh. Reads bases and segments; never reads HEAD.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{FutureExt, try_join};
use futures_util::stream::{self, StreamExt, TryStreamExt};

use crate::error::{Error, Result};
use crate::head::{Head, SegmentRef};
use crate::pages::{Changes, PageFile, Pages};
use crate::record::Record;
use crate::store::{Got, Store};
use crate::wire::corrupt;
use crate::{base, keys, segment};

/// Segments fetched at once, beside the base: enough to fill a connection, few enough not to hold the log twice.
const AT_ONCE: usize = 8;

/// Why something HEAD refers to could not be had.
#[derive(Debug)]
pub enum Trouble {
    /// The object is not there: look at HEAD again; if it has not changed, it is Corrupt.
    Missing(String),
    /// Anything else.
    Error(Error),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// Where a queue file's objects are, and how large its database may be.
#[derive(Clone, Debug)]
pub struct Source {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The name of the queue file in it.
    pub name: String,
    /// Size limit of the database.
    pub max_pages: u32,
}

impl Source {
    async fn object(&self, key: &str) -> Result<Bytes, Trouble> {
        match self.store.get(key, None).await? {
            Got::Object { bytes, .. } => Ok(bytes),
            Got::Absent { .. } => Err(Trouble::Missing(key.to_owned())),
            Got::Unchanged { .. } => {
                Err(corrupt(key, "the store calls it unchanged though nothing was known").into())
            }
        }
    }

    /// The records of a segment that HEAD refers to.
    pub async fn segment(&self, head: &Head, s: &SegmentRef) -> Result<Vec<Record>, Trouble> {
        let key = keys::segment(&self.name, &head.file_id, s.from, s.to, &s.rand);
        let bytes = self.object(&key).await?;
        Ok(segment::decode(&key, &bytes, s, &head.file_id, &head.lineage_id)?)
    }

    /// The records from commit `from` to HEAD's; none when the log no longer reaches back to it.
    pub async fn records(&self, head: &Head, from: u64) -> Result<Option<Vec<Record>>, Trouble> {
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
                corrupt(&keys::head(&self.name), "its segments and its tail are not one chain").into()
            );
        }
        Ok(Some(out))
    }

    /// The whole database as of HEAD, and the records it was built with.
    pub async fn load(&self, head: &Head) -> Result<(Pages, Vec<Record>), Trouble> {
        let key = keys::base(&self.name, &head.file_id, head.base.seq, &head.base.rand);
        let base = async { if head.base.len == 0 { Ok(None) } else { self.object(&key).await.map(Some) } };
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

    /// Bring `pages` forward by these records to HEAD. On an error they are as they were before.
    pub fn apply(&self, pages: &PageFile, records: &[Record], head: &Head) -> Result<()> {
        let mut done: Vec<Changes> = vec![];
        let applied = pages.with(|p| {
            for r in records {
                done.push(p.apply(&r.delta(self.max_pages)?)?);
            }
            verify(p, head, &self.name)
        });
        if applied.is_err() {
            pages.with(|p| {
                while let Some(changes) = done.pop() {
                    // Nothing else is open here, so it cannot fail; if it did, the whole would be loaded anew.
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
            &format!("the database at commit {} does not have the checksum it should have", head.commit_seq),
        ));
    }
    Ok(())
}
