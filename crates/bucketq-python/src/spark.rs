//! [`Objects`] and [`Pinned`]: one commit of a queue file, and the objects around it, for `bucketq.spark`.
//!
//! A method that awaits returns a [`Call`]; one that only computes runs without the interpreter's lock.

use std::sync::Arc;

use bucketq::State;
use bucketq::operate;
use bucketq::query::{Answer, Query};
use bytes::Bytes;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::call::Call;
use crate::errors::OrRaise;
use crate::{runtime, settings, values};

/// The objects of a queue file.
#[pyclass(frozen, module = "bucketq._native")]
pub struct Objects {
    objects: operate::Objects,
}

/// Returns the objects of the queue file at this URL, without opening it.
#[pyfunction]
pub fn objects(py: Python<'_>, url: String, settings: &Bound<'_, PyDict>) -> PyResult<Call> {
    let options = settings::options(settings)?.or_raise(py)?;
    let work = async move { operate::Objects::open(&url, options).await };
    Ok(Call::new(work, |py, objects| Objects { objects }.into_py_any(py)))
}

fn maybe_bytes(py: Python<'_>, bytes: Option<&[u8]>) -> PyResult<Py<PyAny>> {
    bytes.map(|bytes| PyBytes::new(py, bytes)).into_py_any(py)
}

fn array<const N: usize>(py: Python<'_>, bytes: &[u8]) -> PyResult<[u8; N]> {
    let wrong = || bucketq::Error::invalid(format!("{N} bytes are wanted, not {}", bytes.len()));
    <[u8; N]>::try_from(bytes).map_err(|_| wrong()).or_raise(py)
}

#[pymethods]
impl Objects {
    /// Returns the bytes of an object, or None.
    #[pyo3(signature = (key, hash=None))]
    fn get(&self, py: Python<'_>, key: String, hash: Option<&[u8]>) -> PyResult<Call> {
        let (objects, hash) = (self.objects.clone(), hash.map(|bytes| array(py, bytes)).transpose()?);
        let work = async move { objects.get(&key, hash).await };
        Ok(Call::new(work, |py, got| maybe_bytes(py, got.as_deref())))
    }

    /// Stores bytes as a temporary object; returns its key.
    fn stage(&self, py: Python<'_>, file_id: &[u8], group: &[u8], body: &[u8]) -> PyResult<Call> {
        let (id, group) = (array(py, file_id)?, array(py, group)?);
        let (objects, body) = (self.objects.clone(), Bytes::copy_from_slice(body));
        Ok(Call::new(async move { objects.stage(&id, &group, body).await }, |py, key| key.into_py_any(py)))
    }

    /// Deletes a temporary object.
    fn unstage(&self, key: String) -> Call {
        let objects = self.objects.clone();
        Call::plain(async move { objects.unstage(&key).await })
    }

    /// Returns the keys of a group's temporary objects.
    fn staged(&self, py: Python<'_>, file_id: &[u8], group: &[u8]) -> PyResult<Call> {
        let (objects, id, group) = (self.objects.clone(), array(py, file_id)?, array(py, group)?);
        Ok(Call::new(async move { objects.staged(&id, &group).await }, |py, keys| keys.into_py_any(py)))
    }

    /// Returns the bytes of HEAD and its version, or None when it still has this version.
    #[pyo3(signature = (unless=None))]
    fn head(&self, unless: Option<String>) -> Call {
        let objects = self.objects.clone();
        let work = async move { objects.head(unless.as_deref()).await };
        Call::new(work, |py, got| {
            got.map(|(bytes, version)| (PyBytes::new(py, &bytes), version)).into_py_any(py)
        })
    }

    /// Returns the newest commit, or the one with these bytes as its HEAD.
    #[pyo3(signature = (head=None))]
    fn pin(&self, head: Option<&[u8]>) -> Call {
        let (objects, head) = (self.objects.clone(), head.map(Bytes::copy_from_slice));
        let work = async move {
            match head {
                Some(head) => objects.at(head).await,
                None => objects.pin().await,
            }
        };
        Call::new(work, |py, pinned| Pinned { pinned: Arc::new(pinned) }.into_py_any(py))
    }
}

/// One commit of a queue file.
#[pyclass(frozen, module = "bucketq._native")]
pub struct Pinned {
    pinned: Arc<operate::Pinned>,
}

#[pymethods]
impl Pinned {
    /// Returns the bytes of its HEAD, which name all objects of this commit.
    #[getter]
    fn head<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.pinned.bytes())
    }

    /// Returns its number.
    #[getter]
    fn commit_seq(&self) -> u64 {
        self.pinned.head().commit_seq
    }

    /// Returns its time.
    #[getter]
    fn commit_ms(&self) -> i64 {
        self.pinned.head().commit_ms
    }

    /// Returns the queue file's id.
    #[getter]
    fn file_id<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.pinned.head().file_id)
    }

    /// Returns the id of its lineage.
    #[getter]
    fn lineage_id<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.pinned.head().lineage_id)
    }

    /// Returns the archive objects with runs that finished after this `finish_seq`.
    fn archives(&self, py: Python<'_>, after: u64) -> PyResult<Py<PyAny>> {
        let query = Query::Archives { queue: None, after };
        let Answer::Archives(archives) = runtime::detach(py, || self.pinned.ask(&query)).or_raise(py)? else {
            return Ok(py.None());
        };
        values::json(py, &archives.objects)
    }

    /// Returns the policy of a queue.
    fn policy(&self, py: Python<'_>, queue: String) -> PyResult<Py<PyAny>> {
        let query = Query::Policy(queue);
        let Answer::Policy(policy) = runtime::detach(py, || self.pinned.ask(&query)).or_raise(py)? else {
            return Ok(py.None());
        };
        values::json(py, &policy)
    }

    /// Returns every queue.
    fn queues(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let Answer::Queues(queues) = runtime::detach(py, || self.pinned.ask(&Query::Queues)).or_raise(py)?
        else {
            return Ok(py.None());
        };
        values::queues(py, &queues)
    }

    /// Returns runs that are not archived, as the bytes of an archive object, or None.
    fn lives(&self, py: Python<'_>, after: u64, until: u64, limit: u32) -> PyResult<Py<PyAny>> {
        let lives = runtime::detach(py, || self.pinned.lives(after, until, limit)).or_raise(py)?;
        maybe_bytes(py, lives.as_deref())
    }

    /// Returns jobs in the order of their enqueues from this `seq` on, as the bytes of a Parquet file, or None; only of
    /// these queues and in these states. A name that no state has is like a state that no job has.
    #[pyo3(signature = (from_seq, limit, queues=None, states=None))]
    #[expect(clippy::needless_pass_by_value, reason = "Python hands over lists")]
    fn jobs(
        &self,
        py: Python<'_>,
        from_seq: u64,
        limit: u32,
        queues: Option<Vec<String>>,
        states: Option<Vec<String>>,
    ) -> PyResult<Py<PyAny>> {
        let named = |names: Vec<String>| {
            State::ALL.into_iter().filter(|s| names.iter().any(|n| n == s.as_str())).collect()
        };
        let states: Option<Vec<State>> = states.map(named);
        let read = || self.pinned.jobs(from_seq, limit, queues.as_deref(), states.as_deref());
        maybe_bytes(py, runtime::detach(py, read).or_raise(py)?.as_deref())
    }

    /// Returns the newest commits of its log.
    fn history(&self, limit: u32) -> Call {
        let pinned = Arc::clone(&self.pinned);
        Call::shown(async move { pinned.history(limit).await })
    }
}
