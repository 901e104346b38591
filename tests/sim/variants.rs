//! Every broken rule is noticed by the checks. Variants inside the engine need the feature `broken`.

use bucketq_sim::variants::Variant;

/// A variant that shows itself in none of this many seeds is not caught.
const SEEDS: u64 = 40;

#[test]
fn with_nothing_broken_plans_as_harsh_as_these_hold() {
    holds(Variant::Harsh);
}

#[test]
fn a_clock_that_is_set_again_and_again_harms_nobody() {
    holds(Variant::WrongClock);
}

fn holds(control: Variant) {
    if let Some(report) = control.caught(1, 24) {
        panic!("seed {}: {:#?}", report.seed, report.violations);
    }
}

#[test]
fn every_rule_broken_outside_the_engine_is_noticed() {
    let missed: Vec<Variant> =
        Variant::OUTSIDE.into_iter().filter(|v| v.caught(1, SEEDS).is_none()).collect();
    assert!(missed.is_empty(), "not noticed: {missed:?}");
}

#[cfg(feature = "broken")]
#[test]
fn every_rule_broken_inside_the_engine_is_noticed() {
    let inside = Variant::all().into_iter().filter(|v| matches!(v, Variant::Engine(_)));
    let missed: Vec<Variant> = inside.filter(|v| v.caught(1, SEEDS).is_none()).collect();
    assert!(missed.is_empty(), "not noticed: {missed:?}");
}
