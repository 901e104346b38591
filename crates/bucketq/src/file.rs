//! [`QueueFile`]: the handle on one queue file. Every method is an op or a query through the door.

use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::broken::{self, Broken};
use crate::claim::ClaimRequest;
use crate::config::Options;
use crate::db::{self, Limits};
use crate::door::{Done, Door, Events, Wait, Work};
use crate::env::Env;
use crate::error::{Code, Error, Result};
use crate::event::Happened;
use crate::job::{JobId, New, Payload, State};
use crate::local::Dir;
use crate::metrics::{self, Cost, Histograms, Metrics};
use crate::op::{Held, Op, Outcome};
use crate::policy::Policy;
use crate::query::{
    Answer, Archives, Collected, Commit, Cursor, Detail, Exported, Filter, Finished, Page, Query, QueueInfo,
    Stats,
};
use crate::queue::Queue;
use crate::registry;
use crate::store::Store;

#[derive(Debug)]
struct Inner {
    door: RwLock<Option<Arc<Door>>>,
    closing: watch::Sender<bool>,
    pid: u32,
}

/// A handle on one queue file; clones are the same handle. Handles of one process on one queue file share its writer.
#[derive(Clone, Debug)]
pub struct QueueFile {
    inner: Arc<Inner>,
}

impl QueueFile {
    /// Open `s3://bucket/path/name`, `file:///dir/name` (or a plain path), or `memory://name`.
    pub async fn open(url: &str, options: Options) -> Result<Self> {
        Ok(Self::new(registry::open(url, options).await?))
    }

    /// Open a queue file in a store of one's own, with one's own clock. Nothing is shared with other handles.
    pub async fn open_with(store: Arc<dyn Store>, name: &str, options: Options, env: Env) -> Result<Self> {
        Ok(Self::new(registry::open_with(store, name, options, env, None).await?))
    }

    /// The same in Local mode, with a directory of one's own.
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
        let inner = Inner {
            door: RwLock::new(Some(door)),
            closing: watch::Sender::new(false),
            pid: std::process::id(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The queue of this name; it is made by the first job.
    pub fn queue(&self, name: &str) -> Result<Queue> {
        let limits = Limits { max_payload: 0, max_pages: u32::MAX };
        db::check(&Op::Resume { queue: name.to_owned() }, &limits)?;
        Ok(Queue::new(self.clone(), name))
    }

    /// Carry out one op. The methods below are this with the arguments spelled out.
    pub async fn call(&self, op: Op) -> Result<Done> {
        let door = self.door()?;
        check(&door, &op)?;
        if matches!(op, Op::Enqueue { .. }) {
            return door.call_until(Some(self.closing()), Work::Op(op), Wait::No).await;
        }
        door.call(Work::Op(op), Wait::No).await
    }

    /// Ask one question. With `max_age`, state of that age is good enough and may cost no request.
    pub async fn ask(&self, query: Query, max_age: Option<Duration>) -> Result<Answer> {
        self.door()?.ask(query, max_age).await
    }

    /// A job to be enqueued, with a fresh id and every default.
    pub fn new_job(&self, payload: Payload) -> Result<New> {
        let door = self.door()?;
        Ok(New::new(JobId::new(door.env.wall_ms(), door.env.bytes()), payload))
    }

    /// Ask for up to `max` jobs of any queue; `.await` the request.
    pub fn claim(&self, max: u32) -> ClaimRequest {
        ClaimRequest::new(self.clone(), max)
    }

    /// The job is done.
    pub async fn ack(&self, held: Held) -> Result<()> {
        self.call(Op::Ack { held, result: None }).await.map(|_| ())
    }

    /// The job is done, and this came of it.
    pub async fn ack_with(&self, held: Held, result: Payload) -> Result<()> {
        self.call(Op::Ack { held, result: Some(result) }).await.map(|_| ())
    }

    /// The attempt failed. Without a delay the job's back-off decides when it runs again. Answers its new state.
    pub async fn nack(&self, held: Held, delay: Option<Duration>, error: Option<String>) -> Result<State> {
        let delay_ms = delay.map(|d| millis(d, "delay")).transpose()?;
        match self.call(Op::Nack { held, delay_ms, error }).await?.outcome {
            Outcome::Nacked { state, .. } => Ok(state),
            other => Err(unexpected(&other)),
        }
    }

    /// Give the job back unharmed.
    pub async fn release(&self, held: Held) -> Result<()> {
        self.call(Op::Release { held }).await.map(|_| ())
    }

    /// The job can never succeed.
    pub async fn reject(&self, held: Held, error: Option<String>) -> Result<()> {
        self.call(Op::Reject { held, error }).await.map(|_| ())
    }

    /// Hold the job until `lease` from now. Answers the new deadline; an error when it has passed already.
    pub async fn extend(&self, held: Held, lease: Duration) -> Result<Instant> {
        let door = self.door()?;
        let op = Op::Extend { held, lease_ms: millis(lease, "lease")? };
        check(&door, &op)?;
        let done = door.call(Work::Op(op), Wait::No).await?;
        let deadline = deadline(&door, done.began, lease);
        if door.env.monotonic() >= deadline {
            return Err(Error::new(
                Code::LeaseLost,
                "the lease was extended, but the answer came after it had run out",
            ));
        }
        Ok(deadline)
    }

    /// Take a job back that nobody works on yet. Answers the state it was in.
    pub async fn cancel(&self, id: JobId) -> Result<State> {
        match self.call(Op::Cancel { id, leased: false }).await?.outcome {
            Outcome::Cancelled { was } => Ok(was),
            other => Err(unexpected(&other)),
        }
    }

    /// Give a finished job a fresh life. Answers its number.
    pub async fn requeue(&self, id: JobId) -> Result<u32> {
        match self.call(Op::Requeue { id, run: None }).await?.outcome {
            Outcome::Requeued { run } => Ok(run),
            other => Err(unexpected(&other)),
        }
    }

    /// All of these ops or none, in one commit.
    pub async fn atomic(&self, ops: Vec<Op>) -> Result<Vec<Outcome>> {
        match self.call(Op::Atomic(ops)).await?.outcome {
            Outcome::Atomic(outcomes) => Ok(outcomes),
            other => Err(unexpected(&other)),
        }
    }

    /// One job with its bytes.
    pub async fn get(&self, id: JobId) -> Result<Option<Detail>> {
        match self.ask(Query::Get(id), None).await? {
            Answer::Job(job) => Ok(job.map(|j| *j)),
            _ => Err(Error::new(Code::Internal, "another answer than asked for")),
        }
    }

    /// A page of jobs.
    pub async fn list(&self, filter: Filter, after: Option<Cursor>, limit: u32) -> Result<Page> {
        match self.ask(Query::List { filter, after, limit }, None).await? {
            Answer::Page(page) => Ok(page),
            _ => Err(Error::new(Code::Internal, "another answer than asked for")),
        }
    }

    /// Every queue with its counts.
    pub async fn queues(&self, max_age: Option<Duration>) -> Result<Vec<QueueInfo>> {
        match self.ask(Query::Queues, max_age).await? {
            Answer::Queues(queues) => Ok(queues),
            _ => Err(Error::new(Code::Internal, "another answer than asked for")),
        }
    }

    /// The queue file as a whole.
    pub async fn stats(&self, max_age: Option<Duration>) -> Result<Stats> {
        match self.ask(Query::Stats, max_age).await? {
            Answer::Stats(stats) => Ok(stats),
            _ => Err(Error::new(Code::Internal, "another answer than asked for")),
        }
    }

    /// The newest commits that the log still has, newest first. How far it reaches back depends on the newest base.
    pub async fn history(&self, limit: u32) -> Result<Vec<Commit>> {
        match self.ask(Query::History { limit }, None).await? {
            Answer::History(commits) => Ok(commits),
            _ => Err(Error::new(Code::Internal, "another answer than asked for")),
        }
    }

    /// Write the newest state to `path` as a plain SQLite file, whole or not at all; over a file that is there only
    /// with `replace`. Answers which commit it shows. Others go on committing meanwhile.
    pub async fn export(&self, path: impl Into<PathBuf>, replace: bool) -> Result<Exported> {
        self.door()?.export(path.into(), replace).await
    }

    /// Make sure that nothing sent before can still land: after an unknown outcome, settle, then look (P9). Answers
    /// the number of the commit that settled it.
    pub async fn settle(&self) -> Result<u64> {
        Ok(self.door()?.call(Work::Fence, Wait::No).await?.commit_seq)
    }

    /// Delete what the queue file no longer needs and has not needed for `grace`, with a commit that raises the floor
    /// if that takes one. It happens by itself once a [`grace`](Options::grace) period while there are commits; this is
    /// for doing it now. With zero everything goes: safe for writers, while who is still reading starts over.
    pub async fn collect(&self, grace: Duration) -> Result<Collected> {
        self.door()?.collect(grace).await
    }

    /// Write every finished job that may leave its queue to the archive now, and answer how many that were; and give up
    /// the archive objects that are too old. It happens by itself, beside the commits, once enough jobs wait or the oldest has waited for
    /// [`archive_every`](Options::archive_every).
    pub async fn archive(&self) -> Result<u64> {
        self.door()?.archive().await
    }

    /// The archive objects of one queue or of all that hold lives which finished after this place in the order of
    /// finishes.
    pub async fn archives(&self, queue: Option<&str>, after: u64) -> Result<Archives> {
        let query = Query::Archives { queue: queue.map(str::to_owned), after };
        match self.ask(query, None).await? {
            Answer::Archives(archives) => Ok(archives),
            _ => Err(Error::new(Code::Internal, "another answer than asked for")),
        }
    }

    /// Lives that ended and are not archived, after one place in the order of finishes up to another, at most 1,000.
    pub async fn lives(&self, queue: Option<&str>, after: u64, until: u64, limit: u32) -> Result<Finished> {
        let query = Query::Finished { queue: queue.map(str::to_owned), after, until, limit };
        match self.ask(query, None).await? {
            Answer::Finished(finished) => Ok(finished),
            _ => Err(Error::new(Code::Internal, "another answer than asked for")),
        }
    }

    /// What the writer behind this handle has done.
    pub fn metrics(&self) -> Result<Metrics> {
        Ok(self.door()?.shared.counters.read())
    }

    /// How long jobs waited and ran, how long commits took and how large they were, as far as they went through this
    /// writer.
    pub fn histograms(&self) -> Result<Histograms> {
        Ok(self.door()?.shared.observed.read())
    }

    /// What this writer's requests and this state cost at the prices of the fit model.
    pub fn cost(&self, stats: &Stats) -> Result<Cost> {
        let door = self.door()?;
        let life = door.env.monotonic().saturating_duration_since(door.began);
        Ok(door.shared.counters.read().cost(life, stats.pages))
    }

    /// Everything that is measured, as text for Prometheus (docs/watching.md). Counts of jobs are at most `max_age` old.
    pub async fn prometheus(&self, max_age: Option<Duration>) -> Result<String> {
        let stats = self.stats(max_age).await?;
        Ok(metrics::text(&stats, &self.metrics()?, &self.histograms()?, &self.cost(&stats)?))
    }

    /// What happens to jobs through this writer from now on, each event after the commit that made it true. Events that
    /// come while there is no room for them are missed, and counted; no commit waits for a listener.
    pub fn events(&self, room: usize) -> Result<Events> {
        let shared = &self.door()?.shared;
        Ok(shared.watchers.listen(room, &shared.counters))
    }

    /// The largest clock difference between two writers that the file is made for; a lease must be longer than twice
    /// that.
    pub fn max_skew(&self) -> Result<Duration> {
        Ok(Duration::from_millis(u64::from(self.door()?.info.max_skew_ms)))
    }

    /// Answer everything sent before, and end. The last handle of a process also ends the writer. Waiting claims get
    /// Closed. Dropping every clone does the same without waiting for it.
    pub async fn close(self) -> Result<()> {
        let door = self.inner.door.write().unwrap_or_else(PoisonError::into_inner).take();
        let Some(door) = door else { return Ok(()) };
        self.inner.closing.send_replace(true);
        // Everything sent before is answered then, if only by the deadlines of its callers.
        tokio::select! {
            biased;
            () = door.flush() => {}
            () = door.env.sleep(door.options.deadline) => {}
        }
        let mut ended = door.ended.clone();
        if Arc::into_inner(door).is_some() {
            let _ = ended.wait_for(|e| *e).await;
        }
        Ok(())
    }

    /// Tell those who listen what concerns no commit; the commit given is one that surely came before.
    pub(crate) fn tell(&self, what: impl FnOnce() -> Happened, after: (u64, i64)) {
        if let Ok(door) = self.door()
            && door.shared.watchers.any()
        {
            let missed = door.shared.watchers.tell_apart(what(), after);
            door.shared.counters.events_missed.fetch_add(missed, Relaxed);
        }
    }

    /// Becomes true when this handle is being closed.
    pub(crate) fn closing(&self) -> watch::Receiver<bool> {
        self.inner.closing.subscribe()
    }

    pub(crate) fn door(&self) -> Result<Arc<Door>> {
        if self.inner.pid != std::process::id() {
            return Err(Error::new(
                Code::Closed,
                "this handle was opened before a fork: open the queue file again in the child",
            ));
        }
        let door = self.inner.door.read().unwrap_or_else(PoisonError::into_inner);
        door.clone().ok_or_else(|| Error::new(Code::Closed, "this handle was closed"))
    }
}

/// What can be refused before anything is sent.
pub(crate) fn check(door: &Door, op: &Op) -> Result<()> {
    let limits = Limits { max_payload: door.options.max_payload, max_pages: u32::MAX };
    db::check(op, &limits)?;
    let lease_ms = match op {
        // The policy is not known here; its default is, and what it is changed to is checked below.
        Op::Claim(claim) => claim.lease_ms.or(Policy::default().lease_ms),
        Op::Extend { lease_ms, .. } => Some(*lease_ms),
        Op::Configure { changes, .. } => changes.lease_ms.flatten(),
        Op::Atomic(ops) => return ops.iter().try_for_each(|op| check(door, op)),
        _ => return Ok(()),
    };
    let least = 2 * i64::from(door.info.max_skew_ms);
    if let Some(lease_ms) = lease_ms.filter(|ms| *ms <= least) {
        return Err(Error::invalid(format!(
            "a lease of {lease_ms} ms is too short: it must be longer than {least} ms, twice the clock difference this queue file is made for"
        )));
    }
    Ok(())
}

/// Until when a lease surely holds: counted from before its op was sent, less the clocks' possible difference (P26).
pub(crate) fn deadline(door: &Door, began: Instant, lease: Duration) -> Instant {
    let skew = if broken::is(&door.options, Broken::NoSkewMargin) { 0 } else { door.info.max_skew_ms };
    began + lease.saturating_sub(Duration::from_millis(u64::from(skew)))
}

pub(crate) fn millis(time: Duration, what: &str) -> Result<i64> {
    i64::try_from(time.as_millis()).map_err(|_| Error::invalid(format!("the {what} is too long")))
}

pub(crate) fn unexpected(outcome: &Outcome) -> Error {
    Error::new(Code::Internal, format!("another outcome than asked for: {outcome:?}"))
}
