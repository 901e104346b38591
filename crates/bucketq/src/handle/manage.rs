//! Management of a whole queue: its policy, its schedules, its drain, its deletion, and requeuing or moving its jobs.
//!
//! Called by operators; each method sends an op or a query of the queue file.

use std::time::Duration;

use crate::handle::file::QueueFile;
use crate::handle::queue::Queue;
use crate::noun::error::{Code, Error, Kind, Result, only};
use crate::noun::job::State;
use crate::noun::op::{Op, Outcome};
use crate::noun::policy::{Changes, Policy, Rate};
use crate::noun::query::{Answer, Filter, Query, ScheduleInfo};
use crate::noun::schedule::Schedule;

/// How often a drain checks; commits of this process are noticed this soon. Costs no request.
const LOOK: Duration = Duration::from_millis(20);
/// Jobs that one commit requeues, when there are many.
const CHUNK: u32 = 1_000;
/// Jobs that one commit deletes or marks when there are many: this takes some tens of milliseconds.
const STEP: u32 = 5_000;

impl QueueFile {
    /// Requeues the finished jobs that match, oldest first, some in each commit; only dead ones, unless the filter
    /// names states. Returns how many. These are fewer than match when their queue becomes full.
    pub async fn requeue_all(&self, filter: &Filter) -> Result<u64> {
        let mut total = 0;
        loop {
            let op = Op::RequeueMany { filter: filter.clone(), limit: CHUNK };
            let done = match self.call(op).await {
                Err(error) if total > 0 && error.code() == Code::QueueFull => return Ok(total),
                done => done.map_err(|e| in_part(e, total, "requeued"))?,
            };
            let (count, more) = only!(done.outcome, Outcome::RequeuedMany { count, more } => (count, more))?;
            total += count;
            if !more || count == 0 {
                return Ok(total);
            }
        }
    }

    /// Deletes the jobs of a queue in these states that were enqueued before now, some in each commit, so that other
    /// ops run in between. Returns how many.
    pub(crate) async fn purge_all(&self, queue: &str, states: &[State]) -> Result<u64> {
        let (mut total, mut before) = (0, None);
        loop {
            let (queue, states) = (queue.to_owned(), states.to_vec());
            let op = Op::PurgeSome { queue, states, before, limit: STEP };
            let outcome = self.call(op).await.map_err(|e| in_part(e, total, "deleted"))?.outcome;
            let (count, first, more) =
                only!(outcome, Outcome::PurgedSome { count, before, more } => (count, before, more))?;
            total += count;
            before = Some(first);
            if !more {
                return Ok(total);
            }
        }
    }

    /// Moves the jobs of a queue that match and that were enqueued before now to another queue, oldest first, some in
    /// each commit; scheduled and ready ones, unless the filter names states. Returns how many. These are fewer than
    /// match when that queue becomes full.
    pub async fn move_all(&self, filter: &Filter, to: &str) -> Result<u64> {
        self.move_some(filter, false, Some(to), None, None).await
    }

    async fn move_some(
        &self,
        filter: &Filter,
        redrive: bool,
        to: Option<&str>,
        most: Option<u64>,
        rate: Option<Rate>,
    ) -> Result<u64> {
        let (mut total, mut after, mut before) = (0, 0, None);
        // With a rate, each commit moves the jobs of about a second.
        let step = rate.map_or(CHUNK, |rate| {
            let a_second = u64::from(rate.count) * 1_000 / rate.per_ms.max(1).unsigned_abs();
            a_second.clamp(1, CHUNK.into()) as u32
        });
        let done = if redrive { "redriven" } else { "moved" };
        let env = self.door()?.env.clone();
        loop {
            let left = most.map_or(u64::MAX, |most| most - total);
            if left == 0 {
                return Ok(total);
            }
            let (filter, to) = (filter.clone(), to.map(str::to_owned));
            let limit = u64::from(step).min(left) as u32;
            let result = self.call(Op::MoveSome { filter, redrive, to, after, before, limit }).await;
            let outcome = match result {
                Err(error) if total > 0 && error.code() == Code::QueueFull => return Ok(total),
                result => result.map_err(|e| in_part(e, total, done))?.outcome,
            };
            let count;
            let (more, first);
            (count, after, first, more) = only!(
                outcome,
                Outcome::MovedSome { count, after, before, more } => (count, after, before, more)
            )?;
            before = Some(first);
            total += count;
            if !more {
                return Ok(total);
            }
            if let Some(rate) = rate {
                env.sleep(Duration::from_nanos(rate.step_ns().unsigned_abs().saturating_mul(count))).await;
            }
        }
    }

    /// Returns the schedules of every queue.
    pub async fn schedules(&self) -> Result<Vec<ScheduleInfo>> {
        schedules(self, None).await
    }
}

/// Returns the error of a call of which some commits were made: it must not say that certainly nothing was applied.
fn in_part(error: Error, jobs: u64, done: &str) -> Error {
    if jobs == 0 {
        return error;
    }
    unknown(error, &format!("{jobs} jobs were {done} before this error, and possibly more: call it again"))
}

fn unknown(error: Error, told: &str) -> Error {
    if !matches!(error.kind(), Kind::Unavailable | Kind::Contended | Kind::Full) {
        return error;
    }
    Error::new(Code::OutcomeUnknown, format!("{told}: {}", error.message())).because(error)
}

async fn schedules(file: &QueueFile, queue: Option<String>) -> Result<Vec<ScheduleInfo>> {
    only!(file.ask(Query::Schedules(queue), None).await?, Answer::Schedules(found) => found)
}

impl Queue {
    /// Changes the policy, for all processes at once. Returns the new policy. A change to `drop_oldest` marks the
    /// existing jobs, some thousands in each commit, and takes effect with the last of these commits. After
    /// `group_concurrency` was raised, some thousand groups in each commit hand out more jobs.
    pub async fn configure(&self, changes: Changes) -> Result<Policy> {
        let (mut after, mut raised) = (0, None);
        loop {
            let is_set = raised.is_some();
            let (queue, changes) = (self.name().to_owned(), Box::new(changes.clone()));
            let op = Op::ConfigureSome { queue, changes, after, raised, limit: STEP };
            let done = match self.file().call(op).await {
                Err(e) if is_set => {
                    Err(unknown(e, "the policy is set, but some groups follow it only later"))
                }
                done => done,
            };
            (after, raised) = only!(
                done?.outcome,
                Outcome::ConfiguredSome { after, raised } => (after, raised),
                Outcome::Configured(policy) => return Ok(*policy)
            )?;
        }
    }

    /// Sends the dead letters of this queue, which died in other queues, back to where they died, or to the queue `to`:
    /// those that are here now and that no worker holds, oldest first, some in each commit. At most `limit`, and no
    /// faster than `rate`. Returns how many. Each begins a new run with all its attempts.
    pub async fn redrive(&self, to: Option<&str>, limit: Option<u64>, rate: Option<Rate>) -> Result<u64> {
        let filter = Filter { queue: Some(self.name().to_owned()), ..Filter::default() };
        self.file().move_some(&filter, true, to, limit, rate).await
    }

    /// Creates the queue. Returns false if it exists. A first job creates it too, unless the file has strict queues.
    pub async fn create(&self) -> Result<bool> {
        let op = Op::CreateQueue { queue: self.name().to_owned() };
        only!(self.file().call(op).await?.outcome, Outcome::QueueCreated { is_new } => is_new)
    }

    /// Deletes the queue with its jobs, leased ones too, its policy and its schedules; many jobs in several commits.
    /// Returns how many jobs it had; none if it did not exist. Its archive stays.
    pub async fn delete(&self) -> Result<Option<u64>> {
        let mut total = None;
        loop {
            let op = Op::DeleteQueue { queue: self.name().to_owned(), limit: STEP };
            let done = self.file().call(op).await.map_err(|e| in_part(e, total.unwrap_or(0), "deleted"));
            let (count, was_there, more) = only!(
                done?.outcome,
                Outcome::QueueDeleted { count, was_there, more } => (count, was_there, more)
            )?;
            total = if was_there { Some(total.unwrap_or(0) + count) } else { total };
            if !more {
                return Ok(total);
            }
        }
    }

    /// Returns the policy.
    pub async fn policy(&self) -> Result<Policy> {
        only!(self.file().ask(Query::Policy(self.name().to_owned()), None).await?, Answer::Policy(policy) => *policy)
    }

    /// Enqueues a job repeatedly, under a name; replaces the schedule of that name. Calling it again with the same
    /// timing moves no time, so every process may call it at its start. Returns the next time.
    pub async fn schedule(&self, name: &str, schedule: Schedule) -> Result<i64> {
        let (queue, name) = (self.name().to_owned(), name.to_owned());
        let op = Op::Schedule { queue, name, schedule: Box::new(schedule) };
        only!(self.file().call(op).await?.outcome, Outcome::Scheduled { next_ms } => next_ms)
    }

    /// Deletes a schedule. Returns true if it existed.
    pub async fn unschedule(&self, name: &str) -> Result<bool> {
        let (queue, name) = (self.name().to_owned(), name.to_owned());
        let outcome = self.file().call(Op::Unschedule { queue, name }).await?.outcome;
        only!(outcome, Outcome::Unscheduled { was_there } => was_there)
    }

    /// Returns the schedules of this queue.
    pub async fn schedules(&self) -> Result<Vec<ScheduleInfo>> {
        schedules(self.file(), Some(self.name().to_owned())).await
    }

    /// Stops accepting and handing out jobs until the queue is resumed, and waits until no worker holds a job. Returns
    /// how many jobs are still being worked on after `wait`; without `wait` there is no time limit.
    pub async fn drain(&self, wait: Option<Duration>) -> Result<u64> {
        let op = Op::Drain { queue: self.name().to_owned() };
        only!(self.file().call(op).await?.outcome, Outcome::Draining { .. } => ())?;
        let (env, mut poll, longest) = {
            let door = self.file().door()?;
            (door.env.clone(), door.options.poll_min, door.options.poll_max)
        };
        let began = env.monotonic();
        let mut max_age = Duration::ZERO;
        loop {
            let queues = self.file().queues(Some(max_age)).await?;
            let found = queues.into_iter().find(|q| q.name == self.name());
            // A job whose lease has run out is not waited for: its worker must not work on it any more.
            let busy = found.map_or(0, |q| q.counts.get(&State::Leased).copied().unwrap_or(0) - q.expired);
            let waited = env.monotonic() - began;
            let left = wait.map(|w| w.saturating_sub(waited));
            if busy == 0 || left == Some(Duration::ZERO) {
                return Ok(busy);
            }
            if waited >= poll {
                poll = (poll * 2).min(longest);
            }
            max_age = poll;
            env.sleep(left.map_or(LOOK, |l| l.min(LOOK))).await;
        }
    }
}
