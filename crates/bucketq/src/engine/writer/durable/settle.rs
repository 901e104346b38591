//! Settles a body whose outcome the store's reply left open, by reads of HEAD (P1 to P6, P8).
//!
//! Called by publish. The decision itself is in `engine/settle.rs`.

use super::super::follow::{DAMAGED, REREAD, missing};
use super::super::{Actor, ReadHead, back_off};
use super::Durable;
use crate::bucket::head::Head;
use crate::bucket::record::Record;
use crate::door::Slot;
use crate::engine::catchup::FetchError;
use crate::engine::settle::Settlement;
use crate::noun::error::{Code, Error, Kind, Result};

/// The outcome of a body, with the HEAD that showed that another commit has its place.
type Settling = (Settlement, Option<ReadHead>);

impl Actor<Durable> {
    /// Settles a body by a read of HEAD, sent now. On `Ours` the database has followed; on `Lost` and `Unknowable` the
    /// HEAD is returned for `follow_seen`. Retries until the batch is abandoned.
    pub(super) async fn look_for(
        &mut self,
        body: &Head,
        record: &Record,
        batch: &[Slot],
    ) -> Result<Settling> {
        let (mut damaged, mut missed) = (0, None);
        for tries in 0.. {
            match self.look_once(body, record, &mut missed).await {
                Ok(verdict) => return Ok(verdict),
                Err(error) if self.halted.is_some() => return Err(error),
                Err(error) => {
                    damaged += u32::from(error.kind() == Kind::Corrupt);
                    if damaged >= DAMAGED || self.waiting.abandoned(batch) {
                        return Err(error);
                    }
                    // A sent body must be settled, however long it takes; its callers leave by their deadlines (P8).
                    self.shared.trouble(Some(error));
                    back_off(&self.env, REREAD.0, REREAD.1, tries).await;
                }
            }
        }
        Err(Error::bug("settling never ends"))
    }

    /// Tries to settle once. `missed` is the commit id of the HEAD under which an object was missing last time.
    async fn look_once(
        &mut self,
        body: &Head,
        record: &Record,
        missed: &mut Option<[u8; 16]>,
    ) -> Result<Settling> {
        let Some(seen) = self.read_head().await? else { return Ok((Settlement::Unchanged, None)) };
        let (known, k) = (self.chain.head().commit_seq, body.commit_seq);
        let logged = match self.remote.source.logged(&seen.head, known, k).await {
            Ok(logged) => logged,
            Err(FetchError::Error(error)) => return Err(error),
            // Collected since, if HEAD has moved on (P18): the next read shows.
            Err(FetchError::Missing(key)) => {
                let same = missed.replace(seen.head.commit_id) == Some(seen.head.commit_id);
                let moved = || Error::new(Code::Unreachable, format!("{key} was collected meanwhile"));
                return Err(if same { missing(&key) } else { moved() });
            }
        };
        let verdict = self.judge(body, &seen, logged)?;
        match verdict {
            Settlement::Unchanged => {
                // The same commit with another version: the body must expect that one.
                self.chain.found_under(seen.version, seen.asked);
            }
            Settlement::Ours => {
                if seen.head.commit_seq == k {
                    self.stored(body.clone(), record, seen.version, seen.asked);
                } else {
                    // Until this writer has followed, it must win nothing: keep a stale version.
                    let stale = self.chain.version().clone();
                    self.stored(body.clone(), record, stale, seen.asked);
                    if let Err(error) = self.follow(seen).await {
                        self.shared.trouble(Some(error));
                    }
                }
            }
            Settlement::Lost | Settlement::Unknowable => return Ok((verdict, Some(seen))),
        }
        Ok((verdict, None))
    }

    fn judge(&mut self, body: &Head, seen: &ReadHead, logged: [Option<[u8; 16]>; 2]) -> Result<Settlement> {
        let known = self.chain.head();
        self.identity.check_continues(known, &seen.head, logged[0]).map_err(|e| self.halt(e))?;
        Ok(self.identity.judge(body, &seen.head, logged[1]))
    }

    /// Follows the HEAD that settling read, once the batch is undone.
    pub(super) async fn follow_seen(&mut self, seen: Option<ReadHead>) -> Result<()> {
        match seen {
            Some(seen) => self.follow(seen).await.map(drop),
            None => self.refresh().await.map(drop),
        }
    }
}
