//! The one runtime of this process: timers and background tasks. The first call starts it, never an import. A forked
//! child starts its own.

use bucketq::fork::{self, PerProcess};
use bucketq::{Code, Error, Result};
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict};
use tokio::runtime::{Builder, Runtime};

static RUNTIME: PerProcess<Option<&'static Runtime>> = PerProcess::new();

/// Returns the runtime; starts it if necessary. After a failed start the next call tries again.
pub fn get() -> Result<&'static Runtime> {
    RUNTIME.with(|slot| match *slot {
        Some(runtime) => Ok(runtime),
        None => Ok(*slot.insert(start()?)),
    })
}

/// Returns true in the process that created an object with this process id.
pub fn is_home(pid: u32) -> bool {
    pid == std::process::id()
}

/// Returns the error for every use of an object that this process has inherited by a fork.
pub fn inherited() -> Error {
    Error::new(Code::Closed, fork::INHERITED)
}

/// Runs `work` without Python's lock. A fork waits for it where necessary.
pub fn detach<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    py.detach(|| fork::detached(work))
}

/// File descriptors that a runtime opens, with some to spare: tokio panics if there is none for its signals.
const PIPES: usize = 6;

fn start() -> Result<&'static Runtime> {
    let exhausted = |e: std::io::Error| Error::exhausted("the runtime of this process cannot be started", &e);
    let room: std::io::Result<Vec<_>> = (0..PIPES).map(|_| std::io::pipe()).collect();
    drop(room.map_err(exhausted)?);
    Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("bucketq python")
        .enable_all()
        .on_thread_start(fork::apart)
        .build()
        .map(|runtime| &*Box::leak(Box::new(runtime)))
        .map_err(exhausted)
}

/// Makes every fork of Python wait for the engine's short pieces of work, and every child drop its parent's locks.
pub fn tell_of_forks(py: Python<'_>) -> PyResult<()> {
    let os = py.import("os")?;
    if !os.hasattr("register_at_fork")? {
        return Ok(());
    }
    let handlers = PyDict::new(py);
    let handler = |work: fn()| PyCFunction::new_closure(py, None, None, move |_, _| work());
    handlers.set_item("before", handler(fork::before)?)?;
    handlers.set_item("after_in_parent", handler(fork::in_parent)?)?;
    handlers.set_item("after_in_child", handler(fork::in_child)?)?;
    os.call_method("register_at_fork", (), Some(&handlers)).map(drop)
}
