// The fit model: pure arithmetic on plain objects. docs/fit.md has the formulas and their reasons; crates/bucketq/src/fit
// is the same model in Rust, and cases.json keeps the two together.
import { amount, percent, time } from "./words.js";

/** The inputs, in order: key, default, minimum, maximum, whole numbers only. With `above` the minimum itself is refused. */
export const INPUTS = [
  { key: "mutations", default: 3, min: 1, max: 1000 },
  { key: "batch", default: 10, min: 1, max: 4096 },
  { key: "arrival", default: 5.2, min: 0, max: 1e6 },
  { key: "work_ms", default: 1000, min: 0, max: 86_400_000 },
  { key: "budget_ms", default: 200, min: 0, max: 86_400_000, above: true },
  { key: "producers", default: 4, min: 1, max: 100_000, whole: true },
  { key: "consumers", default: 8, min: 1, max: 100_000, whole: true },
  { key: "prefetch", default: 10, min: 1, max: 10_000, whole: true },
  { key: "writers", default: 1, min: 1, max: 64, whole: true },
  { key: "broker", default: 0, min: 0, max: 1, whole: true },
  { key: "broker_ms", default: 1, min: 0, max: 10_000 },
  { key: "payload", default: 1024, min: 0, max: 16_777_216, whole: true },
  { key: "retries", default: 0, min: 0, max: 100 },
  { key: "lease_ms", default: 60_000, min: 0, max: 86_400_000, above: true },
  { key: "latency_min_ms", default: 60, min: 0, max: 60_000 },
  { key: "latency_ms", default: 90, min: 0, max: 60_000 },
  { key: "latency_p99_ms", default: 250, min: 0, max: 60_000 },
  { key: "per_mib_ms", default: 10, min: 0, max: 60_000 },
  { key: "writes_per_s", default: 0, min: 0, max: 100_000 },
  { key: "commit_interval_ms", default: 0, min: 0, max: 60_000 },
  { key: "file_mib", default: 10, min: 0, max: 65_536 },
  { key: "price_put", default: 5, min: 0, max: 1000 },
  { key: "price_get", default: 0.4, min: 0, max: 1000 },
  { key: "price_gb", default: 0.023, min: 0, max: 1000 },
  { key: "price_sqs", default: 0.4, min: 0, max: 1000 },
  { key: "sqs_batch", default: 1, min: 1, max: 10, whole: true },
];

/** The verdicts from best to worst; a class is an index into this. */
export const VERDICTS = ["strong", "tradeoff", "poor"];

export const LIMITS = { overhead: [0.05, 0.2], load: [0.7, 0.9, 1], dispatch: [0.5, 1] };

// Constants of the engine: measured by `make bench-engine`, or taken from its code. docs/fit.md says which.
const CONTENTION = 0.3;
const COMMIT_MS = 0.4;
const OP_MS = 0.015;
const HEAD_BYTES = 18_432;
const RECORD_BYTES = 110;
const OP_BYTES = 100;
const SPILL_BYTES = 114_688;
const TAIL_BYTES = 32_768;
const MAX_OPS = 4096;
const MAX_BYTES = 8_388_608;
const MIB = 1_048_576;
const POLL_MIN_MS = 200;
const POLL_MAX_MS = 1000;
const SEGMENTS = 64;
const RACES = 1.5;
const LOSS = 2;
const TURN = 1.3;
const ABSENT = 3;
const JOINS = 0.4;
const READS = 3;
const LEAST = 0.001;
const GATHER = 0.15;
const GATHER_MS = 10;
const SQS_CHUNK = 65_536;
const SQS_POLL_S = 20;
/** Seconds of a month of 730 hours. */
const MONTH_S = 2_628_000;

/** Returns the inputs with defaults for missing ones. */
export function complete(given = {}) {
  return Object.fromEntries(INPUTS.map(({ key, default: value }) => [key, given[key] ?? value]));
}

/** Returns the invalid inputs as { field, message }; empty when all are valid. */
export function check(inputs) {
  const found = [];
  for (const { key, min, max, whole, above } of INPUTS) {
    const value = inputs[key];
    if (typeof value !== "number" || !Number.isFinite(value)) found.push({ field: key, message: "give a number" });
    else if (above && value <= min) found.push({ field: key, message: `more than ${min}` });
    else if (value < min || value > max) found.push({ field: key, message: `${amount(min)} to ${amount(max)}` });
    else if (whole && !Number.isInteger(value)) found.push({ field: key, message: "a whole number" });
  }
  if (found.length === 0) {
    if (inputs.latency_min_ms > inputs.latency_ms) {
      found.push({ field: "latency_min_ms", message: "not over the typical latency" });
    }
    if (inputs.latency_p99_ms < inputs.latency_ms) {
      found.push({ field: "latency_p99_ms", message: "not under the typical latency" });
    }
  }
  return found;
}

/** Returns the factor by which a commit takes longer when `writers` processes race for HEAD: 1 for one writer. */
export function penalty(writers) {
  return 1 + CONTENTION * (1 - 1 / writers);
}

/** Returns all results of the model for these inputs, which must have passed `check`. */
export function evaluate(given) {
  const inputs = complete(given);
  const { tenfold, ...now } = both(inputs, true);
  return { ...now, tenfold };
}

function both(inputs, andTenfold) {
  const plain = plainModel(inputs);
  const engine = engineModel(inputs);
  const month = costs(inputs, engine);
  const more = { ...inputs, arrival: 10 * inputs.arrival, producers: 10 * inputs.producers, consumers: 10 * inputs.consumers };
  return { plain, engine, month, tenfold: andTenfold ? both(more, false) : undefined };
}

/** Returns the share of time in which a commit is running when `x` ops arrive during one. */
const busyAt = (x) => x / (x + Math.exp(-x));
const racing = ({ writers, broker }) => (broker ? 1 : writers);
const part = (a, b) => (a === 0 ? 0 : a === Infinity ? 1 : a / (a + b));

/** The plain model, as published; we added the dispatch delay and the penalty. */
export function plainModel(i) {
  const found = plainFigures(i);
  return { ...found, ...judge(found, i, (by) => plainChange(by, found, i)) };
}

function plainFigures(i) {
  const penalised = i.latency_ms * penalty(racing(i));
  const queue_ms = (i.mutations / i.batch) * penalised;
  const load = (i.arrival * queue_ms) / 1000;
  const dispatch_ms = load < 1 ? 1.5 * penalised + (load / (1 - load)) * queue_ms : Infinity;
  return {
    penalty: penalty(racing(i)),
    queue_ms,
    capacity: queue_ms === 0 ? Infinity : 1000 / queue_ms,
    overhead: part(queue_ms, i.work_ms),
    load,
    puts_per_job: i.mutations / i.batch,
    dispatch_ms,
  };
}

function plainChange(by, found, i) {
  if (by === "load") return ["batch", (i.batch * found.load) / LIMITS.load[0]];
  if (by === "overhead") return ["work", 19 * found.queue_ms];
  if (by === "dispatch") return dispatchBudget(found);
  return found.capacity === Infinity ? ["nothing", null] : ["arrival", LIMITS.load[0] * found.capacity];
}

const dispatchBudget = ({ dispatch_ms }) => ["budget", 2 * dispatch_ms];

/** The model of this engine: group commit determines the batch. */
export function engineModel(i) {
  const { found, facts } = engineFigures(i);
  const judged = judge(found, i, (by) => engineChange(by, found, facts));
  return { ...found, ...judged, instead: instead(judged, found, facts) };
}

/** Returns only the verdict, without reasons: for maps with thousands of cells. */
export function verdictOf(model, i) {
  const { load, overhead, dispatch } = classes(model === "plain" ? plainFigures(i) : engineFigures(i).found, i);
  return VERDICTS[Math.max(load, overhead, dispatch)];
}

function engineFigures(i) {
  const w = racing(i);
  const hop = i.broker ? i.broker_ms : 0;
  const attempts = 1 + i.retries;
  const extensions = attempts * Math.floor((3 * i.work_ms) / i.lease_ms);
  const mutations = i.mutations + 2 * i.retries + extensions;
  const most = penalty(w);

  // One commit: a fixed part, a part per op, and first a segment when the delta does not fit into HEAD.
  const opBytes = OP_BYTES + i.payload / mutations;
  const fixed = i.latency_ms + COMMIT_MS + (i.per_mib_ms * (HEAD_BYTES + RECORD_BYTES)) / MIB;
  const perOp = OP_MS + (i.per_mib_ms * opBytes) / MIB;
  const spills = (ops) => RECORD_BYTES + ops * opBytes > SPILL_BYTES;
  const commit = (ops) => fixed + perOp * ops + (spills(ops) ? i.latency_ms : 0);
  const interval = Math.max(i.commit_interval_ms, i.writes_per_s > 0 ? 1000 / i.writes_per_s : 0);

  // The largest commit, and therefore the capacity.
  const mostOps = Math.max(1, Math.min(MAX_OPS, MAX_BYTES / opBytes));
  const calls = mutations - extensions - 1;
  const round = calls > 0 ? Math.min(i.producers, i.consumers / calls) : i.producers;
  const callerOps = Math.max(1, (round * mutations) / w);
  const batch_max = Math.min(mostOps, callerOps);
  const fullCycle = Math.max(commit(batch_max) * most, interval);
  const capacity = (1000 * batch_max) / (mutations * fullCycle);
  const load = i.arrival / capacity;

  // The batch: the ops that arrive during one cycle.
  const rho = Math.min(load, 1);
  const work = attempts * i.work_ms;
  const waiting = 1 - Math.min(1, (i.arrival * work) / (1000 * i.consumers)) ** i.consumers;
  const gap = i.arrival > 0 ? 1000 / i.arrival : Infinity;
  const poll_ms = w > 1 ? Math.min(POLL_MAX_MS, POLL_MIN_MS + gap / 2) : POLL_MAX_MS;
  const own = (i.arrival * mutations) / 1000 / w;
  const shown = w > 1 ? own / (2 / poll_ms + own) : 1;
  const alone = mutations - (i.mutations < 2 ? 0 : waiting * shown);
  const near = load < 1 ? busyAt((i.arrival * alone * fixed) / 1000) : 1;
  const stale = 1 - (1 - near) / alone;
  const tries = 1 + RACES * (1 - 1 / w) * stale * (1 - near) ** 2;
  const line = TURN * (w - 1) * near * (1 + ABSENT * (1 - near));
  const once = 1 + LOSS * (tries - 1);
  const slower = once + line;
  const joins = once + JOINS * line;
  const reads = tries - 1 + (w > 1 ? READS + w : 0);
  const turns = 1 + (w - 1) * near;
  const events = (i.arrival * alone) / 1000 / w;
  const ops = events * (mutations / alone);
  const gather = (ms) => Math.min(GATHER * ms, GATHER_MS);
  const free = Math.max(LEAST, 1 - ops * perOp * slower);
  const during = (ms) => events * Math.max((ms * slower + gather(ms)) / free, interval * turns);
  let x = 0;
  let batch = batch_max;
  let busy = 1;
  if (load < 1) {
    x = during(fixed);
    const gathered = () => Math.min((x + Math.exp(-x)) * (mutations / alone), batch_max);
    if (spills(gathered())) x = during(fixed + i.latency_ms);
    batch = gathered();
    busy = busyAt(x);
  }
  const commit_ms = commit(batch) * slower;
  const joined_ms = commit(batch) * joins;
  const least_ms = commit_ms + busy * gather(commit(batch));
  const cycle_ms = Math.max(least_ms, interval * turns);
  const running_ms = w > 1 ? cycle_ms - least_ms : cycle_ms;
  const wait_ms = load < 1 ? (busy * running_ms) / 2 + ((rho * rho) / (2 * (1 - rho))) * cycle_ms : Infinity;
  const commits = mutations / batch;
  const commits_per_s = Math.min(i.arrival, capacity) * commits;

  // An enqueue wakes waiting workers of its process at once; other processes notice it by a poll or by a commit of their own.
  const notice_ms = w > 1 ? 1 / ((2 / poll_ms + commits_per_s / (1000 * w)) * (w - 1)) + joined_ms + wait_ms : 0;
  const dispatch_ms = joined_ms + wait_ms + hop + notice_ms;

  // A worker's lost time: it waits for its acks and for its share of a claim, in a closed loop at worst.
  const felt = Math.max(0, i.mutations - 2) + 1 / i.prefetch + i.retries * (1 + 1 / i.prefetch);
  const queue_ms = felt * (commit_ms + Math.min(wait_ms, w * fullCycle) + hop);

  const upkeep = spills(batch)
    ? 0
    : ((mutations * opBytes + (mutations / batch) * RECORD_BYTES) / TAIL_BYTES) * (1 + 1 / SEGMENTS);
  const found = {
    mutations,
    extensions,
    batch,
    batch_max,
    commit_ms,
    cycle_ms,
    capacity,
    load,
    queue_ms,
    overhead: part(queue_ms, work),
    dispatch_best_ms: i.latency_min_ms + COMMIT_MS + hop,
    dispatch_ms,
    dispatch_p99_ms: dispatch_ms + (i.latency_p99_ms - i.latency_ms) * joins + (w > 1 ? poll_ms / 2 : 0),
    puts_per_job: commits * (tries + (spills(batch) ? 1 : 0)) + upkeep,
    gets_per_job: commits * reads + (load < 1 ? Math.exp(-x) : 0),
    bytes_per_commit: HEAD_BYTES + RECORD_BYTES + batch * opBytes,
    commits_per_s,
    polls_per_s: ((1000 * w) / poll_ms) * Math.exp((-commits_per_s * poll_ms) / (1000 * w)),
    worker_load: (i.arrival * (work + queue_ms)) / (1000 * i.consumers),
    cold_open_ms: 2 * i.latency_ms + i.file_mib * i.per_mib_ms,
    whole_file_ms: 2 * i.latency_ms + 2 * i.file_mib * i.per_mib_ms,
  };
  const ideal = (1000 * mostOps) / (mutations * commit(mostOps));
  const slowStore = interval > commit(batch_max) * most;
  return { found, facts: { i, w, ideal, attempts, felt, slowStore, callers: callerOps < mostOps } };
}

function engineChange(by, found, { i, w, attempts, slowStore, callers }) {
  if (by === null) return ["arrival", LIMITS.load[0] * found.capacity];
  if (slowStore) return ["store", null];
  if (w > 1) return ["broker", null];
  if (by === "dispatch") return found.load < 1 ? dispatchBudget(found) : ["callers", null];
  if (by === "overhead") return ["work", (19 * found.queue_ms) / attempts];
  return callers ? ["callers", found.load / LIMITS.load[0]] : ["split", Math.ceil(found.load / LIMITS.load[0])];
}

/** Returns what to use when a figure is poor and no change of this queue would help; null while one might. */
function instead({ classes: { load, overhead, dispatch } }, found, { i, ideal, attempts, felt }) {
  const work = attempts * i.work_ms;
  const best = found.dispatch_best_ms;
  if (load === 2 && i.arrival > LIMITS.load[1] * ideal) return "log";
  if (overhead === 2 && part(felt * best, work) > LIMITS.overhead[1]) return work < 20 ? "memory" : "database";
  if (dispatch === 2 && i.budget_ms < best) return i.budget_ms < 20 ? "memory" : "managed";
  return null;
}

/** Returns requests and cost of a month, compared with SQS. */
export function costs(i, engine) {
  const done = Math.min(i.arrival, engine.capacity);
  const puts = MONTH_S * done * engine.puts_per_job;
  const gets = MONTH_S * (done * engine.gets_per_job + engine.polls_per_s);
  const storage_gb = (2 * i.file_mib) / 1024;
  const attempts = 1 + i.retries;
  const chunks = Math.max(1, Math.ceil((i.payload * i.sqs_batch) / SQS_CHUNK));
  const perJob = ((1 + attempts) * chunks + 1 + i.retries + engine.extensions) / i.sqs_batch;
  const idle = 1 - Math.min(1, engine.worker_load);
  const sqs_requests = MONTH_S * (i.arrival * perJob + (idle * i.consumers) / SQS_POLL_S);
  return {
    puts,
    gets,
    storage_gb,
    cost: (puts * i.price_put + gets * i.price_get) / 1e6 + storage_gb * i.price_gb,
    sqs_requests,
    sqs_cost: (sqs_requests * i.price_sqs) / 1e6,
  };
}

/** Returns the class of each figure: 0 strong, 1 tradeoff, 2 poor. */
export function classes({ overhead, load, dispatch_ms }, { budget_ms }) {
  return {
    load: load < LIMITS.load[0] ? 0 : load <= LIMITS.load[1] ? 1 : 2,
    overhead: overhead < LIMITS.overhead[0] ? 0 : overhead <= LIMITS.overhead[1] ? 1 : 2,
    dispatch: dispatch_ms <= LIMITS.dispatch[0] * budget_ms ? 0 : dispatch_ms <= LIMITS.dispatch[1] * budget_ms ? 1 : 2,
  };
}

/** Returns the worst of the three, which one it is, and the change that would help. Ties are broken in this order. */
function judge(found, inputs, changeOf) {
  const all = classes(found, inputs);
  const worst = Math.max(all.load, all.overhead, all.dispatch);
  const decided_by = worst === 0 ? null : ["load", "overhead", "dispatch"].find((k) => all[k] === worst);
  const [change, change_value] = changeOf(decided_by);
  const verdict = VERDICTS[worst];
  const judged = { classes: all, verdict, decided_by, backlog_grows: found.load >= LIMITS.load[2], change, change_value };
  return { ...judged, sentence: sentence(judged, found, inputs) };
}

function sentence({ verdict, decided_by, backlog_grows, change, change_value }, found, inputs) {
  return `${verdict[0].toUpperCase()}${verdict.slice(1)}: ${because(decided_by, backlog_grows, found, inputs)}. ${then(change, change_value)}`;
}

function because(by, backlog_grows, { load, overhead, dispatch_ms }, { budget_ms }) {
  if (by === null) return "overhead, load and dispatch are all well inside their limits";
  if (by === "overhead") return `${percent(overhead)} of a worker's time goes to the queue`;
  if (by === "dispatch") return `a ready job reaches a worker after ${time(dispatch_ms)}, and the budget is ${time(budget_ms)}`;
  if (!backlog_grows) return `the queue runs at ${percent(load)} of its capacity`;
  return `jobs arrive faster than the queue can pass them on (${percent(load)} of its capacity), so the backlog grows`;
}

function then(change, value) {
  switch (change) {
    case "arrival":
      return `Load stays healthy up to ${amount(value)} jobs/s.`;
    case "batch":
      return `A batch over ${amount(value)} would make that strong.`;
    case "work":
      return `Jobs with over ${time(value)} of work would make that strong.`;
    case "budget":
      return `A budget of ${time(value)} would make that strong.`;
    case "store":
      return "A store without the limit on commits would change it.";
    case "broker":
      return "One process that commits for all, a broker, would change it.";
    case "callers":
      return "More calls at once, or more jobs in a call, would change it.";
    case "split":
      return `Sharing the work among ${amount(value)} queue files would change it.`;
    default:
      return "Nothing here would change it.";
  }
}
