//! [`ClaimRequest`]: a claim being built, and [`ClaimedJob`]: a job it returns.
//!
//! Called by file and queue. Keeps P26: a job that arrives after its lease has run out is not handed out.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::door::{Done, Door, Wait, Work};
use crate::handle::file::{QueueFile, check, deadline, millis};
use crate::noun::error::{Code, Error, Result, only};
use crate::noun::job::{Claimed, Job, JobId, Payload};
use crate::noun::lease::{FOREVER_MS, Lease, Token};
use crate::noun::op::{Claim, ClaimWith, Held, Op, Outcome, Queues};

/// A job that the caller has claimed, and the deadline of its lease.
#[derive(Clone, Debug)]
pub struct ClaimedJob {
    /// The job, without its bytes.
    pub job: Job,
    /// Its bytes.
    pub payload: Payload,
    /// The right to work on it.
    pub lease: Lease,
    /// No other worker gets the job before this moment of this process's clock (P26): stop working or extend before it.
    pub deadline: Instant,
    /// The length of the lease from its claim on, to know when to extend it; none if it never runs out.
    pub lasts: Option<Duration>,
}

impl ClaimedJob {
    /// Returns the job id and the token, which ack, nack, release, reject and extend take.
    pub fn held(&self) -> Held {
        Held { id: self.job.id, token: self.lease.token }
    }

    /// Returns how long its holder may work on it, by the policy of its queue.
    pub fn max_run(&self) -> Option<Duration> {
        self.lease.max_run_ms.map(|ms| Duration::from_millis(ms.max(0).unsigned_abs()))
    }

    /// Returns an id for a job that is enqueued in the commit that ends this one. The id is the same on every call, so
    /// a caller that repeats such a call repeats its ids; `position` distinguishes several such jobs.
    pub fn next_id(&self, position: u32) -> JobId {
        JobId::following(&self.lease.token, position, self.job.claimed_ms.unwrap_or(0))
    }
}

/// As good as forever, and can still be added to a clock.
pub(crate) const AGES: Duration = Duration::from_hours(24 * 366 * 10);

fn claimed_job(door: &Door, c: Claimed, began: Instant) -> ClaimedJob {
    let claimed_ms = c.job.claimed_ms.unwrap_or(c.lease.expires_ms);
    let ms = u64::try_from(c.lease.expires_ms - claimed_ms).unwrap_or(0);
    let lasts = (c.lease.expires_ms < FOREVER_MS).then(|| Duration::from_millis(ms));
    let deadline = lasts.map_or(began + AGES, |lasts| deadline(door, began, lasts));
    ClaimedJob { job: c.job, payload: c.payload, lease: c.lease, deadline, lasts }
}

#[derive(Clone, Copy, Debug)]
enum Waiting {
    No,
    For(Duration),
    Forever,
}

#[derive(Clone, Copy, Debug)]
enum Term {
    Policy,
    For(Duration),
    Forever,
}

/// A claim being built; `.await` sends it. Dropped while it waits, it releases the jobs that it got.
#[derive(Clone, Debug)]
#[must_use = "a claim does nothing until it is awaited"]
pub struct ClaimRequest {
    file: QueueFile,
    max: u32,
    queues: Queues,
    lease: Term,
    wait: Waiting,
    worker: String,
    ids: Vec<JobId>,
    ends: Option<Op>,
    done: bool,
}

impl ClaimRequest {
    pub(crate) fn new(file: QueueFile, max: u32) -> Self {
        Self {
            file,
            max,
            queues: Queues::Any,
            lease: Term::Policy,
            wait: Waiting::No,
            worker: format!("pid {}", std::process::id()),
            ids: vec![],
            ends: None,
            done: false,
        }
    }

    /// Claims only from these queues.
    pub fn queues(mut self, queues: Queues) -> Self {
        self.queues = queues;
        self
    }

    /// Holds the jobs this long; by default as long as the policy of their queue says, which is one minute by default.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Term::For(lease);
        self
    }

    /// Holds the jobs until they are acked or nacked, however long that takes: no job is handed out twice. A job whose
    /// worker is gone stays leased until it is cancelled (at most once).
    pub fn without_end(mut self) -> Self {
        self.lease = Term::Forever;
        self
    }

    /// Waits up to this long for the first job; by default not at all.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Waiting::For(wait);
        self
    }

    /// Waits until there is a job.
    pub fn wait_forever(mut self) -> Self {
        self.wait = Waiting::Forever;
        self
    }

    /// Names the worker, for people to read.
    pub fn worker(mut self, name: impl Into<String>) -> Self {
        self.worker = name.into();
        self
    }

    /// Claims only those of these jobs that can be claimed; none for all.
    pub fn only(mut self, ids: Vec<JobId>) -> Self {
        self.ids = ids;
        self
    }

    /// Ends a job in the same commit, before the claim: by an op that ends a lease, or an atomic that begins with one.
    /// If that is refused, nothing is claimed. The claim does not wait. Repeating such a call after an unknown outcome
    /// returns the jobs that it claimed, and claims no others.
    pub fn after(mut self, ends: Op) -> Self {
        self.ends = Some(ends);
        self
    }

    /// Ends the jobs in the commit that claims them: they are done whatever happens to them here (at most once).
    pub fn and_end(mut self) -> Self {
        self.done = true;
        self
    }

    /// Returns the op with this claim.
    fn op(&self, claim: Claim) -> Op {
        let Self { ids, ends, done, .. } = self;
        if ids.is_empty() && ends.is_none() && !done {
            return Op::Claim(claim);
        }
        let ends = ends.clone().map(Box::new);
        Op::ClaimWith(Box::new(ClaimWith { claim, ids: ids.clone(), ends, done: *done }))
    }

    async fn send(self) -> Result<Vec<ClaimedJob>> {
        let door = self.file.door()?;
        let wait = match self.wait {
            Waiting::No => Wait::No,
            _ if self.ends.is_some() => Wait::No,
            // A wait too long for the clock never ends.
            Waiting::For(time) => door.env.monotonic().checked_add(time).map_or(Wait::Forever, Wait::Until),
            Waiting::Forever => Wait::Forever,
        };
        let lease_ms = match self.lease {
            Term::Policy => None,
            Term::For(lease) => Some(millis(lease, "lease")?),
            Term::Forever => Some(FOREVER_MS),
        };
        loop {
            let claim = Claim {
                queues: self.queues.clone(),
                max: self.max,
                lease_ms,
                worker: self.worker.clone(),
                token: match self.ends.as_ref().and_then(Op::held) {
                    // The same on every call, so that a repeat is recognised.
                    Some(held) => held.token.following(&held.id),
                    None => Token(door.env.bytes()),
                },
                again: false,
            };
            let op = self.op(claim);
            check(&door, &op)?;
            let done = self.call_until_closed(&door, op, wait).await?;
            let jobs = only!(done.outcome, Outcome::Claimed(jobs) | Outcome::ClaimedNext(jobs) => jobs)?;
            if jobs.is_empty() {
                return Ok(vec![]);
            }
            let now = door.env.monotonic();
            let (live, late): (Vec<_>, Vec<_>) = jobs
                .into_iter()
                .map(|c| claimed_job(&door, c, done.began))
                .partition(|job| now < job.deadline);
            // The reply came after the leases had run out: other workers may hold these jobs by now (P26).
            if !late.is_empty() {
                door.hand_back(late.iter().map(ClaimedJob::held).collect());
            }
            if !live.is_empty() {
                return Ok(live);
            }
            if matches!(wait, Wait::No) || matches!(wait, Wait::Until(end) if door.env.monotonic() >= end) {
                return Ok(vec![]);
            }
        }
    }

    async fn call_until_closed(&self, door: &Arc<Door>, op: Op, wait: Wait) -> Result<Done> {
        if matches!(wait, Wait::No) {
            return door.call(Work::Op(op), wait).await;
        }
        let mut closing = self.file.closing();
        tokio::select! {
            biased;
            done = door.call(Work::Op(op), wait) => done,
            _ = closing.wait_for(|closing| *closing) => Err(Error::new(Code::Closed, "the handle was closed while a claim waited")),
        }
    }
}

impl IntoFuture for ClaimRequest {
    type Output = Result<Vec<ClaimedJob>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}
