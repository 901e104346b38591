//! The engine's errors as the Python exceptions of bucketq.errors.

use std::error::Error as _;

use bucketq::error::{CODES, TABLE};
use bucketq::{Error, Result};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();

/// Returns the exception for this error. Its sources and the advice for its code become notes.
pub fn raised(py: Python<'_>, error: &Error) -> PyErr {
    make(py, error).unwrap_or_else(|failed| failed)
}

fn make(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let module = MODULE.get_or_try_init(py, || py.import("bucketq.errors").map(Bound::unbind))?.bind(py);
    let class = module.getattr(error.kind().row().python)?;
    let exception = class.call1((error.message(), error.code().as_str()))?;
    let mut source = error.source();
    while let Some(cause) = source {
        exception.call_method1("add_note", (format!("because: {cause}"),))?;
        source = cause.source();
    }
    exception.call_method1("add_note", (format!("advice: {}", error.code().advice()),))?;
    Ok(PyErr::from_value(exception))
}

/// `?` on results of the engine where Python's lock is held.
pub trait OrRaise<T> {
    /// Returns the value, or the exception.
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> OrRaise<T> for Result<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|e| raised(py, &e))
    }
}

/// Returns the engine's table of kinds: name, what to do next, exception, exit code, HTTP status.
#[pyfunction]
pub fn kinds() -> Vec<(&'static str, &'static str, &'static str, u8, u16)> {
    TABLE.iter().map(|r| (r.name, r.next, r.python, r.exit, r.http)).collect()
}

/// Returns every code: its text, its exception, its meaning, its advice.
#[pyfunction]
pub fn codes() -> Vec<(&'static str, &'static str, &'static str, &'static str)> {
    CODES.iter().map(|c| (c.as_str(), c.kind().row().python, c.says().trim(), c.advice())).collect()
}
