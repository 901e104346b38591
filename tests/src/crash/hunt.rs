//! Starting victims, killing them at random moments, and looking at what is left.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bucketq::config::S3Options;
use bucketq::{Env, Filter, QueueFile, Result, State};

use super::ledger::Ledger;
use super::victim::{Lie, Orders, frantic, local};
use crate::clock::pass;

/// Where a hunt takes place.
#[derive(Clone, Debug)]
pub struct Place {
    /// The queue file, which is not there yet.
    pub url: String,
    /// How to reach its store.
    pub s3: S3Options,
    /// Where the victims keep their state, if they work in Local mode: one after another, for it is one process's.
    pub state: Option<String>,
}

/// How a hunt goes.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The program `crash`.
    pub program: PathBuf,
    /// Victims to kill.
    pub kills: u64,
    /// Victims at work at the same time; in Local mode it is always one.
    pub at_once: usize,
    /// Decides when whom.
    pub seed: u64,
    /// How the victims lie, to see that it is noticed.
    pub lie: Option<Lie>,
}

/// What a hunt found.
#[derive(Debug, Default)]
pub struct Found {
    /// Victims killed.
    pub kills: u64,
    /// Ops acknowledged to them.
    pub acked: u64,
    /// Acknowledged ops that are not there.
    pub lost: Vec<String>,
    /// Jobs in two hands at once, or finished twice.
    pub doubled: Vec<String>,
    /// What checks of the queue file found, and what victims complained of.
    pub problems: Vec<String>,
    /// Objects left in the end that HEAD does not refer to.
    pub unreferenced: u64,
    /// The newest commit.
    pub commits: u64,
    /// The commit of the base: bases were made on the way.
    pub base: u64,
}

impl Found {
    /// Nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.lost.is_empty() && self.doubled.is_empty() && self.problems.is_empty() && self.unreferenced == 0
    }

    /// Add another hunt's findings.
    pub fn add(&mut self, other: Self) {
        self.kills += other.kills;
        self.acked += other.acked;
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
        // Ends with the pipe, when the victim is dead and all that it had said is noted.
        let reader = std::thread::spawn(move || {
            for line in lines.map_while(std::result::Result::ok) {
                ledger.lock().unwrap_or_else(PoisonError::into_inner).note(number, &line);
            }
        });
        Self { number, child, reader: Some(reader) }
    }

    /// SIGKILL, and what it had said before.
    fn kill(mut self, ledger: &Mutex<Ledger>) {
        self.end();
        ledger.lock().unwrap_or_else(PoisonError::into_inner).died(self.number, Env::default().wall_ms());
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
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
    let options = frantic(&place.s3);
    // The first opening makes the file; a store is probed only then.
    QueueFile::open(&place.url, options.clone()).await?.close().await?;
    let mut victims: Vec<Victim> = vec![];
    let mut started = 0;
    while found.kills < plan.kills {
        while victims.len() < if place.state.is_some() { 1 } else { plan.at_once } {
            victims.push(Victim::start(plan, place, started, &ledger));
            started += 1;
        }
        pass(Duration::from_millis(50 + roll(150))).await;
        let at = roll(victims.len() as u64) as usize;
        victims.swap_remove(at).kill(&ledger);
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
    // What was under way may still land; a commit settles that (P10).
    found.commits = file.settle().await?;
    let there = everything(&file).await?;
    if pending.is_some_and(|pending| pending != there) {
        found.problems.push("a sync published something else than what was there before it".into());
    }
    {
        let mut ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
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

/// What the local state holds, published or not; then publish it.
async fn publish(place: &Place, state: &str, number: u64) -> Result<BTreeMap<String, Vec<State>>> {
    let file = QueueFile::open(&place.url, local(&place.s3, state, number)).await?;
    let there = everything(&file).await?;
    file.sync().await?;
    file.close().await?;
    Ok(there)
}

/// Check the file, whoever works on it meanwhile.
async fn look(place: &Place, found: &mut Found) -> Result<bucketq::operate::Report> {
    let report = bucketq::check(&place.url, frantic(&place.s3)).await?;
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
