//! Whether a queue in object storage suits a workload: the fit model, pure arithmetic. No I/O, no clock.
//!
//! [`evaluate`] returns the verdicts of the plain model and of this engine, requests and cost of a month compared with
//! SQS, and all of it at ten times the load. docs/fit.md has the formulas. Python calls this module. The web page has the
//! same model in JavaScript; `fit-calculator/cases.json`, computed independently, keeps both right.

use serde::{Deserialize, Serialize};

use crate::noun::error::{Code, Error, Result};

mod engine;
mod judge;
mod observed;
mod words;

pub use engine::{Engine, Month};
pub use judge::{Change, Classes, Instead, Judge, Judged, Verdict};
pub use observed::{ObservedInputs, Times, Workload, observe};

/// How much longer a commit takes at most when many writers race for HEAD; docs/fit.md explains the value.
const CONTENTION: f64 = 0.3;

/// The range of one input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// The field of [`Inputs`].
    pub name: &'static str,
    /// Its default.
    pub default: f64,
    /// Its minimum ...
    pub least: f64,
    /// ... and its maximum.
    pub most: f64,
    /// Only whole numbers.
    pub whole: bool,
    /// The minimum itself is not allowed.
    pub above: bool,
}

macro_rules! inputs {
    ($($(#[$doc:meta])* $name:ident = $default:literal, $least:literal to $most:literal $($mark:ident)?;)*) => {
        /// A workload, a store and prices. Times end in `_ms`; the defaults are the published example.
        #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Inputs {
            $($(#[$doc])* pub $name: f64,)*
        }

        impl Default for Inputs {
            fn default() -> Self {
                Self { $($name: $default),* }
            }
        }

        /// The range of each input, in the order of the fields.
        pub const RULES: &[Rule] = &[$(Rule {
            name: stringify!($name),
            default: $default,
            least: $least,
            most: $most,
            whole: inputs!(@whole $($mark)?),
            above: inputs!(@above $($mark)?),
        }),*];

        impl Inputs {
            /// Returns the values, in the order of [`RULES`].
            pub fn values(&self) -> Vec<f64> {
                vec![$(self.$name),*]
            }

            /// Returns the inputs with these values, in the order of [`RULES`]; `None` unless there is one for each.
            pub fn from_values(values: &[f64]) -> Option<Self> {
                match values {
                    [$($name),*] => Some(Self { $($name: *$name),* }),
                    _ => None,
                }
            }
        }
    };
    (@whole whole) => { true };
    (@whole $($mark:ident)?) => { false };
    (@above above) => { true };
    (@above $($mark:ident)?) => { false };
}

inputs! {
    /// Ops per job: enqueue, claim, ack.
    mutations = 3.0, 1.0 to 1000.0;
    /// Ops per commit, for the plain model; the engine forms its own batches.
    batch = 10.0, 1.0 to 4096.0;
    /// Jobs per second.
    arrival = 5.2, 0.0 to 1_000_000.0;
    /// Work of one attempt.
    work_ms = 1000.0, 0.0 to 86_400_000.0;
    /// Dispatch budget: how soon a worker must hold a ready job.
    budget_ms = 200.0, 0.0 to 86_400_000.0 above;
    /// Simultaneous enqueue calls, over all processes.
    producers = 4.0, 1.0 to 100_000.0 whole;
    /// Simultaneous workers, over all processes.
    consumers = 8.0, 1.0 to 100_000.0 whole;
    /// Jobs that a worker claims at once, if there are enough.
    prefetch = 10.0, 1.0 to 10_000.0 whole;
    /// Processes that open the queue file.
    writers = 1.0, 1.0 to 64.0 whole;
    /// 1 when one process commits for all.
    broker = 0.0, 0.0 to 1.0 whole;
    /// Round trip to the broker.
    broker_ms = 1.0, 0.0 to 10_000.0;
    /// Size of a job in bytes.
    payload = 1024.0, 0.0 to 16_777_216.0 whole;
    /// Further attempts of a job, on average.
    retries = 0.0, 0.0 to 100.0;
    /// Lease of a claim; extended after each third of it.
    lease_ms = 60_000.0, 0.0 to 86_400_000.0 above;
    /// The fastest small PUT.
    latency_min_ms = 60.0, 0.0 to 60_000.0;
    /// The median small PUT.
    latency_ms = 90.0, 0.0 to 60_000.0;
    /// The slowest in a hundred small PUTs.
    latency_p99_ms = 250.0, 0.0 to 60_000.0;
    /// Upload of one MiB.
    per_mib_ms = 10.0, 0.0 to 60_000.0;
    /// Writes per second that the store allows to one key; 0 without a limit.
    writes_per_s = 0.0, 0.0 to 100_000.0;
    /// The option `commit_interval`.
    commit_interval_ms = 0.0, 0.0 to 60_000.0;
    /// Size of the queue file.
    file_mib = 10.0, 0.0 to 65_536.0;
    /// USD per million PUTs.
    price_put = 5.0, 0.0 to 1000.0;
    /// USD per million GETs.
    price_get = 0.4, 0.0 to 1000.0;
    /// USD per GB and month.
    price_gb = 0.023, 0.0 to 1000.0;
    /// USD per million requests to SQS.
    price_sqs = 0.4, 0.0 to 1000.0;
    /// Messages in one request to SQS.
    sqs_batch = 1.0, 1.0 to 10.0 whole;
}

impl Inputs {
    /// Returns invalid inputs, as field and message; empty when all are valid.
    pub fn problems(&self) -> Vec<(&'static str, String)> {
        let mut found: Vec<_> =
            RULES.iter().zip(self.values()).filter_map(|(r, v)| Some((r.name, r.problem(v)?))).collect();
        if found.is_empty() && self.latency_min_ms > self.latency_ms {
            found.push(("latency_min_ms", "not over the typical latency".to_owned()));
        }
        if found.is_empty() && self.latency_p99_ms < self.latency_ms {
            found.push(("latency_p99_ms", "not under the typical latency".to_owned()));
        }
        found
    }

    /// Returns the number of writers that race for HEAD.
    fn racing(&self) -> f64 {
        if self.broker > 0.0 { 1.0 } else { self.writers }
    }
}

impl Rule {
    fn problem(&self, value: f64) -> Option<String> {
        if !value.is_finite() {
            Some("give a number".to_owned())
        } else if self.above && value <= self.least {
            Some(format!("more than {}", words::amount(self.least)))
        } else if value < self.least || value > self.most {
            Some(format!("{} to {}", words::amount(self.least), words::amount(self.most)))
        } else if self.whole && value.fract() != 0.0 {
            Some("a whole number".to_owned())
        } else {
            None
        }
    }
}

/// The results of the plain model. Infinity means unlimited.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plain {
    /// Factor on the latency, for racing writers.
    pub penalty: f64,
    /// A job's share of its commits.
    pub queue_ms: f64,
    /// Most jobs per second.
    pub capacity: f64,
    /// Queue time divided by queue time plus work.
    pub overhead: f64,
    /// Arrivals divided by capacity.
    pub load: f64,
    /// Mutations divided by batch.
    pub puts_per_job: f64,
    /// Expected time until a worker holds a ready job.
    pub dispatch_ms: f64,
    /// The verdict.
    #[serde(flatten)]
    pub judged: Judged,
}

/// All results of the model for a workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// The model as published.
    pub plain: Plain,
    /// The model of this engine.
    pub engine: Engine,
    /// Requests and cost.
    pub month: Month,
    /// The same with ten times the arrivals, producers and consumers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenfold: Option<Box<Fit>>,
}

/// Evaluates the model for these inputs. Fails with the names of invalid inputs.
pub fn evaluate(inputs: &Inputs) -> Result<Fit> {
    let problems: Vec<_> = inputs.problems().iter().map(|(name, what)| format!("{name}: {what}")).collect();
    if !problems.is_empty() {
        return Err(Error::new(Code::Argument, problems.join("; ")));
    }
    let more = Inputs {
        arrival: 10.0 * inputs.arrival,
        producers: 10.0 * inputs.producers,
        consumers: 10.0 * inputs.consumers,
        ..*inputs
    };
    Ok(Fit { tenfold: Some(Box::new(once(&more))), ..once(inputs) })
}

fn once(inputs: &Inputs) -> Fit {
    let engine = engine::engine(inputs);
    let month = engine::month(inputs, &engine);
    Fit { plain: plain(inputs), engine, month, tenfold: None }
}

/// Returns the factor of races on the latency: 1 for one writer.
fn penalty(writers: f64) -> f64 {
    1.0 + CONTENTION * (1.0 - 1.0 / writers)
}

/// Returns `a` divided by `a` plus `b`; 0 when `a` is 0.
fn part(a: f64, b: f64) -> f64 {
    if a == 0.0 { 0.0 } else { a / (a + b) }
}

fn plain(i: &Inputs) -> Plain {
    let penalised = i.latency_ms * penalty(i.racing());
    let queue_ms = (i.mutations / i.batch) * penalised;
    let load = (i.arrival * queue_ms) / 1000.0;
    let dispatch_ms =
        if load < 1.0 { 1.5 * penalised + (load / (1.0 - load)) * queue_ms } else { f64::INFINITY };
    let capacity = 1000.0 / queue_ms;
    let overhead = part(queue_ms, i.work_ms);
    let change = |by| match by {
        Some(Judge::Load) => (Change::Batch, Some((i.batch * load) / 0.7)),
        Some(Judge::Overhead) => (Change::Work, Some(19.0 * queue_ms)),
        Some(Judge::Dispatch) => (Change::Budget, Some(2.0 * dispatch_ms)),
        None if capacity.is_finite() => (Change::Arrival, Some(0.7 * capacity)),
        None => (Change::Nothing, None),
    };
    Plain {
        penalty: penalty(i.racing()),
        queue_ms,
        capacity,
        overhead,
        load,
        puts_per_job: i.mutations / i.batch,
        dispatch_ms,
        judged: judge::judge(load, overhead, dispatch_ms, i.budget_ms, change),
    }
}
