//! What is done to a queue file as a whole without opening it: check, restore.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::call::Call;
use crate::errors::OrRaise;
use crate::settings;

/// Read everything the queue file consists of and say what is wrong with it.
#[pyfunction]
pub fn check(py: Python<'_>, url: String, settings: &Bound<'_, PyDict>) -> PyResult<Call> {
    let options = settings::options(settings)?.or_raise(py)?;
    Ok(Call::shown(async move { bucketq::check(&url, options).await }))
}

/// Make the image its newest state.
#[pyfunction]
pub fn restore(py: Python<'_>, url: String, image: PathBuf, settings: &Bound<'_, PyDict>) -> PyResult<Call> {
    let options = settings::options(settings)?.or_raise(py)?;
    Ok(Call::shown(async move { bucketq::restore(&url, &image, options).await }))
}
