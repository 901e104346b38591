//! [`File`]: the engine's handle on a queue file.

use std::future::IntoFuture;
use std::path::PathBuf;
use std::time::Duration;

use bucketq::{Code, Filter, Keeper, Payload, QueueFile, Queues, Unsynced};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use tokio::sync::watch;

use crate::call::Call;
use crate::errors::OrRaise;
use crate::events::{Reader, Teller, listen};
use crate::held::Held;
use crate::op::{Blob, Extras, New, Op, Proof, payload};
use crate::{fit, manage, reads, runtime, settings, values};

/// Listeners and tracing that the package attaches to an open queue file.
#[pyclass(get_all, set_all, module = "bucketq._native")]
#[derive(Default)]
pub struct Hooks {
    /// Traces and measures calls.
    telemetry: Option<Py<PyAny>>,
    /// Delivers events and lost leases.
    listening: Option<Py<PyAny>>,
}

/// Ends claims that wait, from any thread: they return no jobs.
#[pyclass(frozen, module = "bucketq._native")]
pub struct Leave {
    told: watch::Sender<bool>,
}

#[pymethods]
impl Leave {
    #[new]
    fn new() -> Self {
        Self { told: watch::Sender::new(false) }
    }

    /// Ends the claims that wait now, and those that come.
    fn leave(&self) {
        self.told.send_replace(true);
    }
}

/// An open queue file.
#[pyclass(frozen, module = "bucketq._native")]
pub struct File {
    /// Always present; only drop takes it.
    open: Option<(QueueFile, Keeper)>,
    /// Whether the keeper renews the leases of claimed jobs.
    extends: bool,
    hooks: PyOnceLock<Py<Hooks>>,
    pid: u32,
}

impl File {
    /// Returns the handle with a keeper for the jobs that it claims.
    pub fn of(file: QueueFile, extends: bool) -> bucketq::Result<Self> {
        let (keeper, task) = Keeper::new(&file)?;
        runtime::get()?.spawn(task);
        Ok(Self { open: Some((file, keeper)), extends, hooks: PyOnceLock::new(), pid: std::process::id() })
    }

    /// Returns a function to call when the clock of a test has jumped; it returns false when the file is gone.
    pub fn nudge(&self) -> impl Fn() -> bool + Send + Sync + use<> {
        self.parts().1.nudge()
    }

    fn file(&self) -> QueueFile {
        self.parts().0.clone()
    }

    /// Returns a job to be enqueued, with a fresh id.
    pub fn fresh(&self, payload: Payload) -> bucketq::Result<bucketq::New> {
        self.parts().0.new_job(payload)
    }

    fn send(&self, op: Op) -> Call {
        let (file, expected) = (self.file(), op.expected.clone());
        let work = async move {
            let done = file.call(op.change.clone()).await;
            op.settled(done.as_ref().err());
            done.map(|done| done.outcome)
        };
        Call::new(work, move |py, outcome| expected.convert(py, outcome))
    }

    fn parts(&self) -> &(QueueFile, Keeper) {
        self.open.as_ref().expect("taken by drop only")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if !runtime::is_home(self.pid) {
            // Its writer runs in the parent of this forked process; dropping its parts could wait forever.
            std::mem::forget(self.open.take());
        }
    }
}

/// Opens a queue file; `settings` has options of the engine by name.
#[pyfunction]
pub fn open(py: Python<'_>, url: String, settings: &Bound<'_, PyDict>) -> PyResult<Call> {
    let options = settings::options(settings)?.or_raise(py)?;
    let work = async move { File::of(QueueFile::open(&url, options).await?, true) };
    Ok(Call::new(work, |py, file| file.into_py_any(py)))
}

#[pymethods]
impl File {
    /// Returns a job to be enqueued, with a fresh id unless the extras name one.
    #[expect(clippy::new_ret_no_self, clippy::wrong_self_convention, reason = "it makes a new job")]
    fn new(&self, py: Python<'_>, blob: Blob<'_>, extras: Extras) -> PyResult<New> {
        self.fresh(payload(blob)).and_then(|job| New::with(job, extras)).or_raise(py)
    }

    /// Enqueues these jobs, all or none.
    fn enqueue(
        &self,
        py: Python<'_>,
        queue: String,
        jobs: Vec<((PyBackedBytes, String), Extras)>,
    ) -> PyResult<Call> {
        let new = |((bytes, content_type), extras): ((PyBackedBytes, String), Extras)| {
            Ok(New::with(self.fresh(payload((&bytes, content_type)))?, extras)?.job)
        };
        let jobs = jobs.into_iter().map(new).collect::<bucketq::Result<_>>().or_raise(py)?;
        Ok(self.send(Op::of_jobs(queue, jobs)))
    }

    /// Carries out one op.
    fn call(&self, op: &Op) -> Call {
        self.send(op.clone())
    }

    /// Claims up to `max` jobs; `wait_ms` None waits until there is one. `lease_ms` None uses the time in their queues'
    /// policies. `ends` ends another job in the same commit; `done` ends the claimed ones.
    #[expect(clippy::too_many_arguments, reason = "each is a part of the claim")]
    #[pyo3(signature = (queues, max, lease_ms, endless, wait_ms, worker, extend=true, id=None, done=false, ends=None, leave=None))]
    fn claim(
        &self,
        py: Python<'_>,
        queues: Option<Vec<String>>,
        max: u32,
        lease_ms: Option<u64>,
        endless: bool,
        wait_ms: Option<u64>,
        worker: Option<String>,
        extend: bool,
        id: Option<&str>,
        done: bool,
        ends: Option<PyRef<'_, Op>>,
        leave: Option<PyRef<'_, Leave>>,
    ) -> PyResult<Call> {
        let ((file, keeper), extends) = (self.parts().clone(), self.extends && extend);
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
        if let Some(id) = id {
            request = request.only(vec![id.parse().or_raise(py)?]);
        }
        if done {
            request = request.and_end();
        }
        let before = ends.map(|op| Op::clone(&op));
        if let Some(op) = &before {
            request = request.after(op.change.clone());
        }
        let leaving = leave.map(|leave| leave.told.subscribe());
        let work = async move {
            let claimed = match leaving {
                None => request.await,
                Some(mut leaving) => tokio::select! {
                    biased;
                    _ = leaving.wait_for(|told| *told) => Ok(vec![]),
                    claimed = request.into_future() => claimed,
                },
            };
            if let Some(op) = &before {
                op.settled(claimed.as_ref().err());
            }
            // From here on each job has an owner: it is handed back if nobody takes it.
            let taken = claimed?.into_iter();
            Ok(taken
                .map(|t| {
                    let lasts = t.lasts.unwrap_or_default();
                    let guard =
                        if extends && !done { keeper.keep(&t, lasts) } else { keeper.watch_only(&t, lasts) };
                    if done {
                        guard.end();
                    }
                    Held::of(t, guard, &file)
                })
                .collect::<Vec<_>>())
        };
        Ok(Call::new(work, |py, held| held.into_py_any(py)))
    }

    /// Returns one job with its payload, its result and its attempts; or None.
    fn get(&self, py: Python<'_>, id: &str, max_age_ms: Option<u64>) -> PyResult<Call> {
        let id = id.parse().or_raise(py)?;
        Ok(reads::get(self.file(), id, max_age_ms))
    }

    /// Returns these jobs, each like `get`.
    fn get_many(&self, py: Python<'_>, ids: Vec<String>, max_age_ms: Option<u64>) -> PyResult<Call> {
        let ids = ids.into_iter().map(|id| id.parse()).collect::<bucketq::Result<Vec<_>>>().or_raise(py)?;
        Ok(reads::get_many(self.file(), ids, max_age_ms))
    }

    /// Returns a page of jobs and the cursor of the next one.
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
        payloads: bool,
    ) -> PyResult<Call> {
        let states = values::states(states).or_raise(py)?;
        let filter = Filter { queue, states, group, expired, error };
        Ok(reads::list(self.file(), filter, after, limit, payloads))
    }

    /// Returns the policy of a queue.
    fn policy(&self, py: Python<'_>, queue: &str) -> PyResult<Call> {
        let queue = self.file().queue(queue).or_raise(py)?;
        Ok(Call::shown(async move { queue.policy().await }))
    }

    /// Requeues the finished jobs that match; returns how many.
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

    /// Moves the jobs of a queue that match to another queue; returns how many.
    fn move_all(
        &self,
        py: Python<'_>,
        queue: String,
        states: Vec<String>,
        group: Option<String>,
        error: Option<String>,
        to: String,
    ) -> PyResult<Call> {
        let (file, states) = (self.file(), values::states(states).or_raise(py)?);
        let filter = Filter { queue: Some(queue), states, group, error, expired: false };
        Ok(Call::shown(async move { file.move_all(&filter, &to).await }))
    }

    /// Sends dead letters back, or to another queue; returns how many.
    fn redrive(
        &self,
        py: Python<'_>,
        queue: &str,
        to: Option<String>,
        limit: Option<u64>,
        rate: Option<&str>,
    ) -> PyResult<Call> {
        let queue = self.file().queue(queue).or_raise(py)?;
        let rate = rate.map(str::parse::<bucketq::Rate>).transpose().or_raise(py)?;
        Ok(Call::shown(async move { queue.redrive(to.as_deref(), limit, rate).await }))
    }

    /// Deletes a queue with what is in it; returns how many jobs, none if it did not exist.
    fn delete_queue(&self, py: Python<'_>, queue: &str) -> PyResult<Call> {
        let queue = self.file().queue(queue).or_raise(py)?;
        Ok(Call::shown(async move { queue.delete().await }))
    }

    /// Changes the policy of a queue, in several commits if many jobs must be marked; the changes are JSON.
    fn configure(&self, py: Python<'_>, queue: &str, changes: &str) -> PyResult<Call> {
        let changes = manage::changes(changes).or_raise(py)?;
        let queue = self.file().queue(queue).or_raise(py)?;
        Ok(Call::shown(async move { queue.configure(changes).await }))
    }

    /// Deletes the jobs of a queue that are in these states now, some in each commit.
    fn purge(&self, py: Python<'_>, queue: &str, states: Vec<String>) -> PyResult<Call> {
        let states = values::states(states).or_raise(py)?;
        let queue = self.file().queue(queue).or_raise(py)?;
        Ok(Call::shown(async move { queue.purge(&states).await }))
    }

    /// Returns the schedules of a queue, or of all.
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

    /// Stops accepting and handing out jobs, and waits until no worker holds one. Returns how many are still worked on.
    fn drain(&self, py: Python<'_>, queue: &str, timeout_ms: Option<u64>) -> PyResult<Call> {
        let queue = self.file().queue(queue).or_raise(py)?;
        Ok(Call::shown(async move { queue.drain(timeout_ms.map(Duration::from_millis)).await }))
    }

    /// Archives the finished jobs that may leave now; returns how many.
    fn archive(&self) -> Call {
        let file = self.file();
        Call::shown(async move { file.archive().await })
    }

    /// Returns the archive objects with runs that finished after this `finish_seq`.
    fn archives(&self, queue: Option<String>, after: u64) -> Call {
        let file = self.file();
        Call::shown(async move { file.archives(queue.as_deref(), after).await })
    }

    /// Returns the finished runs that are still in the file.
    fn lives(&self, queue: Option<String>, after: u64, until: u64, limit: u32) -> Call {
        let file = self.file();
        let work = async move { file.lives(queue.as_deref(), after, until, limit).await };
        Call::new(work, manage::lives)
    }

    /// Returns every queue with its counts.
    fn queues(&self, max_age_ms: Option<u64>) -> Call {
        let file = self.file();
        let work = async move { file.queues(max_age_ms.map(Duration::from_millis)).await };
        Call::new(work, |py, queues| values::queues(py, &queues))
    }

    /// Returns the statistics of the whole queue file.
    fn stats(&self, max_age_ms: Option<u64>) -> Call {
        let file = self.file();
        let work = async move { file.stats(max_age_ms.map(Duration::from_millis)).await };
        Call::new(work, |py, stats| values::stats(py, &stats))
    }

    /// Returns the workload that the queue file shows.
    fn workload(&self) -> Call {
        fit::workload(self.file())
    }

    /// Makes sure, after an unknown outcome, that nothing sent before can still land.
    fn settle(&self) -> Call {
        let file = self.file();
        Call::new(async move { file.settle().await }, |py, seq| seq.into_py_any(py))
    }

    /// Publishes the unpublished changes.
    fn sync(&self) -> Call {
        let file = self.file();
        Call::shown(async move { file.sync().await })
    }

    /// Fetches what others published; fails while changes are unpublished, unless `discard` drops them.
    fn snapshot(&self, discard: bool) -> Call {
        let file = self.file();
        Call::shown(async move { file.snapshot(discard).await })
    }

    /// Returns the unpublished changes.
    fn dirty(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        values::json(py, &self.file().dirty().or_raise(py)?)
    }

    /// Writes the newest state as a SQLite file.
    fn export(&self, path: PathBuf, replace: bool) -> Call {
        let file = self.file();
        Call::shown(async move { file.export(path, replace).await })
    }

    /// Writes the local state, including unpublished changes, as a SQLite file, and the difference beside it.
    fn export_pending(&self, path: PathBuf) -> Call {
        let file = self.file();
        Call::plain(async move { file.export_pending(&path).await })
    }

    /// Returns the newest commits that the log still has.
    fn history(&self, limit: u32) -> Call {
        let file = self.file();
        Call::shown(async move { file.history(limit).await })
    }

    /// Deletes objects that have not been needed for this long.
    fn collect(&self, grace_ms: u64) -> Call {
        let file = self.file();
        Call::shown(async move { file.collect(Duration::from_millis(grace_ms)).await })
    }

    /// Returns the directory of the local state, if there is one.
    fn directory(&self, py: Python<'_>) -> PyResult<Option<PathBuf>> {
        self.file().directory().or_raise(py)
    }

    /// Returns which process of this host writes, and the directory in which its processes meet.
    fn host_role(&self, py: Python<'_>) -> PyResult<(Py<PyAny>, Option<PathBuf>)> {
        let file = self.file();
        Ok((values::json(py, &file.host_role().or_raise(py)?)?, file.host_dir().or_raise(py)?))
    }

    /// Returns all measurements, as numbers and as text for Prometheus.
    fn metrics(&self, max_age_ms: Option<u64>) -> Call {
        let file = self.file();
        Call::new(values::measure(file, max_age_ms.map(Duration::from_millis)), values::measured)
    }

    /// Starts to deliver lost leases and, if `room` is not 0, events.
    fn listen(&self, py: Python<'_>, room: usize) -> PyResult<(Reader, Teller)> {
        listen(&self.file(), room).or_raise(py)
    }

    /// Returns what the package attached to this file.
    #[getter]
    fn hooks(&self, py: Python<'_>) -> PyResult<Py<Hooks>> {
        self.hooks.get_or_try_init(py, || Py::new(py, Hooks::default())).map(|hooks| hooks.clone_ref(py))
    }

    /// Returns by how many seconds two clocks may differ.
    fn max_skew(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(self.file().max_skew().or_raise(py)?.as_secs_f64())
    }

    /// Refuses an invalid name of a queue.
    fn check_queue(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.file().queue(name).map(drop).or_raise(py)
    }

    /// Waits until a job is finished; returns None when it is not within that time. `timeout_ms` None has no time
    /// limit.
    fn finished(&self, py: Python<'_>, id: &str, timeout_ms: Option<u64>) -> PyResult<Call> {
        let (file, id) = (self.file(), id.parse().or_raise(py)?);
        let work = async move { file.finished(id, timeout_ms.map(Duration::from_millis)).await };
        Ok(Call::new(work, reads::detail))
    }

    /// Extends the lease of a job that another process claimed: it ends this long from now.
    #[expect(clippy::needless_pass_by_value, reason = "Python hands over a proof")]
    fn extend(&self, py: Python<'_>, held: Proof<'_>, lease_ms: u64) -> PyResult<Call> {
        let (file, (held, _)) = (self.file(), held.parts().or_raise(py)?);
        Ok(Call::plain(async move { file.extend(held, Duration::from_millis(lease_ms)).await.map(drop) }))
    }

    /// Waits until all jobs handed back so far are released.
    fn flush(&self) -> Call {
        if !runtime::is_home(self.pid) {
            return Call::plain(async { Ok(()) });
        }
        let (_, keeper) = self.parts().clone();
        Call::plain(async move {
            keeper.flush().await;
            Ok(())
        })
    }

    /// Hands back untouched jobs, waits until all calls sent before have returned, and closes. Returns what is still
    /// pending.
    fn close(&self) -> Call {
        if !runtime::is_home(self.pid) {
            // The parent of this forked process has it open, and closes it.
            return Call::shown(async { Ok(Unsynced::default()) });
        }
        let (file, keeper) = self.parts().clone();
        Call::shown(async move {
            keeper.flush().await;
            let left = match file.dirty() {
                // Closed already; that call returned it.
                Err(error) if error.code() == Code::Closed => Unsynced::default(),
                left => left?,
            };
            file.close().await?;
            Ok(left)
        })
    }
}
