//! Processes that use one queue file: each is a real one, the program `host peer`.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use bucketq::{Env, Held, HostRole, JobId, Metrics, Stats};
use bucketq_tests::peer::{Got, Line, Look, Order};
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tempfile::TempDir;

use crate::kit::temporary;

/// The longest wait for an event that must come. It measures nothing.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// A lease that outlasts every test.
pub const LONG_MS: u64 = 600_000;

/// A host: the directory where its processes meet, and one with a queue file.
pub struct Host {
    pub meeting: TempDir,
    pub store: TempDir,
    /// The rule that is broken in its processes.
    broken: Option<String>,
}

impl Host {
    pub fn new() -> Self {
        Self { meeting: temporary(), store: temporary(), broken: None }
    }

    /// A host whose processes break this rule.
    #[cfg(feature = "mutants")]
    pub fn broken(rule: bucketq::broken::Broken) -> Self {
        Self { broken: Some(format!("{rule:?}")), ..Self::new() }
    }

    pub fn url(&self) -> String {
        self.store.path().join("jobs").display().to_string()
    }

    /// The file that each commit replaces.
    pub fn head(&self) -> PathBuf {
        self.store.path().join("jobs.head")
    }

    /// The socket of this seat, which must have been taken.
    pub fn socket(&self, seat: u8) -> PathBuf {
        let end = format!(".{seat}.lock");
        let files = fs::read_dir(self.meeting.path()).expect("it is ours").flatten();
        let lock = files.map(|file| file.path()).find(|path| path.to_string_lossy().ends_with(&end));
        lock.expect("the seat has been taken").with_extension("sock")
    }

    /// A process that has opened the queue file.
    pub fn peer(&self) -> Peer {
        self.peer_with(&[])
    }

    /// The same, with these settings besides.
    pub fn peer_with(&self, settings: &[(&str, &str)]) -> Peer {
        let peer = Peer::start();
        peer.opens(self, settings).done();
        peer
    }
}

/// A reply that is still to come.
pub struct Pending(mpsc::Receiver<Value>);

impl Pending {
    /// The reply, as it is.
    fn reply(self) -> Value {
        self.0.recv_timeout(PATIENCE).expect("the process lives and replies")
    }

    /// The result of a call that must succeed.
    pub fn ok<T: DeserializeOwned>(self) -> T {
        let reply = self.reply();
        assert!(reply.get("error").is_none(), "{reply}");
        serde_json::from_value(reply["ok"].clone()).unwrap_or_else(|e| panic!("{reply}: {e}"))
    }

    pub fn done(self) {
        self.ok::<Value>();
    }

    /// Whether the call succeeded; none if the process has ended without a reply.
    pub fn outcome(self) -> Option<Result<Value, String>> {
        match self.0.recv_timeout(PATIENCE) {
            Ok(reply) if reply.get("error").is_some() => Some(Err(reply["error"].to_string())),
            Ok(reply) => Some(Ok(reply["ok"].clone())),
            Err(mpsc::RecvTimeoutError::Disconnected) => None,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("the process neither replies nor ends"),
        }
    }
}

type Waiting = Arc<Mutex<HashMap<u64, mpsc::Sender<Value>>>>;

/// A process. It ends with this value.
pub struct Peer {
    child: Child,
    orders: Mutex<ChildStdin>,
    waiting: Waiting,
    next: AtomicU64,
}

impl Peer {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// A process with only these variables of its environment.
    pub fn start_with(variables: &[(&str, &Path)]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_host"))
            .arg("peer")
            .env_clear()
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let orders = Mutex::new(child.stdin.take().expect("it is piped"));
        let replies = BufReader::new(child.stdout.take().expect("it is piped"));
        let waiting = Waiting::default();
        let for_replies = Arc::clone(&waiting);
        thread::spawn(move || {
            for line in replies.lines().map_while(Result::ok) {
                // A killed process may have written half a line.
                let Ok(reply) = serde_json::from_str::<Value>(&line) else { break };
                let id = reply["id"].as_u64().expect("a reply has a number");
                if let Some(to) = for_replies.lock().expect("no thread panics").remove(&id) {
                    let _ = to.send(reply);
                }
            }
            for_replies.lock().expect("no thread panics").clear();
        });
        Self { child, orders, waiting, next: AtomicU64::new(1) }
    }

    /// Give it an order.
    pub fn begins(&self, order: Order) -> Pending {
        let id = self.next.fetch_add(1, SeqCst);
        let (tx, rx) = mpsc::channel();
        self.waiting.lock().expect("no thread panics").insert(id, tx);
        let line = serde_json::to_string(&Line { id, order }).expect("it is data");
        // A killed process reads nothing, and its replies have ended.
        let written = writeln!(self.orders.lock().expect("no thread panics"), "{line}");
        if written.is_err() {
            self.waiting.lock().expect("no thread panics").remove(&id);
        }
        Pending(rx)
    }

    pub fn opens(&self, host: &Host, settings: &[(&str, &str)]) -> Pending {
        self.opens_at(host, host.meeting.path(), settings)
    }

    /// Opens the queue file of this host, and looks for other processes in this directory.
    pub fn opens_at(&self, host: &Host, meeting: &Path, settings: &[(&str, &str)]) -> Pending {
        let mut all = BTreeMap::from([("host_dir".to_owned(), meeting.display().to_string())]);
        all.extend(settings.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())));
        self.begins(Order::Open { url: host.url(), settings: all, broken: host.broken.clone() })
    }

    pub fn enqueues(&self, text: impl Into<String>) -> JobId {
        self.begins(Order::Enqueue { text: text.into() }).ok()
    }

    /// Begins to enqueue many jobs at once; their texts are the prefix and a number.
    pub fn begins_many(&self, prefix: &str, count: usize) -> Vec<Pending> {
        (0..count).map(|i| self.begins(Order::Enqueue { text: format!("{prefix}{i}") })).collect()
    }

    pub fn begins_claim(&self, max: u32, wait: Duration) -> Pending {
        let wait_ms = wait.as_millis() as u64;
        self.begins(Order::Claim { max, lease_ms: LONG_MS, wait_ms })
    }

    /// Claims without waiting.
    pub fn claims(&self, max: u32) -> Vec<Got> {
        self.begins_claim(max, Duration::ZERO).ok()
    }

    pub fn acks(&self, held: Held) {
        self.begins(Order::Ack { held }).done();
    }

    pub fn gets(&self, job: JobId) -> Option<Look> {
        self.begins(Order::Get { job }).ok()
    }

    pub fn stats(&self, max_age: Option<Duration>) -> Stats {
        self.begins(Order::Stats { max_age_ms: max_age.map(|age| age.as_millis() as u64) }).ok()
    }

    pub fn role(&self) -> HostRole {
        self.begins(Order::Role).ok()
    }

    pub fn metrics(&self) -> MetricsRead {
        MetricsRead(self.begins(Order::Metrics).ok())
    }

    pub fn leads(&self) -> bool {
        matches!(self.role(), HostRole::Leads { .. })
    }

    pub fn is_joined_to(&self, other: &Peer) -> bool {
        matches!(self.role(), HostRole::Joined { leader, .. } if leader == other.name())
    }

    /// Its name, as others of its host see it.
    pub fn name(&self) -> String {
        format!("process {}", self.child.id())
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Stop it in the middle of its work: it keeps all that it has.
    pub fn stops(&self) {
        kill_process(Pid::from_child(&self.child), Signal::STOP).expect("it lives");
    }

    pub fn wakes_up(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).expect("it lives");
    }

    pub fn dies(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it is a child of this process");
    }

    /// Closes the queue file, and ends.
    pub fn closes(self) {
        self.begins(Order::Close).done();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The counters of a process.
pub struct MetricsRead(Value);

impl MetricsRead {
    /// Returns a counter by its name in [`Metrics`].
    pub fn count(&self, name: &str) -> u64 {
        let known = serde_json::to_value(Metrics::default()).expect("it is data");
        assert!(known.get(name).is_some(), "there is no counter {name}");
        self.0[name].as_u64().expect("a counter is a number")
    }
}

/// Waits until this is so.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let clock = Env::default();
    let end = clock.monotonic() + PATIENCE;
    while !is_so() {
        assert!(clock.monotonic() < end, "{what} never happened");
        thread::yield_now();
    }
}

/// Checks that the queue has a job for each of these texts, once, and no other.
pub fn assert_jobs(peer: &Peer, expected: impl IntoIterator<Item = String>) {
    let mut texts: Vec<String> = peer.claims(10_000).into_iter().map(|got| got.text).collect();
    let mut expected: Vec<String> = expected.into_iter().collect();
    texts.sort();
    expected.sort();
    let missing: Vec<_> = expected.iter().filter(|text| texts.binary_search(text).is_err()).collect();
    assert!(missing.is_empty(), "lost: {missing:?}");
    assert_eq!(texts, expected, "a job is there that nobody enqueued, or twice");
}
