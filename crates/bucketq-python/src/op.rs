//! [`New`] and [`Op`]: jobs and changes, built in Python and carried out by `File.call`.

use std::collections::BTreeMap;
use std::sync::Arc;

use bucketq::{Dedup, DedupScope, JobId, Kind, Outcome, Payload, When};
use bytes::Bytes;
use pyo3::Borrowed;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::errors::{OrRaise, raised};
use crate::held::{GuardedJob, Held};
use crate::{manage, values};

/// Bytes and their content type.
pub type Blob<'a> = (&'a [u8], String);

/// Converts a `Blob` to the engine's payload.
pub fn payload((bytes, content_type): Blob<'_>) -> Payload {
    Payload { bytes: Bytes::copy_from_slice(bytes), content_type }
}

/// A job to be enqueued, with its id.
#[pyclass(frozen, module = "bucketq._native")]
pub struct New {
    pub job: bucketq::New,
}

macro_rules! extras {
    ($( $(#[doc = $doc:literal])* $name:ident: $type:ty, )*) => {
        /// The optional fields of a job, a dict in Python. Omitted ones have the engine's default.
        #[derive(Default)]
        pub struct Extras { $( $(#[doc = $doc])* pub $name: $type, )* }

        impl<'a, 'py> FromPyObject<'a, 'py> for Extras {
            type Error = PyErr;

            fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
                let mut extras = Self::default();
                for (key, value) in given.cast::<PyDict>()?.iter() {
                    match key.cast::<PyString>()?.to_str()? {
                        $( stringify!($name) => extras.$name = value.extract()?, )*
                        other => return Err(PyTypeError::new_err(format!("a job has no {other:?}"))),
                    }
                }
                Ok(extras)
            }
        }
    };
}

extras! {
    id: Option<String>,
    priority: Option<i32>,
    delay_ms: Option<i64>,
    at_ms: Option<i64>,
    max_attempts: Option<u32>,
    /// In JSON, as the engine writes it.
    backoff: Option<String>,
    dedup: Option<String>,
    dedup_window_ms: Option<i64>,
    /// The key counts while the first job is unfinished.
    dedup_unfinished: bool,
    group: Option<String>,
    headers: Option<BTreeMap<String, String>>,
    expires_ms: Option<i64>,
    max_run_ms: Option<i64>,
}

impl New {
    /// Returns the fresh job `job` with these fields.
    pub fn with(mut job: bucketq::New, extras: Extras) -> bucketq::Result<Self> {
        if let Some(id) = extras.id {
            job.id = id.parse()?;
        }
        job.priority = extras.priority.unwrap_or(job.priority);
        job.max_attempts = extras.max_attempts;
        job.group = extras.group;
        job.expires_ms = extras.expires_ms;
        job.max_run_ms = extras.max_run_ms;
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

/// Converts the outcome that an op has. Any other outcome is a bug in the engine.
#[derive(Clone)]
pub enum Expected {
    /// That of a single op.
    One(fn(Python<'_>, Outcome) -> PyResult<Py<PyAny>>),
    /// Those of the parts of an atomic.
    Each(Vec<Self>),
}

/// Returns the conversion of this variant, and of no other.
macro_rules! expect {
    ($py:ident, $variant:pat => $value:expr) => {
        Expected::One(|$py, outcome| {
            let $variant = outcome else { return Err(unexpected($py, stringify!($variant))) };
            $value.into_py_any($py)
        })
    };
}

fn unexpected(py: Python<'_>, wanted: &str) -> PyErr {
    raised(py, &bucketq::Error::bug(format!("the outcome is no {wanted}")))
}

impl Expected {
    /// Converts the outcome.
    pub fn convert(&self, py: Python<'_>, outcome: Outcome) -> PyResult<Py<PyAny>> {
        let each = match self {
            Self::One(convert) => return convert(py, outcome),
            Self::Each(each) => each,
        };
        let all = if let Outcome::Atomic(all) = outcome { all } else { vec![] };
        if all.len() != each.len() {
            return Err(unexpected(py, "list of one outcome for each part"));
        }
        let one = |(expected, outcome): (&Self, Outcome)| expected.convert(py, outcome);
        each.iter().zip(all).map(one).collect::<PyResult<Vec<_>>>()?.into_py_any(py)
    }
}

/// One change. Once it is committed, the leases of the jobs that it ends are no longer renewed.
#[pyclass(frozen, module = "bucketq._native")]
#[derive(Clone)]
pub struct Op {
    pub change: bucketq::Op,
    pub expected: Expected,
    /// The jobs held here that it ends.
    pub ends: Vec<Arc<GuardedJob>>,
    /// How many leases it uses.
    pub proofs: usize,
}

/// Proof of a lease: a job held here, or the id and the token of one that another process claimed.
#[derive(FromPyObject)]
pub enum Proof<'py> {
    Here(PyRef<'py, Held>),
    Elsewhere((String, String)),
}

impl Proof<'_> {
    /// Returns the proof for the engine, and the jobs held here that end with it.
    pub fn parts(&self) -> bucketq::Result<(bucketq::Held, Vec<Arc<GuardedJob>>)> {
        match self {
            Self::Here(held) => Ok((held.taken().proof(), vec![Arc::clone(held.taken())])),
            Self::Elsewhere((id, token)) => {
                Ok((bucketq::Held { id: id.parse()?, token: token.parse()? }, vec![]))
            }
        }
    }
}

impl Op {
    fn of(change: bucketq::Op, expected: Expected) -> Self {
        Self { change, expected, ends: vec![], proofs: 0 }
    }

    /// Returns the op that enqueues these jobs, all or none.
    pub fn of_jobs(queue: String, jobs: Vec<bucketq::New>) -> Self {
        let op = bucketq::Op::Enqueue { queue, jobs };
        Self::of(op, expect!(py, Outcome::Enqueued(all) => values::receipts(&all)))
    }

    /// Ends the leases of the jobs held here after a reply: with no error, they are ended.
    pub fn settled(&self, error: Option<&bucketq::Error>) {
        match error {
            None => self.ends.iter().for_each(|taken| taken.end()),
            // With one token it is certain which job the error is about.
            Some(error) => {
                if let ([taken], 1, Kind::LeaseLost) = (&self.ends[..], self.proofs, error.kind()) {
                    taken.refused();
                }
            }
        }
    }

    /// Returns an op that ends the job of this proof.
    fn ending(
        py: Python<'_>,
        proof: &Proof<'_>,
        change: impl FnOnce(bucketq::Held) -> bucketq::Op,
        expected: Expected,
    ) -> PyResult<Self> {
        let (held, ends) = proof.parts().or_raise(py)?;
        Ok(Self { change: change(held), expected, ends, proofs: 1 })
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
        Self::of_jobs(queue, jobs.iter().map(|new| new.job.clone()).collect())
    }

    #[staticmethod]
    #[pyo3(signature = (held, result=None))]
    fn ack(py: Python<'_>, held: Proof<'_>, result: Option<Blob<'_>>) -> PyResult<Self> {
        let op = |held| bucketq::Op::Ack { held, result: result.map(payload) };
        Self::ending(py, &held, op, expect!(py, Outcome::Acked => py.None()))
    }

    #[staticmethod]
    #[pyo3(signature = (held, delay_ms=None, error=None))]
    fn nack(py: Python<'_>, held: Proof<'_>, delay_ms: Option<i64>, error: Option<String>) -> PyResult<Self> {
        let op = |held| bucketq::Op::Nack { held, delay_ms, error };
        Self::ending(py, &held, op, expect!(py, Outcome::Nacked { state, .. } => state.as_str()))
    }

    #[staticmethod]
    fn release(py: Python<'_>, held: Proof<'_>) -> PyResult<Self> {
        let op = |held| bucketq::Op::Release { held };
        Self::ending(py, &held, op, expect!(py, Outcome::Released => py.None()))
    }

    #[staticmethod]
    #[pyo3(signature = (held, error=None))]
    fn reject(py: Python<'_>, held: Proof<'_>, error: Option<String>) -> PyResult<Self> {
        let op = |held| bucketq::Op::Reject { held, error };
        Self::ending(py, &held, op, expect!(py, Outcome::Rejected => py.None()))
    }

    #[staticmethod]
    #[pyo3(signature = (job, run, result=None))]
    fn ack_late(py: Python<'_>, job: &str, run: u32, result: Option<Blob<'_>>) -> PyResult<Self> {
        let op = bucketq::Op::AckLate { id: id(py, job)?, run, result: result.map(payload) };
        Ok(Self::of(op, expect!(py, Outcome::Acked => py.None())))
    }

    #[staticmethod]
    fn cancel(py: Python<'_>, job: &str, leased: bool) -> PyResult<Self> {
        let op = bucketq::Op::Cancel { id: id(py, job)?, leased };
        Ok(Self::of(op, expect!(py, Outcome::Cancelled { was } => was.as_str())))
    }

    #[staticmethod]
    #[pyo3(signature = (job, run=None))]
    fn requeue(py: Python<'_>, job: &str, run: Option<u32>) -> PyResult<Self> {
        let op = bucketq::Op::Requeue { id: id(py, job)?, run };
        Ok(Self::of(op, expect!(py, Outcome::Requeued { run } => run)))
    }

    #[staticmethod]
    #[pyo3(signature = (job, to, run=None), name = "move")]
    fn move_to(py: Python<'_>, job: &str, to: String, run: Option<u32>) -> PyResult<Self> {
        let op = bucketq::Op::Move { id: id(py, job)?, run, to };
        Ok(Self::of(op, expect!(py, Outcome::Moved { run } => run)))
    }

    #[staticmethod]
    fn delete(py: Python<'_>, job: &str, leased: bool) -> PyResult<Self> {
        let op = bucketq::Op::Delete { id: id(py, job)?, leased };
        Ok(Self::of(op, expect!(py, Outcome::Deleted { was } => was.map(bucketq::State::as_str))))
    }

    #[staticmethod]
    fn create_queue(queue: String) -> Self {
        let op = bucketq::Op::CreateQueue { queue };
        Self::of(op, expect!(py, Outcome::QueueCreated { is_new } => is_new))
    }

    #[staticmethod]
    fn strict_queues(strict: bool) -> Self {
        let op = bucketq::Op::StrictQueues { strict };
        Self::of(op, expect!(py, Outcome::StrictQueuesSet => py.None()))
    }

    #[staticmethod]
    fn purge(py: Python<'_>, queue: String, states: Vec<String>) -> PyResult<Self> {
        let op = bucketq::Op::Purge { queue, states: values::states(states).or_raise(py)? };
        Ok(Self::of(op, expect!(py, Outcome::Purged { count } => count)))
    }

    #[staticmethod]
    fn pause(queue: String) -> Self {
        Self::of(bucketq::Op::Pause { queue }, expect!(py, Outcome::Paused => py.None()))
    }

    #[staticmethod]
    fn resume(queue: String) -> Self {
        Self::of(bucketq::Op::Resume { queue }, expect!(py, Outcome::Resumed => py.None()))
    }

    /// Stops accepting and handing out jobs, without waiting for the held ones.
    #[staticmethod]
    fn drain(queue: String) -> Self {
        Self::of(bucketq::Op::Drain { queue }, expect!(py, Outcome::Draining { leased } => leased))
    }

    /// Changes the policy of a queue; the changes are JSON, with the engine's names.
    #[staticmethod]
    fn configure(py: Python<'_>, queue: String, changes: &str) -> PyResult<Self> {
        let changes = Box::new(manage::changes(changes).or_raise(py)?);
        let op = bucketq::Op::Configure { queue, changes };
        Ok(Self::of(op, expect!(py, Outcome::Configured(policy) => values::json(py, &*policy)?)))
    }

    /// Enqueues such a job repeatedly; the timing is JSON, as the engine writes it.
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
        let op = bucketq::Op::Schedule { queue, name, schedule };
        Ok(Self::of(op, expect!(py, Outcome::Scheduled { next_ms } => next_ms)))
    }

    #[staticmethod]
    fn unschedule(queue: String, name: String) -> Self {
        let op = bucketq::Op::Unschedule { queue, name };
        Self::of(op, expect!(py, Outcome::Unscheduled { was_there } => was_there))
    }

    /// Carries out all of these or none.
    #[staticmethod]
    fn atomic(ops: Vec<PyRef<'_, Self>>) -> Self {
        Self {
            change: bucketq::Op::Atomic(ops.iter().map(|op| op.change.clone()).collect()),
            expected: Expected::Each(ops.iter().map(|op| op.expected.clone()).collect()),
            ends: ops.iter().flat_map(|op| op.ends.iter().cloned()).collect(),
            proofs: ops.iter().map(|op| op.proofs).sum(),
        }
    }
}
