//! The checks notice every rule broken outside the engine, and the controls hold. mutants.rs has the variants inside it.

use std::collections::BTreeSet;

use bucketq_sim::run::run;
use bucketq_sim::variants::Variant;

/// A variant whose fault shows in none of this number of seeds counts as not caught.
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
fn a_first_date_that_is_wrong_harms_nobody_and_moves_no_time() {
    holds(Variant::FirstDate, &[]);
}

#[test]
fn what_a_process_in_local_mode_commits_by_a_wrong_clock_is_published_at_the_right_time() {
    holds(Variant::LocalClock, &["clock_skew"]);
}

#[test]
fn machines_that_sleep_for_longer_than_their_leases_last_harm_nobody() {
    holds(Variant::Sleeps, &[]);
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

#[test]
fn a_store_that_turns_bad_behind_a_queue_file_is_read_and_never_written() {
    holds(Variant::Turned, &["no_compare_and_swap"]);
}

/// No seed of this control breaks a promise, and callers get each of these codes in some seed. At least twelve seeds,
/// more until each code has come, forty at most.
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

#[test]
fn collection_as_often_as_can_be_harms_nobody_and_leaves_nothing() {
    holds(Variant::Frantic, &[]);
}

#[test]
fn writers_that_get_in_each_others_way_all_get_their_turn() {
    holds(Variant::Crowd, &[]);
}

#[test]
fn jobs_that_expire_late_acks_and_batches_of_a_group_keep_every_promise() {
    holds(Variant::Expires, &[]);
}

#[test]
fn jobs_that_leave_as_soon_as_they_can_are_in_the_archive_once() {
    holds(Variant::Archives, &[]);
}

#[test]
fn a_steady_clock_that_stops_while_its_machine_sleeps_makes_two_holders() {
    // A machine has to sleep while it holds a lease that another process then gets: one plan in twenty has that.
    assert!(Variant::SteadyClockStops.caught_as("G4", 1, 4 * SEEDS).is_some());
}

#[test]
fn every_rule_broken_outside_the_engine_is_noticed() {
    let missed: Vec<Variant> =
        Variant::OUTSIDE.into_iter().filter(|v| v.caught(1, SEEDS).is_none()).collect();
    assert!(missed.is_empty(), "not noticed: {missed:?}");
}
