//! [`File`]: the engine's handle on a queue file.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use bucketq::store::probe::{ROUNDS_AT_CREATION, ROUNDS_THOROUGH, WRITERS};
use bucketq::store::{self, StoreUrl, open_separately};
use bucketq::{Code, Cursor, Detail, Env, Filter, Keeper, Kind, Payload, QueueFile, Queues, Unsynced};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use crate::call::Call;
use crate::errors::OrRaise;
use crate::events::{Reader, Teller, listen};
use crate::held::Held;
use crate::op::{Blob, Extras, New, Op, Proof, payload};
use crate::{fit, manage, runtime, settings, values};

/// Connections that a probe races over.
const CONNECTIONS: usize = 4;

/// A queue file that is open.
#[pyclass(frozen, module = "bucketq._native")]
pub struct File {
    /// Always there; taken only by drop.
    open: Option<(QueueFile, Keeper)>,
    /// Whether the leases of claimed jobs are extended.
    extends: bool,
    beside: PyOnceLock<Py<PyDict>>,
    pid: u32,
}

impl File {
    /// The handle with a keeper for what it claims.
    pub fn of(file: QueueFile, extends: bool) -> bucketq::Result<Self> {
        let (keeper, task) = Keeper::new(&file)?;
        runtime::get()?.spawn(task);
        Ok(Self { open: Some((file, keeper)), extends, beside: PyOnceLock::new(), pid: std::process::id() })
    }

    /// Something to call when the clock of a test has jumped; false when the file is gone.
    pub fn nudge(&self) -> impl Fn() -> bool + Send + Sync + use<> {
        self.parts().1.nudge()
    }

    fn file(&self) -> QueueFile {
        self.parts().0.clone()
    }

    /// A job to be enqueued, with a fresh id.
    pub fn fresh(&self, payload: Payload) -> bucketq::Result<bucketq::New> {
        self.parts().0.new_job(payload)
    }

    fn parts(&self) -> &(QueueFile, Keeper) {
        self.open.as_ref().expect("taken by drop only")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if !runtime::is_home(self.pid) {
            // Its writer runs in the parent of this forked process; touching what it holds could wait for ever.
            std::mem::forget(self.open.take());
        }
    }
}

/// Open a queue file; `settings` has options of the engine by name.
#[pyfunction]
pub fn open(py: Python<'_>, url: String, settings: &Bound<'_, PyDict>) -> PyResult<Call> {
    let options = settings::options(settings)?.or_raise(py)?;
    let work = async move { File::of(QueueFile::open(&url, options).await?, true) };
    Ok(Call::new(work, |py, file| file.into_py_any(py)))
}

/// How many jobs somebody claims to hold in this change.
fn proofs(op: &bucketq::Op) -> usize {
    use bucketq::Op::{Ack, Atomic, Extend, Nack, Reject, Release};
    match op {
        Ack { .. } | Nack { .. } | Release { .. } | Reject { .. } | Extend { .. } => 1,
        Atomic(ops) => ops.iter().map(proofs).sum(),
        _ => 0,
    }
}

fn show_detail(py: Python<'_>, found: Option<Detail>) -> PyResult<Py<PyAny>> {
    found.map_or_else(|| Ok(py.None()), |detail| values::detail(py, &detail))
}

/// Put the store of this URL through its paces, in as many rounds as at creation or in many. Nothing is opened there.
#[pyfunction]
pub fn probe(py: Python<'_>, url: String, thorough: bool, settings: &Bound<'_, PyDict>) -> PyResult<Call> {
    let options = settings::options(settings)?.or_raise(py)?;
    let work = async move {
        options.check()?;
        let (url, env) = (StoreUrl::parse(&url)?, Env::default());
        let stores = open_separately(&url, &options, &env, CONNECTIONS).await?;
        let rounds = if thorough { ROUNDS_THOROUGH } else { ROUNDS_AT_CREATION };
        store::probe(&stores, url.name(), rounds, WRITERS, &env).await
    };
    Ok(Call::new(work, |py, report| values::report(py, &report)))
}

#[pymethods]
impl File {
    /// A job to be enqueued, with a fresh id unless the extras name one.
    #[expect(clippy::new_ret_no_self, clippy::wrong_self_convention, reason = "it makes a new job")]
    #[expect(clippy::too_many_arguments, reason = "keywords for Python")]
    #[pyo3(signature = (blob, *, id=None, priority=None, delay_ms=None, at_ms=None, max_attempts=None, backoff=None, dedup=None, dedup_window_ms=None, dedup_unfinished=false, group=None, headers=None))]
    fn new(
        &self,
        py: Python<'_>,
        blob: Blob<'_>,
        id: Option<String>,
        priority: Option<i32>,
        delay_ms: Option<i64>,
        at_ms: Option<i64>,
        max_attempts: Option<u32>,
        backoff: Option<String>,
        dedup: Option<String>,
        dedup_window_ms: Option<i64>,
        dedup_unfinished: bool,
        group: Option<String>,
        headers: Option<BTreeMap<String, String>>,
    ) -> PyResult<New> {
        let extras = Extras {
            id,
            priority,
            delay_ms,
            at_ms,
            max_attempts,
            backoff,
            dedup,
            dedup_window_ms,
            dedup_unfinished,
            group,
            headers,
        };
        self.file().new_job(payload(blob)).and_then(|job| New::with(job, extras)).or_raise(py)
    }

    /// Carry out one change.
    fn call(&self, op: &Op) -> Call {
        let (file, ends, op) = (self.file(), op.ends.clone(), op.op.clone());
        let work = async move {
            let proofs = proofs(&op);
            match file.call(op).await {
                Ok(done) => {
                    for kept in &ends {
                        kept.end();
                    }
                    Ok(done.outcome)
                }
                Err(error) => {
                    // With one proof it is certain which job is meant.
                    if let ([kept], 1, Kind::LeaseLost) = (&ends[..], proofs, error.kind()) {
                        kept.refused();
                    }
                    Err(error)
                }
            }
        };
        Call::new(work, |py, outcome| values::outcome(py, &outcome))
    }

    /// Claim up to `max` jobs; `wait_ms` None waits until there is one. `lease_ms` None is what their queues say.
    #[pyo3(signature = (queues, max, lease_ms, endless, wait_ms, worker))]
    fn claim(
        &self,
        queues: Option<Vec<String>>,
        max: u32,
        lease_ms: Option<u64>,
        endless: bool,
        wait_ms: Option<u64>,
        worker: Option<String>,
    ) -> Call {
        let ((file, keeper), extends) = (self.parts().clone(), self.extends);
        let mut request = file.claim(max).queues(queues.map_or(Queues::Any, Queues::Named));
        request = match lease_ms {
            _ if endless => request.without_end(),
            Some(time) => request.lease(Duration::from_millis(time)),
            None => request,
        };
        request = match wait_ms {
            Some(0) => request,
            Some(time) => request.wait(Duration::from_millis(time)),
            None => request.wait_forever(),
        };
        if let Some(name) = worker {
            request = request.worker(name);
        }
        let work = async move {
            // From here on each job is owned: it is handed back if nobody takes it.
            let taken = request.await?.into_iter();
            Ok(taken
                .map(|t| {
                    let lease = t.lasts.unwrap_or_default();
                    let kept = if extends { keeper.keep(&t, lease) } else { keeper.watch_only(&t, lease) };
                    Held::new(t, kept, &file)
                })
                .collect::<Vec<_>>())
        };
        Call::new(work, |py, held| held.into_py_any(py))
    }

    /// One job with its bytes: what is known, its payload, its result; or None.
    fn get(&self, py: Python<'_>, id: &str) -> PyResult<Call> {
        let (file, id) = (self.file(), id.parse().or_raise(py)?);
        Ok(Call::new(async move { file.get(id).await }, show_detail))
    }

    /// A page of jobs and the cursor of the next one.
    #[expect(clippy::too_many_arguments, reason = "each is a thing to filter by")]
    fn list(
        &self,
        py: Python<'_>,
        queue: Option<String>,
        states: Vec<String>,
        group: Option<String>,
        expired: bool,
        error: Option<String>,
        after: Option<u64>,
        limit: u32,
    ) -> PyResult<Call> {
        let states = values::states(states).or_raise(py)?;
        let filter = Filter { queue, states, group, expired, error };
        let file = self.file();
        let work = async move { file.list(filter, after.map(Cursor), limit).await };
        Ok(Call::new(work, |py, page| values::page(py, &page)))
    }

    /// The policy of a queue.
    fn policy(&self, py: Python<'_>, queue: &str) -> PyResult<Call> {
        let queue = self.file().queue(queue).or_raise(py)?;
        Ok(Call::shown(async move { queue.policy().await }))
    }

    /// Fresh lives for the finished jobs that match; how many.
    fn requeue_all(
        &self,
        py: Python<'_>,
        queue: Option<String>,
        states: Vec<String>,
        group: Option<String>,
        error: Option<String>,
    ) -> PyResult<Call> {
        let states = values::states(states).or_raise(py)?;
        let (file, filter) = (self.file(), Filter { queue, states, group, error, expired: false });
        Ok(Call::shown(async move { file.requeue_all(&filter).await }))
    }

    /// The schedules of a queue, or of all.
    fn schedules(&self, py: Python<'_>, queue: Option<&str>) -> PyResult<Call> {
        let file = self.file();
        let queue = queue.map(|name| file.queue(name)).transpose().or_raise(py)?;
        let work = async move {
            match queue {
                Some(queue) => queue.schedules().await,
                None => file.schedules().await,
            }
        };
        Ok(Call::new(work, manage::schedules))
    }

    /// No more jobs go in or out; wait until nobody works on any. Answers how many are still worked on.
    fn drain(&self, py: Python<'_>, queue: &str, timeout_ms: Option<u64>) -> PyResult<Call> {
        let queue = self.file().queue(queue).or_raise(py)?;
        Ok(Call::shown(async move { queue.drain(timeout_ms.map(Duration::from_millis)).await }))
    }

    /// Write what may leave to the archive; how many lives.
    fn archive(&self) -> Call {
        let file = self.file();
        Call::shown(async move { file.archive().await })
    }

    /// The archive objects with lives that finished after this place.
    fn archives(&self, queue: Option<String>, after: u64) -> Call {
        let file = self.file();
        Call::shown(async move { file.archives(queue.as_deref(), after).await })
    }

    /// The finished lives that are still in the file.
    fn lives(&self, queue: Option<String>, after: u64, until: u64, limit: u32) -> Call {
        let file = self.file();
        let work = async move { file.lives(queue.as_deref(), after, until, limit).await };
        Call::new(work, manage::lives)
    }

    /// Every queue with its counts.
    fn queues(&self, max_age_ms: Option<u64>) -> Call {
        let file = self.file();
        let work = async move { file.queues(max_age_ms.map(Duration::from_millis)).await };
        Call::new(work, |py, queues| values::queues(py, &queues))
    }

    /// The queue file as a whole.
    fn stats(&self, max_age_ms: Option<u64>) -> Call {
        let file = self.file();
        let work = async move { file.stats(max_age_ms.map(Duration::from_millis)).await };
        Call::new(work, |py, stats| values::stats(py, &stats))
    }

    /// What the queue file tells of its own workload.
    fn workload(&self) -> Call {
        fit::workload(self.file())
    }

    /// After an unknown outcome: make sure that nothing sent before can still land.
    fn settle(&self) -> Call {
        let file = self.file();
        Call::new(async move { file.settle().await }, |py, seq| seq.into_py_any(py))
    }

    /// Publish what was changed locally.
    fn sync(&self) -> Call {
        let file = self.file();
        Call::shown(async move { file.sync().await })
    }

    /// Bring what others published; what is not published stands against it unless it is to be dropped.
    fn snapshot(&self, discard: bool) -> Call {
        let file = self.file();
        Call::shown(async move { file.snapshot(discard).await })
    }

    /// What is not published.
    fn dirty(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        values::json(py, &self.file().dirty().or_raise(py)?)
    }

    /// The newest state as a SQLite file.
    fn export(&self, path: PathBuf, replace: bool) -> Call {
        let file = self.file();
        Call::shown(async move { file.export(path, replace).await })
    }

    /// The local state with what is not published as a SQLite file, and the difference beside it.
    fn export_pending(&self, path: PathBuf) -> Call {
        let file = self.file();
        Call::plain(async move { file.export_pending(&path).await })
    }

    /// The newest commits that the log still has.
    fn history(&self, limit: u32) -> Call {
        let file = self.file();
        Call::shown(async move { file.history(limit).await })
    }

    /// Delete what has not been needed for so long.
    fn collect(&self, grace_ms: u64) -> Call {
        let file = self.file();
        Call::shown(async move { file.collect(Duration::from_millis(grace_ms)).await })
    }

    /// Where the local state lies, if there is any.
    fn directory(&self, py: Python<'_>) -> PyResult<Option<PathBuf>> {
        self.file().directory().or_raise(py)
    }

    /// Everything that is measured, as numbers and as text for Prometheus.
    fn metrics(&self, max_age_ms: Option<u64>) -> Call {
        let file = self.file();
        Call::new(values::measure(file, max_age_ms.map(Duration::from_millis)), values::measured)
    }

    /// What is told from now on: events, if there is to be room for any, and losses of leases.
    fn listen(&self, py: Python<'_>, room: usize) -> PyResult<(Reader, Teller)> {
        listen(&self.file(), room).or_raise(py)
    }

    /// What the package keeps with the file: who reads what is told, and who traces.
    #[getter]
    fn beside(&self, py: Python<'_>) -> Py<PyDict> {
        self.beside.get_or_init(py, || PyDict::new(py).unbind()).clone_ref(py)
    }

    /// Seconds by which two clocks may differ.
    fn max_skew(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(self.file().max_skew().or_raise(py)?.as_secs_f64())
    }

    /// Refuse a name that no queue can have.
    fn check_queue(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.file().queue(name).map(drop).or_raise(py)
    }

    /// Wait until a job is finished; None when it is not within that time. `timeout_ms` None waits as long as it takes.
    fn finished(&self, py: Python<'_>, id: &str, timeout_ms: Option<u64>) -> PyResult<Call> {
        let (file, id) = (self.file(), id.parse().or_raise(py)?);
        let work = async move { file.finished(id, timeout_ms.map(Duration::from_millis)).await };
        Ok(Call::new(work, show_detail))
    }

    /// Hold a job that was claimed elsewhere until so long from now.
    #[expect(clippy::needless_pass_by_value, reason = "Python hands over a proof")]
    fn extend(&self, py: Python<'_>, held: Proof<'_>, lease_ms: u64) -> PyResult<Call> {
        let (file, (held, _)) = (self.file(), held.parts().or_raise(py)?);
        Ok(Call::plain(async move { file.extend(held, Duration::from_millis(lease_ms)).await.map(drop) }))
    }

    /// Wait until what was handed back is back.
    fn flush(&self) -> Call {
        let (_, keeper) = self.parts().clone();
        Call::plain(async move {
            keeper.flush().await;
            Ok(())
        })
    }

    /// Hand back what nobody worked on, answer what was sent, and end. Answers what is left unpublished.
    fn close(&self) -> Call {
        let (file, keeper) = self.parts().clone();
        Call::shown(async move {
            keeper.flush().await;
            let left = match file.dirty() {
                // Closed already, and told then.
                Err(error) if error.code() == Code::Closed => Unsynced::default(),
                left => left?,
            };
            file.close().await?;
            Ok(left)
        })
    }
}
