//! Every change to a queue file as data: an [`Op`] goes in, an [`Outcome`] comes out.
//!
//! They cross the door, so they are serialisable, and their enums only grow at the end. The caller draws the ids and
//! tokens that make a repeated op recognisable (job id, claim token) before the first send (P9).

use serde::{Deserialize, Serialize};

use crate::noun::job::{Claimed, JobId, New, Payload, State};
use crate::noun::lease::Token;
use crate::noun::policy::{Changes, Policy};
use crate::noun::query::Filter;
use crate::noun::schedule::Schedule;

/// Version of the data that crosses the door; raised when an op changes its meaning.
pub const OP_VERSION: u16 = 1;

/// Which queues a claim takes jobs from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Queues {
    /// Every queue of the file.
    Any,
    /// These queues, in no order of preference: priority decides, then age.
    Named(Vec<String>),
}

/// A request for jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The queues to take jobs from.
    pub queues: Queues,
    /// At most this many jobs, at least 1.
    pub max: u32,
    /// How long the lease lasts; none for the time in each queue's policy, [`FOREVER`](crate::noun::lease::FOREVER_MS)
    /// for a lease that never runs out.
    #[serde(default)]
    pub lease_ms: Option<i64>,
    /// The worker's name, for people to read; at most 200 bytes.
    pub worker: String,
    /// The token that every job of this claim gets; drawn anew for each claim.
    pub token: Token,
    /// The claim was sent before with this token and its outcome is unknown: return the jobs that the token holds, if
    /// any.
    #[serde(default)]
    pub again: bool,
}

/// A claim with more to do in its commit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClaimWith {
    /// The claim.
    pub claim: Claim,
    /// Only these jobs, as far as they can be claimed now; empty for any.
    #[serde(default)]
    pub ids: Vec<JobId>,
    /// End a job first: an op that ends a lease, or an atomic that begins with one. If it is refused, nothing is
    /// claimed. If it was done before, by this holder, the op is a repeat: it returns the jobs that the claim's token
    /// holds, and claims no others.
    #[serde(default)]
    pub ends: Option<Box<Op>>,
    /// The jobs are done with this commit: delivered at most once.
    #[serde(default)]
    pub done: bool,
}

/// A claimed job: its id and the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Held {
    /// The job.
    pub id: JobId,
    /// The token of the claim that got it.
    pub token: Token,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
// The simulation has to know every op: without this attribute, a match over them must name each.
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum Op {
    /// Put jobs into a queue; all or none.
    Enqueue {
        /// The queue; created if it does not exist.
        queue: String,
        /// The jobs, at least one.
        jobs: Vec<New>,
    },
    /// Claim jobs.
    Claim(Claim),
    /// The job is done.
    Ack {
        /// The job and the token.
        held: Held,
        /// Its result.
        result: Option<Payload>,
    },
    /// The attempt failed: the job runs again later, or is dead when no attempt is left.
    Nack {
        /// The job and the token.
        held: Held,
        /// The delay, instead of the job's back-off.
        delay_ms: Option<i64>,
        /// The error text.
        error: Option<String>,
    },
    /// Release the job: the attempt does not count and there is no back-off.
    Release {
        /// The job and the token.
        held: Held,
    },
    /// The job can never succeed: dead at once.
    Reject {
        /// The job and the token.
        held: Held,
        /// The error text.
        error: Option<String>,
    },
    /// Extend the lease: it ends `lease_ms` after this commit. A lease without end stays without end.
    Extend {
        /// The job and the token.
        held: Held,
        /// The new length of the lease, from now.
        lease_ms: i64,
        /// Never shorten the lease.
        #[serde(default)]
        at_least: bool,
    },
    /// Cancel a job before it is finished.
    Cancel {
        /// The job.
        id: JobId,
        /// Also a leased job: its lease becomes void.
        leased: bool,
    },
    /// Requeue a finished job at the end of its queue.
    Requeue {
        /// The job.
        id: JobId,
        /// Only if this is its current run, so that a repeated requeue does no harm.
        run: Option<u32>,
    },
    /// Delete the jobs of a queue.
    Purge {
        /// The queue.
        queue: String,
        /// Only those in these states.
        states: Vec<State>,
    },
    /// Pause a queue: claims get no jobs from it.
    Pause {
        /// The queue.
        queue: String,
    },
    /// Resume a queue: claims get its jobs again.
    Resume {
        /// The queue.
        queue: String,
    },
    /// All of these ops or none; claims and further atomics are not allowed.
    Atomic(Vec<Op>),
    /// Change the policy of a queue.
    Configure {
        /// The queue; created if it does not exist.
        queue: String,
        /// The changes.
        changes: Box<Changes>,
    },
    /// Requeue finished jobs, oldest first.
    RequeueMany {
        /// Which jobs: those in the finished states it names; dead ones if it names none.
        filter: Filter,
        /// At most this number of jobs.
        limit: u32,
    },
    /// Stop accepting and handing out jobs of this queue until it is resumed.
    Drain {
        /// The queue.
        queue: String,
    },
    /// Enqueue a job repeatedly; replaces the schedule of the same name.
    Schedule {
        /// The queue; created if it does not exist.
        queue: String,
        /// The schedule's name in the queue.
        name: String,
        /// Its times and its job.
        schedule: Box<Schedule>,
    },
    /// Delete a schedule. The jobs it has enqueued stay.
    Unschedule {
        /// The queue.
        queue: String,
        /// The schedule's name in the queue.
        name: String,
    },
    /// Delete some jobs of a queue, as one step of a purge of many: other ops run between two steps.
    PurgeSome {
        /// The queue.
        queue: String,
        /// Only those in these states.
        states: Vec<State>,
        /// Only those enqueued before this place in the order of enqueues, which the first step returned; none in the
        /// first step.
        before: Option<u64>,
        /// At most this number of jobs.
        limit: u32,
    },
    /// Change the policy of a queue, as one step of several if the change concerns many jobs: other ops run between two
    /// steps. Jobs that must be marked are marked before the policy changes, and jobs that it unblocks are unblocked
    /// afterwards.
    ConfigureSome {
        /// The queue.
        queue: String,
        /// The changes.
        changes: Box<Changes>,
        /// Jobs up to this place in the order of enqueues are marked already; 0 in the first step.
        after: u64,
        /// The policy has changed already, and the groups up to this name have been unblocked.
        raised: Option<String>,
        /// Mark at most this number of jobs, or unblock at most this number of groups.
        limit: u32,
    },
    /// Claim jobs and do more in the same commit: end another job first, take certain jobs only, or end them at once.
    ClaimWith(Box<ClaimWith>),
    /// Move a job that no worker holds to another queue, as a new run.
    Move {
        /// The job.
        id: JobId,
        /// Only if this is its current run, so that a repeated move does no harm.
        run: Option<u32>,
        /// The queue; created if it does not exist.
        to: String,
    },
    /// Move some of the jobs that match, oldest first, as one step of a move of many: other ops run between two steps.
    MoveSome {
        /// Which jobs: those in the states it names; scheduled and ready ones, and dead letters that are dead, if it
        /// names none. Names a queue.
        filter: Filter,
        /// Only dead letters: jobs that died in another queue. They are redriven: no dead letters afterwards.
        redrive: bool,
        /// The queue; none only for a redrive, back to the queue that each died in.
        to: Option<String>,
        /// Jobs up to this place in the order of enqueues have been looked at; 0 in the first step.
        after: u64,
        /// Only those enqueued before this place, which the first step returned; none in the first step.
        before: Option<u64>,
        /// Look at no more than this number of jobs.
        limit: u32,
    },
    /// Delete a job.
    Delete {
        /// The job.
        id: JobId,
        /// Also a leased job: its lease becomes void.
        leased: bool,
    },
    /// Create a queue, if it does not exist.
    CreateQueue {
        /// The queue.
        queue: String,
    },
    /// Delete some jobs of a queue, and with the last of them the queue with its policy and its schedules, as one step
    /// of several: other ops run between two steps, but from the first one on the queue is drained.
    DeleteQueue {
        /// The queue.
        queue: String,
        /// Delete at most this number of jobs.
        limit: u32,
    },
    /// Set whether only [`Op::CreateQueue`] creates queues.
    StrictQueues {
        /// It does.
        strict: bool,
    },
    /// The job is done, also one that another worker holds: an ack by a worker that has lost its lease, or by an
    /// earlier claim. A worker that holds the job by now loses it.
    AckLate {
        /// The job.
        id: JobId,
        /// Its run: a later one is not ended.
        run: u32,
        /// Its result.
        result: Option<Payload>,
    },
}

/// The outcome for one enqueued job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enqueued {
    /// The job now in the queue: the new one, or the existing one.
    pub id: JobId,
    /// A job with the same dedup key existed already; the new one was not added.
    pub deduplicated: bool,
    /// This very job existed already under the same id, or has left since: the enqueue is a repeat and added nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub existing: bool,
    /// `commit_seq` of the commit that enqueued the job named by `id`; 0 when an existing job has left.
    pub commit_seq: u64,
    /// The time of that commit; 0 when an existing job has left.
    #[serde(default)]
    pub commit_ms: i64,
    /// Jobs cancelled to make room, reported with the first job of the op.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<JobId>,
}

/// The outcome of an op.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Outcome {
    /// One entry per job, in the order given.
    Enqueued(Vec<Enqueued>),
    /// The jobs, best first; empty when there was none to claim.
    Claimed(Vec<Claimed>),
    /// Done; also when the same holder had acked it already.
    Acked,
    /// Scheduled or ready again, or dead.
    Nacked {
        /// Ready, scheduled or dead.
        state: State,
        /// When it may run again.
        run_at_ms: i64,
    },
    /// Ready again.
    Released,
    /// Dead.
    Rejected,
    /// The lease was extended.
    Extended {
        /// When the lease runs out, in commit time.
        expires_ms: i64,
    },
    /// Cancelled, now or before.
    Cancelled {
        /// The state it was in.
        was: State,
    },
    /// Ready again.
    Requeued {
        /// The new run.
        run: u32,
    },
    /// Deleted.
    Purged {
        /// How many.
        count: u64,
    },
    /// Claims get no jobs of the queue.
    Paused,
    /// Claims get jobs of the queue again.
    Resumed,
    /// One outcome per op, in order.
    Atomic(Vec<Outcome>),
    /// The policy as it is now.
    Configured(Box<Policy>),
    /// Ready again.
    RequeuedMany {
        /// How many.
        count: u64,
        /// There may be more: the limit was reached.
        more: bool,
    },
    /// The queue accepts and hands out no jobs.
    Draining {
        /// Jobs that are still being worked on.
        leased: u64,
    },
    /// The schedule is stored.
    Scheduled {
        /// When it enqueues next.
        next_ms: i64,
    },
    /// The schedule is deleted, or never existed.
    Unscheduled {
        /// It existed.
        was_there: bool,
    },
    /// Deleted.
    PurgedSome {
        /// How many.
        count: u64,
        /// The `before` of the next steps.
        before: u64,
        /// There may be more: the limit was reached.
        more: bool,
    },
    /// Jobs are marked, or the policy has changed and jobs are unblocked; there are more.
    ConfiguredSome {
        /// The `after` of the next step.
        after: u64,
        /// The `raised` of the next step; none before the policy has changed.
        raised: Option<String>,
    },
    /// The jobs of a claim that ended another job first. They are not handed back when the caller has left: a repeat has
    /// the same token and returns them.
    ClaimedNext(Vec<Claimed>),
    /// In the other queue.
    Moved {
        /// The new run.
        run: u32,
    },
    /// In other queues.
    MovedSome {
        /// How many.
        count: u64,
        /// The `after` of the next step.
        after: u64,
        /// The `before` of the next steps.
        before: u64,
        /// There may be more: the limit was reached.
        more: bool,
    },
    /// The job is not there.
    Deleted {
        /// The state it was in; none if it was not there before.
        was: Option<State>,
    },
    /// The queue exists.
    QueueCreated {
        /// It did not before.
        is_new: bool,
    },
    /// Jobs are deleted, and the queue if there are no more.
    QueueDeleted {
        /// How many jobs.
        count: u64,
        /// The queue existed.
        was_there: bool,
        /// There are more.
        more: bool,
    },
    /// Set.
    StrictQueuesSet,
}
