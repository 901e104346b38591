//! `sim`: run many seeds on every core, and report the findings. `make mutants` runs the broken variants.
//!
//! Called by `make sim`. The last line is JSON. Seeds that fail are appended to a file and run first the next time.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bucketq::error::Code;
use bucketq_sim::run::{Report, run};
use bucketq_sim::variants::Variant;

const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/sim/failing-seeds.txt");
/// From this number of seeds on, callers must have got each of these codes, or the worlds are too tame.
const MANY: usize = 500;
const CODES: [Code; 10] = [
    Code::ClockSkew,
    Code::Corrupt,
    Code::HeadMissing,
    Code::LeaseLost,
    Code::NoCompareAndSwap,
    Code::OutcomeUnknown,
    Code::RolledBack,
    Code::StoreBroken,
    Code::Timeout,
    Code::Unreachable,
];

struct Args {
    seeds: u64,
    from: u64,
    one: Option<u64>,
    trace: bool,
    only: Option<String>,
}

fn main() -> ExitCode {
    let args = match parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(what) => {
            eprintln!("{what}\nusage: sim [--seeds N] [--from S] | --seed X [--trace] [--variant NAME]");
            return ExitCode::from(2);
        }
    };
    if let Some(seed) = args.one {
        return tell_one(seed, args.only.as_deref(), args.trace);
    }
    let kept = kept();
    let seeds: Vec<u64> = kept.iter().copied().chain(args.from..args.from + args.seeds).collect();
    let reports = spread(&seeds, |seed| {
        let report = run(*seed, None, false);
        if !report.violations.is_empty() {
            complain(&report);
        }
        report
    });
    keep(&reports, &kept);
    let tame = too_tame(&reports);
    summary(&reports);
    let good = !tame && reports.iter().all(|r| r.violations.is_empty());
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Args, String> {
    let mut out = Args { seeds: 1_000, from: 1, one: None, trace: false, only: None };
    while let Some(arg) = args.next() {
        let mut number =
            || args.next().and_then(|n| n.parse::<u64>().ok()).ok_or_else(|| format!("{arg} needs a number"));
        match arg.as_str() {
            "--seeds" => out.seeds = number()?,
            "--from" => out.from = number()?,
            "--seed" => out.one = Some(number()?),
            "--trace" => out.trace = true,
            "--variant" => out.only = args.next(),
            _ => return Err(format!("{arg} is not an option")),
        }
    }
    Ok(out)
}

/// Runs `job` over all items on every core; returns results in the order of the items.
fn spread<I: Sync, T: Send>(items: &[I], job: impl Fn(&I) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(BTreeMap::new());
    let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some((n, item)) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|n| Some((n, items.get(n)?)))
                {
                    let result = job(item);
                    done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(n, result);
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).into_values().collect()
}

fn tell_one(seed: u64, variant: Option<&str>, trace: bool) -> ExitCode {
    let chosen = variant.map(|name| Variant::all().into_iter().find(|v| format!("{v:?}") == name));
    let Some(chosen) = chosen.map_or(Some(None), |v| v.map(Some)) else {
        eprintln!("variants: {:?}", Variant::all());
        return ExitCode::from(2);
    };
    let report = run(seed, chosen, trace);
    println!("{report:#?}");
    if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn complain(report: &Report) {
    println!(
        "seed {} breaks a promise; again with: cargo run -p bucketq-sim --bin sim -- --seed {0} --trace",
        report.seed
    );
    for violation in report.violations.iter().take(8) {
        println!("  {violation}");
    }
}

fn kept() -> Vec<u64> {
    let text = fs::read_to_string(KEPT).unwrap_or_default();
    text.lines().filter_map(|line| line.split('#').next()?.trim().parse().ok()).collect()
}

fn keep(reports: &[Report], kept: &[u64]) {
    let fresh = reports.iter().filter(|r| !r.violations.is_empty() && !kept.contains(&r.seed));
    let lines: Vec<String> = fresh.map(|r| format!("{} # {}\n", r.seed, r.violations[0])).collect();
    if lines.is_empty() {
        return;
    }
    let file = fs::OpenOptions::new().create(true).append(true).open(KEPT);
    if let Err(e) = file.and_then(|mut f| f.write_all(lines.concat().as_bytes())) {
        eprintln!("the failing seeds cannot be kept in {KEPT}: {e}");
    }
}

/// Whether an event that these worlds are made for never happened.
fn too_tame(reports: &[Report]) -> bool {
    let never = |code: &&Code| reports.iter().all(|r| !r.errors.contains_key(code.as_str()));
    let missing: Vec<&Code> = CODES.iter().filter(never).collect();
    let tame = reports.len() >= MANY && !missing.is_empty();
    if tame {
        println!("TOO TAME: nobody is ever told {missing:?}");
    }
    tame
}

fn summary(reports: &[Report]) {
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    let mut errors = BTreeMap::new();
    for (code, count) in reports.iter().flat_map(|r| &r.errors) {
        *errors.entry(*code).or_insert(0) += count;
    }
    println!("errors told: {errors:?}");
    let json = serde_json::json!({
        "seeds": reports.len(),
        "ops": sum(|r| r.ops),
        "commits": sum(|r| r.commits),
        "faults": sum(|r| r.faults),
        "violations": sum(|r| r.violations.len() as u64),
    });
    println!("{json}");
}
