//! Collection: which objects no HEAD can ever refer to again, and their deletion off the commit path (P13 to P16).
//!
//! Called by the writer: after each commit of its own that raised the floor, and on request. Never changes HEAD: what is
//! gone leaves the list of retired keys in a later ordinary commit. Whatever fails here is left to the next floor.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::broken::{self, Broken};
use crate::config::Options;
use crate::env::Env;
use crate::error::{Code, Error, Result};
use crate::head::{Head, Retired};
use crate::keys::{self, Object};
use crate::life::Archived;
use crate::query::Collected;
use crate::store::{Got, Listed, Store};
use crate::wire::corrupt;

/// Deletes under way at once: a day's garbage is gone in minutes, and callers' requests hardly notice.
const AT_ONCE: usize = 4;
/// Deletes that fail before a pass gives up: a store that refuses one refuses all.
const PATIENCE: u64 = 8;

/// The archive objects that must stay, by number and random part, as the list of one commit has them.
pub type Kept = HashSet<(u64, [u8; 8])>;

/// Whether nothing refers to this object, nothing ever will, and no reader who deserves it looks for it: `head` is one
/// HEAD of the chain, and its floor and its references belong together (P13, P14, P15). Archive objects are referred to
/// by the database: [`archive_may_go`]. What was put aside is nobody's after a while.
pub fn may_go(head: &Head, object: &Object, options: &Options) -> bool {
    if let Object::Stage { ms, .. } = *object {
        return ms.saturating_add(keys::STAGED_MS) < head.commit_ms;
    }
    let old = object.seq() < head.gc_floor || broken::is(options, Broken::CollectWithoutFloor);
    old && !refers(head, object)
        && !head.retired.iter().any(|r| r.at >= head.gc_floor && Object::from(*r) == *object)
}

/// The same for an archive object: `floor` and `kept` are those of one commit. Without a list nothing may go.
pub fn archive_may_go(floor: u64, kept: Option<&Kept>, seq: u64, rand: [u8; 8], options: &Options) -> bool {
    let old = seq < floor || broken::is(options, Broken::CollectWithoutFloor);
    let listed = kept.is_none_or(|kept| kept.contains(&(seq, rand)));
    old && (!listed || broken::is(options, Broken::CollectWithoutList))
}

/// What HEAD refers to by the list of its database, of its own file id.
pub fn kept(archives: &[Archived], file_id: &[u8; 16]) -> Kept {
    archives.iter().filter(|a| a.file == file_id[..4]).map(|a| (a.seq, a.rand)).collect()
}

/// Whether HEAD itself refers to it.
pub fn refers(head: &Head, object: &Object) -> bool {
    match *object {
        Object::Base { seq, rand } => head.base.len > 0 && head.base.seq == seq && head.base.rand == rand,
        Object::Segment { from, to, rand } => {
            head.segments.iter().any(|s| s.from == from && s.to == to && s.rand == rand)
        }
        Object::Archive { .. } | Object::Stage { .. } => false,
    }
}

/// One pass to make.
#[derive(Debug)]
pub struct Order {
    /// A settled commit; HEAD is read again and must continue it.
    pub known: Head,
    /// The archive objects that must stay, by the list in the database at `known`.
    pub archives: Option<Kept>,
    /// Broken on purpose: the floor of a commit that is not stored yet.
    pub too_early: Option<u64>,
    /// Who asked, if somebody did.
    pub reply: Option<oneshot::Sender<Result<Collected>>>,
}

/// What the passes of one writer share with it.
#[derive(Debug, Default)]
struct State {
    orders: Vec<Order>,
    running: bool,
    /// Retired keys whose objects are not there any more.
    gone: Vec<Retired>,
    /// The HEAD of an earlier pass; kept only when a rule is broken on purpose.
    before: Option<Head>,
}

/// The collector of one writer: one pass at a time, beside the commits.
#[derive(Debug)]
pub struct Collector {
    inner: Arc<Inner>,
    tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Inner {
    store: Arc<dyn Store>,
    name: String,
    options: Arc<Options>,
    env: Env,
    state: Mutex<State>,
}

impl Collector {
    /// Nothing to do yet.
    pub fn new(store: Arc<dyn Store>, name: &str, options: Arc<Options>, env: Env) -> Self {
        let inner = Inner { store, name: name.to_owned(), options, env, state: Mutex::default() };
        Self { inner: Arc::new(inner), tasks: JoinSet::new() }
    }

    /// Make a pass, after those ordered before. Passes that nobody waits for do not queue up.
    pub fn order(&mut self, order: Order) {
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

    /// Retired keys that the next commit need not list any longer.
    pub fn gone(&self) -> Vec<Retired> {
        self.inner.state().gone.clone()
    }

    /// HEAD is this now: what it does not list has been taken out.
    pub fn adopted(&self, head: &Head) {
        self.inner.state().gone.retain(|r| head.retired.contains(r));
    }

    /// Delete nothing more: what is known of the queue file may be wrong.
    pub fn stop(&mut self) {
        self.tasks.abort_all();
        let mut state = self.inner.state();
        state.orders.clear();
        state.running = false;
    }

    /// Wait for the pass under way, but no longer than this: a process that lives for one commit must not leave every
    /// pass half done.
    pub async fn finish(&mut self, limit: Duration) {
        let env = self.inner.env.clone();
        tokio::select! {
            biased;
            () = async { while self.tasks.join_next().await.is_some() {} } => {}
            () = env.sleep(limit) => self.stop(),
        }
    }
}

impl Inner {
    /// Nothing is left half changed under this lock.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Option<Order> {
        let mut state = self.state();
        state.running = !state.orders.is_empty();
        (!state.orders.is_empty()).then(|| state.orders.remove(0))
    }

    async fn carry_out(&self, order: Order) {
        let done = self.pass(&order).await;
        match &done {
            Ok(c) => tracing::debug!(floor = c.floor, objects = c.objects, bytes = c.bytes, "collected"),
            Err(error) => {
                tracing::warn!(%error, "nothing could be collected; it is tried again at the next floor");
            }
        }
        if let Some(reply) = order.reply {
            let _ = reply.send(done);
        }
    }

    /// List, read HEAD, delete. In this order: whatever was listed and is below the floor of a HEAD read later, which
    /// does not refer to it, is garbage for good.
    async fn pass(&self, order: &Order) -> Result<Collected> {
        let listed = self.within(self.store.list(&format!("{}.", self.name))).await;
        let mut head = self.head(&order.known).await?;
        let floor = order.too_early.unwrap_or(head.gc_floor);
        if broken::is(&self.options, Broken::FloorNewerThanReferences) {
            let before = self.state().before.replace(head.clone());
            head = before.unwrap_or(head);
        }
        head.gc_floor = floor;
        let mine: Vec<(Object, Listed)> = match listed {
            Ok(listed) => listed
                .into_iter()
                .filter_map(|l| Some((keys::parse(&self.name, &l.key)?, l)))
                .filter(|(named, _)| named.file8 == keys::file8(&head.file_id))
                .map(|(named, l)| (named.object, l))
                .collect(),
            Err(error) if order.reply.is_some() => return Err(error),
            // Orphans wait for the next floor; what HEAD lists can be deleted without looking.
            Err(error) => {
                tracing::warn!(%error, "orphans cannot be listed");
                let key = |o: &Object| o.key(&self.name, &head.file_id);
                let old = head.retired.iter().map(|r| Object::from(*r));
                old.map(|o| (o, Listed { key: key(&o), size: 0 })).collect()
            }
        };
        let (gone, kept): (Vec<_>, Vec<_>) = mine.into_iter().partition(|(object, _)| match *object {
            Object::Archive { seq, rand } => {
                archive_may_go(order.known.gc_floor, order.archives.as_ref(), seq, rand, &self.options)
            }
            _ => may_go(&head, object, &self.options),
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

    /// Delete these, a few at a time. Answers those that are still there.
    async fn delete(&self, gone: Vec<(Object, Listed)>, told: &mut Collected) -> Vec<(Object, Listed)> {
        let (mut left, mut failed) = (vec![], 0);
        let mut waiting = gone.into_iter();
        let deletes = |some: Vec<(Object, Listed)>| {
            stream::iter(some)
                .map(|(object, l)| async move { (self.within(self.store.delete(&l.key)).await, object, l) })
                .buffer_unordered(AT_ONCE)
        };
        loop {
            // In slices, so that a store that refuses is not asked a thousand times.
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

    /// HEAD now: of the same file and lineage, and no older than what is known. Anything else was put there by
    /// somebody, and what it refers to must stay.
    async fn head(&self, known: &Head) -> Result<Head> {
        let key = keys::head(&self.name);
        let Got::Object { bytes, .. } = self.within(self.store.get(&key, None)).await? else {
            return Err(corrupt(&key, "it is gone"));
        };
        let head = Head::decode(&key, &bytes)?;
        // A newer version may refer to objects in a way that this one does not see.
        head.check_writable(&key)?;
        let continues = head.file_id == known.file_id
            && head.lineage_id == known.lineage_id
            && head.commit_seq >= known.commit_seq
            && head.commit_id_at(known.commit_seq).is_none_or(|id| id == known.commit_id);
        if continues { Ok(head) } else { Err(corrupt(&key, "it does not continue what was known")) }
    }

    async fn within<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        let limit = self.options.deadline / 3;
        tokio::select! {
            biased;
            done = request => done,
            () = self.env.sleep(limit) => {
                Err(Error::new(Code::Unreachable, format!("the store did not answer within {limit:?}")))
            }
        }
    }
}
