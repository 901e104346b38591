//! Who watches: events go to each listener, and are counted as missed when it is too slow. Nobody waits for a listener.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

use crate::event::{Event, Happened};
use crate::metrics::Counters;

/// Events as they happen, for one listener; dropping it ends the listening.
#[derive(Debug)]
pub struct Events {
    rx: mpsc::Receiver<Event>,
    missed: Arc<AtomicU64>,
    counters: Arc<Counters>,
}

impl Events {
    /// The next event; none when the writer has ended.
    pub async fn next(&mut self) -> Option<Event> {
        self.rx.recv().await
    }

    /// The next event, if there is one already.
    pub fn try_next(&mut self) -> Option<Event> {
        self.rx.try_recv().ok()
    }

    /// Listen no more: what came until now can still be taken, then there is none.
    pub fn end(&mut self) {
        self.rx.close();
    }

    /// Events that came while there was no room for them.
    pub fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }

    /// The listener failed over an event: it is counted among the metrics.
    pub fn failed(&self) {
        Counters::add(&self.counters.events_failed, 1);
    }
}

#[derive(Debug)]
struct Listener {
    tx: mpsc::Sender<Event>,
    missed: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct Audience {
    all: Vec<Listener>,
    /// The newest commit that was told of: its number and its time.
    newest: (u64, i64),
}

/// Everybody who listens to one writer.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    any: AtomicBool,
    audience: Mutex<Audience>,
}

impl Watchers {
    /// Somebody listens.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// One more listener, with room for so many events.
    pub fn listen(&self, room: usize, counters: &Arc<Counters>) -> Events {
        let (tx, rx) = mpsc::channel(room.max(1));
        let missed = Arc::new(AtomicU64::new(0));
        let mut audience = self.lock();
        audience.all.push(Listener { tx, missed: Arc::clone(&missed) });
        self.any.store(true, Ordering::Relaxed);
        Events { rx, missed, counters: Arc::clone(counters) }
    }

    /// Tell everybody; answers how many events found no room.
    pub fn tell(&self, events: &[Event]) -> u64 {
        let mut audience = self.lock();
        self.tell_all(&mut audience, events)
    }

    /// Tell something that concerns no commit, with the newest one that was told of, or this one if it is newer.
    pub fn tell_apart(&self, what: Happened, (seq, ms): (u64, i64)) -> u64 {
        let mut audience = self.lock();
        let (commit_seq, commit_ms) = (audience.newest.0.max(seq), audience.newest.1.max(ms));
        self.tell_all(&mut audience, &[Event { commit_seq, commit_ms, what }])
    }

    fn tell_all(&self, audience: &mut Audience, events: &[Event]) -> u64 {
        audience.all.retain(|l| !l.tx.is_closed());
        self.any.store(!audience.all.is_empty(), Ordering::Relaxed);
        if let Some(last) = events.last() {
            audience.newest = (last.commit_seq, last.commit_ms);
        }
        let mut missed = 0;
        for listener in &audience.all {
            let lost = events.iter().filter(|e| listener.tx.try_send((*e).clone()).is_err()).count() as u64;
            listener.missed.fetch_add(lost, Ordering::Relaxed);
            missed += lost;
        }
        missed
    }

    /// The writer has ended: so do the events.
    pub fn end(&self) {
        self.lock().all.clear();
        self.any.store(false, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Audience> {
        self.audience.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
