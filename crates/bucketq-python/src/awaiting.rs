//! Drives a future from an asyncio task: the task itself polls it; the event loop is only woken when polling is useful.
//!
//! The result is taken in the same step in which the task continues, so a cancelled task never loses one: the future is
//! dropped with the task, and the engine hands claimed jobs back. Simultaneous wake-ups share one
//! `call_soon_threadsafe`, called by a separate thread: the engine's threads never wait for Python's lock.

use std::cell::RefCell;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use bucketq::Error;
use bucketq::fork::{self, PerProcess};
use pyo3::exceptions::{PyRuntimeError, PyStopIteration};
use pyo3::prelude::*;
use pyo3::types::PyCFunction;
use pyo3::{intern, sync::PyOnceLock};

use crate::call::Work;
use crate::errors::{OrRaise, raised};
use crate::runtime;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The return value of `Call.__await__`: an iterator for asyncio's tasks.
#[pyclass(frozen, module = "bucketq._native")]
pub struct Awaiting {
    slot: Arc<Slot>,
}

impl Awaiting {
    pub fn new(py: Python<'_>, work: Work) -> PyResult<Self> {
        end_at_exit(py)?;
        let slot = Slot {
            pump: Pump::of_running_loop(py)?,
            work: Mutex::new(Some(work)),
            future: Mutex::new(None),
            woken: AtomicBool::new(false),
            pid: std::process::id(),
        };
        Ok(Self { slot: Arc::new(slot) })
    }
}

#[pymethods]
impl Awaiting {
    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    /// Polls. Ready ends the iteration with the result; otherwise the task waits for a future of its loop.
    fn __next__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        if !runtime::is_home(self.slot.pid) {
            return Err(raised(py, &runtime::inherited()));
        }
        let runtime = runtime::get().or_raise(py)?;
        let Some(mut work) = lock(&self.slot.work).take() else {
            return Err(PyRuntimeError::new_err("this call has run already"));
        };
        self.slot.woken.store(false, SeqCst);
        let polled = {
            let _timers = runtime.enter();
            work.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(&self.slot))))
        };
        match polled {
            Poll::Ready(Err(error)) => Err(raised(py, &error)),
            Poll::Ready(Ok(reply)) => Err(PyStopIteration::new_err((reply(py)?,))),
            Poll::Pending => {
                *lock(&self.slot.work) = Some(work);
                // A wake-up since then is delivered by the loop after this step.
                let future = self.slot.pump.event_loop.call_method0(py, intern!(py, "create_future"))?;
                *lock(&self.slot.future) = Some(future.clone_ref(py));
                if ENDED.load(SeqCst) {
                    self.look_again(py)?;
                }
                future.call_method0(py, intern!(py, "__await__"))?.call_method0(py, intern!(py, "__next__"))
            }
        }
    }

    fn send(&self, py: Python<'_>, _value: Py<PyAny>) -> PyResult<Py<PyAny>> {
        self.__next__(py)
    }

    /// Stops: the task was cancelled, or otherwise stopped.
    #[pyo3(signature = (exception, value=None, _traceback=None))]
    fn throw(
        &self,
        exception: Bound<'_, PyAny>,
        value: Option<Bound<'_, PyAny>>,
        _traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        self.slot.stop();
        Err(PyErr::from_value(value.unwrap_or(exception)))
    }

    fn close(&self) {
        self.slot.stop();
    }
}

impl Awaiting {
    /// Makes the loop poll now and then, because no thread wakes it any more.
    fn look_again(&self, py: Python<'_>) -> PyResult<()> {
        self.slot.wake_by_ref();
        let deliver = Deliver { pump: Arc::clone(&self.slot.pump) };
        let later = (LOOK_AGAIN, deliver);
        self.slot.pump.event_loop.call_method1(py, intern!(py, "call_later"), later).map(drop)
    }
}

/// The target of one future's wake-ups.
struct Slot {
    pump: Arc<Pump>,
    work: Mutex<Option<Work>>,
    /// The asyncio future that the task waits for.
    future: Mutex<Option<Py<PyAny>>>,
    woken: AtomicBool,
    pid: u32,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Slot {
    /// Drops the future: its result is not needed any more, and claimed jobs are handed back.
    fn stop(&self) {
        if !runtime::is_home(self.pid) {
            // It may contain data that another thread was changing when the fork lost that thread.
            return mem::forget(lock(&self.work).take());
        }
        // Neither is dropped while its lock is held: a drop may run arbitrary code.
        let work = lock(&self.work).take();
        let future = lock(&self.future).take();
        drop((work, future));
    }
}

impl Wake for Slot {
    fn wake(self: Arc<Self>) {
        if !self.woken.swap(true, SeqCst) {
            let pump = Arc::clone(&self.pump);
            pump.push(self);
        }
    }
}

/// The wake-ups on their way to one event loop.
struct Pump {
    event_loop: Py<PyAny>,
    woken: Mutex<Vec<Arc<Slot>>>,
}

thread_local! {
    /// The pump of the loop that runs on this thread, while any task waits in it.
    static HERE: RefCell<Weak<Pump>> = const { RefCell::new(Weak::new()) };
}

impl Pump {
    fn of_running_loop(py: Python<'_>) -> PyResult<Arc<Self>> {
        static GET: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let get = GET.import(py, "asyncio", "get_running_loop")?;
        let running = get.call0()?;
        HERE.with_borrow_mut(|here| {
            if let Some(pump) = here.upgrade().filter(|pump| pump.event_loop.is(&running)) {
                return Ok(pump);
            }
            let pump = Arc::new(Self { event_loop: running.unbind(), woken: Mutex::new(Vec::new()) });
            *here = Arc::downgrade(&pump);
            Ok(pump)
        })
    }

    fn push(self: Arc<Self>, slot: Arc<Slot>) {
        let mut woken = lock(&self.woken);
        woken.push(slot);
        let first = woken.len() == 1;
        drop(woken);
        if first && let Ok(notifier) = notifier() {
            let _ = notifier.send(self);
        }
    }

    /// Makes the loop call `deliver`. Runs on the notifier's thread.
    fn notify(self: Arc<Self>, py: Python<'_>) {
        let event_loop = self.event_loop.clone_ref(py);
        let deliver = Deliver { pump: Arc::clone(&self) };
        if event_loop.call_method1(py, intern!(py, "call_soon_threadsafe"), (deliver,)).is_err() {
            // The loop is closed: its tasks will never continue.
            let woken = mem::take(&mut *lock(&self.woken));
            for slot in woken {
                slot.stop();
            }
        }
    }
}

/// Called by the event loop: continues every task whose future should be polled.
#[pyclass(frozen)]
struct Deliver {
    pump: Arc<Pump>,
}

#[pymethods]
impl Deliver {
    fn __call__(this: &Bound<'_, Self>) -> PyResult<()> {
        let (py, pump) = (this.py(), &this.get().pump);
        let woken = mem::take(&mut *lock(&pump.woken));
        if !woken.is_empty() {
            // The loop itself delivers wake-ups that come while these tasks run, without waiting for a thread.
            pump.event_loop.call_method1(py, intern!(py, "call_soon"), (this,))?;
        }
        for slot in woken {
            let Some(future) = lock(&slot.future).take() else { continue };
            // It is done already if its task was cancelled.
            if !future.call_method0(py, intern!(py, "done"))?.is_truthy(py)? {
                future.call_method1(py, intern!(py, "set_result"), (py.None(),))?;
            }
        }
        Ok(())
    }
}

/// True once the interpreter ends. Code that still runs then, such as functions registered with `atexit`, works without
/// the notifier.
static ENDED: AtomicBool = AtomicBool::new(false);
/// Held by the notifier while it calls into Python. There it releases Python's lock now and then, and returning to an
/// interpreter that has ended kills the process.
static INSIDE: PerProcess<Arc<Mutex<()>>> = PerProcess::new();
/// Seconds after which the loop polls by itself when no thread wakes it.
const LOOK_AGAIN: f64 = 0.005;

/// Registers a function that waits, before the interpreter ends, until the notifier has left it for good.
fn end_at_exit(py: Python<'_>) -> PyResult<()> {
    /// The process that registered it. A forked child registers again, because it may have lost its parent's
    /// registration.
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let pid = std::process::id();
    if ASKED.swap(pid, SeqCst) == pid {
        return Ok(());
    }
    let end = PyCFunction::new_closure(py, None, None, move |args, _| {
        ENDED.store(true, SeqCst);
        let inside = INSIDE.with(|inside| Arc::clone(inside));
        args.py().detach(|| drop(lock(&inside)));
    })?;
    py.import("atexit")?.call_method1("register", (end,)).map(drop)
}

fn notifier() -> bucketq::Result<mpsc::Sender<Arc<Pump>>> {
    static NOTIFIER: PerProcess<Option<bucketq::Result<mpsc::Sender<Arc<Pump>>>>> = PerProcess::new();
    let start = || {
        let (tx, rx) = mpsc::channel::<Arc<Pump>>();
        let inside = INSIDE.with(|inside| Arc::clone(inside));
        let run = move || {
            fork::apart();
            for pump in rx {
                let _inside = lock(&inside);
                if !ENDED.load(SeqCst) {
                    let _ = Python::try_attach(|py| pump.notify(py));
                }
            }
        };
        thread::Builder::new()
            .name("bucketq asyncio".into())
            .spawn(run)
            .map(|_| tx)
            .map_err(|e| Error::bug("no thread to wake event loops").because(e))
    };
    NOTIFIER.with(|notifier| notifier.get_or_insert_with(start).clone())
}
