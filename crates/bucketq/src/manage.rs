//! What people set for a queue as a whole: its policy, its schedules, new lives for its dead jobs, and its drain.
//!
//! Called by whoever runs queues; everything here is an op or a question of the queue file, spelled out.

use std::time::Duration;

use crate::error::{Code, Error, Result};
use crate::file::{QueueFile, unexpected};
use crate::job::State;
use crate::op::{Op, Outcome};
use crate::policy::{Changes, Policy};
use crate::query::{Answer, Filter, Query, ScheduleInfo};
use crate::queue::Queue;
use crate::schedule::Schedule;

/// How soon what this process itself commits is noticed; costs no request.
const LOOK: Duration = Duration::from_millis(20);
/// Jobs that get a new life in one commit, when all of them are to.
const CHUNK: u32 = 1_000;

impl QueueFile {
    /// Give the finished jobs that match fresh lives, oldest first, some in each commit; dead ones, unless the filter
    /// names states. Answers how many; fewer than match when their queue takes no more.
    pub async fn requeue_all(&self, filter: &Filter) -> Result<u64> {
        let mut total = 0;
        loop {
            let op = Op::RequeueMany { filter: filter.clone(), limit: CHUNK };
            match self.call(op).await.map(|done| done.outcome) {
                Ok(Outcome::RequeuedMany { count, more }) => {
                    total += count;
                    if !more || count == 0 {
                        return Ok(total);
                    }
                }
                Ok(other) => return Err(unexpected(&other)),
                Err(error) if total > 0 && error.code() == Code::QueueFull => return Ok(total),
                Err(error) => return Err(error),
            }
        }
    }

    /// The schedules of every queue.
    pub async fn schedules(&self) -> Result<Vec<ScheduleInfo>> {
        schedules(self, None).await
    }
}

async fn schedules(file: &QueueFile, queue: Option<String>) -> Result<Vec<ScheduleInfo>> {
    match file.ask(Query::Schedules(queue), None).await? {
        Answer::Schedules(found) => Ok(found),
        _ => Err(other_answer()),
    }
}

fn other_answer() -> Error {
    Error::new(Code::Internal, "another answer than asked for")
}

impl Queue {
    /// Change the policy, in one commit for all processes. Answers the policy as it is then.
    pub async fn configure(&self, changes: Changes) -> Result<Policy> {
        let op = Op::Configure { queue: self.name().to_owned(), changes: Box::new(changes) };
        match self.file().call(op).await?.outcome {
            Outcome::Configured(policy) => Ok(*policy),
            other => Err(unexpected(&other)),
        }
    }

    /// The policy.
    pub async fn policy(&self) -> Result<Policy> {
        match self.file().ask(Query::Policy(self.name().to_owned()), None).await? {
            Answer::Policy(policy) => Ok(*policy),
            _ => Err(other_answer()),
        }
    }

    /// Enqueue a job again and again, under a name; in place of what had that name. Doing it again with the same timing
    /// moves no time, so every process may do it when it starts. Answers the next time.
    pub async fn schedule(&self, name: &str, schedule: Schedule) -> Result<i64> {
        let (queue, name) = (self.name().to_owned(), name.to_owned());
        match self.file().call(Op::Schedule { queue, name, schedule: Box::new(schedule) }).await?.outcome {
            Outcome::Scheduled { next_ms } => Ok(next_ms),
            other => Err(unexpected(&other)),
        }
    }

    /// Take a schedule away. True if it was there.
    pub async fn unschedule(&self, name: &str) -> Result<bool> {
        let (queue, name) = (self.name().to_owned(), name.to_owned());
        match self.file().call(Op::Unschedule { queue, name }).await?.outcome {
            Outcome::Unscheduled { was_there } => Ok(was_there),
            other => Err(unexpected(&other)),
        }
    }

    /// The schedules of this queue.
    pub async fn schedules(&self) -> Result<Vec<ScheduleInfo>> {
        schedules(self.file(), Some(self.name().to_owned())).await
    }

    /// Take in no more jobs and give none out, and wait until nobody works on any. Answers how many are still being
    /// worked on after `wait`; none waits as long as it takes. Lasts until the queue is resumed.
    pub async fn drain(&self, wait: Option<Duration>) -> Result<u64> {
        let op = Op::Drain { queue: self.name().to_owned() };
        let Outcome::Draining { .. } = self.file().call(op).await?.outcome else {
            return Err(other_answer());
        };
        let (env, mut poll, longest) = {
            let door = self.file().door()?;
            (door.env.clone(), door.options.poll_min, door.options.poll_max)
        };
        let began = env.monotonic();
        let mut max_age = Duration::ZERO;
        loop {
            let queues = self.file().queues(Some(max_age)).await?;
            let found = queues.into_iter().find(|q| q.name == self.name());
            // Whose lease has run out is not waited for: nobody may work on that job any more.
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
