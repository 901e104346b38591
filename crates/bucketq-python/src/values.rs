//! The engine's results as plain Python values: ids are text, times are milliseconds. The package converts them
//! further.

use std::time::Duration;

use bucketq::metrics::Histograms;
use bucketq::store::ProbeReport;
use bucketq::{
    Cost, Detail, DetailPage, Enqueued, Job, JobId, Metrics, Page, Payload, QueueFile, QueueInfo, Result,
    State, Stats,
};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use serde::Serialize;
use serde_json::Value;

macro_rules! dict {
    ($py:ident, $( $name:literal: $value:expr ),* $(,)?) => {{
        let dict = PyDict::new($py);
        $( dict.set_item(pyo3::intern!($py, $name), $value)?; )*
        dict
    }};
}

/// Converts a job, without its bytes.
pub fn job<'py>(py: Python<'py>, job: &Job) -> PyResult<Bound<'py, PyDict>> {
    Ok(dict! { py,
        "id": job.id.to_string(),
        "run": job.run,
        "queue": &job.queue,
        "state": job.state.as_str(),
        "expired": job.expired,
        "priority": job.priority,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "backoff": json(py, &job.backoff)?,
        "max_run_ms": job.max_run_ms,
        "group": &job.group,
        "dedup": &job.dedup,
        "headers": &job.headers,
        "size": job.payload_len,
        "commit_seq": job.commit_seq(),
        "enqueued_ms": job.enqueued_ms,
        "run_at_ms": job.run_at_ms,
        "claimed_ms": job.claimed_ms,
        "finished_ms": job.finished_ms,
        "expires_ms": job.expires_ms,
        "fence": job.fence,
        "worker": &job.worker,
        "last_error": &job.last_error,
        "died": job.died.as_ref().map(|died| json(py, died)).transpose()?,
    })
}

/// Converts a payload: its bytes and their content type.
pub fn payload<'py>(py: Python<'py>, payload: &Payload) -> (Bound<'py, PyBytes>, String) {
    (PyBytes::new(py, &payload.bytes), payload.content_type.clone())
}

/// Converts a job, its payload, its result and its attempts.
pub fn detail(py: Python<'_>, detail: &Detail) -> PyResult<Py<PyAny>> {
    let result = detail.result.as_ref().map(|r| payload(py, r));
    let attempts = json(py, &detail.attempts)?;
    (job(py, &detail.job)?, payload(py, &detail.payload), result, attempts).into_py_any(py)
}

/// Converts jobs, and the cursor of the next page.
pub fn page(py: Python<'_>, page: &Page) -> PyResult<Py<PyAny>> {
    let jobs = page.jobs.iter().map(|j| job(py, j)).collect::<PyResult<Vec<_>>>()?;
    (jobs, page.next.map(|cursor| cursor.0), page.last.map(|cursor| cursor.0)).into_py_any(py)
}

/// Converts jobs with their bytes, and the cursor of the next page.
pub fn detail_page(py: Python<'_>, page: &DetailPage) -> PyResult<Py<PyAny>> {
    let jobs = page.jobs.iter().map(|j| detail(py, j)).collect::<PyResult<Vec<_>>>()?;
    (jobs, page.next.map(|cursor| cursor.0), page.last.map(|cursor| cursor.0)).into_py_any(py)
}

/// Converts one queue.
pub fn queue<'py>(py: Python<'py>, queue: &QueueInfo) -> PyResult<Bound<'py, PyDict>> {
    let counts = PyDict::new(py);
    for (state, count) in &queue.counts {
        counts.set_item(state.as_str(), count)?;
    }
    Ok(dict! { py,
        "name": &queue.name,
        "paused": queue.paused,
        "draining": queue.draining,
        "dropped": queue.dropped,
        "counts": counts,
        "expired": queue.expired,
        "due": queue.due,
        "oldest_ready_ms": queue.oldest_ready_ms,
    })
}

/// Converts all of these queues.
pub fn queues(py: Python<'_>, all: &[QueueInfo]) -> PyResult<Py<PyAny>> {
    all.iter().map(|q| queue(py, q)).collect::<PyResult<Vec<_>>>()?.into_py_any(py)
}

/// Converts the statistics of the whole queue file.
pub fn stats(py: Python<'_>, stats: &Stats) -> PyResult<Py<PyAny>> {
    let dict = dict! { py,
        "queues": queues(py, &stats.queues)?,
        "commit_seq": stats.commit_seq,
        "commit_ms": stats.commit_ms,
        "pages": stats.pages,
        "free_pages": stats.free_pages,
        "strict_queues": stats.strict_queues,
    };
    dict.into_py_any(py)
}

/// All measurements: the file, the writer's counters, its histograms, their cost, and all of it as text.
type Measured = (Stats, Metrics, Histograms, Cost, String);

/// Reads all measurements.
pub async fn measure(file: QueueFile, max_age: Option<Duration>) -> Result<Measured> {
    let stats = file.stats(max_age).await?;
    let (metrics, histograms, cost) = (file.metrics()?, file.histograms()?, file.cost(&stats)?);
    let text = bucketq::metrics::text(&stats, &metrics, &histograms, &cost);
    Ok((stats, metrics, histograms, cost, text))
}

/// Converts all measurements.
pub fn measured(py: Python<'_>, (all, metrics, histograms, cost, text): Measured) -> PyResult<Py<PyAny>> {
    let dict = dict! { py,
        "stats": stats(py, &all)?,
        "counters": json(py, &metrics)?,
        "histograms": json(py, &histograms)?,
        "cost": json(py, &cost)?,
        "text": text,
    };
    dict.into_py_any(py)
}

/// Converts the report of a probe.
pub fn report(py: Python<'_>, report: &ProbeReport) -> PyResult<Py<PyAny>> {
    let dict = dict! { py,
        "store": &report.store,
        "rounds": report.rounds,
        "writers": report.writers,
        "conflicts": report.conflicts,
        "unanswered": report.unanswered,
        "took_us": report.took.as_micros() as u64,
    };
    dict.into_py_any(py)
}

/// Converts anything that serialises to Python's JSON values.
pub fn json(py: Python<'_>, value: &impl Serialize) -> PyResult<Py<PyAny>> {
    let failed = |e: serde_json::Error| PyRuntimeError::new_err(e.to_string());
    plain(py, &serde_json::to_value(value).map_err(failed)?)
}

fn plain(py: Python<'_>, value: &Value) -> PyResult<Py<PyAny>> {
    match value {
        Value::Null => Ok(py.None()),
        Value::Bool(yes) => yes.into_py_any(py),
        Value::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(n), _) => n.into_py_any(py),
            (None, Some(n)) => n.into_py_any(py),
            _ => n.as_f64().into_py_any(py),
        },
        Value::String(text) => text.into_py_any(py),
        Value::Array(all) => all.iter().map(|v| plain(py, v)).collect::<PyResult<Vec<_>>>()?.into_py_any(py),
        Value::Object(fields) => {
            let dict = PyDict::new(py);
            for (name, field) in fields {
                dict.set_item(name, plain(py, field)?)?;
            }
            dict.into_py_any(py)
        }
    }
}

/// One enqueued job: its id, deduplicated, existing, its commit with its time, the jobs dropped for it.
type Receipt = (String, bool, bool, u64, i64, Vec<String>);

/// Converts the outcome of an enqueue.
pub fn receipts(all: &[Enqueued]) -> Vec<Receipt> {
    let ids = |ids: &[JobId]| ids.iter().map(ToString::to_string).collect();
    all.iter()
        .map(|e| (e.id.to_string(), e.deduplicated, e.existing, e.commit_seq, e.commit_ms, ids(&e.dropped)))
        .collect()
}

/// Returns the states with these names.
pub fn states(names: Vec<String>) -> Result<Vec<State>> {
    let state = |name: String| {
        State::ALL.into_iter().find(|s| s.as_str() == name).ok_or_else(|| {
            let all = State::ALL.map(State::as_str).join(", ");
            bucketq::Error::invalid(format!("{name:?} is no state of a job: use {all}"))
        })
    };
    names.into_iter().map(state).collect()
}
