//! Every broken rule is noticed by the checks. Variants inside the engine need the feature `broken`.

use std::collections::BTreeSet;

use bucketq_sim::run::run;
use bucketq_sim::variants::Variant;

/// A variant that shows itself in none of this many seeds is not caught.
const SEEDS: u64 = 60;

#[test]
fn with_nothing_broken_plans_as_harsh_as_these_hold() {
    holds(Variant::Harsh, &[]);
}

#[test]
fn a_clock_that_is_set_again_and_again_is_refused_while_nobody_tells_the_time_and_harms_nobody() {
    holds(Variant::WrongClock, &["clock_skew"]);
}

#[test]
fn a_clock_behind_the_newest_commit_is_refused_where_only_head_can_tell() {
    holds(Variant::ClockBehind, &["clock_skew"]);
}

#[test]
fn a_newest_commit_in_the_future_is_refused_where_only_head_can_tell() {
    holds(Variant::ClockAhead, &["clock_skew"]);
}

#[test]
fn a_store_whose_date_goes_wrong_for_a_while_stops_commits_and_harms_nobody() {
    holds(Variant::StoreClock, &["clock_skew"]);
}

#[test]
fn a_writer_whose_acknowledged_commit_is_lost_says_so_and_writes_nothing_more() {
    holds(Variant::Betrayed, &["store_broken", "rolled_back"]);
}

#[test]
fn a_store_that_keeps_its_word_passes_the_probe_under_faults() {
    holds(Variant::Probed, &[]);
}

#[test]
fn a_store_that_lies_is_refused_before_anything_is_written() {
    holds(Variant::Refused, &["no_compare_and_swap"]);
}

/// No seed of this control breaks a promise, and each of these codes is told in some: at least twelve, and on until
/// they are, forty at most.
fn holds(control: Variant, told: &[&str]) {
    let mut codes = BTreeSet::new();
    for seed in 1..=40 {
        let report = run(seed, Some(control), false);
        assert!(report.violations.is_empty(), "seed {seed}: {:#?}", report.violations);
        codes.extend(report.errors.into_keys());
        if seed >= 12 && told.iter().all(|code| codes.contains(code)) {
            break;
        }
    }
    for code in told {
        assert!(codes.contains(code), "{control:?} never leads to {code}: {codes:?}");
    }
}

/// Some of these show first by a sign that is only beside the point: they must also do the harm they are there against.
#[cfg(feature = "broken")]
#[test]
fn rules_of_collection_and_loss_are_noticed_by_what_they_guard() {
    use bucketq::broken::Broken;
    let harm = [
        (Variant::LossUnnoticed, "P25"),
        (Variant::Engine(Broken::CollectWithoutFloor), "which is not there"),
        (Variant::Engine(Broken::ReferBelowFloor), "which is not there"),
        (Variant::Engine(Broken::FloorBeforeStored), "P14"),
        (Variant::Engine(Broken::FloorNewerThanReferences), "although HEAD refers to it"),
        (Variant::Engine(Broken::BaseFromUnsettled), "checksum"),
        (Variant::Engine(Broken::CollectWithoutList), "parquet is listed by commit"),
        (Variant::Engine(Broken::ListBelowFloor), "parquet is listed by commit"),
        (Variant::Engine(Broken::ListBeforeUpload), "parquet is listed by commit"),
        (Variant::Engine(Broken::ListTwice), "archived twice"),
        (Variant::Engine(Broken::LeaveBeforeListed), "is gone"),
        (Variant::Engine(Broken::FixedArchiveKey), "parquet is overwritten"),
        (Variant::Engine(Broken::PastStays), "archived twice"),
        (Variant::Engine(Broken::PastForgotten), "is forgotten"),
        (Variant::Engine(Broken::GivenUpGoesAtOnce), "P15"),
        (Variant::Engine(Broken::GivenUpStays), "are left although nothing refers"),
        (Variant::Engine(Broken::GivenUpTooSoon), "too soon"),
    ];
    let missed: Vec<_> = harm.into_iter().filter(|(v, what)| v.caught_as(what, 1, SEEDS).is_none()).collect();
    assert!(missed.is_empty(), "not noticed: {missed:?}");
}

/// Policies live in the file: what breaks them is noticed by what they promise.
#[cfg(feature = "broken")]
#[test]
fn broken_policies_are_noticed_by_what_they_guard() {
    use bucketq::broken::Broken;
    let harm = [
        (Broken::CapForEachClaim, "caps: "),
        (Broken::PendingForEachEnqueue, "are pending"),
        (Broken::GroupNotHeld, "before its turn"),
        (Broken::RateForgotten, "rate: "),
        (Broken::ScheduleNotMoved, "fired twice"),
        (Broken::WindowTooLong, "is kept out"),
        (Broken::WindowTooShort, "is let in"),
    ];
    let missed: Vec<_> = harm
        .into_iter()
        .filter(|(broken, what)| Variant::Engine(*broken).caught_as(what, 1, SEEDS).is_none())
        .collect();
    assert!(missed.is_empty(), "not noticed: {missed:?}");
}

#[test]
fn collection_as_often_as_can_be_harms_nobody_and_leaves_nothing() {
    holds(Variant::Frantic, &[]);
}

#[test]
fn jobs_that_leave_as_soon_as_they_can_are_in_the_archive_once() {
    holds(Variant::Archives, &[]);
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
