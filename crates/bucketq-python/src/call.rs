//! [`Call`]: one future of the engine that has not begun, to be waited for or awaited.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};

use bucketq::Result;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use serde::Serialize;

use crate::awaiting::Awaiting;
use crate::errors::OrRaise;
use crate::{values, waiting};

/// What a future leaves behind; made into a Python object once Python is at hand.
pub type Reply = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;
/// The engine's side of a call.
pub type Work = Pin<Box<dyn Future<Output = Result<Reply>> + Send>>;

/// One call to the engine. Nothing happens before `wait()` or `await`; each call runs once.
#[pyclass(frozen, module = "bucketq._native")]
pub struct Call {
    work: Mutex<Option<Work>>,
}

impl Call {
    /// A call that runs this future and shows its result as `reply` says.
    pub fn new<T: Send + 'static>(
        work: impl Future<Output = Result<T>> + Send + 'static,
        reply: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> Self {
        let work: Work = Box::pin(async move {
            let value = work.await?;
            Ok(Box::new(move |py: Python<'_>| reply(py, value)) as Reply)
        });
        Self { work: Mutex::new(Some(work)) }
    }

    /// A call with nothing to show.
    pub fn plain(work: impl Future<Output = Result<()>> + Send + 'static) -> Self {
        Self::new(work, |py, ()| Ok(py.None()))
    }

    /// A call that shows what the engine serialises.
    pub fn shown<T: Serialize + Send + 'static>(
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Self {
        Self::new(work, |py, value| values::json(py, &value))
    }

    fn begin(&self) -> PyResult<Work> {
        let work = self.work.lock().unwrap_or_else(PoisonError::into_inner).take();
        work.ok_or_else(|| PyRuntimeError::new_err("this call has run already"))
    }
}

#[pymethods]
impl Call {
    /// Run it on this thread; other threads run meanwhile, and signals are handled.
    fn wait(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        waiting::wait(py, self.begin()?)?.or_raise(py)?(py)
    }

    fn __await__(&self, py: Python<'_>) -> PyResult<Awaiting> {
        Awaiting::new(py, self.begin()?)
    }
}
