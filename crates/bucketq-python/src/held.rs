//! [`Held`]: a claimed job in Python's hands. Its lease is kept alive until it ends or nobody refers to it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use bucketq::{Kept, QueueFile, Taken};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::call::Call;
use crate::events::Teller;
use crate::runtime;
use crate::values;

/// A claimed job.
#[pyclass(frozen, module = "bucketq._native")]
pub struct Held {
    taken: Taken,
    file: QueueFile,
    /// Always there; taken only by drop.
    kept: Option<Arc<Kept>>,
    /// It has a lease of its holder's own.
    extended: Arc<AtomicBool>,
    pid: u32,
}

impl Held {
    pub fn new(taken: Taken, kept: Kept, file: &QueueFile) -> Self {
        Self {
            taken,
            file: file.clone(),
            kept: Some(Arc::new(kept)),
            extended: Arc::default(),
            pid: std::process::id(),
        }
    }

    /// False in a forked child: the lease is its parent's, and a lock of the keeper's thread may never open.
    fn is_home(&self) -> bool {
        runtime::is_home(self.pid)
    }

    pub fn kept(&self) -> &Kept {
        self.kept.as_ref().expect("taken by drop only")
    }

    pub fn kept_arc(&self) -> Arc<Kept> {
        Arc::clone(self.kept.as_ref().expect("taken by drop only"))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.is_home() {
            // The lease belongs to the parent of this forked process.
            std::mem::forget(self.kept.take());
        }
    }
}

#[pymethods]
impl Held {
    #[getter]
    fn id(&self) -> String {
        self.taken.job.id.to_string()
    }

    #[getter]
    fn queue(&self) -> &str {
        &self.taken.job.queue
    }

    /// The proof of the lease, for ending the job elsewhere.
    #[getter]
    fn token(&self) -> String {
        self.taken.lease.token.to_string()
    }

    #[getter]
    fn run(&self) -> u32 {
        self.taken.job.run
    }

    #[getter]
    fn attempt(&self) -> u32 {
        self.taken.job.attempt
    }

    #[getter]
    fn max_attempts(&self) -> u32 {
        self.taken.job.max_attempts
    }

    #[getter]
    fn fence(&self) -> u64 {
        self.taken.lease.fence
    }

    #[getter]
    fn headers(&self) -> BTreeMap<String, String> {
        self.taken.job.headers.clone()
    }

    #[getter]
    fn content_type(&self) -> &str {
        &self.taken.payload.content_type
    }

    #[getter]
    fn payload<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.taken.payload.bytes)
    }

    /// Everything that is known of it, as it was claimed.
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        values::job(py, &self.taken.job)
    }

    /// Somebody works on it from now on: it is no longer handed back when nobody refers to it.
    fn work(&self) {
        self.kept().work();
    }

    /// Hand it back if nobody has worked on it; `File.flush` waits for that.
    fn give_back(&self) {
        if self.is_home() {
            self.kept().give_back();
        }
    }

    #[getter]
    fn untouched(&self) -> bool {
        self.kept().is_untouched()
    }

    #[getter]
    fn ended(&self) -> bool {
        self.kept().is_ended()
    }

    #[getter]
    fn lost(&self) -> bool {
        !self.is_home() || self.kept().is_lost()
    }

    /// Seconds for which the lease surely holds yet.
    #[getter]
    fn remaining(&self) -> f64 {
        if self.is_home() { self.kept().remaining().as_secs_f64() } else { 0.0 }
    }

    /// False if the lease never runs out.
    #[getter]
    fn ends(&self) -> bool {
        self.taken.lasts.is_some() || self.extended.load(SeqCst)
    }

    /// Have this called with the reason, by way of the teller's reader, once the lease is lost.
    fn on_lost(&self, teller: &Teller, tell: Py<PyAny>) {
        if self.is_home()
            && let Some(tell) = teller.of_loss(tell)
        {
            self.kept().on_lost(tell);
        }
    }

    /// Hold it until so long from now.
    fn extend(&self, lease_ms: u64) -> Call {
        let (kept, file) = (self.kept_arc(), self.file.clone());
        let extended = Arc::clone(&self.extended);
        Call::plain(async move {
            kept.extend(&file, std::time::Duration::from_millis(lease_ms)).await?;
            extended.store(true, SeqCst);
            Ok(())
        })
    }
}
