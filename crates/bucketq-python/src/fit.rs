//! The fit model, and its inputs: a measured store, and the workload that a queue file shows.

use std::sync::{Arc, Mutex, PoisonError};

use bucketq::fit::{Inputs, evaluate};
use bucketq::store::measure::Progress;
use bucketq::store::{StoreUrl, measure as measured, open_store};
use bucketq::{Env, QueueFile};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::call::Call;
use crate::errors::OrRaise;
use crate::{settings, values};

/// Measures the store of this URL. Calls `progress` with what, done, of; if that raises, the measurement deletes its
/// objects and raises the same exception.
#[pyfunction]
#[pyo3(signature = (url, samples, progress, settings))]
pub fn measure(
    py: Python<'_>,
    url: String,
    samples: u32,
    progress: Option<Py<PyAny>>,
    settings: &Bound<'_, PyDict>,
) -> PyResult<Call> {
    let options = settings::options(settings)?.or_raise(py)?;
    let raised: Arc<Mutex<Option<PyErr>>> = Arc::default();
    let theirs = Arc::clone(&raised);
    let work = async move {
        options.check()?;
        let (url, env) = (StoreUrl::parse(&url)?, Env::default());
        let store = open_store(&url, &options, &env).await?;
        let tell = |p: Progress| {
            let Some(progress) = &progress else { return true };
            let told = Python::attach(|py| progress.call1(py, (p.what, p.done, p.of)).map(drop));
            let go_on = told.is_ok();
            *theirs.lock().unwrap_or_else(PoisonError::into_inner) = told.err();
            go_on
        };
        match measured(&store, url.name(), samples, options.deadline, &env, &tell).await {
            Ok(found) => Ok(Some(found)),
            // Raised below, where Python's lock is held.
            Err(_) if theirs.lock().unwrap_or_else(PoisonError::into_inner).is_some() => Ok(None),
            Err(error) => Err(error),
        }
    };
    Ok(Call::new(work, move |py, found| match raised.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(error) => Err(error),
        None => values::json(py, &found),
    }))
}

/// Returns the results of the model. `values` are the inputs in the order of their rules; infinity becomes None.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "Python hands over a list of its own")]
pub fn fit(py: Python<'_>, values: Vec<f64>) -> PyResult<Py<PyAny>> {
    values::json(py, &evaluate(&inputs(&values)?).or_raise(py)?)
}

/// Returns the invalid inputs, as field and message.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "Python hands over a list of its own")]
pub fn fit_problems(values: Vec<f64>) -> PyResult<Vec<(&'static str, String)>> {
    Ok(inputs(&values)?.problems())
}

fn inputs(values: &[f64]) -> PyResult<Inputs> {
    Inputs::from_values(values).ok_or_else(|| PyTypeError::new_err("the fit model has other inputs"))
}

/// Returns the workload that a queue file shows.
pub fn workload(file: QueueFile) -> Call {
    Call::new(async move { file.workload().await }, |py, told| values::json(py, &told))
}
