//! Drives a future on the calling thread: Python's lock is released while it waits, and signals are handled.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use bucketq::Result;
use pyo3::prelude::*;

use crate::call::{Reply, Work};
use crate::errors::OrRaise;
use crate::runtime;

/// How long a signal may go unnoticed on the main thread.
const SLICE: Duration = Duration::from_millis(50);

/// Wakes the waiting thread.
struct Unpark {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, SeqCst);
        self.thread.unpark();
    }
}

/// Runs the future to its end. A signal handler that raises ends it early: the future is dropped.
pub fn wait(py: Python<'_>, mut work: Work) -> PyResult<Result<Reply>> {
    let timers = runtime::get().or_raise(py)?;
    let unpark = Arc::new(Unpark { thread: thread::current(), woken: AtomicBool::new(true) });
    let waker = Waker::from(Arc::clone(&unpark));
    let mut slice = Some(SLICE);
    loop {
        let ready = runtime::detach(py, || {
            let _timers = timers.enter();
            drive(&mut work, &unpark, &waker, slice)
        });
        if let Some(reply) = ready {
            return Ok(reply);
        }
        py.check_signals()?;
        // Signals are handled on the main thread only: other threads need not check again.
        if !is_main_thread(py)? {
            slice = None;
        }
    }
}

/// Polls whenever woken. Returns none when a slice has passed without a wake-up.
fn drive(work: &mut Work, unpark: &Unpark, waker: &Waker, slice: Option<Duration>) -> Option<Result<Reply>> {
    loop {
        while unpark.woken.swap(false, SeqCst) {
            if let Poll::Ready(reply) = work.as_mut().poll(&mut Context::from_waker(waker)) {
                return Some(reply);
            }
        }
        match slice {
            None => thread::park(),
            Some(time) => {
                thread::park_timeout(time);
                if !unpark.woken.load(SeqCst) {
                    return None;
                }
            }
        }
    }
}

fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import("threading")?;
    let main = threading.call_method0("main_thread")?.getattr("ident")?;
    threading.call_method0("get_ident")?.eq(main)
}
