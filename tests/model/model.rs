//! The queue as plain maps, and the result of every query. The effects of ops are in acts.rs.

use std::collections::BTreeMap;

use bucketq::error::Code;
use bucketq::job::{Claimed, Died, Job, JobId, New, Payload, Reason, State};
use bucketq::lease::{Lease, Token};
use bucketq::op::{Held, Outcome, Queues};
use bucketq::query::QueueInfo;

/// The result of an op.
pub type Answer<T = Outcome> = Result<T, Code>;

/// The commit being built.
#[derive(Clone, Copy, Debug)]
pub struct Act {
    pub now_ms: i64,
    pub commit_seq: u64,
}

#[derive(Clone, Debug)]
pub struct Queue {
    pub paused: bool,
    pub retain: i64,
    /// The highest turn claimed, once there was a group.
    pub turn: Option<i64>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct MJob {
    pub new: New,
    pub queue: String,
    pub seq: u64,
    pub state: State,
    pub held: bool,
    pub turn: i64,
    pub run: u32,
    pub attempt: u32,
    pub enqueued_ms: i64,
    pub run_at_ms: i64,
    pub claimed: Option<(i64, u64, String)>,
    pub ends_ms: i64,
    /// Its place in the order of finishes, once it is finished.
    pub finish: (u64, u64),
    /// The token of the newest claim; `None` once another op has ended its lease.
    pub token: Option<Token>,
    pub last_error: Option<String>,
    pub died: Option<Died>,
    pub result: Option<Payload>,
}

impl MJob {
    pub fn live(&self) -> bool {
        !self.state.is_finished()
    }

    /// Notes how it dies.
    pub fn dies(&mut self, reason: Reason, at_ms: i64) {
        let (queue, attempts, error) = (self.queue.clone(), self.attempt, self.last_error.clone());
        self.died = Some(Died { queue, reason, attempts, error, at_ms });
    }

    /// The job as a query shows it.
    pub fn seen(&self, now_ms: i64) -> Job {
        let leased = self.state == State::Leased;
        let claimed = self.claimed.clone();
        Job {
            id: self.new.id,
            run: self.run,
            queue: self.queue.clone(),
            state: self.state,
            expired: leased && self.ends_ms <= now_ms,
            priority: self.new.priority,
            attempt: self.attempt,
            max_attempts: self.new.max_attempts.expect("given"),
            backoff: self.new.backoff.clone().expect("given"),
            max_run_ms: self.new.max_run_ms,
            group: self.new.group.clone(),
            dedup: self.new.dedup.as_ref().map(|d| d.key.clone()),
            headers: self.new.headers.clone(),
            payload_len: self.new.payload.bytes.len() as u64,
            seq: self.seq,
            enqueued_ms: self.enqueued_ms,
            run_at_ms: self.run_at_ms,
            claimed_ms: claimed.as_ref().map(|c| c.0),
            finished_ms: self.state.is_finished().then_some(self.ends_ms),
            expires_ms: leased.then_some(self.ends_ms),
            fence: claimed.as_ref().map(|c| c.1),
            worker: claimed.map(|c| c.2).filter(|w| !w.is_empty()),
            last_error: self.last_error.clone(),
            died: self.died.clone(),
        }
    }

    pub fn claimed(&self, now_ms: i64) -> Claimed {
        let job = self.seen(now_ms);
        let lease = Lease {
            token: self.token.expect("leased"),
            expires_ms: self.ends_ms,
            fence: job.fence.expect("claimed"),
            max_run_ms: self.new.max_run_ms,
        };
        Claimed { job, payload: self.new.payload.clone(), lease }
    }

    /// The time since when it can be claimed, if it can.
    fn claimable_since(&self, now_ms: i64) -> Option<i64> {
        match self.state {
            State::Ready if !self.held => Some(self.run_at_ms.max(self.enqueued_ms)),
            State::Scheduled if !self.held && self.run_at_ms <= now_ms => Some(self.run_at_ms),
            State::Leased if self.ends_ms <= now_ms => Some(self.ends_ms),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Model {
    pub queues: BTreeMap<String, Queue>,
    pub jobs: BTreeMap<u64, MJob>,
    /// The first job with a key, its seq then, and the end of the window.
    pub dedup: BTreeMap<(String, String), (JobId, u64, Option<i64>)>,
    /// Jobs that have left, with their newest token and their final state. No case takes as long as they are
    /// remembered.
    pub left: BTreeMap<JobId, (Option<Token>, State)>,
    pub ordinal: u64,
}

impl Model {
    pub fn job(&self, id: JobId) -> Option<&MJob> {
        self.jobs.values().find(|j| j.new.id == id)
    }

    /// Whether the job has left and this holder had finished it in this state.
    pub fn left_as(&self, held: &Held, state: State) -> bool {
        self.left.get(&held.id) == Some(&(Some(held.token), state))
    }

    pub fn seq_of(&self, id: JobId) -> Answer<u64> {
        self.job(id).map(|j| j.seq).ok_or(Code::NoSuchJob)
    }

    pub fn at(&mut self, seq: u64) -> &mut MJob {
        self.jobs.get_mut(&seq).expect("there")
    }

    pub fn next_seq(&mut self, act: Act) -> u64 {
        self.ordinal += 1;
        (act.commit_seq << 24) + self.ordinal - 1
    }

    pub fn make_queue(&mut self, name: &str) -> &mut Queue {
        self.queues.entry(name.to_owned()).or_insert(Queue { paused: false, retain: 1000, turn: None })
    }

    /// The turn of a job that joins the line of a queue now.
    pub fn next_turn(&self, queue: &str) -> i64 {
        self.queues[queue].turn.map_or(0, |turn| turn + 1)
    }

    /// Whether a claim on these queues includes this one.
    pub fn looks_at(&self, queues: &Queues, name: &str) -> bool {
        let named = match queues {
            Queues::Any => true,
            Queues::Named(names) => names.iter().any(|n| n == name),
        };
        named && !self.queues[name].paused
    }

    /// Every queue as a query shows it.
    pub fn queues(&self, now_ms: i64) -> Vec<QueueInfo> {
        let info = |(name, queue): (&String, &Queue)| {
            let jobs: Vec<_> = self.jobs.values().filter(|j| j.queue == *name).collect();
            let count = |f: &dyn Fn(&MJob) -> bool| jobs.iter().filter(|j| f(j)).count() as u64;
            QueueInfo {
                name: name.clone(),
                paused: queue.paused,
                draining: false,
                dropped: 0,
                counts: State::ALL.into_iter().map(|s| (s, count(&|j| j.state == s))).collect(),
                expired: count(&|j| j.state == State::Leased && j.ends_ms <= now_ms),
                due: count(&|j| j.state == State::Scheduled && j.run_at_ms <= now_ms),
                oldest_ready_ms: jobs
                    .iter()
                    .filter_map(|j| j.claimable_since(now_ms))
                    .min()
                    .map(|ms| now_ms - ms),
            }
        };
        self.queues.iter().map(info).collect()
    }

    pub fn next_due(&self, queues: &Queues) -> Option<i64> {
        let due = |j: &MJob| match j.state {
            State::Scheduled if !j.held => Some(j.run_at_ms),
            State::Leased => Some(j.ends_ms),
            _ => None,
        };
        self.jobs.values().filter(|j| self.looks_at(queues, &j.queue)).filter_map(due).min()
    }
}
