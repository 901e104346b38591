//! [`ClaimRequest`]: a claim being put together, and [`Taken`]: what came of it.
//!
//! Called by file and queue. Keeps P26: what comes after its lease has run out is not handed out.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::broken::{self, Broken};
use crate::door::{Done, Door, Wait, Work};
use crate::error::{Code, Error, Result};
use crate::file::{QueueFile, check, deadline, millis, unexpected};
use crate::job::{Claimed, Job, Payload};
use crate::lease::{FOREVER_MS, Lease, Token};
use crate::op::{Claim, Held, Op, Outcome, Queues};

/// A job in the caller's hands, and until when it surely is.
#[derive(Clone, Debug)]
pub struct Taken {
    /// What is known of it.
    pub job: Job,
    /// Its bytes.
    pub payload: Payload,
    /// The right to work on it.
    pub lease: Lease,
    /// Nobody else gets the job before this moment of this process's clock (P26): stop working, or extend, before it.
    pub deadline: Instant,
    /// How long the lease lasts from its claim on, by which it is to be extended in time; none if it never runs out.
    pub lasts: Option<Duration>,
}

impl Taken {
    /// What ack, nack, release, reject and extend want.
    pub fn held(&self) -> Held {
        Held { id: self.job.id, token: self.lease.token }
    }
}

/// What is as good as for ever, and can still be added to a clock.
const AGES: Duration = Duration::from_hours(24 * 366 * 10);

fn taken(door: &Door, c: Claimed, began: Instant) -> Taken {
    let claimed_ms = c.job.claimed_ms.unwrap_or(c.lease.expires_ms);
    let ms = u64::try_from(c.lease.expires_ms - claimed_ms).unwrap_or(0);
    let lasts = (c.lease.expires_ms < FOREVER_MS).then(|| Duration::from_millis(ms));
    let deadline = lasts.map_or(began + AGES, |lasts| deadline(door, began, lasts));
    Taken { job: c.job, payload: c.payload, lease: c.lease, deadline, lasts }
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

/// A claim being put together; `.await` sends it. Dropped while waiting, it hands back what it got.
#[derive(Clone, Debug)]
#[must_use = "a claim does nothing until it is awaited"]
pub struct ClaimRequest {
    file: QueueFile,
    max: u32,
    queues: Queues,
    lease: Term,
    wait: Waiting,
    worker: String,
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
        }
    }

    /// Only from these queues.
    pub fn queues(mut self, queues: Queues) -> Self {
        self.queues = queues;
        self
    }

    /// Hold the jobs this long; unless told, what the policy of their queue says, by default one minute.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Term::For(lease);
        self
    }

    /// Hold the jobs until they are acked or nacked, however long that takes: no job is handed out twice, and one whose
    /// worker is gone stays leased until somebody cancels it (at most once).
    pub fn without_end(mut self) -> Self {
        self.lease = Term::Forever;
        self
    }

    /// Wait this long for the first job; not at all unless told otherwise.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Waiting::For(wait);
        self
    }

    /// Wait until there is a job.
    pub fn wait_forever(mut self) -> Self {
        self.wait = Waiting::Forever;
        self
    }

    /// Who asks, for people to see.
    pub fn worker(mut self, name: impl Into<String>) -> Self {
        self.worker = name.into();
        self
    }

    async fn send(self) -> Result<Vec<Taken>> {
        let door = self.file.door()?;
        let wait = match self.wait {
            Waiting::No => Wait::No,
            // A wait beyond what the clock can tell is no end at all.
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
                token: Token(door.env.bytes()),
                again: false,
            };
            let op = Op::Claim(claim);
            check(&door, &op)?;
            let done = self.call_until_closed(&door, op, wait).await?;
            let Outcome::Claimed(jobs) = done.outcome else { return Err(unexpected(&done.outcome)) };
            let began = if broken::is(&door.options, Broken::LeaseFromAnswer) {
                door.env.monotonic()
            } else {
                done.began
            };
            if jobs.is_empty() {
                return Ok(vec![]);
            }
            let now = door.env.monotonic();
            let (live, late): (Vec<_>, Vec<_>) =
                jobs.into_iter().map(|c| taken(&door, c, began)).partition(|taken| now < taken.deadline);
            // The answer came after the lease: these jobs may be somebody else's by now (P26).
            if !late.is_empty() {
                door.hand_back(late.iter().map(Taken::held).collect());
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
    type Output = Result<Vec<Taken>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}
