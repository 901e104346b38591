//! Policies, schedules and finished runs between Python and the engine. Fields with names cross as JSON.

use bucketq::life::Life;
use bucketq::query::Finished;
use bucketq::{Changes, Error, Missed, New, Rate, Result, Schedule, ScheduleInfo};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::values;

/// Parses JSON that Python wrote.
pub fn read<T: DeserializeOwned>(what: &str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|e| Error::invalid(format!("{what} cannot be read: {e}")))
}

/// Parses the changes to a policy.
pub fn changes(text: &str) -> Result<Changes> {
    let value: Value = read("the policy", text)?;
    if let Some(rate) = value.get("rate").and_then(Value::as_str) {
        // First, so that its error has its own text.
        rate.parse::<Rate>()?;
    }
    serde_json::from_value(value).map_err(|e| Error::invalid(format!("the policy cannot be read: {e}")))
}

/// Returns a schedule of this job.
pub fn schedule(timing: &str, catch_up: bool, job: &New) -> Result<Schedule> {
    let missed = if catch_up { Missed::CatchUp } else { Missed::Skip };
    Ok(Schedule { timing: read("the timing", timing)?, missed, job: job.clone() })
}

/// Returns schedules as Python values, each with the payload of its job separately.
pub fn schedules(py: Python<'_>, all: Vec<ScheduleInfo>) -> PyResult<Py<PyAny>> {
    let one = |mut info: ScheduleInfo| {
        let bytes = std::mem::take(&mut info.schedule.job.payload.bytes);
        Ok((values::json(py, &info)?, PyBytes::new(py, &bytes)))
    };
    all.into_iter().map(one).collect::<PyResult<Vec<_>>>()?.into_py_any(py)
}

/// Returns finished runs at one commit as Python values, each with its payload and its result separately.
pub fn lives(py: Python<'_>, finished: Finished) -> PyResult<Py<PyAny>> {
    let one = |mut life: Life| {
        let (payload, result) = (life.payload.take(), life.result.take());
        let bytes = |b: Option<bytes::Bytes>| b.map(|b| PyBytes::new(py, &b).unbind());
        let times = (life.wait_ms(), life.run_ms(), life.enqueue_commit(), life.finish_commit());
        Ok((values::json(py, &life)?, bytes(payload), bytes(result), times))
    };
    let lives = finished.lives.into_iter().map(one).collect::<PyResult<Vec<_>>>()?;
    (finished.commit_seq, lives).into_py_any(py)
}
