//! Seeds that must pass. `make sim` runs a thousand; these are the kept ones and a few more, for every `make test`.

use std::collections::BTreeSet;

use bucketq::Op;
use bucketq_sim::ops::NOT_SENT;
use bucketq_sim::run::{Report, run};

const KEPT: &str = include_str!("failing-seeds.txt");

fn holds(seed: u64) -> Report {
    let report = run(seed, None, false);
    assert!(report.violations.is_empty(), "seed {seed}: {:#?}", report.violations);
    report
}

#[test]
fn seeds_that_once_failed_hold() {
    let seeds = KEPT.lines().filter_map(|line| line.split('#').next()?.trim().parse().ok());
    seeds.for_each(|seed| drop(holds(seed)));
}

#[test]
fn forty_seeds_keep_every_promise_and_see_every_op_and_many_commits_and_faults() {
    let reports: Vec<Report> = (1..=40).map(holds).collect();
    let mean = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>() / 40;
    assert!(mean(|r| r.commits) >= 200, "commits: {}", mean(|r| r.commits));
    assert!(mean(|r| r.faults) >= 20, "faults: {}", mean(|r| r.faults));
    let done: BTreeSet<&str> = reports.iter().flat_map(|r| r.done.keys().copied()).collect();
    let not_sent = NOT_SENT.map(|(name, _)| name);
    let ops: BTreeSet<&str> = Op::NAMES.iter().copied().filter(|name| !not_sent.contains(name)).collect();
    assert_eq!(done, ops);
    assert_eq!(ops.len() + not_sent.len(), Op::NAMES.len(), "{not_sent:?} names ops that do not exist");
}

#[test]
fn the_same_seed_tells_the_same_story() {
    for seed in [3, 7, 20, 51] {
        let (a, b) = (run(seed, None, false), run(seed, None, false));
        assert_eq!((a.trace, a.events, a.commits), (b.trace, b.events, b.commits), "seed {seed}");
    }
}

#[test]
fn another_seed_tells_another_story() {
    assert_ne!(run(3, None, false).trace, run(4, None, false).trace);
}
