//! The faulty store injects the faults it claims to: the kit itself is tested before it judges anything.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bucketq::store::{Expect, Got, Put, Store, Version};
use bucketq_sim::bucket::{Bucket, Lie, Who};
use bucketq_sim::clock::{EPOCH_MS, NodeClock, now, pause_ms};
use bucketq_sim::plan::{Fate, Plan, Verb};
use bucketq_sim::rng::Rng;
use bucketq_sim::store::{FaultyStore, Life};
use bucketq_sim::world::World;
use bytes::Bytes;

const WHO: Who = Who { node: 0, life: 1 };

fn world(only: Fate) -> Arc<World> {
    let rng = Rng::new(5);
    let plan = Plan { only: Some(only), dates: true, crash_rate: 0, ..Plan::draw(5, &rng, None) };
    World::with(5, plan, rng, None, false)
}

fn store(world: &Arc<World>) -> (FaultyStore, Arc<Life>) {
    let life = Arc::new(Life::new(WHO));
    (FaultyStore::new(world.clone(), life.clone()), life)
}

/// The reply to a create under this fate, whether the object exists at that moment, and whether it exists at the end.
async fn create(fate: Fate) -> (Put, bool, bool) {
    let world = world(fate);
    let (store, _) = store(&world);
    let there = |world: &World| world.bucket().get("jobs.thing", &Rng::new(1)).is_some();
    let answer = store.put_if("jobs.thing", Bytes::from_static(b"x"), &Expect::Absent).await;
    let soon = there(&world);
    world.wait_arrived().await;
    (answer, soon, there(&world))
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_fault_is_stored_with_a_version_and_a_date() {
    let (answer, soon, _) = create(Fate::Fine).await;
    assert!(matches!(answer, Put::Stored { date_ms: Some(_), .. }) && soon, "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lost_request_never_arrives_and_nobody_knows() {
    let (answer, _, finally) = create(Fate::LostRequest).await;
    assert!(matches!(answer, Put::Unknown { sent: true, .. }) && !finally, "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_leaves_the_object_there_and_nobody_knows() {
    let (answer, _, finally) = create(Fate::LostAnswer).await;
    assert!(matches!(answer, Put::Unknown { sent: true, .. }) && finally, "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_late_request_arrives_after_its_caller_gave_up() {
    let mut late = 0;
    for seed in 0..20 {
        let world = world(Fate::Late);
        for _ in 0..seed {
            world.rng.draw();
        }
        let (store, life) = store(&world);
        let answer = store.put_if("jobs.thing", Bytes::from_static(b"x"), &Expect::Absent).await;
        assert!(matches!(answer, Put::Unknown { sent: true, .. }), "{answer:?}");
        late += u32::from(world.bucket().get("jobs.thing", &Rng::new(1)).is_none());
        life.end();
        world.wait_arrived().await;
        assert!(world.bucket().get("jobs.thing", &Rng::new(1)).is_some());
    }
    assert!(late > 0, "none of twenty late requests was late");
}

#[tokio::test(start_paused = true)]
async fn refused_conflicting_and_throttled_requests_change_nothing() {
    for fate in [Fate::Refused, Fate::Conflict409, Fate::False412, Fate::Throttled] {
        let (answer, _, finally) = create(fate).await;
        let right = match fate {
            Fate::Refused => matches!(answer, Put::Unknown { sent: false, .. }),
            Fate::Throttled => matches!(answer, Put::Unknown { sent: true, retry_after: Some(_), .. }),
            _ => matches!(answer, Put::Conflict),
        };
        assert!(right && !finally, "{fate:?}: {answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_without_an_etag_is_unknown_although_it_was_stored() {
    let (answer, _, finally) = create(Fate::NoEtag).await;
    assert!(matches!(answer, Put::Unknown { sent: true, .. }) && finally, "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_delivered_twice_is_carried_out_twice() {
    let world = world(Fate::Twice);
    let (store, _) = store(&world);
    let answer = store.put_if("jobs.thing", Bytes::from_static(b"x"), &Expect::Absent).await;
    assert!(matches!(answer, Put::Stored { .. }));
    world.wait_arrived().await;
    assert_eq!(world.bucket().counts.puts, 2);
}

#[tokio::test(start_paused = true)]
async fn damaged_bodies_differ_from_what_is_stored() {
    for fate in [Fate::Torn, Fate::Flipped] {
        let world = world(fate);
        world.bucket().put_new("jobs.thing", Bytes::from_static(b"a body of some length"));
        let (store, _) = store(&world);
        let Ok(Got::Object { bytes, .. }) = store.get("jobs.thing", None).await else { panic!("no object") };
        assert_ne!(bytes, Bytes::from_static(b"a body of some length"), "{fate:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_died_gets_no_answer_and_sends_nothing() {
    let world = world(Fate::Fine);
    let (store, life) = store(&world);
    life.end();
    let request = store.put_if("jobs.thing", Bytes::from_static(b"x"), &Expect::Absent);
    assert!(tokio::time::timeout(Duration::from_hours(1), request).await.is_err());
    assert_eq!(world.bucket().counts.puts, 0);
}

#[tokio::test(start_paused = true)]
async fn a_stalled_process_sends_nothing_before_its_time() {
    let world = world(Fate::Fine);
    let (store, _) = store(&world);
    world.stall(0, 60_000);
    let answer = store.put_if("jobs.thing", Bytes::from_static(b"x"), &Expect::Absent).await;
    assert!(matches!(answer, Put::Stored { .. }) && world.now_ms() >= 60_000);
}

#[tokio::test(start_paused = true)]
async fn every_fate_occurs() {
    let rng = Rng::new(1);
    let plan = Plan { fault_rate: 1_000_000, damaged: true, ..Plan::draw(1, &rng, None) };
    let calm = Plan { damaged: false, ..plan.clone() };
    let mut met = BTreeSet::new();
    for _ in 0..5_000 {
        for verb in [Verb::PutIf, Verb::Get, Verb::PutNew] {
            met.insert(format!("{:?}", plan.fate(&rng, verb)));
            met.insert(format!("{:?}", calm.fate(&rng, verb)));
        }
    }
    assert_eq!(met.len(), 15, "{met:?}");
}

#[test]
fn an_honest_bucket_has_one_winner_and_the_liars_do_not() {
    let winners = |lie, seed| {
        let (rng, mut bucket) = (Rng::new(seed), Bucket::new(lie, 0));
        let body = |n: u8| Bytes::copy_from_slice(&[n]);
        let first = bucket.put_if(WHO, 0, "a", body(0), None, &rng).expect("nothing was there");
        (1..=12).filter(|n| bucket.put_if(WHO, 0, "a", body(*n), Some(&first), &rng).is_some()).count()
    };
    assert!((0..20).all(|seed| winners(Lie::None, seed) == 1));
    assert!((0..20).any(|seed| winners(Lie::TwoWinners, seed) > 1));
    assert_eq!(winners(Lie::NoConditions, 0), 12);
    assert_eq!(winners(Lie::NoIfMatch, 0), 12);
    assert_eq!(winners(Lie::NoIfNoneMatch, 0), 1);
}

#[tokio::test(start_paused = true)]
async fn a_date_is_missing_or_wrong_only_after_it_was_right_once() {
    let world = world(Fate::NoDate);
    let (store, _) = store(&world);
    let date = async || match store.get("jobs.head", None).await {
        Ok(Got::Absent { date_ms }) => date_ms,
        other => panic!("{other:?}"),
    };
    assert!(date().await.is_some());
    assert_eq!(date().await, None);
    world.odd_dates(0, 60_000, 30_000);
    let ahead = date().await.expect("a date") - EPOCH_MS - world.now_ms().cast_signed();
    assert!((28_000..=30_000).contains(&ahead), "{ahead}");
}

#[test]
fn a_clock_that_was_set_back_lately_counts_as_it_was() {
    let clock = |by| {
        let clock = NodeClock::new(now(), 0, 0);
        clock.step(by);
        clock
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        use bucketq::env::Clock;
        let (back, forward) = (clock(-9_000), clock(9_000));
        assert_eq!(back.latest_ms() - back.wall_ms(), 9_000);
        assert_eq!(forward.latest_ms(), forward.wall_ms());
        pause_ms(120_001).await;
        assert_eq!(back.latest_ms(), back.wall_ms());
    });
}

#[test]
fn a_bucket_whose_versions_repeat_lets_a_late_put_in() {
    let (rng, mut bucket) = (Rng::new(1), Bucket::new(Lie::SameVersion, 0));
    let mut put = |is: Option<&str>| bucket.put_if(WHO, 0, "a", Bytes::new(), is, &rng);
    let first = put(None).expect("nothing was there");
    let second = put(Some(&first)).expect("the first version");
    let third = put(Some(&second)).expect("the second version");
    assert_eq!(first, third);
    assert!(put(Some(&first)).is_some());
}

#[test]
fn a_bucket_notices_a_key_that_is_written_twice() {
    let mut bucket = Bucket::new(Lie::None, 0);
    bucket.put_new("jobs.seg-1", Bytes::from_static(b"a"));
    bucket.put_new("jobs.seg-1", Bytes::from_static(b"a"));
    assert!(bucket.broken.is_empty());
    bucket.put_new("jobs.seg-1", Bytes::from_static(b"b"));
    assert_eq!(bucket.broken.len(), 1);
}

#[test]
fn a_bucket_notices_what_is_deleted_too_early() {
    let mut bucket = Bucket::new(Lie::None, 0);
    bucket.delete(WHO, 0, "jobs.seg-00000000-0000000000000001-0000000000000002-0000000000000003");
    assert!(bucket.broken.is_empty(), "without a HEAD there is no floor: {:?}", bucket.broken);
    bucket.put_new("jobs.base-00000000-0000000000000002-0000000000000003", Bytes::new());
    assert_eq!(bucket.unreferenced(&std::collections::BTreeSet::new()).len(), 1);
}

#[test]
fn a_bucket_notices_a_head_that_nobody_can_read() {
    let mut bucket = Bucket::new(Lie::None, 0);
    bucket.put_if(WHO, 0, "jobs.head", Bytes::from_static(b"nonsense"), None, &Rng::new(1));
    assert_eq!(bucket.broken.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn clocks_are_skewed_drift_and_can_be_set() {
    use bucketq::env::Clock;
    let origin = now();
    let (right, fast) = (NodeClock::new(origin, 0, 0), NodeClock::new(origin, 2_000, 100));
    assert_eq!(fast.wall_ms() - right.wall_ms(), 2_000);
    pause_ms(1_000_000).await;
    assert_eq!(fast.wall_ms() - right.wall_ms(), 2_100);
    fast.step(-600_000);
    assert_eq!(fast.wall_ms() - right.wall_ms(), -597_900);
    assert_eq!(right.monotonic(), now());
}

#[tokio::test(start_paused = true)]
async fn a_steady_clock_that_stands_still_goes_on_where_it_stopped() {
    use bucketq::env::Clock;
    let clock = NodeClock::new(now(), 0, 0);
    pause_ms(1_000).await;
    let before = clock.monotonic();
    clock.stand_still(5_000);
    clock.stand_still(1_000);
    pause_ms(5_500).await;
    assert_eq!(clock.monotonic(), before);
    pause_ms(1_500).await;
    assert_eq!(clock.monotonic() - before, Duration::from_secs(1));
    assert_eq!(clock.stood(), (Duration::from_secs(6), Duration::from_secs(6)));
}

#[test]
fn the_same_seed_draws_the_same_numbers() {
    let draw = |seed| {
        let rng = Rng::new(seed);
        let fork = rng.fork();
        (0..8).map(|_| rng.draw()).chain((0..8).map(|_| fork.spread(1, 1_000_000))).collect::<Vec<_>>()
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}

#[test]
fn a_version_is_told_to_the_letter() {
    let mut bucket = Bucket::new(Lie::None, 0);
    let version = bucket.put_if(WHO, 0, "a", Bytes::from_static(b"0"), None, &Rng::new(1)).expect("stored");
    assert_eq!(bucket.get("a", &Rng::new(1)).map(|o| Version::new(o.version)), Some(Version::new(version)));
}
