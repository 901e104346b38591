//! Reads of one job, several, or a page of them, as calls of [`crate::file::File`].

use std::time::Duration;

use bucketq::{Cursor, Detail, Filter, JobId, QueueFile};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;

use crate::call::Call;
use crate::values;

/// Converts a job with its bytes, if there is one.
pub fn detail(py: Python<'_>, found: Option<Detail>) -> PyResult<Py<PyAny>> {
    found.map_or_else(|| Ok(py.None()), |one| values::detail(py, &one))
}

/// Returns one job.
pub fn get(file: QueueFile, id: JobId, max_age_ms: Option<u64>) -> Call {
    let work = async move {
        match max_age_ms.map(Duration::from_millis) {
            Some(max_age) => file.get_within(id, max_age).await,
            None => file.get(id).await,
        }
    };
    Call::new(work, detail)
}

/// Returns these jobs.
pub fn get_many(file: QueueFile, ids: Vec<JobId>, max_age_ms: Option<u64>) -> Call {
    let work = async move { file.get_many(&ids, max_age_ms.map(Duration::from_millis)).await };
    Call::new(work, |py, found| {
        found.into_iter().map(|one| detail(py, one)).collect::<PyResult<Vec<_>>>()?.into_py_any(py)
    })
}

/// Returns a page of jobs.
pub fn list(file: QueueFile, filter: Filter, after: Option<u64>, limit: u32, payloads: bool) -> Call {
    let after = after.map(Cursor);
    if payloads {
        let work = async move { file.list_whole(filter, after, limit).await };
        return Call::new(work, |py, page| values::detail_page(py, &page));
    }
    let work = async move { file.list(filter, after, limit).await };
    Call::new(work, |py, page| values::page(py, &page))
}
