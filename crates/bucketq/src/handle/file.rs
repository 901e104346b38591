//! [`QueueFile`]: the handle on one queue file. Every method sends an op or a query through the door.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::bytes::metrics::{self, Cost, Histograms, Metrics};
use crate::bytes::store::Store;
use crate::door::{Done, Door, Events, Wait, Work};
use crate::engine::local::Dir;
use crate::fork;
use crate::handle::claim::{AGES, ClaimRequest};
use crate::handle::queue::Queue;
use crate::handle::registry;
use crate::noun::config::Options;
use crate::noun::env::Env;
use crate::noun::error::{Code, Error, Result, only};
use crate::noun::event::Happened;
use crate::noun::host::HostRole;
use crate::noun::job::{JobId, New, Payload, State};
use crate::noun::lease::FOREVER_MS;
use crate::noun::op::{Held, Op, Outcome};
use crate::noun::query::{
    Answer, Archives, Collected, Commit, Cursor, Detail, DetailPage, Exported, Filter, Finished, Page, Query,
    QueueInfo, Stats,
};
use crate::state::db::{Limits, check as check_op};

/// The codes of a refused enqueue that an event reports.
const REFUSALS: [Code; 4] = [Code::QueueFull, Code::Blocked, Code::Draining, Code::NoSuchQueue];
/// Jobs in one query for several.
const MOST_JOBS: usize = 1_000;

#[derive(Debug)]
struct QueueFileInner {
    door: RwLock<Option<Arc<Door>>>,
    closing: watch::Sender<bool>,
    pid: u32,
}

/// A handle on one queue file; clones are the same handle. Handles of one process on one queue file share its writer.
#[derive(Clone, Debug)]
pub struct QueueFile {
    inner: Arc<QueueFileInner>,
}

impl QueueFile {
    /// Opens `s3://bucket/path/name`, `file:///dir/name` (or a plain path), or `memory://name`.
    pub async fn open(url: &str, options: Options) -> Result<Self> {
        Ok(Self::new(Box::pin(registry::open(url, options)).await?))
    }

    /// Opens a queue file in the given store, with the given clock. Shares nothing with other handles.
    pub async fn open_with(store: Arc<dyn Store>, name: &str, options: Options, env: Env) -> Result<Self> {
        Ok(Self::new(registry::open_with(store, name, options, env, None).await?))
    }

    /// Does the same in Local mode, with the given directory.
    pub async fn open_local(
        store: Arc<dyn Store>,
        name: &str,
        options: Options,
        env: Env,
        dir: Arc<dyn Dir>,
    ) -> Result<Self> {
        Ok(Self::new(registry::open_with(store, name, options, env, Some(dir)).await?))
    }

    fn new(door: Arc<Door>) -> Self {
        let inner = QueueFileInner {
            door: RwLock::new(Some(door)),
            closing: watch::Sender::new(false),
            pid: std::process::id(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Returns the queue of this name; its first job creates it.
    pub fn queue(&self, name: &str) -> Result<Queue> {
        let limits = Limits { max_payload: 0, max_pages: u32::MAX };
        check_op(&Op::Resume { queue: name.to_owned() }, &limits)?;
        Ok(Queue::new(self.clone(), name))
    }

    /// Carries out one op. The methods below do the same with the arguments spelled out.
    pub async fn call(&self, op: Op) -> Result<Done> {
        let door = self.door()?;
        check(&door, &op)?;
        let enqueues = if door.shared.watchers.any() { op.enqueues() } else { vec![] };
        let done = if op.jobs().is_empty() {
            door.call(Work::Op(op), Wait::No).await
        } else {
            door.call_until(Some(self.closing()), Work::Op(op), Wait::No).await
        };
        if let Some(code) = done.as_ref().err().map(Error::code).filter(|code| REFUSALS.contains(code)) {
            for (queue, jobs) in enqueues {
                self.emit(|| Happened::Refused { queue: queue.into(), jobs, code }, (0, 0));
            }
        }
        done
    }

    /// Runs one query. With `max_age`, the state may be that old, and the query may cost no request.
    pub async fn ask(&self, query: Query, max_age: Option<Duration>) -> Result<Answer> {
        self.door()?.ask(query, max_age).await
    }

    /// Returns a job to be enqueued, with a fresh id and every default.
    pub fn new_job(&self, payload: Payload) -> Result<New> {
        let door = self.door()?;
        Ok(New::new(JobId::new(door.env.wall_ms(), door.env.bytes()), payload))
    }

    /// Builds a claim of up to `max` jobs of any queue; `.await` the request.
    pub fn claim(&self, max: u32) -> ClaimRequest {
        ClaimRequest::new(self.clone(), max)
    }

    /// Acknowledges the job: it is done.
    pub async fn ack(&self, held: Held) -> Result<()> {
        only!(self.call(Op::Ack { held, result: None }).await?.outcome, Outcome::Acked => ())
    }

    /// Acknowledges the job and stores its result.
    pub async fn ack_with(&self, held: Held, result: Payload) -> Result<()> {
        only!(self.call(Op::Ack { held, result: Some(result) }).await?.outcome, Outcome::Acked => ())
    }

    /// Reports that the attempt failed. Without a delay the job's back-off decides when it runs again. Returns its new
    /// state.
    pub async fn nack(&self, held: Held, delay: Option<Duration>, error: Option<String>) -> Result<State> {
        let delay_ms = delay.map(|d| millis(d, "delay")).transpose()?;
        let outcome = self.call(Op::Nack { held, delay_ms, error }).await?.outcome;
        only!(outcome, Outcome::Nacked { state, .. } => state)
    }

    /// Releases the job: the attempt does not count.
    pub async fn release(&self, held: Held) -> Result<()> {
        only!(self.call(Op::Release { held }).await?.outcome, Outcome::Released => ())
    }

    /// Rejects the job: it can never succeed and is dead at once.
    pub async fn reject(&self, held: Held, error: Option<String>) -> Result<()> {
        only!(self.call(Op::Reject { held, error }).await?.outcome, Outcome::Rejected => ())
    }

    /// Extends the lease: it ends `lease` from now, even if that is earlier than before. Returns the new deadline.
    /// Fails with `lease_lost` if that deadline has passed before the reply. A lease without end stays without end.
    pub async fn extend(&self, held: Held, lease: Duration) -> Result<Instant> {
        let deadline = self.hold(held, lease, false).await?;
        if self.door()?.env.monotonic() >= deadline {
            return Err(Error::new(
                Code::LeaseLost,
                "the lease was extended, but the reply came after it had run out",
            ));
        }
        Ok(deadline)
    }

    /// Sends an extend; with `at_least` it never shortens the lease. Returns a moment until which the job is surely
    /// held, which may already have passed.
    pub(crate) async fn hold(&self, held: Held, lease: Duration, at_least: bool) -> Result<Instant> {
        let door = self.door()?;
        let op = Op::Extend { held, lease_ms: millis(lease, "lease")?, at_least };
        check(&door, &op)?;
        let done = door.call(Work::Op(op), Wait::No).await?;
        let expires_ms = only!(done.outcome, Outcome::Extended { expires_ms } => expires_ms)?;
        let is_endless = expires_ms >= FOREVER_MS;
        Ok(if is_endless { done.began + AGES } else { deadline(&door, done.began, lease) })
    }

    /// Cancels a job that no worker holds. Returns the state it was in.
    pub async fn cancel(&self, id: JobId) -> Result<State> {
        only!(self.call(Op::Cancel { id, leased: false }).await?.outcome, Outcome::Cancelled { was } => was)
    }

    /// Requeues a finished job. Returns the new run number.
    pub async fn requeue(&self, id: JobId) -> Result<u32> {
        only!(self.call(Op::Requeue { id, run: None }).await?.outcome, Outcome::Requeued { run } => run)
    }

    /// Moves a job that no worker holds to another queue, as a new run there. Returns that run. A dead letter stays
    /// one.
    pub async fn move_job(&self, id: JobId, to: &str) -> Result<u32> {
        let op = Op::Move { id, run: None, to: to.to_owned() };
        only!(self.call(op).await?.outcome, Outcome::Moved { run } => run)
    }

    /// Deletes a job; one that a worker holds only with `leased`. Returns the state it was in; none if it was not there.
    pub async fn delete(&self, id: JobId, leased: bool) -> Result<Option<State>> {
        only!(self.call(Op::Delete { id, leased }).await?.outcome, Outcome::Deleted { was } => was)
    }

    /// Acknowledges a job without its token, for a worker that has lost its lease: a job of this run that is not
    /// finished is done. A worker that holds it by now loses it.
    pub async fn ack_late(&self, id: JobId, run: u32, result: Option<Payload>) -> Result<()> {
        only!(self.call(Op::AckLate { id, run, result }).await?.outcome, Outcome::Acked => ())
    }

    /// Sets whether a queue must be created before its first use, for all processes: see [`Queue::create`].
    pub async fn strict_queues(&self, strict: bool) -> Result<()> {
        only!(self.call(Op::StrictQueues { strict }).await?.outcome, Outcome::StrictQueuesSet => ())
    }

    /// Carries out all of these ops or none, in one commit.
    pub async fn atomic(&self, ops: Vec<Op>) -> Result<Vec<Outcome>> {
        only!(self.call(Op::Atomic(ops)).await?.outcome, Outcome::Atomic(outcomes) => outcomes)
    }

    /// Returns one job with its bytes.
    pub async fn get(&self, id: JobId) -> Result<Option<Detail>> {
        only!(self.ask(Query::Get(id), None).await?, Answer::Job(job) => job.map(|j| *j))
    }

    /// Returns one job with its bytes, from a state that may be this old.
    pub async fn get_within(&self, id: JobId, max_age: Duration) -> Result<Option<Detail>> {
        only!(self.ask(Query::Get(id), Some(max_age)).await?, Answer::Job(job) => job.map(|j| *j))
    }

    /// Returns these jobs with their bytes, in this order.
    pub async fn get_many(&self, ids: &[JobId], max_age: Option<Duration>) -> Result<Vec<Option<Detail>>> {
        let mut found = Vec::with_capacity(ids.len());
        while found.len() < ids.len() {
            let rest = &ids[found.len()..];
            let query = Query::GetMany(rest[..rest.len().min(MOST_JOBS)].to_vec());
            found.extend(only!(self.ask(query, max_age).await?, Answer::Jobs(jobs) => jobs)?);
        }
        Ok(found)
    }

    /// Returns a page of jobs with their bytes. It ends early when it has 4 MiB.
    pub async fn list_whole(&self, filter: Filter, after: Option<Cursor>, limit: u32) -> Result<DetailPage> {
        only!(self.ask(Query::ListWhole { filter, after, limit }, None).await?, Answer::Details(page) => page)
    }

    /// Returns a page of jobs.
    pub async fn list(&self, filter: Filter, after: Option<Cursor>, limit: u32) -> Result<Page> {
        only!(self.ask(Query::List { filter, after, limit }, None).await?, Answer::Page(page) => page)
    }

    /// Returns every queue with its counts.
    pub async fn queues(&self, max_age: Option<Duration>) -> Result<Vec<QueueInfo>> {
        only!(self.ask(Query::Queues, max_age).await?, Answer::Queues(queues) => queues)
    }

    /// Returns the statistics of the whole queue file.
    pub async fn stats(&self, max_age: Option<Duration>) -> Result<Stats> {
        only!(self.ask(Query::Stats, max_age).await?, Answer::Stats(stats) => stats)
    }

    /// Returns the newest commits that the log still has, newest first. The log begins at the newest base.
    pub async fn history(&self, limit: u32) -> Result<Vec<Commit>> {
        only!(self.ask(Query::History { limit }, None).await?, Answer::History(commits) => commits)
    }

    /// Writes the newest state to `path` as a plain SQLite file, whole or not at all. Replaces an existing file only
    /// with `replace`. Returns the commit that the file has. Other writers can commit meanwhile.
    pub async fn export(&self, path: impl Into<PathBuf>, replace: bool) -> Result<Exported> {
        self.door()?.export(path.into(), replace).await
    }

    /// Makes sure that nothing sent before can still land: after an unknown outcome, settle, then read (P9). Returns
    /// the number of the commit that settled it.
    pub async fn settle(&self) -> Result<u64> {
        Ok(self.door()?.call(Work::Fence, Wait::No).await?.commit_seq)
    }

    /// Deletes the objects that the queue file has not needed for `grace`, with a commit that raises the floor if one
    /// is necessary. The writer does this itself once a [`grace`](Options::grace) period while there are commits; call
    /// it to do it now. With zero it deletes all unneeded objects: writers are safe, and readers of such an object
    /// start over.
    pub async fn collect(&self, grace: Duration) -> Result<Collected> {
        self.door()?.collect(grace).await
    }

    /// Archives all finished jobs that may leave their queue now, and returns how many. Also expires archive objects
    /// that are too old. The writer does both itself, beside the commits, once enough jobs wait or the oldest has
    /// waited for [`archive_every`](Options::archive_every).
    pub async fn archive(&self) -> Result<u64> {
        self.door()?.archive().await
    }

    /// Returns the archive objects of one queue or of all queues that have runs which finished after this `finish_seq`.
    pub async fn archives(&self, queue: Option<&str>, after: u64) -> Result<Archives> {
        let query = Query::Archives { queue: queue.map(str::to_owned), after };
        only!(self.ask(query, None).await?, Answer::Archives(archives) => archives)
    }

    /// Returns finished runs that are not archived, after one `finish_seq` up to another, at most 1,000.
    pub async fn lives(&self, queue: Option<&str>, after: u64, until: u64, limit: u32) -> Result<Finished> {
        let query = Query::Finished { queue: queue.map(str::to_owned), after, until, limit };
        only!(self.ask(query, None).await?, Answer::Finished(finished) => finished)
    }

    /// Returns which process of this host writes for this handle.
    pub fn host_role(&self) -> Result<HostRole> {
        let door = self.door()?;
        Ok(door.shared.host_role(door.env.monotonic()))
    }

    /// Returns the directory in which this process meets the others of its host; none if it shares no writer.
    pub fn host_dir(&self) -> Result<Option<PathBuf>> {
        Ok(self.door()?.shared.host_dir().map(Path::to_owned))
    }

    /// Returns the counters of the writer behind this handle.
    pub fn metrics(&self) -> Result<Metrics> {
        Ok(self.door()?.shared.counters.read())
    }

    /// Returns how long jobs waited and ran, how long commits took and how large they were. Counts only what went
    /// through this writer.
    pub fn histograms(&self) -> Result<Histograms> {
        Ok(self.door()?.shared.observed.read())
    }

    /// Returns what this writer's requests and this state cost at the prices of the fit model.
    pub fn cost(&self, stats: &Stats) -> Result<Cost> {
        let door = self.door()?;
        let life = door.env.monotonic().saturating_duration_since(door.began);
        Ok(door.shared.counters.read().cost(life, stats.pages))
    }

    /// Returns all measurements as text for Prometheus (docs/watching.md). Job counts are at most `max_age` old.
    pub async fn prometheus(&self, max_age: Option<Duration>) -> Result<String> {
        let stats = self.stats(max_age).await?;
        Ok(metrics::text(&stats, &self.metrics()?, &self.histograms()?, &self.cost(&stats)?))
    }

    /// Returns the events of this writer from now on, each after its commit. Events that arrive while the room is full
    /// are missed and counted; no commit waits for a listener.
    pub fn events(&self, room: usize) -> Result<Events> {
        let shared = &self.door()?.shared;
        Ok(shared.watchers.listen(room, &shared.counters))
    }

    /// Returns the largest clock difference between two writers that the file allows; a lease must be longer than twice
    /// that.
    pub fn max_skew(&self) -> Result<Duration> {
        Ok(Duration::from_millis(u64::from(self.door()?.info.max_skew_ms)))
    }

    /// Waits until all calls sent before have returned, then closes the handle. The last handle of a process also ends
    /// the writer. Waiting claims fail with `closed`. Dropping every clone does the same without waiting.
    pub async fn close(self) -> Result<()> {
        let door = self.inner.door.write().unwrap_or_else(PoisonError::into_inner).take();
        let Some(door) = door else { return Ok(()) };
        self.inner.closing.send_replace(true);
        let (env, deadline) = (door.env.clone(), door.options.deadline);
        // All calls sent before have returned by then, at the latest at their deadlines.
        let all = async {
            door.flush().await;
            let mut ended = door.ended.clone();
            if Arc::into_inner(door).is_some() {
                let _ = ended.wait_for(|e| *e).await;
            }
        };
        tokio::select! {
            biased;
            () = all => {}
            () = env.sleep(deadline) => {
                tracing::warn!("the writer is still waiting for the store; it ends by itself");
            }
        }
        Ok(())
    }

    /// Sends listeners an event that belongs to no commit; `after` is a commit that surely came before it.
    pub(crate) fn emit(&self, what: impl FnOnce() -> Happened, after: (u64, i64)) {
        if let Ok(door) = self.door()
            && door.shared.watchers.any()
        {
            let missed = door.shared.watchers.emit_apart(what(), after);
            door.shared.counters.events_missed.fetch_add(missed, Relaxed);
        }
    }

    /// Becomes true once this handle is being closed.
    pub(crate) fn closing(&self) -> watch::Receiver<bool> {
        self.inner.closing.subscribe()
    }

    pub(crate) fn door(&self) -> Result<Arc<Door>> {
        if self.inner.pid != std::process::id() {
            return Err(Error::new(Code::Closed, fork::INHERITED));
        }
        let door = self.inner.door.read().unwrap_or_else(PoisonError::into_inner);
        door.clone().ok_or_else(|| Error::new(Code::Closed, "this handle was closed"))
    }
}

/// Refuses an op that is invalid, before anything is sent.
pub(crate) fn check(door: &Door, op: &Op) -> Result<()> {
    let limits = Limits { max_payload: door.options.max_payload, max_pages: u32::MAX };
    check_op(op, &limits)?;
    let least = 2 * i64::from(door.info.max_skew_ms);
    if let Some(lease_ms) = op.parts().iter().filter_map(Op::lease_ms).find(|ms| *ms <= least) {
        return Err(Error::invalid(format!(
            "a lease of {lease_ms} ms is too short: it must be longer than {least} ms, twice the max_skew of this queue file; `bucketq set-max-skew` changes that"
        )));
    }
    Ok(())
}

/// Returns until when a lease surely lasts: counted from before its op was sent, less the largest clock difference
/// (P26).
pub(crate) fn deadline(door: &Door, began: Instant, lease: Duration) -> Instant {
    began + lease.saturating_sub(Duration::from_millis(u64::from(door.info.max_skew_ms)))
}

pub(crate) fn millis(time: Duration, what: &str) -> Result<i64> {
    i64::try_from(time.as_millis()).map_err(|_| Error::invalid(format!("the {what} is too long")))
}
