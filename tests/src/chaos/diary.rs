//! The diary of a process, one JSON object a line, in one write: a kill leaves complete lines.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bucketq::{Env, Error};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

/// The diary of one process; clones write to the same.
#[derive(Clone, Debug)]
pub struct Diary {
    file: Arc<File>,
    count: Arc<AtomicU64>,
    env: Env,
}

/// The steady clock of the machine in nanoseconds, the same in every process.
pub(super) fn now() -> i64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

impl Diary {
    /// Create one at this path.
    pub fn open(path: &Path) -> Self {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.unwrap_or_else(|e| panic!("{} cannot be written: {e}", path.display()));
        Self { file: Arc::new(file), count: Arc::default(), env: Env::default() }
    }

    /// Write down an event.
    pub fn note(&self, event: &str, facts: Value) {
        let mut told = json!({ "t": now(), "e": event });
        if let (Value::Object(told), Value::Object(facts)) = (&mut told, facts) {
            told.extend(facts);
        }
        (&*self.file).write_all(format!("{told}\n").as_bytes()).expect("a diary can be written");
    }

    /// Write down that a call is about to be made. Returns its number.
    pub fn ask(&self, op: &str, facts: Value) -> u64 {
        let number = self.count.fetch_add(1, Relaxed);
        let mut told = json!({ "n": number, "op": op, "w": self.env.wall_ms() });
        if let (Value::Object(told), Value::Object(facts)) = (&mut told, facts) {
            told.extend(facts);
        }
        self.note("ask", told);
        number
    }

    /// Write down the reply to call `number`. Some kinds of errors must never come.
    pub fn answer<T>(
        &self,
        number: u64,
        answer: Result<T, Error>,
        facts: impl FnOnce(&T) -> Value,
    ) -> Option<T> {
        match answer {
            Ok(answer) => {
                let mut told = json!({ "n": number, "ok": true });
                if let (Value::Object(told), Value::Object(facts)) = (&mut told, facts(&answer)) {
                    told.extend(facts);
                }
                self.note("ans", told);
                Some(answer)
            }
            Err(error) => {
                let (kind, code) = (format!("{:?}", error.kind()), error.code().as_str());
                self.note("ans", json!({ "n": number, "err": kind, "code": code, "why": error.message() }));
                if matches!(kind.as_str(), "Corrupt" | "Closed" | "Diverged") {
                    self.note("!", json!({ "why": error.to_string() }));
                }
                None
            }
        }
    }
}
