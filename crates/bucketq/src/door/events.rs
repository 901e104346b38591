//! Listeners: each gets every event; those it is too slow for count as missed. The writer never waits for one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

use crate::bytes::metrics::Counters;
use crate::noun::event::{Event, Happened};

/// Events as they happen, for one listener. Dropping it ends them.
#[derive(Debug)]
pub struct Events {
    rx: mpsc::Receiver<Event>,
    missed: Arc<AtomicU64>,
    counters: Arc<Counters>,
}

impl Events {
    /// Returns the next event, or `None` once the writer has ended.
    pub async fn next(&mut self) -> Option<Event> {
        self.rx.recv().await
    }

    /// Returns the next event if it has already arrived.
    pub fn try_next(&mut self) -> Option<Event> {
        self.rx.try_recv().ok()
    }

    /// Stops listening. Events that have arrived can still be read, then `next` returns `None`.
    pub fn end(&mut self) {
        self.rx.close();
    }

    /// Returns how many events found no room.
    pub fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }

    /// Counts in the metrics that the listener failed while it handled an event.
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
    /// The newest commit in an event: its number and its time.
    newest: (u64, i64),
}

/// All listeners of one writer.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    any: AtomicBool,
    audience: Mutex<Audience>,
}

impl Watchers {
    /// Returns whether there is a listener.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Adds a listener, with room for up to `room` events.
    pub fn listen(&self, room: usize, counters: &Arc<Counters>) -> Events {
        let (tx, rx) = mpsc::channel(room.max(1));
        let missed = Arc::new(AtomicU64::new(0));
        let mut audience = self.lock();
        audience.all.push(Listener { tx, missed: Arc::clone(&missed) });
        self.any.store(true, Ordering::Relaxed);
        Events { rx, missed, counters: Arc::clone(counters) }
    }

    /// Sends events to every listener. Returns how many found no room.
    pub fn emit(&self, events: &[Event]) -> u64 {
        let mut audience = self.lock();
        self.emit_all(&mut audience, events)
    }

    /// Sends an event that belongs to no commit, with the newest commit sent so far, or this one if it is newer.
    pub fn emit_apart(&self, what: Happened, (seq, ms): (u64, i64)) -> u64 {
        let mut audience = self.lock();
        let (commit_seq, commit_ms) = (audience.newest.0.max(seq), audience.newest.1.max(ms));
        self.emit_all(&mut audience, &[Event { commit_seq, commit_ms, what }])
    }

    fn emit_all(&self, audience: &mut Audience, events: &[Event]) -> u64 {
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

    /// Ends the events of all listeners: the writer has ended.
    pub fn end(&self) {
        self.lock().all.clear();
        self.any.store(false, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Audience> {
        self.audience.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
