//! [`Call`]: one future of the engine that has not begun, to wait for or to await.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};

use bucketq::Result;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use serde::Serialize;

use crate::awaiting::Awaiting;
use crate::errors::{OrRaise, raised};
use crate::{runtime, values, waiting};

/// The result of a future; converted to a Python object once Python's lock is held.
pub type Reply = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;
/// The engine's side of a call.
pub type Work = Pin<Box<dyn Future<Output = Result<Reply>> + Send>>;

/// One call to the engine. It begins with `wait()` or `await`; each call runs once.
#[pyclass(frozen, module = "bucketq._native")]
pub struct Call {
    work: Mutex<Option<Work>>,
    pid: u32,
}

impl Drop for Call {
    fn drop(&mut self) {
        if !runtime::is_home(self.pid) {
            // It may contain data that another thread was changing when the fork lost that thread.
            std::mem::forget(self.work.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

impl Call {
    /// Returns a call that runs this future and converts its result with `reply`.
    pub fn new<T: Send + 'static>(
        work: impl Future<Output = Result<T>> + Send + 'static,
        reply: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> Self {
        let work: Work = Box::pin(async move {
            let value = work.await?;
            Ok(Box::new(move |py: Python<'_>| reply(py, value)) as Reply)
        });
        Self { work: Mutex::new(Some(work)), pid: std::process::id() }
    }

    /// Returns a call without a result.
    pub fn plain(work: impl Future<Output = Result<()>> + Send + 'static) -> Self {
        Self::new(work, |py, ()| Ok(py.None()))
    }

    /// Returns a call whose result is converted as it serialises.
    pub fn shown<T: Serialize + Send + 'static>(
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Self {
        Self::new(work, |py, value| values::json(py, &value))
    }

    fn begin(&self, py: Python<'_>) -> PyResult<Work> {
        if !runtime::is_home(self.pid) {
            return Err(raised(py, &runtime::inherited()));
        }
        let work = self.work.lock().unwrap_or_else(PoisonError::into_inner).take();
        work.ok_or_else(|| PyRuntimeError::new_err("this call has run already"))
    }
}

#[pymethods]
impl Call {
    /// Runs the call on this thread; other threads run meanwhile, and signals are handled.
    fn wait(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        waiting::wait(py, self.begin(py)?)?.or_raise(py)?(py)
    }

    fn __await__(&self, py: Python<'_>) -> PyResult<Awaiting> {
        Awaiting::new(py, self.begin(py)?)
    }
}
