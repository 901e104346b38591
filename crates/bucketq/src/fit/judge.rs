//! The verdict: the worst of load, overhead and dispatch, in words.

use serde::{Deserialize, Serialize};

use super::words::{amount, percent, time};

/// The verdicts from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It fits.
    Strong,
    /// It works, at a cost to consider.
    Tradeoff,
    /// Change something, or use something else.
    Poor,
}

/// The figures that decide a verdict; of equally bad ones the first decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Judge {
    /// Arrivals divided by capacity.
    Load,
    /// The queue's share of a worker's time.
    Overhead,
    /// The dispatch delay compared with its budget.
    Dispatch,
}

/// A change that would improve a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// No change of these inputs would.
    Nothing,
    /// The verdict stays good up to this many jobs per second.
    Arrival,
    /// A batch larger than this.
    Batch,
    /// More work per job than this, in ms.
    Work,
    /// A dispatch budget of this many ms.
    Budget,
    /// A store without the limit on commits.
    Store,
    /// One process that commits for all.
    Broker,
    /// More simultaneous calls, this many times as many.
    Callers,
    /// This many queue files.
    Split,
}

/// The alternative, when no change of this queue would suffice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Instead {
    /// Kafka, Redpanda or Kinesis.
    Log,
    /// Redis or `RabbitMQ`.
    Memory,
    /// SQS, or a table in `PostgreSQL`.
    Managed,
    /// A table in `PostgreSQL`, or Redis.
    Database,
}

/// The class of each figure: 0 strong, 1 tradeoff, 2 poor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Classes {
    /// Arrivals divided by capacity.
    pub load: u8,
    /// The queue's share of a worker's time.
    pub overhead: u8,
    /// The dispatch delay compared with its budget.
    pub dispatch: u8,
}

/// A verdict and its reasons.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// The class of each figure.
    pub classes: Classes,
    /// The worst of them.
    pub verdict: Verdict,
    /// The figure that decides; none when all are strong.
    pub decided_by: Option<Judge>,
    /// The load is 1.0 or more.
    pub backlog_grows: bool,
    /// The change that would improve it ...
    pub change: Change,
    /// ... and its value.
    pub change_value: Option<f64>,
    /// The verdict in words.
    pub sentence: String,
}

/// Judges three figures; `change` returns the change that would improve the deciding one.
pub(super) fn judge(
    load: f64,
    overhead: f64,
    dispatch_ms: f64,
    budget_ms: f64,
    change: impl FnOnce(Option<Judge>) -> (Change, Option<f64>),
) -> Judged {
    let class = |strong: bool, tradeoff: bool| if strong { 0 } else { 2 - u8::from(tradeoff) };
    let classes = Classes {
        load: class(load < 0.7, load <= 0.9),
        overhead: class(overhead < 0.05, overhead <= 0.2),
        dispatch: class(dispatch_ms <= 0.5 * budget_ms, dispatch_ms <= budget_ms),
    };
    let worst = classes.load.max(classes.overhead).max(classes.dispatch);
    let (verdict, name) = match worst {
        0 => (Verdict::Strong, "Strong"),
        1 => (Verdict::Tradeoff, "Tradeoff"),
        _ => (Verdict::Poor, "Poor"),
    };
    let decided_by = if worst == 0 {
        None
    } else if classes.load == worst {
        Some(Judge::Load)
    } else if classes.overhead == worst {
        Some(Judge::Overhead)
    } else {
        Some(Judge::Dispatch)
    };
    let because = match decided_by {
        None => "overhead, load and dispatch are all well inside their limits".to_owned(),
        Some(Judge::Overhead) => format!("{} of a worker's time goes to the queue", percent(overhead)),
        Some(Judge::Dispatch) => format!(
            "a ready job reaches a worker after {}, and the budget is {}",
            time(dispatch_ms),
            time(budget_ms)
        ),
        Some(Judge::Load) if load < 1.0 => format!("the queue runs at {} of its capacity", percent(load)),
        Some(Judge::Load) => format!(
            "jobs arrive faster than the queue can pass them on ({} of its capacity), so the backlog grows",
            percent(load)
        ),
    };
    let (change, change_value) = change(decided_by);
    let sentence = format!("{name}: {because}. {}", then(change, change_value.unwrap_or(0.0)));
    Judged { classes, verdict, decided_by, backlog_grows: load >= 1.0, change, change_value, sentence }
}

fn then(change: Change, value: f64) -> String {
    match change {
        Change::Nothing => "Nothing here would change it.".to_owned(),
        Change::Arrival => format!("Load stays healthy up to {} jobs/s.", amount(value)),
        Change::Batch => format!("A batch over {} would make that strong.", amount(value)),
        Change::Work => format!("Jobs with over {} of work would make that strong.", time(value)),
        Change::Budget => format!("A budget of {} would make that strong.", time(value)),
        Change::Store => "A store without the limit on commits would change it.".to_owned(),
        Change::Broker => "One process that commits for all, a broker, would change it.".to_owned(),
        Change::Callers => "More calls at once, or more jobs in a call, would change it.".to_owned(),
        Change::Split => format!("Sharing the work among {} queue files would change it.", amount(value)),
    }
}
