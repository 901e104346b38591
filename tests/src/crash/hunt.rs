//! Starts victims, kills them at random moments, and checks the file afterwards.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bucketq::config::S3Options;
use bucketq::{Env, Filter, QueueFile, Result, State};

use super::ledger::Ledger;
use super::victim::{Lie, Orders, frantic, local};
use crate::clock::pass;

/// Lines that the others must write while one is stopped: more than replies that were on their way.
const ENOUGH: u64 = 20;
/// Number of checks for these lines at most, with the pause between two: far longer than needed on a busy machine.
const LOOKS: u64 = 500;
const LOOK: Duration = Duration::from_millis(20);

/// The place of a hunt.
#[derive(Clone, Debug)]
pub struct Place {
    /// The queue file, which does not exist yet.
    pub url: String,
    /// How to reach its store.
    pub s3: S3Options,
    /// The directory for the state of victims in Local mode. They use it one after another, as it belongs to one
    /// process.
    pub state: Option<String>,
    /// The directory in which victims find the one that leads.
    pub meeting: PathBuf,
}

/// The plan of a hunt.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The program `crash`.
    pub program: PathBuf,
    /// Victims to kill.
    pub kills: u64,
    /// Victims at work at the same time; in Local mode it is always one.
    pub at_once: usize,
    /// Decides which victim is killed when.
    pub seed: u64,
    /// How the victims lie, to test that the hunt notices.
    pub lie: Option<Lie>,
    /// Before each kill another victim is stopped for a while, and the others must continue meanwhile.
    pub stops: bool,
}

/// The findings of a hunt.
#[derive(Debug, Default)]
pub struct Found {
    /// Victims killed.
    pub kills: u64,
    /// Killed victims that led at that moment, as far as they had said so.
    pub leaders: u64,
    /// Ops acknowledged to them.
    pub acked: u64,
    /// Acknowledged ops whose effect is missing.
    pub lost: Vec<String>,
    /// Jobs held twice at once, or finished twice.
    pub doubled: Vec<String>,
    /// Findings of checks of the queue file, and complaints of victims.
    pub problems: Vec<String>,
    /// Objects that HEAD does not refer to at the end.
    pub unreferenced: u64,
    /// Victims stopped for a while.
    pub stops: u64,
    /// Stops during which no other victim got anything done.
    pub stuck: u64,
    /// The newest commit.
    pub commits: u64,
    /// The commit of the base: bases were made on the way.
    pub base: u64,
}

impl Found {
    /// Whether there are no findings.
    pub fn is_clean(&self) -> bool {
        self.lost.is_empty() && self.doubled.is_empty() && self.problems.is_empty() && self.unreferenced == 0
    }

    /// Add another hunt's findings.
    pub fn add(&mut self, other: Self) {
        self.kills += other.kills;
        self.leaders += other.leaders;
        self.acked += other.acked;
        self.stops += other.stops;
        self.stuck += other.stuck;
        self.lost.extend(other.lost);
        self.doubled.extend(other.doubled);
        self.problems.extend(other.problems);
        self.unreferenced += other.unreferenced;
        self.commits += other.commits;
        self.base = self.base.max(other.base);
    }
}

struct Victim {
    number: u64,
    child: Child,
    reader: Option<JoinHandle<()>>,
}

impl Victim {
    fn start(plan: &Plan, place: &Place, number: u64, ledger: &Arc<Mutex<Ledger>>) -> Self {
        let orders = Orders {
            url: place.url.clone(),
            s3: place.s3.clone(),
            seed: plan.seed,
            number,
            lie: plan.lie,
            state: place.state.clone(),
            meeting: place.meeting.clone(),
        };
        let mut child = Command::new(&plan.program)
            .args(["victim", &orders.to_text()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap_or_else(|e| panic!("{} does not start: {e}", plan.program.display()));
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let ledger = Arc::clone(ledger);
        // Ends with the pipe, when the victim is dead and all its lines are noted.
        let reader = std::thread::spawn(move || {
            for line in lines.map_while(std::result::Result::ok) {
                lock(&ledger).note(number, &line);
            }
        });
        Self { number, child, reader: Some(reader) }
    }

    /// Send SIGKILL, and note the lines written before it.
    fn kill(mut self, ledger: &Mutex<Ledger>) {
        self.end();
        lock(ledger).died(self.number, Env::default().wall_ms());
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

impl Victim {
    /// Send the signal that a shell sends at Ctrl-Z (`STOP`) and at `fg` (`CONT`).
    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([format!("-{name}"), self.child.id().to_string()]).status();
        assert!(sent.is_ok_and(|sent| sent.success()), "a signal can be sent");
    }
}

fn lock(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.end();
    }
}

/// Let victims work and die, then compare.
pub async fn hunt(plan: &Plan, place: &Place) -> Result<Found> {
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let mut found = Found::default();
    let mut dice = plan.seed | 1;
    let mut roll = |bound: u64| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        (dice >> 11) % bound
    };
    let options = frantic(&place.s3, &place.meeting);
    // The first opening creates the file; a store is probed only then.
    QueueFile::open(&place.url, options.clone()).await?.close().await?;
    let mut victims: Vec<Victim> = vec![];
    let mut started = 0;
    while found.kills < plan.kills {
        while victims.len() < if place.state.is_some() { 1 } else { plan.at_once } {
            victims.push(Victim::start(plan, place, started, &ledger));
            started += 1;
        }
        pass(Duration::from_millis(50 + roll(150))).await;
        if plan.stops {
            let at = roll(victims.len() as u64) as usize;
            stop(&victims[at], &ledger, &mut found).await;
        }
        let at = roll(victims.len() as u64) as usize;
        let victim = victims.swap_remove(at);
        found.leaders += u64::from(lock(&ledger).leads(victim.number));
        victim.kill(&ledger);
        found.kills += 1;
        if found.kills.is_multiple_of(5) {
            look(place, &mut found).await?;
        }
    }
    for victim in victims {
        victim.kill(&ledger);
        found.kills += 1;
    }
    look(place, &mut found).await?;
    let pending = match &place.state {
        Some(state) => Some(publish(place, state, started).await?),
        None => None,
    };
    let file = QueueFile::open(&place.url, options.clone()).await?;
    // Puts under way may still land; a commit settles that (P10).
    found.commits = file.settle().await?;
    let there = everything(&file).await?;
    if pending.is_some_and(|pending| pending != there) {
        found.problems.push("a sync published something else than what was there before it".into());
    }
    {
        let mut ledger = lock(&ledger);
        let verdict = ledger.judge(&there);
        found.acked = verdict.acked;
        found.lost = verdict.lost;
        found.doubled = verdict.doubled;
        found.problems.append(&mut ledger.complaints);
    }
    let collected = file.collect(Duration::ZERO).await?;
    file.close().await?;
    if collected.left > 0 {
        found.problems.push(format!("a collection left something behind: {collected:?}"));
    }
    let report = look(place, &mut found).await?;
    found.unreferenced = report.unreferenced.unwrap_or_default().count;
    found.base = report.commit_seq.unwrap_or(0) - report.commits;
    Ok(found)
}

/// Stop one victim until the others have got something done.
async fn stop(victim: &Victim, ledger: &Mutex<Ledger>, found: &mut Found) {
    let noted = || lock(ledger).noted_of_others(victim.number);
    victim.signal("STOP");
    found.stops += 1;
    let before = noted();
    let mut waited = 0;
    while noted() < before + ENOUGH && waited < LOOKS {
        pass(LOOK).await;
        waited += 1;
    }
    found.stuck += u64::from(waited == LOOKS);
    victim.signal("CONT");
}

/// Read the local state, published or not; then publish it.
async fn publish(place: &Place, state: &str, number: u64) -> Result<BTreeMap<String, Vec<State>>> {
    let file = QueueFile::open(&place.url, local(&place.s3, &place.meeting, state, number)).await?;
    let there = everything(&file).await?;
    file.sync().await?;
    file.close().await?;
    Ok(there)
}

/// Check the file while others work on it.
async fn look(place: &Place, found: &mut Found) -> Result<bucketq::operate::Report> {
    let report = bucketq::check(&place.url, frantic(&place.s3, &place.meeting)).await?;
    found.problems.extend(report.problems.iter().map(|p| format!("{p:?}")));
    if report.foreign.is_some_and(|t| t.count > 0) {
        found.problems.push(format!("objects of another file: {:?}", report.foreign));
    }
    Ok(report)
}

/// Every job by its name, with its state.
async fn everything(file: &QueueFile) -> Result<BTreeMap<String, Vec<State>>> {
    let (mut there, mut after) = (BTreeMap::<String, Vec<State>>::new(), None);
    loop {
        let page = file.list(Filter::default(), after, 1_000).await?;
        for job in page.jobs {
            let name = job.headers.get("name").cloned().unwrap_or_default();
            there.entry(name).or_default().push(job.state);
        }
        after = page.next;
        if after.is_none() {
            return Ok(there);
        }
    }
}
