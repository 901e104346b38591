//! The grid: ops per second for every backlog and number of callers, and the two ratios computed from it.
//!
//! Rounds are interleaved: each visits every backlog and the null loop for one number of callers before the next
//! number, so that a slow moment of the machine hits all of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bucketq::error::Result;
use serde_json::{Map, Value};

use crate::delayed::Delayed;
use crate::load::{Stretch, Subject, closed_loop};
use crate::null::NullLoop;
use crate::stats::{Rate, number};

/// How many visits the grid takes, and how long each.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Visits to every cell.
    pub rounds: u32,
    /// Warm-up at the start of each visit, not counted.
    pub warm: Duration,
    /// The counted part of each visit.
    pub window: Duration,
}

/// The grid's results, by callers and then by backlog.
#[derive(Debug, Default)]
pub struct Grid {
    engine: BTreeMap<usize, BTreeMap<usize, Rate>>,
    null: BTreeMap<usize, BTreeMap<usize, Rate>>,
}

impl Grid {
    /// Visits all cells. Each subject has its own backlog and its own store.
    pub async fn measure(
        subjects: &[(usize, Subject)],
        callers: &[usize],
        round_trip: Duration,
        plan: Plan,
    ) -> Result<Self> {
        let mut grid = Self::default();
        for _ in 0..plan.rounds {
            for &count in callers {
                for (backlog, subject) in subjects {
                    grid.visit(*backlog, subject, count, round_trip, plan).await?;
                }
            }
        }
        Ok(grid)
    }

    async fn visit(
        &mut self,
        backlog: usize,
        subject: &Subject,
        callers: usize,
        round_trip: Duration,
        plan: Plan,
    ) -> Result<()> {
        subject.store.set_round_trip(round_trip);
        let before = subject.store.requests();
        let engine = closed_loop(subject, callers, plan.warm, plan.window).await?;
        let size = subject.store.requests().since(&before).mean_put();
        subject.store.set_round_trip(Duration::ZERO);
        add(&mut self.engine, callers, backlog, engine);

        // The same kind of store, so that only the loop differs.
        let store = Delayed::new(Arc::new(bucketq::store::memory::Memory::new()));
        store.set_round_trip(round_trip);
        let null = NullLoop::start(Arc::new(store), "null", size)?;
        add(&mut self.null, callers, backlog, closed_loop(&null, callers, plan.warm, plan.window).await?);
        Ok(())
    }

    /// Returns the ops per second of one cell; zero for a cell that was not visited.
    pub fn ops_s(&self, callers: usize, backlog: usize) -> f64 {
        self.engine.get(&callers).and_then(|row| row.get(&backlog)).map_or(0.0, Rate::per_second)
    }

    /// Returns the lowest over the highest ops per second of the backlogs.
    pub fn flat(&self, callers: usize) -> f64 {
        let Some(row) = self.engine.get(&callers) else { return 0.0 };
        let rates = || row.values().map(Rate::per_second);
        rates().fold(f64::INFINITY, f64::min) / rates().fold(0.0, f64::max)
    }

    /// Returns the ops per second of the engine over those of the null loop, all backlogs together.
    pub fn efficiency(&self, callers: usize) -> f64 {
        let sum = |rates: &BTreeMap<usize, BTreeMap<usize, Rate>>| {
            rates.get(&callers).map_or(0.0, |row| row.values().map(Rate::per_second).sum::<f64>())
        };
        sum(&self.engine) / sum(&self.null)
    }

    /// Returns ops per second as JSON: callers, then backlog.
    pub fn to_json(&self) -> Value {
        let row = |row: &BTreeMap<usize, Rate>| -> Map<String, Value> {
            row.iter().map(|(backlog, rate)| (backlog.to_string(), number(rate.per_second(), 0))).collect()
        };
        self.engine.iter().map(|(callers, r)| (callers.to_string(), Value::Object(row(r)))).collect()
    }
}

fn add(to: &mut BTreeMap<usize, BTreeMap<usize, Rate>>, callers: usize, backlog: usize, stretch: Stretch) {
    to.entry(callers).or_default().entry(backlog).or_default().add(stretch.ops, stretch.time);
}
