//! Operations that open no queue file: check, restore, fix its time, change its `max_skew`, test its store.

use std::path::PathBuf;
use std::time::Duration;

use bucketq::Env;
use bucketq::store::probe::{ROUNDS_AT_CREATION, ROUNDS_THOROUGH, WRITERS};
use bucketq::store::{self, StoreUrl, open_separately};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::call::Call;
use crate::errors::OrRaise;
use crate::{settings, values};

/// Connections that a probe races.
const CONNECTIONS: usize = 4;

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

/// Changes how far the clocks of its processes may differ.
#[pyfunction]
pub fn set_max_skew(
    py: Python<'_>,
    url: String,
    max_skew_ms: u64,
    settings: &Bound<'_, PyDict>,
) -> PyResult<Call> {
    let options = settings::options(settings)?.or_raise(py)?;
    let max_skew = Duration::from_millis(max_skew_ms);
    Ok(Call::shown(async move { bucketq::set_max_skew(&url, max_skew, options).await }))
}

/// Tests the store of this URL, with as many rounds as at creation or with many.
#[pyfunction]
pub fn probe(py: Python<'_>, url: String, thorough: bool, settings: &Bound<'_, PyDict>) -> PyResult<Call> {
    let options = settings::options(settings)?.or_raise(py)?;
    let work = async move {
        options.check()?;
        let (url, env) = (StoreUrl::parse(&url)?, Env::default());
        let stores = open_separately(&url, &options, &env, CONNECTIONS).await?;
        let rounds = if thorough { ROUNDS_THOROUGH } else { ROUNDS_AT_CREATION };
        store::probe(&stores, url.name(), rounds, WRITERS, options.deadline, &env).await
    };
    Ok(Call::new(work, |py, report| values::report(py, &report)))
}
