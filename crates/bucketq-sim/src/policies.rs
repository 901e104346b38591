//! Policies in the simulation: two queues are limited, one is fed by a schedule, and every commit must keep to it.
//!
//! The workload sets them at the beginning of each life, as every process of a real program may. replay.rs checks each
//! commit through [`PolicyState`]; windows of dedup keys are checked over the history alone.

use std::collections::{BTreeMap, BTreeSet};

use bucketq::QueueFile;
use bucketq::job::{DedupScope, Job, JobId, New, Payload, State};
use bucketq::op::{Op, Outcome};
use bucketq::policy::{Changes, Policy};
use bucketq::query::{Answer, Query};
use bucketq::schedule::{Missed, Schedule, Timing};

use crate::check::Jobs;
use crate::clock::EPOCH_MS;
use crate::history::{Call, History};
use crate::ops::{Effect, effect, parts};
use crate::plan::Plan;
use crate::workload::QUEUES;

/// The queue whose jobs expire also when they were claimed, in seeds with expiry.
pub const RETAINED: &str = QUEUES[1];
/// The queue that a schedule feeds.
pub const TICKS: &str = "ticks";
const TICK: &str = "tick";
/// The payload of its jobs.
pub const TICK_PAYLOAD: &[u8] = b"tick";
const EVERY_MS: i64 = 20_000;
const DUE: &str = "bucketq-due-ms";

/// The settings that every life applies when it begins. Applying them again changes nothing.
pub fn settings(plan: &Plan) -> Vec<Op> {
    let configure = |queue: &str, changes| Op::Configure { queue: queue.into(), changes: Box::new(changes) };
    let job = New::new(JobId::new(0, [0; 10]), Payload::bytes(TICK_PAYLOAD));
    let timing = Timing::Every { every_ms: EVERY_MS, from_ms: Some(EPOCH_MS) };
    let missed = if plan.catch_up { Missed::CatchUp } else { Missed::Skip };
    vec![
        configure(
            QUEUES[0],
            Changes {
                max_pending: Some(Some(12)),
                group_batch: plan.expires.then_some(3),
                ..Changes::default()
            },
        ),
        configure(
            RETAINED,
            Changes {
                expire_claimed: plan.expires.then_some(true),
                concurrency: Some(Some(2)),
                rate: "3/s burst 2".parse().ok().map(Some),
                ..Changes::default()
            },
        ),
        Op::Schedule {
            queue: TICKS.into(),
            name: TICK.into(),
            schedule: Box::new(Schedule { timing, missed, job }),
        },
    ]
}

/// The op that ends the schedule.
pub fn no_more_ticks() -> Op {
    Op::Unschedule { queue: TICKS.into(), name: TICK.into() }
}

/// The time for which a schedule enqueued this job, if one did.
pub fn due_of(job: &Job) -> Option<i64> {
    job.headers.get(DUE)?.parse().ok()
}

/// State gathered from the commits so far.
#[derive(Debug, Default)]
pub struct PolicyState {
    /// Claims of the limited queue: time and number of jobs.
    claims: Vec<(i64, i64)>,
    ticks: BTreeMap<i64, JobId>,
}

impl PolicyState {
    /// Checks one more commit.
    pub async fn look(&mut self, file: &QueueFile, seq: u64, at_ms: i64, jobs: &Jobs, bad: &mut Vec<String>) {
        for queue in QUEUES {
            let Ok(Answer::Policy(policy)) = file.ask(Query::Policy(queue.to_owned()), None).await else {
                continue;
            };
            let jobs: Vec<&Job> = jobs.values().filter(|j| j.queue == queue).collect();
            self.caps(&policy, seq, at_ms, &jobs, bad);
            groups(&policy, seq, &jobs, bad);
        }
        self.ticks(seq, at_ms, jobs, bad);
    }

    fn caps(&mut self, policy: &Policy, seq: u64, at_ms: i64, jobs: &[&Job], bad: &mut Vec<String>) {
        let claimed = jobs.iter().filter(|j| j.fence == Some(seq)).count();
        if let Some(most) = policy.concurrency {
            let live = |j: &&&Job| j.state == State::Leased && j.expires_ms.is_none_or(|end| end > at_ms);
            let leased = jobs.iter().filter(live).count();
            if claimed > 0 && leased > most as usize {
                bad.push(format!(
                    "caps: {leased} jobs are leased after the claims of commit {seq}, and {most} may be"
                ));
            }
        }
        // Retried and requeued jobs are let in at any time; jobs that were never claimed were enqueued within the cap.
        if let Some(most) = policy.max_pending {
            let waits =
                |j: &&&Job| matches!(j.state, State::Ready | State::Scheduled) && j.claimed_ms.is_none();
            let pending = jobs.iter().filter(waits).count() as u64;
            if pending > most {
                bad.push(format!("caps: {pending} jobs are pending in commit {seq}, and {most} may be"));
            }
        }
        if let Some(rate) = policy.rate
            && claimed > 0
        {
            self.claims.push((at_ms, claimed as i64));
            let mut sum = 0;
            for (from_ms, n) in self.claims.iter().rev() {
                sum += n;
                let most = i64::from(rate.burst) + (at_ms - from_ms) * i64::from(rate.count) / rate.per_ms;
                if sum > most {
                    bad.push(format!(
                        "rate: {sum} jobs are claimed within {} ms up to commit {seq}",
                        at_ms - from_ms
                    ));
                    break;
                }
            }
        }
    }

    /// Each time of the schedule has one job, ever.
    fn ticks(&mut self, seq: u64, at_ms: i64, jobs: &Jobs, bad: &mut Vec<String>) {
        for (id, due, queue) in jobs.values().filter_map(|j| Some((j.id, due_of(j)?, &j.queue))) {
            let first = *self.ticks.entry(due).or_insert(id);
            if first != id {
                bad.push(format!("schedules: {due} ms has fired twice by commit {seq}: {first} and {id}"));
            }
            if due > at_ms || (due - EPOCH_MS) % EVERY_MS != 0 || queue != TICKS {
                bad.push(format!("schedules: {id} in commit {seq} at {at_ms} is for {due} ms"));
            }
        }
    }

    /// No time may be missing if the schedule catches up.
    pub fn end(&self, catch_up: bool, bad: &mut Vec<String>) {
        if catch_up {
            let times: Vec<i64> = self.ticks.keys().copied().collect();
            let hole = times.iter().zip(times.iter().skip(1)).find(|(a, b)| *b - *a != EVERY_MS);
            if let Some((from, to)) = hole {
                bad.push(format!("schedules: nothing fired between {from} and {to} ms"));
            }
        }
    }
}

/// Only the first `group_concurrency` or `group_batch` jobs of each group are ever leased; those of a batch together.
fn groups(policy: &Policy, seq: u64, jobs: &[&Job], bad: &mut Vec<String>) {
    let mut members: BTreeMap<&str, Vec<&Job>> = BTreeMap::new();
    for job in jobs.iter().filter(|j| !j.state.is_finished()) {
        if let Some(group) = &job.group {
            members.entry(group).or_default().push(job);
        }
    }
    for (group, mut members) in members {
        members.sort_unstable_by_key(|j| j.seq);
        for job in members.iter().skip(policy.group_concurrency.max(policy.group_batch) as usize) {
            if job.state == State::Leased {
                bad.push(format!("groups: {} of {group} is leased in commit {seq} before its turn", job.id));
            }
        }
        let mine = |job: &&&Job| job.fence == Some(seq) && job.state == State::Leased;
        if policy.group_batch > 1 && members.iter().any(|job| mine(&job)) {
            let mut others = members.iter().skip_while(mine);
            if let Some(job) = others.find(|job| job.state == State::Leased) {
                bad.push(format!("groups: {} of {group} is leased beside the batch of commit {seq}", job.id));
            }
        }
    }
}

/// An enqueue with a dedup key that has a window, and its reply.
struct Asked<'a> {
    id: JobId,
    commit: u64,
    at_ms: i64,
    window_ms: i64,
    queue: &'a str,
    key: &'a str,
}

/// A dedup key counts for exactly its window, to the millisecond.
pub fn windows(history: &History) -> Vec<String> {
    let mut keys: Vec<Asked<'_>> = Vec::new();
    let mut told: Vec<(Asked<'_>, bool, JobId)> = Vec::new();
    for call in &history.calls {
        collect(call, &mut keys, &mut told);
    }
    let mut bad = Vec::new();
    let known: BTreeSet<(u64, JobId)> = keys.iter().map(|k| (k.commit, k.id)).collect();
    for (asked, deduplicated, by) in &told {
        let same = || keys.iter().filter(|k| (k.queue, k.key) == (asked.queue, asked.key));
        let counts = |k: &&Asked<'_>| k.at_ms + k.window_ms > asked.at_ms;
        if *deduplicated {
            // The reply for a requeued job has another commit; the key belongs to its first enqueue.
            if let Some(first) = same().find(|k| k.id == *by && k.commit <= asked.commit)
                && !counts(&first)
            {
                bad.push(format!(
                    "dedup: {} is kept out in commit {} by {by}, whose window of {} ms ended {} ms ago",
                    asked.id,
                    asked.commit,
                    first.window_ms,
                    asked.at_ms - first.at_ms - first.window_ms
                ));
            }
        } else if known.contains(&(asked.commit, asked.id))
            && let Some(first) = same().filter(counts).find(|k| k.commit < asked.commit)
        {
            bad.push(format!(
                "dedup: {} is let in in commit {}, {} ms after {}, whose window is {} ms",
                asked.id,
                asked.commit,
                asked.at_ms - first.at_ms,
                first.id,
                first.window_ms
            ));
        }
    }
    bad
}

fn collect<'a>(call: &'a Call, keys: &mut Vec<Asked<'a>>, told: &mut Vec<(Asked<'a>, bool, JobId)>) {
    let Some((commit, at_ms, _)) = call.commit() else { return };
    for (op, outcome) in parts(call) {
        let (Effect::Enqueues(queue, jobs), Some(Outcome::Enqueued(done))) = (effect(op), outcome) else {
            continue;
        };
        for (job, done) in jobs.iter().zip(done) {
            let Some(dedup) = &job.dedup else { continue };
            let DedupScope::Window(window_ms) = dedup.scope else { continue };
            let asked = || Asked { id: job.id, commit, at_ms, window_ms, queue, key: &dedup.key };
            let fresh = !done.deduplicated && !done.existing;
            if fresh {
                keys.push(asked());
            }
            if fresh || done.deduplicated {
                told.push((asked(), done.deduplicated, done.id));
            }
        }
    }
}
