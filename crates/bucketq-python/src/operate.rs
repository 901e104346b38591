//! Operations on a whole queue file without opening it: check, restore, fix its time.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::call::Call;
use crate::errors::OrRaise;
use crate::settings;

/// Reads everything that belongs to the queue file and reports what is wrong with it.
#[pyfunction]
pub fn check(py: Python<'_>, url: String, settings: &Bound<'_, PyDict>) -> PyResult<Call> {
    let options = settings::options(settings)?.or_raise(py)?;
    Ok(Call::shown(async move { bucketq::check(&url, options).await }))
}

/// Makes the image its newest state.
#[pyfunction]
pub fn restore(py: Python<'_>, url: String, image: PathBuf, settings: &Bound<'_, PyDict>) -> PyResult<Call> {
    let options = settings::options(settings)?.or_raise(py)?;
    Ok(Call::shown(async move { bucketq::restore(&url, &image, options).await }))
}

/// Moves its time back to the present.
#[pyfunction]
pub fn fix_time(
    py: Python<'_>,
    url: String,
    only_look: bool,
    settings: &Bound<'_, PyDict>,
) -> PyResult<Call> {
    let options = settings::options(settings)?.or_raise(py)?;
    Ok(Call::shown(async move { bucketq::fix_time(&url, only_look, options).await }))
}
