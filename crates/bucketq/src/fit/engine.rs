//! The model of this engine: group commit makes the batch. docs/fit.md has the formulas under the same names.

use serde::Serialize;

use super::judge::{Change, Instead, Judge, Judged, judge};
use super::{Inputs, part, penalty};

// The engine's constants: measured by `make bench-engine`, or taken from its code. docs/fit.md says which.
const COMMIT_MS: f64 = 0.4;
const OP_MS: f64 = 0.015;
const HEAD_BYTES: f64 = 18_432.0;
const RECORD_BYTES: f64 = 110.0;
const OP_BYTES: f64 = 100.0;
const SPILL_BYTES: f64 = 114_688.0;
const TAIL_BYTES: f64 = 32_768.0;
const MAX_OPS: f64 = 4096.0;
const MAX_BYTES: f64 = 8_388_608.0;
const MIB: f64 = 1_048_576.0;
const POLL_MIN_MS: f64 = 200.0;
const POLL_MAX_MS: f64 = 1000.0;
const SEGMENTS: f64 = 64.0;
/// The lost races of writers that are not always busy.
const RACES: f64 = 1.5;
/// How many times its own time a commit takes longer for each lost race.
const LOSS: f64 = 2.0;
/// The time of one turn of another writer, in commits.
const TURN: f64 = 1.3;
/// How much longer a turn is when the other writer comes late or not at all.
const ABSENT: f64 = 3.0;
/// The share of the line that a job waits for which arrives at random.
const JOINS: f64 = 0.4;
/// GETs for each commit beside one for each writer, to see in time that it is the writer's turn.
const READS: f64 = 3.0;
const GATHER: f64 = 0.15;
const GATHER_MS: f64 = 10.0;
/// The least share of a cycle that is left for the fixed part of a commit.
const LEAST: f64 = 0.001;
const SQS_CHUNK: f64 = 65_536.0;
const SQS_POLL_S: f64 = 20.0;
/// Seconds of a month of 730 hours.
const MONTH_S: f64 = 2_628_000.0;

/// The results of the model of this engine. Infinity means unlimited.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Engine {
    /// Ops per job, including retries and extensions.
    pub mutations: f64,
    /// Lease extensions per job.
    pub extensions: f64,
    /// Ops per commit that result from the arrivals.
    pub batch: f64,
    /// Most ops per commit.
    pub batch_max: f64,
    /// Time of a commit.
    pub commit_ms: f64,
    /// From one commit to the next while there is work.
    pub cycle_ms: f64,
    /// Most jobs per second.
    pub capacity: f64,
    /// Arrivals divided by capacity.
    pub load: f64,
    /// Time that a worker waits for the queue, per job.
    pub queue_ms: f64,
    /// That time divided by itself plus the work.
    pub overhead: f64,
    /// Dispatch delay with the fastest requests.
    pub dispatch_best_ms: f64,
    /// Expected time until a worker holds a ready job.
    pub dispatch_ms: f64,
    /// The same when the store is slow.
    pub dispatch_p99_ms: f64,
    /// PUTs per job, including lost races and maintenance.
    pub puts_per_job: f64,
    /// GETs per job.
    pub gets_per_job: f64,
    /// Bytes that a commit uploads.
    pub bytes_per_commit: f64,
    /// Commits per second.
    pub commits_per_s: f64,
    /// Conditional GETs per second of waiting workers.
    pub polls_per_s: f64,
    /// Share of the workers that are busy; above 1 no queue would help.
    pub worker_load: f64,
    /// First open of a process.
    pub cold_open_ms: f64,
    /// A commit of a queue that rewrites its whole file each time.
    pub whole_file_ms: f64,
    /// The alternative, when no change of this queue would suffice.
    pub instead: Option<Instead>,
    /// The verdict.
    #[serde(flatten)]
    pub judged: Judged,
}

/// Requests and US dollars of 730 hours, compared with SQS.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Month {
    /// PUTs.
    pub puts: f64,
    /// GETs, polls included.
    pub gets: f64,
    /// GB stored.
    pub storage_gb: f64,
    /// USD of all three.
    pub cost: f64,
    /// Requests to SQS for the same load.
    pub sqs_requests: f64,
    /// USD of those requests.
    pub sqs_cost: f64,
}

/// One commit: a fixed part, a part per op, and a segment first if the delta does not fit into HEAD.
struct CommitModel {
    latency: f64,
    op_bytes: f64,
    fixed: f64,
    per_op: f64,
    interval: f64,
}

impl CommitModel {
    fn of(i: &Inputs, mutations: f64) -> Self {
        let op_bytes = OP_BYTES + i.payload / mutations;
        let limit = if i.writes_per_s > 0.0 { 1000.0 / i.writes_per_s } else { 0.0 };
        Self {
            latency: i.latency_ms,
            op_bytes,
            fixed: i.latency_ms + COMMIT_MS + (i.per_mib_ms * (HEAD_BYTES + RECORD_BYTES)) / MIB,
            per_op: OP_MS + (i.per_mib_ms * op_bytes) / MIB,
            interval: i.commit_interval_ms.max(limit),
        }
    }

    fn spills(&self, ops: f64) -> bool {
        RECORD_BYTES + ops * self.op_bytes > SPILL_BYTES
    }

    fn ms(&self, ops: f64) -> f64 {
        self.fixed + self.per_op * ops + if self.spills(ops) { self.latency } else { 0.0 }
    }

    /// Returns the batch that results from the arrivals. `events` per ms need a commit, with `each` ops per event.
    fn gathered(&self, events: f64, each: f64, others: &Others, batch_max: f64) -> Gathered {
        let during = |fixed: f64| {
            let free = (1.0 - events * each * self.per_op * others.slower).max(LEAST);
            let cycle = (fixed * others.slower + gather(fixed)) / free;
            events * cycle.max(self.interval * others.turns)
        };
        let batch = |x: f64| ((x + (-x).exp()) * each).min(batch_max);
        let mut x = during(self.fixed);
        if self.spills(batch(x)) {
            x = during(self.fixed + self.latency);
        }
        Gathered { batch: batch(x), busy: busy_at(x), nothing: (-x).exp() }
    }
}

/// The share of time in which a commit is under way when `x` events come during one.
fn busy_at(x: f64) -> f64 {
    x / (x + (-x).exp())
}

/// The mean batch, the share of time in which a commit is under way, and the probability that no event comes during
/// one.
struct Gathered {
    batch: f64,
    busy: f64,
    nothing: f64,
}

/// How long a commit waits for the callers that the last one replied to.
fn gather(ms: f64) -> f64 {
    (GATHER * ms).min(GATHER_MS)
}

/// The cost of other writers, and the ops of a job that need a commit of their own.
struct Others {
    /// Ops of a job that need a commit; the others ride along.
    alone: f64,
    /// Time between two polls of HEAD by a process with a waiting worker.
    poll_ms: f64,
    /// PUTs per commit.
    tries: f64,
    /// The factor by which lost races and the turns of others lengthen a commit for a caller that always waits.
    slower: f64,
    /// The same for an op that comes at random.
    joins: f64,
    /// GETs per commit, to watch HEAD and after lost races.
    reads: f64,
    /// Commit intervals until the writer's turn.
    turns: f64,
}

fn others(i: &Inputs, w: f64, mutations: f64, work: f64, fixed: f64, load: f64) -> Others {
    let several = w > 1.0;
    let waiting = 1.0 - ((i.arrival * work) / (1000.0 * i.consumers)).min(1.0).powf(i.consumers);
    let gap = if i.arrival > 0.0 { 1000.0 / i.arrival } else { f64::INFINITY };
    let poll_ms = if several { POLL_MAX_MS.min(POLL_MIN_MS + gap / 2.0) } else { POLL_MAX_MS };
    let own = (i.arrival * mutations) / 1000.0 / w;
    let shown = if several { own / (2.0 / poll_ms + own) } else { 1.0 };
    let alone = mutations - if i.mutations < 2.0 { 0.0 } else { waiting * shown };
    let near = if load < 1.0 { busy_at((i.arrival * alone * fixed) / 1000.0) } else { 1.0 };
    let stale = 1.0 - (1.0 - near) / alone;
    let tries = 1.0 + RACES * (1.0 - 1.0 / w) * stale * (1.0 - near) * (1.0 - near);
    let busy = (w - 1.0) * near;
    let line = TURN * busy * (1.0 + ABSENT * (1.0 - near));
    let once = 1.0 + LOSS * (tries - 1.0);
    Others {
        alone,
        poll_ms,
        tries,
        slower: once + line,
        joins: once + JOINS * line,
        reads: tries - 1.0 + if several { READS + w } else { 0.0 },
        turns: 1.0 + busy,
    }
}

/// The largest commit, and therefore the capacity.
struct Largest {
    most_ops: f64,
    caller_ops: f64,
    batch_max: f64,
    full_cycle: f64,
    capacity: f64,
}

impl Largest {
    fn of(i: &Inputs, commit: &CommitModel, mutations: f64, extensions: f64) -> Self {
        let w = i.racing();
        let most_ops = (MAX_BYTES / commit.op_bytes).clamp(1.0, MAX_OPS);
        let calls = mutations - extensions - 1.0;
        let jobs = if calls > 0.0 { i.producers.min(i.consumers / calls) } else { i.producers };
        let caller_ops = ((jobs * mutations) / w).max(1.0);
        let batch_max = most_ops.min(caller_ops);
        let full_cycle = (commit.ms(batch_max) * penalty(w)).max(commit.interval);
        let capacity = (1000.0 * batch_max) / (mutations * full_cycle);
        Self { most_ops, caller_ops, batch_max, full_cycle, capacity }
    }
}

pub(super) fn engine(i: &Inputs) -> Engine {
    let w = i.racing();
    let hop = if i.broker > 0.0 { i.broker_ms } else { 0.0 };
    let attempts = 1.0 + i.retries;
    let extensions = attempts * ((3.0 * i.work_ms) / i.lease_ms).floor();
    let mutations = i.mutations + 2.0 * i.retries + extensions;
    let most = penalty(w);
    let commit = CommitModel::of(i, mutations);

    let Largest { most_ops, caller_ops, batch_max, full_cycle, capacity } =
        Largest::of(i, &commit, mutations, extensions);
    let load = i.arrival / capacity;

    // The batch that results from the arrivals: the ops that came during one cycle.
    let rho = load.min(1.0);
    let several = w > 1.0;
    let work = attempts * i.work_ms;
    let others = others(i, w, mutations, work, commit.fixed, load);
    let &Others { alone, poll_ms, tries, slower, joins, reads, turns } = &others;
    let events = (i.arrival * alone) / 1000.0 / w;
    let Gathered { batch, busy, nothing } = if load < 1.0 {
        commit.gathered(events, mutations / alone, &others, batch_max)
    } else {
        Gathered { batch: batch_max, busy: 1.0, nothing: 0.0 }
    };
    let commit_ms = commit.ms(batch) * slower;
    let least_ms = commit_ms + busy * gather(commit.ms(batch));
    let cycle_ms = least_ms.max(commit.interval * turns);
    let wait_ms = if load < 1.0 {
        // With several writers the line includes the commit under way, and only an interval comes on top.
        let running = if several { cycle_ms - least_ms } else { cycle_ms };
        (busy * running) / 2.0 + ((rho * rho) / (2.0 * (1.0 - rho))) * cycle_ms
    } else {
        f64::INFINITY
    };
    let commits = mutations / batch;
    let commits_per_s = i.arrival.min(capacity) * commits;

    let joined_ms = commit.ms(batch) * joins;

    // A job of the same process wakes a waiting claim at once; one of another process is noticed by a poll, or by a
    // commit of this process.
    let notice_ms = if several {
        let noticed_ms = 1.0 / ((2.0 / poll_ms + commits_per_s / (1000.0 * w)) * (w - 1.0));
        noticed_ms + joined_ms + wait_ms
    } else {
        0.0
    };
    let dispatch_ms = joined_ms + wait_ms + hop + notice_ms;
    let dispatch_best_ms = i.latency_min_ms + COMMIT_MS + hop;
    let late_ms = if several { poll_ms / 2.0 } else { 0.0 };

    // The time that a worker loses: it waits for its acks and for its share of a claim, at worst in a closed loop.
    let claims = 1.0 / i.prefetch;
    let felt = (i.mutations - 2.0).max(0.0) + claims + i.retries * (1.0 + claims);
    let queue_ms = felt * (commit_ms + wait_ms.min(w * full_cycle) + hop);
    let overhead = part(queue_ms, work);

    let segment_puts = commits * if commit.spills(batch) { 1.0 } else { 0.0 };
    let upkeep = if commit.spills(batch) {
        0.0
    } else {
        ((mutations * commit.op_bytes + commits * RECORD_BYTES) / TAIL_BYTES) * (1.0 + 1.0 / SEGMENTS)
    };

    let change = |by| match by {
        None => (Change::Arrival, Some(0.7 * capacity)),
        Some(_) if commit.interval > commit.ms(batch_max) * most => (Change::Store, None),
        Some(_) if several => (Change::Broker, None),
        Some(Judge::Dispatch) if load < 1.0 => (Change::Budget, Some(2.0 * dispatch_ms)),
        Some(Judge::Overhead) => (Change::Work, Some((19.0 * queue_ms) / attempts)),
        Some(Judge::Load) if caller_ops >= most_ops => (Change::Split, Some((load / 0.7).ceil())),
        Some(Judge::Load) => (Change::Callers, Some(load / 0.7)),
        Some(Judge::Dispatch) => (Change::Callers, None),
    };
    let judged = judge(load, overhead, dispatch_ms, i.budget_ms, change);
    let ideal = (1000.0 * most_ops) / (mutations * commit.ms(most_ops));
    let poor = judged.classes;
    let instead = if poor.load == 2 && i.arrival > 0.9 * ideal {
        Some(Instead::Log)
    } else if poor.overhead == 2 && part(felt * dispatch_best_ms, work) > 0.2 {
        Some(if work < 20.0 { Instead::Memory } else { Instead::Database })
    } else if poor.dispatch == 2 && i.budget_ms < dispatch_best_ms {
        Some(if i.budget_ms < 20.0 { Instead::Memory } else { Instead::Managed })
    } else {
        None
    };
    Engine {
        mutations,
        extensions,
        batch,
        batch_max,
        commit_ms,
        cycle_ms,
        capacity,
        load,
        queue_ms,
        overhead,
        dispatch_best_ms,
        dispatch_ms,
        dispatch_p99_ms: dispatch_ms + (i.latency_p99_ms - i.latency_ms) * joins + late_ms,
        puts_per_job: commits * tries + segment_puts + upkeep,
        gets_per_job: commits * reads + nothing,
        bytes_per_commit: HEAD_BYTES + RECORD_BYTES + batch * commit.op_bytes,
        commits_per_s,
        polls_per_s: ((1000.0 * w) / poll_ms) * ((-commits_per_s * poll_ms) / (1000.0 * w)).exp(),
        worker_load: (i.arrival * (work + queue_ms)) / (1000.0 * i.consumers),
        cold_open_ms: 2.0 * i.latency_ms + i.file_mib * i.per_mib_ms,
        whole_file_ms: 2.0 * i.latency_ms + 2.0 * i.file_mib * i.per_mib_ms,
        instead,
        judged,
    }
}

pub(super) fn month(i: &Inputs, engine: &Engine) -> Month {
    let done = i.arrival.min(engine.capacity);
    let puts = MONTH_S * done * engine.puts_per_job;
    let gets = MONTH_S * (done * engine.gets_per_job + engine.polls_per_s);
    let storage_gb = (2.0 * i.file_mib) / 1024.0;
    let attempts = 1.0 + i.retries;
    let chunks = ((i.payload * i.sqs_batch) / SQS_CHUNK).ceil().max(1.0);
    let per_job = ((1.0 + attempts) * chunks + 1.0 + i.retries + engine.extensions) / i.sqs_batch;
    let idle = 1.0 - engine.worker_load.min(1.0);
    let sqs_requests = MONTH_S * (i.arrival * per_job + (idle * i.consumers) / SQS_POLL_S);
    Month {
        puts,
        gets,
        storage_gb,
        cost: (puts * i.price_put + gets * i.price_get) / 1e6 + storage_gb * i.price_gb,
        sqs_requests,
        sqs_cost: (sqs_requests * i.price_sqs) / 1e6,
    }
}
