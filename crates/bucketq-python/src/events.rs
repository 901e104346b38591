//! [`Reader`] and [`Teller`]: events of a queue file and lost leases, delivered to Python. The package reads on a
//! thread or in an event loop and calls the listeners; the engine never waits for them.
//!
//! The reader has no reference to the queue file, so that reading does not keep it open.

use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use bucketq::{Event, Events, Loss, QueueFile, Result};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use tokio::sync::{mpsc, watch};

use crate::call::Call;
use crate::{runtime, values};

/// Most events delivered at once.
const MOST: usize = 256;

/// A lost lease: the function to call, and the reason.
struct Lost {
    tell: Py<PyAny>,
    how: Loss,
}

/// One delivery.
#[derive(Default)]
struct Delivery {
    events: Vec<Event>,
    /// Events missed since the last delivery.
    missed: u64,
    lost: Vec<Lost>,
}

/// The source of deliveries, for one reader at a time.
struct Ear {
    events: Option<Events>,
    missed: u64,
    lost: mpsc::UnboundedReceiver<Lost>,
    ended: watch::Receiver<bool>,
}

impl Ear {
    async fn next(&mut self) -> Option<Delivery> {
        loop {
            let ended = *self.ended.borrow_and_update();
            if let Some(events) = self.events.as_mut().filter(|_| ended) {
                events.end();
            }
            let delivery = self.there();
            if !delivery.events.is_empty() || delivery.missed > 0 || !delivery.lost.is_empty() {
                return Some(delivery);
            }
            if ended {
                return None;
            }
            tokio::select! {
                event = next_event(self.events.as_mut()) => {
                    // Without an event the writer has ended, so there is nothing more to deliver.
                    let mut delivery = self.there();
                    delivery.events.insert(0, event?);
                    return Some(delivery);
                }
                Some(lost) = self.lost.recv() => {
                    let mut delivery = self.there();
                    delivery.lost.insert(0, lost);
                    return Some(delivery);
                }
                _ = self.ended.changed() => {}
            }
        }
    }

    /// Returns everything that can be delivered without waiting.
    fn there(&mut self) -> Delivery {
        let mut delivery = Delivery::default();
        if let Some(events) = &mut self.events {
            delivery.events.extend(std::iter::from_fn(|| events.try_next()).take(MOST));
            let missed = events.missed();
            delivery.missed = missed - mem::replace(&mut self.missed, missed);
        }
        delivery.lost.extend(std::iter::from_fn(|| self.lost.try_recv().ok()));
        delivery
    }
}

async fn next_event(events: Option<&mut Events>) -> Option<Event> {
    match events {
        Some(events) => events.next().await,
        None => std::future::pending().await,
    }
}

/// Reads deliveries, until the teller ends.
#[pyclass(frozen, module = "bucketq._native")]
pub struct Reader {
    ear: Option<Arc<tokio::sync::Mutex<Ear>>>,
    pid: u32,
}

#[pymethods]
impl Reader {
    /// Returns the next delivery: events, how many were missed, and pairs of a function to call and the reason. None at
    /// the end. `failed` is the number of events of the last delivery on which a listener failed.
    fn next(&self, failed: u32) -> Call {
        let ear = Arc::clone(self.ear.as_ref().expect("taken by drop only"));
        let work = async move {
            let mut ear = ear.lock().await;
            if let Some(events) = &ear.events {
                for _ in 0..failed {
                    events.failed();
                }
            }
            Ok(ear.next().await)
        };
        Call::new(work, |py, delivery| {
            let Some(Delivery { events, missed, lost }) = delivery else { return Ok(py.None()) };
            let events = events.iter().map(|e| values::json(py, e)).collect::<PyResult<Vec<_>>>()?;
            let lost: Vec<_> = lost.into_iter().map(|l| (l.tell, l.how.as_str())).collect();
            (events, missed, lost).into_py_any(py)
        })
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if !runtime::is_home(self.pid) {
            // A lock of the writer's thread, which did not survive the fork, may never be released.
            mem::forget(self.ear.take());
        }
    }
}

/// Ends the reading: by a call, or when nothing refers to it any more.
#[pyclass(frozen, module = "bucketq._native")]
pub struct Teller {
    parts: Mutex<Option<(mpsc::UnboundedSender<Lost>, watch::Sender<bool>)>>,
    pid: u32,
}

#[pymethods]
impl Teller {
    /// Ends: nothing new is delivered, but earlier events are still read.
    fn end(&self) {
        // A forked child must not take a lock that may be held, and has no reader to end.
        if runtime::is_home(self.pid)
            && let Some((_, ended)) = self.parts.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            ended.send_replace(true);
        }
    }
}

impl Teller {
    /// Returns a function that has the reader call this Python function once a lease is lost.
    pub fn of_loss(&self, tell: Py<PyAny>) -> Option<impl FnOnce(Loss) + Send + 'static> {
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let tx = parts.as_ref()?.0.clone();
        Some(move |how| _ = tx.send(Lost { tell, how }))
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.end();
        if !runtime::is_home(self.pid) {
            mem::forget(self.parts.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

/// Listens to a queue file with room for up to `room` events; with 0, to lost leases only.
pub fn listen(file: &QueueFile, room: usize) -> Result<(Reader, Teller)> {
    let events = (room > 0).then(|| file.events(room)).transpose()?;
    let ((lost_tx, lost), (ended_tx, ended)) = (mpsc::unbounded_channel(), watch::channel(false));
    let pid = std::process::id();
    let ear = Ear { events, missed: 0, lost, ended };
    let reader = Reader { ear: Some(Arc::new(tokio::sync::Mutex::new(ear))), pid };
    Ok((reader, Teller { parts: Mutex::new(Some((lost_tx, ended_tx))), pid }))
}
