//! For tests of programs that use bucketq: a private queue file in memory, a clock that tests move, a store with a
//! delay. Used by `bucketq.testing` and the benchmarks.

use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bucketq::env::{Clock as EngineClock, Entropy};
use bucketq::store::{Expect, Got, Listed, Memory, Put, Store, Version};
use bucketq::{Env, QueueFile, Result};
use bytes::Bytes;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tokio::time::Instant;

use crate::call::Call;
use crate::errors::OrRaise;
use crate::file::File;
use crate::settings;

/// A clock that runs as the machine's does, and jumps on request.
#[pyclass(frozen, module = "bucketq._native")]
pub struct Clock {
    ahead_ms: Arc<AtomicI64>,
    nudges: Arc<Mutex<Vec<Nudge>>>,
}

/// Makes one queue file check the clock; returns false when the file is gone.
type Nudge = Box<dyn Fn() -> bool + Send + Sync>;

#[pymethods]
impl Clock {
    #[new]
    fn new() -> Self {
        Self { ahead_ms: Arc::default(), nudges: Arc::default() }
    }

    /// Jumps ahead.
    fn advance(&self, ms: i64) {
        self.ahead_ms.fetch_add(ms, SeqCst);
        self.nudges.lock().unwrap_or_else(PoisonError::into_inner).retain(|nudge| nudge());
    }

    /// Returns milliseconds since 1970 in UTC by this clock.
    fn now_ms(&self) -> i64 {
        self.jumping().wall_ms()
    }
}

impl Clock {
    fn jumping(&self) -> Jumping {
        Jumping { machine: Env::default(), ahead_ms: Arc::clone(&self.ahead_ms) }
    }
}

/// The machine's clock plus the requested jumps.
#[derive(Debug)]
struct Jumping {
    machine: Env,
    ahead_ms: Arc<AtomicI64>,
}

impl EngineClock for Jumping {
    fn wall_ms(&self) -> i64 {
        self.machine.wall_ms() + self.ahead_ms.load(SeqCst)
    }

    fn monotonic(&self) -> Instant {
        self.machine.monotonic() + Duration::from_millis(self.ahead_ms.load(SeqCst).unsigned_abs())
    }
}

impl Entropy for Jumping {
    fn fill(&self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(16) {
            part.copy_from_slice(&self.machine.bytes::<16>()[..part.len()]);
        }
    }
}

/// A store that takes this long for a request: half of it before, half after.
#[derive(Debug)]
struct Slow {
    inner: Memory,
    half: Duration,
}

impl Slow {
    async fn way(&self) {
        if !self.half.is_zero() {
            tokio::time::sleep(self.half).await;
        }
    }
}

#[async_trait]
impl Store for Slow {
    async fn get(&self, key: &str, unless: Option<&Version>) -> Result<Got> {
        self.way().await;
        let got = self.inner.get(key, unless).await;
        self.way().await;
        got
    }

    async fn put_if(&self, key: &str, body: Bytes, expect: &Expect) -> Put {
        self.way().await;
        let put = self.inner.put_if(key, body, expect).await;
        self.way().await;
        put
    }

    async fn put_new(&self, key: &str, body: Bytes) -> Result<()> {
        self.way().await;
        let put = self.inner.put_new(key, body).await;
        self.way().await;
        put
    }

    async fn delete(&self, key: &str) -> Result<()> {
        self.way().await;
        self.inner.delete(key).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Listed>> {
        self.way().await;
        self.inner.list(prefix).await
    }

    fn describe(&self) -> String {
        "a queue file of a test, in memory".to_owned()
    }

    bucketq::forward_to_inner!(default_max_skew needs_probe);
}

/// Opens a fresh, private queue file in memory, on this clock; each request takes this long. With a clock, leases are
/// not renewed: they run out when the clock says so.
#[pyfunction]
#[pyo3(signature = (settings, clock=None, request_us=0))]
pub fn open_test(
    py: Python<'_>,
    settings: &Bound<'_, PyDict>,
    clock: Option<&Clock>,
    request_us: u64,
) -> PyResult<Call> {
    let options = settings::options(settings)?.or_raise(py)?;
    // On a clock that jumps, a late renewal looks like one that is due, so leases run out.
    let extends = clock.is_none();
    let nudges = clock.map(|clock| Arc::clone(&clock.nudges));
    let clock = clock.map_or_else(|| Clock::new().jumping(), Clock::jumping);
    let entropy = Jumping { machine: Env::default(), ahead_ms: Arc::default() };
    let env = Env::new(Arc::new(clock), Arc::new(entropy));
    let store = Slow { inner: Memory::new(), half: Duration::from_micros(request_us / 2) };
    let work = async move {
        let file = File::of(QueueFile::open_with(Arc::new(store), "test", options, env).await?, extends)?;
        if let Some(nudges) = nudges {
            nudges.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(file.nudge()));
        }
        Ok(file)
    };
    Ok(Call::new(work, |py, file| file.into_py_any(py)))
}
