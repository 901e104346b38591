//! Who watches: events go to each listener, and are counted as missed when it is too slow. Nobody waits for a listener.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;

use crate::event::Event;

/// Events as they happen, for one listener; dropping it ends the listening.
#[derive(Debug)]
pub struct Events {
    rx: mpsc::Receiver<Event>,
    missed: Arc<AtomicU64>,
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

    /// Events that came while there was no room for them.
    pub fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct Listener {
    tx: mpsc::Sender<Event>,
    missed: Arc<AtomicU64>,
}

/// Everybody who listens to one writer.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    any: AtomicBool,
    all: Mutex<Vec<Listener>>,
}

impl Watchers {
    /// Somebody listens.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// One more listener, with room for so many events.
    pub fn listen(&self, room: usize) -> Events {
        let (tx, rx) = mpsc::channel(room.max(1));
        let missed = Arc::new(AtomicU64::new(0));
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(Listener { tx, missed: Arc::clone(&missed) });
        self.any.store(true, Ordering::Relaxed);
        Events { rx, missed }
    }

    /// Tell everybody; answers how many events found no room.
    pub fn tell(&self, events: &[Event]) -> u64 {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|l| !l.tx.is_closed());
        self.any.store(!all.is_empty(), Ordering::Relaxed);
        let mut missed = 0;
        for listener in all.iter() {
            let lost = events.iter().filter(|e| listener.tx.try_send((*e).clone()).is_err()).count() as u64;
            listener.missed.fetch_add(lost, Ordering::Relaxed);
            missed += lost;
        }
        missed
    }

    /// The writer has ended: so do the events.
    pub fn end(&self) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.any.store(false, Ordering::Relaxed);
    }
}
