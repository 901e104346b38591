//! The workload of a queue file: derived from its jobs, its commits and its statistics. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::Inputs;
use crate::noun::job::{Job, State};
use crate::noun::query::{Commit, Stats};

/// With fewer jobs or commits a mean is not reliable.
const ENOUGH: usize = 20;

/// Statistics of a duration, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Times {
    /// The number of values.
    pub samples: u64,
    /// Their mean.
    pub mean_ms: f64,
    /// The median.
    pub p50_ms: f64,
    /// One in twenty takes longer.
    pub p95_ms: f64,
}

/// The observed inputs; the names are those of [`Inputs`]. None: the file does not show it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ObservedInputs {
    /// Ops per job, without retries and extensions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mutations: Option<f64>,
    /// Ops per commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<f64>,
    /// Jobs per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arrival: Option<f64>,
    /// Mean time from claim to ack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work_ms: Option<f64>,
    /// Most jobs held at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumers: Option<f64>,
    /// Jobs that one worker claimed in one commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefetch: Option<f64>,
    /// Most writers that committed at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writers: Option<f64>,
    /// Mean size of a payload in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<f64>,
    /// Further attempts of finished jobs, on average.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<f64>,
    /// Mean lease of the held jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<f64>,
    /// Size of the database.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_mib: Option<f64>,
}

impl ObservedInputs {
    /// Returns these inputs with the observed values, each within the range of the model.
    pub fn on(&self, inputs: &Inputs) -> Inputs {
        let or = |told: Option<f64>, usual: f64| told.unwrap_or(usual);
        Inputs {
            mutations: or(self.mutations, inputs.mutations),
            batch: or(self.batch, inputs.batch),
            arrival: or(self.arrival, inputs.arrival),
            work_ms: or(self.work_ms, inputs.work_ms),
            consumers: or(self.consumers, inputs.consumers),
            prefetch: or(self.prefetch, inputs.prefetch),
            writers: or(self.writers, inputs.writers),
            payload: or(self.payload, inputs.payload),
            retries: or(self.retries, inputs.retries),
            lease_ms: or(self.lease_ms, inputs.lease_ms),
            file_mib: or(self.file_mib, inputs.file_mib),
            ..*inputs
        }
    }
}

/// The workload of a queue file, as far as the file still knows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Workload {
    /// Jobs that were read.
    pub jobs: u64,
    /// Whether these are all jobs of the file.
    pub complete: bool,
    /// The longest time over which arrivals were counted; each queue has its own.
    pub window_ms: f64,
    /// From claim to ack, of done jobs; includes the queue's own time.
    pub work: Option<Times>,
    /// From the time a job was ready to its claim, of jobs claimed once.
    pub dispatch: Option<Times>,
    /// Commits in the log.
    pub commits: u64,
    /// The time that they span.
    pub commits_ms: f64,
    /// The observed inputs of the model.
    pub inputs: ObservedInputs,
}

/// Derives the workload from these jobs and commits. `complete` says whether `jobs` has all jobs of the file.
///
/// Finished jobs are kept only for a while, and the log begins at the newest base. Jobs that were enqueued after the
/// oldest kept finish are all still there, so each queue's arrivals are counted from then.
pub fn observe(jobs: &[Job], commits: &[Commit], stats: &Stats, complete: bool) -> Workload {
    let now = stats.commit_ms;
    let mut queues: BTreeMap<&str, Vec<&Job>> = BTreeMap::new();
    for job in jobs {
        queues.entry(&job.queue).or_default().push(job);
    }
    let (mut arrival, mut window_ms, mut counted) = (0.0, 0.0_f64, 0);
    let mut whole_from = i64::MIN;
    for all in queues.values() {
        let from = whole_since(all);
        whole_from = whole_from.max(from);
        let since = all.iter().filter(|job| job.enqueued_ms > from).count();
        counted += since;
        if now > from {
            arrival += since as f64 * 1000.0 / (now - from) as f64;
            window_ms = window_ms.max((now - from) as f64);
        }
    }
    let done: Vec<&Job> = jobs.iter().filter(|job| job.state == State::Done).collect();
    let work = times(done.iter().filter_map(|job| Some(job.finished_ms? - job.claimed_ms?)).collect());
    let at_once = |job: &&Job| job.attempt == 1 && job.run == 0;
    let dispatch = jobs
        .iter()
        .filter(at_once)
        .filter_map(|job| Some(job.claimed_ms? - job.run_at_ms.max(job.enqueued_ms)));
    let dispatch = times(dispatch.collect());
    let ended: Vec<f64> = jobs
        .iter()
        .filter(|job| matches!(job.state, State::Done | State::Dead) && job.attempt > 0)
        .map(|job| f64::from(job.attempt - 1))
        .collect();
    let leases = jobs.iter().filter_map(|job| Some((job.expires_ms? - job.claimed_ms?) as f64));
    let leases: Vec<f64> = leases.collect();
    let ops: u64 = commits.iter().map(|commit| u64::from(commit.ops)).sum();
    let span = commits.first().zip(commits.last()).map_or(0, |(new, old)| new.commit_ms - old.commit_ms);
    let retries = mean(&ended);
    let told = ObservedInputs {
        mutations: mutations(jobs, commits, whole_from, retries.unwrap_or(0.0)),
        batch: (commits.len() >= ENOUGH).then(|| tidy(ops as f64 / commits.len() as f64).clamp(1.0, 4096.0)),
        arrival: (counted >= ENOUGH && complete).then(|| tidy(arrival).min(1e6)),
        work_ms: work.map(|w| w.mean_ms.min(86_400_000.0)),
        consumers: Some(held_at_once(jobs)).filter(|most| *most > 0.0),
        prefetch: prefetch(jobs),
        writers: Some(writers_at_once(commits).min(64.0)).filter(|most| *most > 0.0),
        payload: mean(&jobs.iter().map(|job| job.payload_len as f64).collect::<Vec<_>>()).map(f64::round),
        retries: retries.map(|r| tidy(r).min(100.0)),
        lease_ms: mean(&leases).filter(|l| *l > 0.0).map(tidy),
        file_mib: Some(tidy(stats.pages as f64 / 256.0)),
    };
    Workload {
        jobs: jobs.len() as u64,
        complete,
        window_ms,
        work,
        dispatch,
        commits: commits.len() as u64,
        commits_ms: span as f64,
        inputs: told,
    }
}

/// Returns the time since which no enqueued job can have been deleted: the oldest kept finish, or without one the
/// oldest enqueue.
fn whole_since(jobs: &[&Job]) -> i64 {
    let finished = jobs.iter().filter(|job| job.state != State::Dead).filter_map(|job| job.finished_ms).min();
    finished.or_else(|| jobs.iter().map(|job| job.enqueued_ms).min()).unwrap_or(0)
}

/// Returns ops per job in the commits since a time, less the ops of retries.
fn mutations(jobs: &[Job], commits: &[Commit], since: i64, retries: f64) -> Option<f64> {
    let commits: Vec<&Commit> = commits.iter().filter(|commit| commit.commit_ms > since).collect();
    let (first, last) = (commits.last()?.commit_seq, commits.first()?.commit_seq);
    let enqueued = jobs.iter().filter(|job| (first..=last).contains(&job.commit_seq())).count();
    let ops: u64 = commits.iter().map(|commit| u64::from(commit.ops)).sum();
    (enqueued >= ENOUGH).then(|| tidy(ops as f64 / enqueued as f64 - 2.0 * retries).clamp(1.0, 1000.0))
}

/// Returns the most writers that were active at the same time; each is active from its first to its last commit with an
/// op. A writer that opens the file again counts as another one.
fn writers_at_once(commits: &[Commit]) -> f64 {
    let mut there: BTreeMap<&str, (i64, i64)> = BTreeMap::new();
    for commit in commits.iter().filter(|commit| commit.ops > 0) {
        let (first, last) = there.entry(&commit.writer).or_insert((commit.commit_ms, commit.commit_ms));
        (*first, *last) = (commit.commit_ms.min(*first), commit.commit_ms.max(*last));
    }
    // One millisecond longer, so that a single commit counts.
    most_at_once(there.into_values().flat_map(|(first, last)| [(first, 1), (last + 1, -1)]).collect())
}

/// Returns the most claims that were open at the same moment.
fn held_at_once(jobs: &[Job]) -> f64 {
    let mut steps: Vec<(i64, i32)> = vec![];
    for job in jobs {
        let Some(claimed) = job.claimed_ms else { continue };
        match (job.state, job.finished_ms) {
            (State::Leased, _) => steps.push((claimed, 1)),
            (_, Some(finished)) => steps.extend([(claimed, 1), (finished, -1)]),
            _ => {}
        }
    }
    most_at_once(steps)
}

fn most_at_once(mut steps: Vec<(i64, i32)>) -> f64 {
    // An end sorts before a beginning at the same moment.
    steps.sort_unstable();
    let (mut held, mut most) = (0, 0);
    for (_, step) in steps {
        held += step;
        most = most.max(held);
    }
    f64::from(most)
}

/// Returns how many jobs a named worker claimed in one commit, on average.
fn prefetch(jobs: &[Job]) -> Option<f64> {
    let claims: Vec<(u64, &str)> =
        jobs.iter().filter_map(|job| Some((job.fence?, job.worker.as_deref()?))).collect();
    let different: BTreeSet<&(u64, &str)> = claims.iter().collect();
    (claims.len() >= ENOUGH).then(|| (claims.len() as f64 / different.len() as f64).round())
}

fn times(mut all: Vec<i64>) -> Option<Times> {
    all.sort_unstable();
    let at =
        |share: usize| all.get((all.len() * share).div_ceil(100).max(1) - 1).map_or(0.0, |ms| *ms as f64);
    let mean_ms = mean(&all.iter().map(|ms| *ms as f64).collect::<Vec<_>>())?;
    Some(Times { samples: all.len() as u64, mean_ms: tidy(mean_ms), p50_ms: at(50), p95_ms: at(95) })
}

fn mean(all: &[f64]) -> Option<f64> {
    (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
}

/// Rounds to four decimals: the data is no more precise.
fn tidy(number: f64) -> f64 {
    (number * 10_000.0).round() / 10_000.0
}
