//! Starts the processes of a measurement, gives them orders and collects their replies. A process that is dropped is
//! killed.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use bucketq::config::S3Options;
use bucketq::error::{Code, Error, Result};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::seen::Seen;
use crate::servers::keys_for_child;

/// Longer than any stretch and than the deadline of its last calls: only a hanging process takes so long.
const PATIENCE: Duration = Duration::from_secs(90);
/// A process that closes its queue file has this long.
const LEAVING: Duration = Duration::from_secs(5);

/// A queue file, and how to open it.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its URL.
    pub url: String,
    /// The server, if it is on one.
    pub s3: Option<S3Options>,
    /// Whether processes may share a writer.
    pub share: bool,
    /// The directory in which they meet.
    pub meeting: PathBuf,
}

/// The program of a process.
#[derive(Clone, Debug)]
pub enum Program {
    /// This one.
    Rust,
    /// `benches/hosts.py` with this interpreter, `blocking` or `async`.
    Python(PathBuf, &'static str),
}

/// A process that has opened the queue file.
#[derive(Debug)]
pub struct Process {
    child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    /// How long the opening took, measured in the process.
    pub opened: Duration,
}

fn failed(what: &str) -> Error {
    Error::new(Code::Internal, format!("a process of the benchmark {what}"))
}

impl Process {
    /// Starts a process and waits until it has opened the queue file.
    pub async fn start(place: &Place, program: &Program) -> Result<Self> {
        let mut process = Self::spawn(place, program).await?;
        process.opens().await?;
        Ok(process)
    }

    async fn spawn(place: &Place, program: &Program) -> Result<Self> {
        let mut command = match program {
            Program::Rust => {
                let this = std::env::current_exe().map_err(|e| failed("has no program").because(e))?;
                let mut command = Command::new(this);
                command.arg("--child");
                command
            }
            Program::Python(python, api) => {
                let mut command = Command::new(python);
                command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("hosts.py")).arg(api);
                command
            }
        };
        let s3 = place.s3.clone().unwrap_or_default();
        command.envs(keys_for_child(&s3)).env("XDG_RUNTIME_DIR", &place.meeting);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().map_err(|e| failed("cannot be started").because(e))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed("has no pipes"));
        };
        let lines = BufReader::new(output).lines();
        let mut process = Self { child, input, lines, opened: Duration::ZERO };
        process.order(&json!({ "url": place.url, "endpoint": s3.endpoint, "share": place.share })).await?;
        Ok(process)
    }

    async fn opens(&mut self) -> Result<()> {
        let told = self.reply().await?;
        self.opened = Duration::from_micros(told["open_us"].as_u64().unwrap_or(0));
        Ok(())
    }

    /// Sends an order.
    pub async fn order(&mut self, order: &Value) -> Result<()> {
        let line = format!("{order}\n");
        self.input.write_all(line.as_bytes()).await.map_err(|e| failed("takes no order").because(e))
    }

    /// Waits for the reply to an order.
    pub async fn reply(&mut self) -> Result<Value> {
        let line = tokio::time::timeout(PATIENCE, self.lines.next_line());
        let line = line.await.map_err(|e| failed("hangs").because(e))?;
        let line = line.map_err(|e| failed("has ended").because(e))?.ok_or_else(|| failed("has ended"))?;
        serde_json::from_str(&line).map_err(|e| failed("replied with something else").because(e))
    }

    /// Sends an order for a stretch and waits for the results.
    pub async fn run(&mut self, order: &Value) -> Result<Seen> {
        self.order(order).await?;
        Ok(Seen::of(&self.reply().await?))
    }

    /// Kills the process as `kill -9` does.
    pub async fn kill(mut self) -> Result<()> {
        self.child.kill().await.map_err(|e| failed("cannot be killed").because(e))
    }

    /// Ends its input, which makes it close the queue file; kills it if that takes long.
    pub async fn end(self) {
        let Self { mut child, input, .. } = self;
        drop(input);
        if tokio::time::timeout(LEAVING, child.wait()).await.is_err() {
            let _ = child.kill().await;
        }
    }

    /// Returns the processor time of all its threads so far, in hundredths of a second; none on systems without `/proc`.
    pub fn processor_ticks(&self) -> Option<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()?)).ok()?;
        // The name of the program, in parentheses, may have spaces.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
    }
}

/// The processes of one measurement, in the order of their start.
#[derive(Debug)]
pub struct Team {
    place: Place,
    program: Program,
    /// The processes.
    pub all: Vec<Process>,
}

impl Team {
    /// Starts the first process, which creates the queue file, and then the others at once.
    pub async fn start(place: Place, program: Program, count: usize) -> Result<Self> {
        let mut all = vec![Process::start(&place, &program).await?];
        for _ in 1..count {
            all.push(Process::spawn(&place, &program).await?);
        }
        for process in &mut all[1..] {
            process.opens().await?;
        }
        Ok(Self { place, program, all })
    }

    /// Starts one more process. Returns how long its opening took.
    pub async fn join(&mut self) -> Result<Duration> {
        let process = Process::start(&self.place, &self.program).await?;
        let opened = process.opened;
        self.all.push(process);
        Ok(opened)
    }

    /// Sends each process its order.
    pub async fn order(&mut self, order: impl Fn(usize) -> Value) -> Result<()> {
        for (index, process) in self.all.iter_mut().enumerate() {
            process.order(&order(index)).await?;
        }
        Ok(())
    }

    /// Waits for the results of all processes, in the same order.
    pub async fn replies(&mut self) -> Result<Vec<Seen>> {
        let mut all = vec![];
        for process in &mut self.all {
            all.push(Seen::of(&process.reply().await?));
        }
        Ok(all)
    }

    /// Sends each process its order and waits for the results.
    pub async fn run(&mut self, order: impl Fn(usize) -> Value) -> Result<Vec<Seen>> {
        self.order(order).await?;
        self.replies().await
    }

    /// Ends all processes.
    pub async fn end(self) {
        futures_util::future::join_all(self.all.into_iter().map(Process::end)).await;
    }
}
