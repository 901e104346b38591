//! Collection: finds objects that no HEAD can ever refer to again, and deletes them in the background (P13 to P16).
//!
//! Called by the writer, after its own commits that raised the floor, and on request. Never changes HEAD: a later
//! ordinary commit drops deleted objects from the retired keys. Failed deletes are tried again at the next floor.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::bucket::head::{Head, Retired};
use crate::bucket::keys::{self, Object};
use crate::bucket::wire::corrupt;
use crate::bytes::store::{Got, Listed, Store};
use crate::bytes::wrap::limited::within;
use crate::engine::catchup::absent_head;
use crate::noun::config::Options;
use crate::noun::env::Env;
use crate::noun::error::Result;
use crate::noun::life::Archived;
use crate::noun::query::Collected;

/// Deletes under way at once: a day's garbage is gone in minutes, and callers' requests are hardly slower.
const AT_ONCE: usize = 4;
/// Failed deletes before a pass gives up: a store that refuses one refuses all.
const PATIENCE: u64 = 8;

/// The archive objects that must stay, by number and random part, as listed at one commit.
pub type LiveArchives = HashSet<(u64, [u8; 8])>;

/// Returns whether an object may be deleted: nothing refers to it or ever will, and no reader within its grace needs
/// it. `head` is one HEAD of the chain: its floor and its references belong together (P13, P14, P15). The database
/// refers to archive objects: see [`archive_may_go`]. Staged objects may go after [`keys::STAGED_MS`].
pub fn may_go(head: &Head, object: &Object) -> bool {
    if let Object::Stage { ms, .. } = *object {
        return ms.saturating_add(keys::STAGED_MS) < head.commit_ms;
    }
    object.seq() < head.gc_floor
        && !refers(head, object)
        && !head.retired.iter().any(|r| r.at >= head.gc_floor && Object::from(*r) == *object)
}

/// Does the same for an archive object: `floor` and `kept` are of one commit. Without a list none may go.
pub fn archive_may_go(floor: u64, kept: Option<&LiveArchives>, seq: u64, rand: [u8; 8]) -> bool {
    seq < floor && kept.is_some_and(|kept| !kept.contains(&(seq, rand)))
}

/// Returns the archive objects of this file id that the database lists.
pub fn live(archives: &[Archived], file_id: &[u8; 16]) -> LiveArchives {
    archives.iter().filter(|a| a.file == file_id[..4]).map(|a| (a.seq, a.rand)).collect()
}

/// Returns whether HEAD itself refers to this object.
pub fn refers(head: &Head, object: &Object) -> bool {
    match *object {
        Object::Base { seq, rand } => head.base.len > 0 && head.base.seq == seq && head.base.rand == rand,
        Object::Segment { from, to, rand } => {
            head.segments.iter().any(|s| s.from == from && s.to == to && s.rand == rand)
        }
        Object::Archive { .. } | Object::Stage { .. } => false,
    }
}

/// An order for one pass.
#[derive(Debug)]
pub struct CollectOrder {
    /// A settled commit; the pass reads HEAD again, which must continue it.
    pub known: Head,
    /// The archive objects that must stay, by the list in the database at `known`.
    pub archives: Option<LiveArchives>,
    /// The channel for the reply, if a caller waits for it.
    pub reply: Option<oneshot::Sender<Result<Collected>>>,
}

/// State that the passes of one writer share with it.
#[derive(Debug, Default)]
struct CollectorState {
    orders: Vec<CollectOrder>,
    running: bool,
    /// Retired keys whose objects are deleted.
    gone: Vec<Retired>,
}

/// The collector of one writer: one pass at a time, while the writer commits.
#[derive(Debug)]
pub struct Collector {
    inner: Arc<CollectorInner>,
    tasks: JoinSet<()>,
}

#[derive(Debug)]
struct CollectorInner {
    store: Arc<dyn Store>,
    name: String,
    options: Arc<Options>,
    env: Env,
    state: Mutex<CollectorState>,
}

impl Collector {
    /// Returns a collector with nothing to do.
    pub fn new(store: Arc<dyn Store>, name: &str, options: Arc<Options>, env: Env) -> Self {
        let inner = CollectorInner { store, name: name.to_owned(), options, env, state: Mutex::default() };
        Self { inner: Arc::new(inner), tasks: JoinSet::new() }
    }

    /// Makes a pass, after those ordered before. Passes without a waiting caller do not queue up.
    pub fn order(&mut self, order: CollectOrder) {
        let mut state = self.inner.state();
        if order.reply.is_none() {
            state.orders.retain(|o| o.reply.is_some());
        }
        state.orders.push(order);
        if std::mem::replace(&mut state.running, true) {
            return;
        }
        drop(state);
        while self.tasks.try_join_next().is_some() {}
        let inner = Arc::clone(&self.inner);
        self.tasks.spawn(async move {
            while let Some(order) = inner.next() {
                inner.carry_out(order).await;
            }
        });
    }

    /// Returns the retired keys that the next commit can leave out.
    pub fn gone(&self) -> Vec<Retired> {
        self.inner.state().gone.clone()
    }

    /// Forgets the deleted keys that this HEAD, the newest, no longer lists.
    pub fn adopted(&self, head: &Head) {
        self.inner.state().gone.retain(|r| head.retired.contains(r));
    }

    /// Stops deleting: the known state of the queue file may be wrong.
    pub fn stop(&mut self) {
        self.tasks.abort_all();
        let mut state = self.inner.state();
        state.orders.clear();
        state.running = false;
    }

    /// Waits up to `limit` for the pass under way: otherwise a process that lives for one commit would leave every pass
    /// half done.
    pub async fn finish(&mut self, limit: Duration) {
        let env = self.inner.env.clone();
        tokio::select! {
            biased;
            () = async { while self.tasks.join_next().await.is_some() {} } => {}
            () = env.sleep(limit) => self.stop(),
        }
    }
}

impl CollectorInner {
    /// Locks the state. No holder leaves it half changed, even if it panics.
    fn state(&self) -> MutexGuard<'_, CollectorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Option<CollectOrder> {
        let mut state = self.state();
        state.running = !state.orders.is_empty();
        (!state.orders.is_empty()).then(|| state.orders.remove(0))
    }

    async fn carry_out(&self, order: CollectOrder) {
        let done = self.pass(&order).await;
        match &done {
            Ok(c) => tracing::debug!(floor = c.floor, objects = c.objects, bytes = c.bytes, "collected"),
            Err(error) => {
                tracing::warn!(%error, "a collection failed; the next one starts when the floor rises again");
            }
        }
        if let Some(reply) = order.reply {
            let _ = reply.send(done);
        }
    }

    /// Lists, reads HEAD, deletes, in this order: a listed object below the floor of a HEAD read later, to which this
    /// HEAD does not refer, is garbage forever.
    async fn pass(&self, order: &CollectOrder) -> Result<Collected> {
        let listed = self.within(self.store.list(&format!("{}.", self.name))).await;
        let head = self.head(&order.known).await?;
        let floor = head.gc_floor;
        let mine: Vec<(Object, Listed)> = match listed {
            Ok(listed) => listed
                .into_iter()
                .filter_map(|l| Some((keys::parse(&self.name, &l.key)?, l)))
                .filter(|(named, _)| named.file8 == keys::file8(&head.file_id))
                .map(|(named, l)| (named.object, l))
                .collect(),
            Err(error) if order.reply.is_some() => return Err(error),
            // Orphans wait for the next floor; objects that HEAD lists as retired can be deleted without a listing.
            Err(error) => {
                tracing::warn!(%error, "orphans cannot be listed");
                let key = |o: &Object| o.key(&self.name, &head.file_id);
                let old = head.retired.iter().map(|r| Object::from(*r));
                old.map(|o| (o, Listed { key: key(&o), size: 0 })).collect()
            }
        };
        let (gone, kept): (Vec<_>, Vec<_>) = mine.into_iter().partition(|(object, _)| match *object {
            Object::Archive { seq, rand } => {
                archive_may_go(order.known.gc_floor, order.archives.as_ref(), seq, rand)
            }
            _ => may_go(&head, object),
        });
        let mut told = Collected { floor, ..Collected::default() };
        let mut left = self.delete(gone, &mut told).await;
        let still = |r: &Retired| left.iter().any(|(o, _)| *o == Object::from(*r));
        let out: Vec<Retired> = head.retired.iter().copied().filter(|r| r.at < floor && !still(r)).collect();
        self.state().gone.extend(out);
        left.extend(kept.into_iter().filter(|(object, _)| match *object {
            Object::Archive { seq, rand } => {
                order.archives.as_ref().is_some_and(|kept| !kept.contains(&(seq, rand)))
            }
            _ => !refers(&head, object),
        }));
        told.left = left.len() as u64;
        told.left_bytes = left.iter().map(|(_, l)| l.size).sum();
        Ok(told)
    }

    /// Deletes these, a few at a time. Returns those that still exist.
    async fn delete(&self, gone: Vec<(Object, Listed)>, told: &mut Collected) -> Vec<(Object, Listed)> {
        let (mut left, mut failed) = (vec![], 0);
        let mut waiting = gone.into_iter();
        let deletes = |some: Vec<(Object, Listed)>| {
            stream::iter(some)
                .map(|(object, l)| async move { (self.within(self.store.delete(&l.key)).await, object, l) })
                .buffer_unordered(AT_ONCE)
        };
        loop {
            // In slices, so that a store that refuses does not get a thousand requests.
            let some: Vec<_> = waiting.by_ref().take(64).collect();
            if some.is_empty() || failed >= PATIENCE {
                left.extend(some);
                left.extend(waiting);
                return left;
            }
            let mut under_way = deletes(some);
            while let Some((answer, object, listed)) = under_way.next().await {
                match answer {
                    Ok(()) => {
                        told.objects += 1;
                        told.bytes += listed.size;
                    }
                    Err(error) => {
                        tracing::debug!(%error, key = listed.key, "an object could not be deleted");
                        failed += 1;
                        left.push((object, listed));
                    }
                }
            }
        }
    }

    /// Reads HEAD, which must be of the same file and lineage as `known` and no older. Any other HEAD was put there
    /// from outside, and its objects must stay.
    async fn head(&self, known: &Head) -> Result<Head> {
        let key = keys::head(&self.name);
        let Got::Object { bytes, .. } = self.within(self.store.get(&key, None)).await? else {
            return Err(absent_head(&key));
        };
        let head = Head::decode(&key, &bytes)?;
        // A newer version may refer to objects in a way that this one does not see.
        head.check_writable(&key)?;
        let continues = head.file_id == known.file_id
            && head.lineage_id == known.lineage_id
            && head.commit_seq >= known.commit_seq
            && head.commit_id_at(known.commit_seq).is_none_or(|id| id == known.commit_id);
        if continues { Ok(head) } else { Err(corrupt(&key, "it does not continue the known HEAD")) }
    }

    async fn within<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        within(&self.env, self.options.deadline / 3, request).await
    }
}
