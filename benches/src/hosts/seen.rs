//! The results of a stretch: collected by the callers of a process, sent as one line of JSON.

use std::time::Duration;

use bucketq::error::Error;
use serde_json::{Value, json};

/// A call: milliseconds of the wall clock when it began and returned, and the commit that has it.
pub type Call = (i64, i64, u64);

/// The results of one process, or of several together.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Calls that succeeded within the counted time.
    pub ops: u64,
    /// The same, with the warm-up and the last calls.
    pub all: u64,
    /// Microseconds of each call that succeeded after the warm-up.
    pub times_us: Vec<u64>,
    /// The longest time after the warm-up in which a caller had no success.
    pub gap_us: u64,
    /// Each call, if the order asks for them.
    pub calls: Vec<Call>,
    /// Calls that failed.
    pub errors: u64,
    /// One of their errors.
    pub error: Option<String>,
}

impl Seen {
    /// Adds the results of another caller or process.
    pub fn add(&mut self, other: Self) {
        self.ops += other.ops;
        self.all += other.all;
        self.times_us.extend(other.times_us);
        self.gap_us = self.gap_us.max(other.gap_us);
        self.calls.extend(other.calls);
        self.errors += other.errors;
        self.error = self.error.take().or(other.error);
    }

    /// Notes a failed call.
    pub fn fail(&mut self, error: &Error) {
        self.errors += 1;
        self.error.get_or_insert_with(|| error.to_string());
    }

    /// Notes a time without success.
    pub fn gap(&mut self, time: Duration) {
        self.gap_us = self.gap_us.max(time.as_micros() as u64);
    }

    /// Returns the results as JSON for the parent.
    pub fn told(&self) -> Value {
        json!({
            "ops": self.ops, "all": self.all, "times_us": self.times_us, "gap_us": self.gap_us,
            "calls": self.calls, "errors": self.errors, "error": self.error,
        })
    }

    /// Reads the results that a child has sent.
    pub fn of(told: &Value) -> Self {
        let number = |key: &str| told[key].as_u64().unwrap_or(0);
        let list = |key: &str| told[key].as_array().cloned().unwrap_or_default();
        let call = |call: &Value| Some((call[0].as_i64()?, call[1].as_i64()?, call[2].as_u64()?));
        Self {
            ops: number("ops"),
            all: number("all"),
            times_us: list("times_us").iter().filter_map(Value::as_u64).collect(),
            gap_us: number("gap_us"),
            calls: list("calls").iter().filter_map(call).collect(),
            errors: number("errors"),
            error: told["error"].as_str().map(str::to_owned),
        }
    }

    /// Returns the results of all together.
    pub fn together(all: Vec<Self>) -> Self {
        let mut sum = Self::default();
        for one in all {
            sum.add(one);
        }
        sum
    }

    /// Returns the failed calls for people; empty without any.
    pub fn failures(&self) -> String {
        match &self.error {
            Some(error) => format!(", {} calls failed: {error}", self.errors),
            None => String::new(),
        }
    }
}
