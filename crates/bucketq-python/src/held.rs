//! [`Held`]: a claimed job in Python, the base class of both classes of jobs. Its lease is renewed until the job ends
//! or nothing refers to it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bucketq::{ClaimedJob, LeaseGuard, QueueFile};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::call::Call;
use crate::events::Teller;
use crate::runtime;
use crate::values;

/// A claimed job with the guard of its lease.
pub struct GuardedJob {
    claimed: ClaimedJob,
    guard: LeaseGuard,
    file: QueueFile,
}

impl GuardedJob {
    /// Returns the job's id and its token.
    pub fn proof(&self) -> bucketq::Held {
        self.guard.held()
    }

    /// Ends the lease: the job is finished or released.
    pub fn end(&self) {
        self.guard.end();
    }

    /// Records that the lease is lost, because an op with its token was refused.
    pub fn refused(&self) {
        self.guard.refused();
    }
}

/// A claimed job.
#[pyclass(frozen, subclass, module = "bucketq._native")]
pub struct Held {
    /// Always present; only drop takes it.
    taken: Option<Arc<GuardedJob>>,
    pid: u32,
}

impl Held {
    pub fn of(claimed: ClaimedJob, guard: LeaseGuard, file: &QueueFile) -> Self {
        let taken = GuardedJob { claimed, guard, file: file.clone() };
        Self { taken: Some(Arc::new(taken)), pid: std::process::id() }
    }

    /// Returns false in a forked child: the lease is its parent's, and a lock of the keeper's thread may never be
    /// released.
    fn is_home(&self) -> bool {
        runtime::is_home(self.pid)
    }

    pub fn taken(&self) -> &Arc<GuardedJob> {
        self.taken.as_ref().expect("taken by drop only")
    }

    fn claimed(&self) -> &ClaimedJob {
        &self.taken().claimed
    }

    fn guard(&self) -> &LeaseGuard {
        &self.taken().guard
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.is_home() {
            // The lease belongs to the parent of this forked process.
            std::mem::forget(self.taken.take());
        }
    }
}

#[pymethods]
impl Held {
    /// Returns the same job as an object of a subclass.
    #[new]
    fn new(held: &Self) -> Self {
        Self { taken: Some(Arc::clone(held.taken())), pid: held.pid }
    }

    /// The id of the job, a UUID.
    #[getter]
    fn id(&self) -> String {
        self.claimed().job.id.to_string()
    }

    /// The name of its queue.
    #[getter]
    fn queue(&self) -> &str {
        &self.claimed().job.queue
    }

    /// The token of the lease: with it and the id, another process ends or extends the job. Reading it counts as work
    /// on the job.
    #[getter]
    fn token(&self) -> String {
        self.work();
        self.claimed().lease.token.to_string()
    }

    /// Returns the id of a job that is enqueued together with the end of this one; the same on every call.
    #[pyo3(name = "_next_id")]
    fn next_id(&self, position: u32) -> String {
        self.claimed().next_id(position).to_string()
    }

    /// The run: 0, and one more with each requeue.
    #[getter]
    fn run(&self) -> u32 {
        self.claimed().job.run
    }

    /// The number of this attempt, from 1.
    #[getter]
    fn attempt(&self) -> u32 {
        self.claimed().job.attempt
    }

    /// Attempts before the job is dead.
    #[getter]
    fn max_attempts(&self) -> u32 {
        self.claimed().job.max_attempts
    }

    /// The fencing token. It grows with every claim of the job, so other systems can refuse smaller ones.
    #[getter]
    fn fence(&self) -> u64 {
        self.claimed().lease.fence
    }

    /// Small metadata beside the payload.
    #[getter]
    fn headers(&self) -> BTreeMap<String, String> {
        self.claimed().job.headers.clone()
    }

    /// The content type of the payload.
    #[getter]
    fn content_type(&self) -> &str {
        &self.claimed().payload.content_type
    }

    /// The bytes as they were enqueued. Reading them counts as work on the job.
    #[getter]
    fn payload<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        self.work();
        PyBytes::new(py, &self.claimed().payload.bytes)
    }

    /// Returns the job as it was claimed, without its bytes.
    #[pyo3(name = "_info")]
    fn native_info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        values::job(py, &self.claimed().job)
    }

    /// Marks the job as being worked on: it is no longer handed back when nothing refers to it.
    #[pyo3(name = "_begin")]
    fn work(&self) {
        if self.is_home() {
            self.guard().work();
        }
    }

    /// Hands the job back if nobody has worked on it; `File.flush` waits for that.
    #[pyo3(name = "_give_back")]
    fn give_back(&self) {
        if self.is_home() {
            self.guard().give_back();
        }
    }

    #[getter(_untouched)]
    fn untouched(&self) -> bool {
        self.is_home() && self.guard().is_untouched()
    }

    /// True if it was acked, nacked, released or rejected here.
    #[getter]
    fn ended(&self) -> bool {
        self.is_home() && self.guard().is_ended()
    }

    /// True if the lease is lost: stop working. Another worker may have the job.
    #[getter]
    fn lost(&self) -> bool {
        !self.is_home() || self.guard().is_lost()
    }

    /// Seconds for which the lease certainly holds; it is renewed before they end. Infinite if it never ends.
    #[getter]
    fn remaining(&self) -> f64 {
        match (self.ends(), self.is_home()) {
            (false, _) => f64::INFINITY,
            (true, true) => self.guard().remaining().as_secs_f64(),
            (true, false) => 0.0,
        }
    }

    /// Returns false if the lease never runs out.
    #[getter(_ends)]
    fn ends(&self) -> bool {
        self.claimed().lasts.is_some()
    }

    /// Sets the function to call with the reason once the lease is lost; the teller's reader calls it.
    #[pyo3(name = "_on_lost")]
    fn on_lost(&self, teller: &Teller, tell: Py<PyAny>) {
        if self.is_home()
            && let Some(tell) = teller.of_loss(tell)
        {
            self.guard().on_lost(tell);
        }
    }

    /// Returns how long the work may take by the policy of the queue, in milliseconds.
    #[getter(_max_run)]
    fn max_run(&self) -> Option<u64> {
        let ms = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        if self.is_home() { self.guard().max_run().map(ms) } else { None }
    }

    /// Limits how long the work may take.
    #[pyo3(name = "_limit")]
    fn limit(&self, max_run_ms: u64) {
        if self.is_home() {
            self.guard().limit(std::time::Duration::from_millis(max_run_ms));
        }
    }

    /// Ends the attempt as failed, because it takes too long; `File.flush` waits for that.
    #[pyo3(name = "_time_out")]
    fn time_out(&self) {
        if self.is_home() {
            self.guard().time_out();
        }
    }

    /// Records that the job was ended or deleted elsewhere.
    #[pyo3(name = "_refused")]
    fn refused(&self) {
        if self.is_home() {
            self.guard().refused();
        }
    }

    /// Extends the lease: it ends this long from now.
    #[pyo3(name = "_extend")]
    fn extend(&self, lease_ms: u64) -> Call {
        if !self.is_home() {
            return Call::plain(async { Err(runtime::inherited()) });
        }
        let taken = Arc::clone(self.taken());
        let lease = std::time::Duration::from_millis(lease_ms);
        Call::plain(async move { taken.guard.extend(&taken.file, lease).await })
    }
}
