//! Takes over commits of other writers into the local state, or discards the changes that are pending.

use super::super::follow::fetch_failed;
use super::super::{Actor, ReadHead};
use super::Local;
use super::sync::nobody_waits;
use crate::noun::error::{Code, Error, Kind, Result};
use crate::noun::event::Happened;
use crate::state::pages::Image;

impl Actor<Local> {
    /// Takes over commits of others. With `discard`, drops unpublished changes and takes the store's state, whatever it is.
    pub(super) async fn snapshot(&mut self, discard: bool) -> Result<u64> {
        let local = &mut self.home;
        let pending = local.log.pending();
        if !discard {
            if pending.commits > 0 {
                return Err(Error::new(
                    Code::Unsynced,
                    format!(
                        "{} local commits ({} ops) are not published: sync first, or discard them",
                        pending.commits, pending.ops
                    ),
                ));
            }
            if let Some(error) = &local.stuck {
                return Err(error.clone());
            }
        }
        if discard && local.stuck.is_none() && !local.log.intents().is_empty() {
            // A body that was sent could still land after it was dropped here; after an empty commit it cannot (P9).
            let fenced = self.publish(true).await;
            if let Err(error) = fenced
                && self.home.stuck.is_none()
            {
                return Err(error);
            }
        }
        if discard && !self.remote.may_send() {
            return Err(nobody_waits());
        }
        let stuck = self.home.stuck.take();
        let went_back = |e: Option<&Error>| e.is_some_and(|e| e.kind() == Kind::Corrupt);
        let mut moved = self.replace(went_back(stuck.as_ref())).await;
        if moved.is_err() && discard && went_back(self.home.stuck.as_ref()) {
            // Found out only now; a discard takes the store's state, whatever it is (P21).
            moved = self.replace(true).await;
        }
        let local = &mut self.home;
        local.stuck = if moved.is_ok() { None } else { local.stuck.take().or(stuck) };
        self.set_unsynced();
        // The disk may have no room for it: the next call writes it down, before anything else.
        moved??;
        self.emit(|| Happened::Snapshot);
        Ok(self.chain.head().commit_seq)
    }

    /// Replaces the local state with the newest state of the store. After an outer error nothing has changed; after an
    /// error inside an `Ok` memory has changed and the disk does not have it yet. `anew`: the new state need not
    /// continue the known one (P21).
    async fn replace(&mut self, anew: bool) -> Result<Result<()>> {
        if anew {
            self.chain.forget_version();
        }
        let seen = self.read_head().await?;
        let log = &self.home.log;
        let (base, dirty) = (log.base().clone(), log.pending().commits > 0);
        let here = self.chain.image();
        self.go_to(&base)?;
        let moved = match seen {
            None => Ok(dirty),
            Some(seen) if anew => self.load_anew(seen).await.map(|()| true),
            Some(seen) => self.follow(seen).await.map(|moved| moved || dirty),
        };
        let moved = match moved {
            Ok(moved) => moved,
            Err(error) => {
                self.go_to(&here)?;
                return Err(error);
            }
        };
        let (head, image) = (self.chain.head().clone(), self.chain.image());
        let local = &mut self.home;
        local.known = true;
        Ok(if moved { local.log.moved(head, image) } else { local.log.ready(|| image) })
    }

    /// Loads the state of this HEAD, even if it does not continue the known one.
    async fn load_anew(&mut self, seen: ReadHead) -> Result<()> {
        let (pages, records) = self.remote.source.load(&seen.head).await.map_err(fetch_failed)?;
        self.chain.replace(pages)?;
        self.remote.time.set_max_skew(seen.head.max_skew_ms);
        self.identity.renew();
        self.advanced(seen, &records);
        Ok(())
    }

    fn go_to(&mut self, image: &Image) -> Result<()> {
        if let Err(error) = self.chain.go_to(image)? {
            self.halt(error);
        }
        Ok(())
    }
}
