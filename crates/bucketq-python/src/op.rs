//! [`New`] and [`Op`]: jobs to be enqueued and changes, put together in Python and carried out by `File.call`.

use std::collections::BTreeMap;
use std::sync::Arc;

use bucketq::{Dedup, DedupScope, JobId, Kept, Payload, When};
use bytes::Bytes;
use pyo3::prelude::*;

use crate::errors::OrRaise;
use crate::held::Held;
use crate::{manage, values};

/// Bytes and their content type.
pub type Blob<'a> = (&'a [u8], String);

/// What `Blob` is in the engine.
pub fn payload((bytes, content_type): Blob<'_>) -> Payload {
    Payload { bytes: Bytes::copy_from_slice(bytes), content_type }
}

/// A job to be enqueued, its id drawn.
#[pyclass(frozen, module = "bucketq._native")]
pub struct New {
    pub job: bucketq::New,
}

/// What a job may have beside its payload. What is left out has the engine's default.
pub struct Extras {
    pub id: Option<String>,
    pub priority: Option<i32>,
    pub delay_ms: Option<i64>,
    pub at_ms: Option<i64>,
    pub max_attempts: Option<u32>,
    /// In JSON, as the engine writes it.
    pub backoff: Option<String>,
    pub dedup: Option<String>,
    pub dedup_window_ms: Option<i64>,
    /// The key counts while the first job is unfinished.
    pub dedup_unfinished: bool,
    pub group: Option<String>,
    pub headers: Option<BTreeMap<String, String>>,
}

impl New {
    /// The fresh job `job` with these extras.
    pub fn with(mut job: bucketq::New, extras: Extras) -> bucketq::Result<Self> {
        if let Some(id) = extras.id {
            job.id = id.parse()?;
        }
        job.priority = extras.priority.unwrap_or(job.priority);
        job.max_attempts = extras.max_attempts;
        job.group = extras.group;
        job.headers = extras.headers.unwrap_or_default();
        job.when = match (extras.delay_ms, extras.at_ms) {
            (Some(delay), _) => When::In(delay),
            (None, Some(at)) => When::At(at),
            (None, None) => When::Now,
        };
        job.backoff = extras.backoff.map(|text| manage::read("backoff", &text)).transpose()?;
        let scope = match extras.dedup_window_ms {
            Some(ms) => DedupScope::Window(ms),
            None if extras.dedup_unfinished => DedupScope::Unfinished,
            None => DedupScope::Policy,
        };
        job.dedup = extras.dedup.map(|key| Dedup { key, scope });
        Ok(Self { job })
    }
}

#[pymethods]
impl New {
    #[getter]
    fn id(&self) -> String {
        self.job.id.to_string()
    }
}

/// One change. The jobs it ends are no longer kept once it is in the bucket.
#[pyclass(frozen, module = "bucketq._native")]
pub struct Op {
    pub op: bucketq::Op,
    pub ends: Vec<Arc<Kept>>,
}

impl From<bucketq::Op> for Op {
    fn from(op: bucketq::Op) -> Self {
        Self { op, ends: vec![] }
    }
}

/// Proof of a lease: a job held here, or the id and the token of one that was claimed elsewhere.
#[derive(FromPyObject)]
pub enum Proof<'py> {
    Here(PyRef<'py, Held>),
    Elsewhere((String, String)),
}

impl Proof<'_> {
    /// The proof as the engine wants it, and what is no longer kept once the job has ended.
    pub fn parts(&self) -> bucketq::Result<(bucketq::Held, Vec<Arc<Kept>>)> {
        match self {
            Self::Here(held) => Ok((held.kept().held(), vec![held.kept_arc()])),
            Self::Elsewhere((id, token)) => {
                Ok((bucketq::Held { id: id.parse()?, token: token.parse()? }, vec![]))
            }
        }
    }
}

fn id(py: Python<'_>, text: &str) -> PyResult<JobId> {
    text.parse().or_raise(py)
}

#[pymethods]
#[expect(clippy::needless_pass_by_value, reason = "Python hands over lists")]
impl Op {
    #[staticmethod]
    fn enqueue(queue: String, jobs: Vec<PyRef<'_, New>>) -> Self {
        bucketq::Op::Enqueue { queue, jobs: jobs.iter().map(|new| new.job.clone()).collect() }.into()
    }

    #[staticmethod]
    #[pyo3(signature = (held, result=None))]
    fn ack(py: Python<'_>, held: Proof<'_>, result: Option<Blob<'_>>) -> PyResult<Self> {
        let (held, ends) = held.parts().or_raise(py)?;
        Ok(Self { op: bucketq::Op::Ack { held, result: result.map(payload) }, ends })
    }

    #[staticmethod]
    #[pyo3(signature = (held, delay_ms=None, error=None))]
    fn nack(py: Python<'_>, held: Proof<'_>, delay_ms: Option<i64>, error: Option<String>) -> PyResult<Self> {
        let (held, ends) = held.parts().or_raise(py)?;
        Ok(Self { op: bucketq::Op::Nack { held, delay_ms, error }, ends })
    }

    #[staticmethod]
    fn release(py: Python<'_>, held: Proof<'_>) -> PyResult<Self> {
        let (held, ends) = held.parts().or_raise(py)?;
        Ok(Self { op: bucketq::Op::Release { held }, ends })
    }

    #[staticmethod]
    #[pyo3(signature = (held, error=None))]
    fn reject(py: Python<'_>, held: Proof<'_>, error: Option<String>) -> PyResult<Self> {
        let (held, ends) = held.parts().or_raise(py)?;
        Ok(Self { op: bucketq::Op::Reject { held, error }, ends })
    }

    #[staticmethod]
    fn cancel(py: Python<'_>, job: &str, leased: bool) -> PyResult<Self> {
        Ok(bucketq::Op::Cancel { id: id(py, job)?, leased }.into())
    }

    #[staticmethod]
    #[pyo3(signature = (job, run=None))]
    fn requeue(py: Python<'_>, job: &str, run: Option<u32>) -> PyResult<Self> {
        Ok(bucketq::Op::Requeue { id: id(py, job)?, run }.into())
    }

    #[staticmethod]
    fn purge(py: Python<'_>, queue: String, states: Vec<String>) -> PyResult<Self> {
        Ok(bucketq::Op::Purge { queue, states: values::states(states).or_raise(py)? }.into())
    }

    #[staticmethod]
    fn pause(queue: String) -> Self {
        bucketq::Op::Pause { queue }.into()
    }

    #[staticmethod]
    fn resume(queue: String) -> Self {
        bucketq::Op::Resume { queue }.into()
    }

    /// No more jobs go in or out, without waiting for those that are worked on.
    #[staticmethod]
    fn drain(queue: String) -> Self {
        bucketq::Op::Drain { queue }.into()
    }

    /// Change the policy of a queue; the changes are JSON, with the names of the engine.
    #[staticmethod]
    fn configure(py: Python<'_>, queue: String, changes: &str) -> PyResult<Self> {
        let changes = Box::new(manage::changes(changes).or_raise(py)?);
        Ok(bucketq::Op::Configure { queue, changes }.into())
    }

    /// Enqueue such a job again and again; the timing is JSON, as the engine writes it.
    #[staticmethod]
    fn schedule(
        py: Python<'_>,
        queue: String,
        name: String,
        timing: &str,
        catch_up: bool,
        new: PyRef<'_, New>,
    ) -> PyResult<Self> {
        let schedule = Box::new(manage::schedule(timing, catch_up, &new.job).or_raise(py)?);
        Ok(bucketq::Op::Schedule { queue, name, schedule }.into())
    }

    #[staticmethod]
    fn unschedule(queue: String, name: String) -> Self {
        bucketq::Op::Unschedule { queue, name }.into()
    }

    /// All of these or none.
    #[staticmethod]
    fn atomic(ops: Vec<PyRef<'_, Op>>) -> Self {
        let ends = ops.iter().flat_map(|op| op.ends.iter().cloned()).collect();
        Self { op: bucketq::Op::Atomic(ops.iter().map(|op| op.op.clone()).collect()), ends }
    }
}
