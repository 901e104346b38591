//! [`Objects`] and [`Pinned`]: one commit of a queue file, and the objects around it, for `bucketq.spark`.
//!
//! What is awaited is a [`Call`]; what is only computed runs without the interpreter's lock.

use std::sync::Arc;

use bucketq::operate;
use bucketq::query::{Answer, Query};
use bytes::Bytes;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::call::Call;
use crate::errors::OrRaise;
use crate::{settings, values};

/// The objects of a queue file.
#[pyclass(frozen, module = "bucketq._native")]
pub struct Objects {
    objects: operate::Objects,
}

/// The objects of the queue file at this URL. It is not opened.
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
    /// The bytes of an object, or None.
    #[pyo3(signature = (key, hash=None))]
    fn get(&self, py: Python<'_>, key: String, hash: Option<&[u8]>) -> PyResult<Call> {
        let (objects, hash) = (self.objects.clone(), hash.map(|bytes| array(py, bytes)).transpose()?);
        let work = async move { objects.get(&key, hash).await };
        Ok(Call::new(work, |py, got| maybe_bytes(py, got.as_deref())))
    }

    /// Put bytes aside; answers their key.
    fn stage(&self, py: Python<'_>, file_id: &[u8], group: &[u8], body: &[u8]) -> PyResult<Call> {
        let (id, group) = (array(py, file_id)?, array(py, group)?);
        let (objects, body) = (self.objects.clone(), Bytes::copy_from_slice(body));
        Ok(Call::new(async move { objects.stage(&id, &group, body).await }, |py, key| key.into_py_any(py)))
    }

    /// Delete what was put aside.
    fn unstage(&self, key: String) -> Call {
        let objects = self.objects.clone();
        Call::plain(async move { objects.unstage(&key).await })
    }

    /// The keys of what a group put aside.
    fn staged(&self, py: Python<'_>, file_id: &[u8], group: &[u8]) -> PyResult<Call> {
        let (objects, id, group) = (self.objects.clone(), array(py, file_id)?, array(py, group)?);
        Ok(Call::new(async move { objects.staged(&id, &group).await }, |py, keys| keys.into_py_any(py)))
    }

    /// The bytes of HEAD and its version, or None when it is still this one.
    #[pyo3(signature = (unless=None))]
    fn head(&self, unless: Option<String>) -> Call {
        let objects = self.objects.clone();
        let work = async move { objects.head(unless.as_deref()).await };
        Call::new(work, |py, got| {
            got.map(|(bytes, version)| (PyBytes::new(py, &bytes), version)).into_py_any(py)
        })
    }

    /// The newest commit, or the one whose HEAD these bytes are.
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
    /// The bytes that name everything this commit consists of.
    #[getter]
    fn head<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.pinned.bytes())
    }

    /// Its number.
    #[getter]
    fn commit_seq(&self) -> u64 {
        self.pinned.head().commit_seq
    }

    /// Its time.
    #[getter]
    fn commit_ms(&self) -> i64 {
        self.pinned.head().commit_ms
    }

    /// The queue file's id.
    #[getter]
    fn file_id<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.pinned.head().file_id)
    }

    /// The lineage it belongs to.
    #[getter]
    fn lineage_id<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.pinned.head().lineage_id)
    }

    /// The archive objects with lives that finished after this place.
    fn archives(&self, py: Python<'_>, after: u64) -> PyResult<Py<PyAny>> {
        let query = Query::Archives { queue: None, after };
        let Answer::Archives(archives) = py.detach(|| self.pinned.ask(&query)).or_raise(py)? else {
            return Ok(py.None());
        };
        values::json(py, &archives.objects)
    }

    /// The policy of a queue.
    fn policy(&self, py: Python<'_>, queue: String) -> PyResult<Py<PyAny>> {
        let query = Query::Policy(queue);
        let Answer::Policy(policy) = py.detach(|| self.pinned.ask(&query)).or_raise(py)? else {
            return Ok(py.None());
        };
        values::json(py, &policy)
    }

    /// Every queue.
    fn queues(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let Answer::Queues(queues) = py.detach(|| self.pinned.ask(&Query::Queues)).or_raise(py)? else {
            return Ok(py.None());
        };
        values::queues(py, &queues)
    }

    /// Lives that are not archived, as the bytes of an archive object, or None.
    fn lives(&self, py: Python<'_>, after: u64, until: u64, limit: u32) -> PyResult<Py<PyAny>> {
        let lives = py.detach(|| self.pinned.lives(after, until, limit)).or_raise(py)?;
        maybe_bytes(py, lives.as_deref())
    }

    /// The database as a SQLite file.
    fn image<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let image = py.detach(|| self.pinned.image()).or_raise(py)?;
        Ok(PyBytes::new(py, &image))
    }

    /// The newest commits of its log.
    fn history(&self, limit: u32) -> Call {
        let pinned = Arc::clone(&self.pinned);
        Call::shown(async move { pinned.history(limit).await })
    }
}
