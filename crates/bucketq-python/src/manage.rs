//! Policies, schedules and finished lives between Python and the engine. What is named in them crosses as JSON.

use bucketq::life::Life;
use bucketq::query::Finished;
use bucketq::{Changes, Error, Missed, New, Rate, Result, Schedule, ScheduleInfo};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::values;

/// What Python wrote down as the engine has it.
pub fn read<T: DeserializeOwned>(what: &str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|e| Error::invalid(format!("{what} cannot be read: {e}")))
}

/// What of a policy is to change.
pub fn changes(text: &str) -> Result<Changes> {
    let value: Value = read("the policy", text)?;
    if let Some(rate) = value.get("rate").and_then(Value::as_str) {
        // Before the rest, so that what is wrong with it is said in its own words.
        rate.parse::<Rate>()?;
    }
    serde_json::from_value(value).map_err(|e| Error::invalid(format!("the policy cannot be read: {e}")))
}

/// A schedule of this job.
pub fn schedule(timing: &str, catch_up: bool, job: &New) -> Result<Schedule> {
    let missed = if catch_up { Missed::CatchUp } else { Missed::Skip };
    Ok(Schedule { timing: read("the timing", timing)?, missed, job: job.clone() })
}

/// Schedules, each with the payload of its job beside it.
pub fn schedules(py: Python<'_>, all: Vec<ScheduleInfo>) -> PyResult<Py<PyAny>> {
    let one = |mut info: ScheduleInfo| {
        let bytes = std::mem::take(&mut info.schedule.job.payload.bytes);
        Ok((values::json(py, &info)?, PyBytes::new(py, &bytes)))
    };
    all.into_iter().map(one).collect::<PyResult<Vec<_>>>()?.into_py_any(py)
}

/// Finished lives at one commit, each with its payload and its result beside it.
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
