//! [`Reader`] and [`Teller`]: what Python is told without asking, events of a queue file and losses of leases. The package
//! reads on a thread or in an event loop and calls who wants to know; the engine waits for nobody.
//!
//! The reader holds nothing of the queue file, so that reading does not keep it open.

use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use bucketq::{Event, Events, Loss, QueueFile, Result};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use tokio::sync::{mpsc, watch};

use crate::call::Call;
use crate::{runtime, values};

/// Events handed over at once.
const MOST: usize = 256;

/// A lease is lost: who is to be called, and how.
struct Lost {
    tell: Py<PyAny>,
    how: Loss,
}

/// What there is to tell.
#[derive(Default)]
struct Told {
    events: Vec<Event>,
    /// Events missed since the last time.
    missed: u64,
    lost: Vec<Lost>,
}

/// Where it comes from. One at a time reads.
struct Ear {
    events: Option<Events>,
    missed: u64,
    lost: mpsc::UnboundedReceiver<Lost>,
    ended: watch::Receiver<bool>,
}

impl Ear {
    async fn next(&mut self) -> Option<Told> {
        loop {
            let ended = *self.ended.borrow_and_update();
            if let Some(events) = self.events.as_mut().filter(|_| ended) {
                events.end();
            }
            let told = self.there();
            if !told.events.is_empty() || told.missed > 0 || !told.lost.is_empty() {
                return Some(told);
            }
            if ended {
                return None;
            }
            tokio::select! {
                event = next_event(self.events.as_mut()) => {
                    // Without one the writer has ended, and with it everything.
                    let mut told = self.there();
                    told.events.insert(0, event?);
                    return Some(told);
                }
                Some(lost) = self.lost.recv() => {
                    let mut told = self.there();
                    told.lost.insert(0, lost);
                    return Some(told);
                }
                _ = self.ended.changed() => {}
            }
        }
    }

    /// What can be had without waiting.
    fn there(&mut self) -> Told {
        let mut told = Told::default();
        if let Some(events) = &mut self.events {
            told.events.extend(std::iter::from_fn(|| events.try_next()).take(MOST));
            let missed = events.missed();
            told.missed = missed - mem::replace(&mut self.missed, missed);
        }
        told.lost.extend(std::iter::from_fn(|| self.lost.try_recv().ok()));
        told
    }
}

async fn next_event(events: Option<&mut Events>) -> Option<Event> {
    match events {
        Some(events) => events.next().await,
        None => std::future::pending().await,
    }
}

/// Reads what is told, until the teller ends.
#[pyclass(frozen, module = "bucketq._native")]
pub struct Reader {
    ear: Option<Arc<tokio::sync::Mutex<Ear>>>,
    pid: u32,
}

#[pymethods]
impl Reader {
    /// What is told next: events, how many were missed, and pairs of whom to call and why. None at the end. `failed` says
    /// how many of the events before could not be dealt with.
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
        Call::new(work, |py, told| {
            let Some(Told { events, missed, lost }) = told else { return Ok(py.None()) };
            let events = events.iter().map(|e| values::json(py, e)).collect::<PyResult<Vec<_>>>()?;
            let lost: Vec<_> = lost.into_iter().map(|l| (l.tell, l.how.as_str())).collect();
            (events, missed, lost).into_py_any(py)
        })
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if !runtime::is_home(self.pid) {
            // A lock of the writer's thread, which did not survive the fork, may never open.
            mem::forget(self.ear.take());
        }
    }
}

/// Ends the reading: by itself, or when nobody refers to it any more.
#[pyclass(frozen, module = "bucketq._native")]
pub struct Teller {
    parts: Mutex<Option<(mpsc::UnboundedSender<Lost>, watch::Sender<bool>)>>,
    pid: u32,
}

#[pymethods]
impl Teller {
    /// Nothing new is told; what came until now is still read.
    fn end(&self) {
        // A forked child takes no lock that may be held, and has nobody to end.
        if runtime::is_home(self.pid)
            && let Some((_, ended)) = self.parts.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            ended.send_replace(true);
        }
    }
}

impl Teller {
    /// What calls this function of Python, by way of the reader, once a lease is lost.
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

/// Listen to a queue file with room for so many events; with none, to losses of leases only.
pub fn listen(file: &QueueFile, room: usize) -> Result<(Reader, Teller)> {
    let events = (room > 0).then(|| file.events(room)).transpose()?;
    let ((lost_tx, lost), (ended_tx, ended)) = (mpsc::unbounded_channel(), watch::channel(false));
    let pid = std::process::id();
    let ear = Ear { events, missed: 0, lost, ended };
    let reader = Reader { ear: Some(Arc::new(tokio::sync::Mutex::new(ear))), pid };
    Ok((reader, Teller { parts: Mutex::new(Some((lost_tx, ended_tx))), pid }))
}
