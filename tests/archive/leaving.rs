//! Which jobs leave, and their content in the archive.

use std::time::Duration;

use bucketq::policy::Changes;
use bucketq::{Answer, Backoff, Op, Options, Payload, Query, QueueFile, Result, State, When, operate};
use bucketq_tests::clock::pass;
use bucketq_tests::given::{NAME, inline, noise, on_puppet, puppet, refused};

use crate::kit::{Q, cancel, finish, keep, patient, read, reject, set, whole};

#[tokio::test(start_paused = true)]
async fn what_is_beyond_those_kept_leaves_and_every_column_is_told() -> Result<()> {
    let (puppet, file) = puppet(patient()).await?;
    let store = puppet.beneath();
    set(&file, keep(1)).await?;
    let queue = file.queue(Q)?;
    let mut new = file.new_job(Payload::json(&[1, 2, 3])?)?;
    new.when = When::In(5_000);
    new.priority = -3;
    new.max_attempts = Some(4);
    new.group = Some("tenant".into());
    new.backoff = Some(Backoff::None);
    let id = new.id;
    let enqueued = file.call(Op::Enqueue { queue: Q.into(), jobs: vec![new] }).await?;
    pass(Duration::from_secs(9)).await;
    let taken = queue.claim(1).worker("first").await?;
    file.nack(taken[0].held(), None, Some("not yet".into())).await?;
    pass(Duration::from_secs(1)).await;
    let taken = queue.claim(1).worker("second").await?;
    let fence = taken[0].lease.fence;
    pass(Duration::from_millis(250)).await;
    let acked = file.call(Op::Ack { held: taken[0].held(), result: Some(Payload::text("six")) }).await?;
    finish(&file, 1).await?;
    assert_eq!(file.archive().await?, 1);

    let archives = file.archives(None, 0).await?.objects;
    let [object] = &archives[..] else { panic!("{archives:?}") };
    let lives = read(store, object).await?;
    let life = &lives[0];
    assert_eq!((life.id, life.run, &*life.queue, life.group.as_deref()), (id, 0, Q, Some("tenant")));
    assert_eq!((life.state, life.priority, life.attempts, life.max_attempts), (State::Done, -3, 2, 4));
    assert_eq!(life.worker.as_deref(), Some("second"));
    assert_eq!(life.enqueued_ms, enqueued.commit_ms);
    assert_eq!(life.run_at_ms, enqueued.commit_ms + 5_000);
    assert_eq!(life.first_claimed_ms, Some(enqueued.commit_ms + 9_000));
    assert_eq!(life.claimed_ms, Some(enqueued.commit_ms + 10_000));
    assert_eq!(life.finished_ms, acked.commit_ms);
    assert_eq!((life.wait_ms(), life.run_ms()), (Some(4_000), Some(250)));
    assert_eq!((life.enqueue_commit(), life.fence), (enqueued.commit_seq, Some(fence)));
    assert_eq!(life.finish_commit(), acked.commit_seq);
    assert_eq!((life.payload_len, life.payload.as_deref()), (7, Some(&b"[1,2,3]"[..])));
    assert_eq!(life.payload_type.as_deref(), Some("application/json"));
    assert_eq!(
        (life.result.as_deref(), life.result_type.as_deref()),
        (Some(&b"six"[..]), Some("text/plain"))
    );
    assert_eq!(life.last_error.as_deref(), Some("not yet"));
    assert!(file.get(id).await?.is_none(), "it has left");
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn done_dead_and_cancelled_jobs_are_kept_each_by_their_own_number() -> Result<()> {
    let (puppet, file) = puppet(patient()).await?;
    set(&file, Changes { keep_cancelled: Some(Some(1)), ..keep(2) }).await?;
    let (mut dead, mut cancelled) = (vec![], vec![]);
    for n in 0..3 {
        dead.push(reject(&file, &format!("reason {n}")).await?);
    }
    let done = finish(&file, 3).await?;
    // Never claimed, with a different payload.
    for _ in 0..3 {
        cancelled.push(cancel(&file, Payload::bytes(vec![7; 5_000])).await?);
    }
    assert_eq!(file.archive().await?, 4);
    let lives = read(puppet.beneath(), &file.archives(Some(Q), 0).await?.objects[0]).await?;
    let told: Vec<_> = lives.iter().map(|l| (l.id, l.state)).collect();
    let first = [(dead[0], State::Dead), (done[0], State::Done), (cancelled[0], State::Cancelled)];
    assert_eq!(told, [&first[..], &[(cancelled[1], State::Cancelled)]].concat());
    assert_eq!(lives[0].last_error.as_deref(), Some("reason 0"));
    let life = &lives[2];
    assert_eq!((life.state, life.wait_ms(), life.run_ms(), life.fence), (State::Cancelled, None, None, None));
    assert_eq!(life.payload.as_deref(), Some(&[7; 5_000][..]));
    assert_eq!(file.archive().await?, 0, "nothing is left to leave");

    finish(&file, 3).await?;
    file.archive().await?;
    assert_eq!(whole(puppet.beneath(), &file).await?.len(), 12);
    let info = &file.queues(None).await?[0];
    assert_eq!([State::Done, State::Dead, State::Cancelled].map(|s| info.counts[&s]), [2, 2, 1]);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn without_payloads_only_their_length_is_told() -> Result<()> {
    let (puppet, file) = puppet(patient()).await?;
    set(&file, Changes { archive_payloads: Some(false), ..keep(0) }).await?;
    finish(&file, 1).await?;
    assert_eq!(file.archive().await?, 1);
    let lives = read(puppet.beneath(), &file.archives(None, 0).await?.objects[0]).await?;
    assert_eq!((lives[0].payload_len, &lives[0].payload, &lives[0].payload_type), (5, &None, &None));
    assert_eq!(lives[0].result.as_deref(), Some(&b"fine"[..]));
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn jobs_that_are_too_old_leave_with_and_without_an_archive() -> Result<()> {
    let (puppet, file) = puppet(patient()).await?;
    let hour = Duration::from_hours(1);
    let an_hour = Changes { keep_ms: Some(Some(3_600_000)), ..Changes::default() };
    set(&file, an_hour).await?;
    finish(&file, 3).await?;
    let dead = reject(&file, "bad").await?;
    pass(hour / 2).await;
    let young = finish(&file, 1).await?;
    assert!(file.get(dead).await?.is_some());
    pass(hour / 2 + Duration::from_secs(1)).await;
    let newest = finish(&file, 1).await?;
    assert!(file.get(dead).await?.is_none(), "a finish takes along what is too old");
    let left = file.lives(None, 0, u64::MAX, 10).await?.lives;
    assert_eq!(left.iter().map(|l| l.id).collect::<Vec<_>>(), [young[0], newest[0]]);

    set(&file, Changes { archive: Some(true), ..Changes::default() }).await?;
    pass(hour / 2 + Duration::from_secs(1)).await;
    finish(&file, 1).await?;
    assert!(file.get(young[0]).await?.is_some(), "it waits for the archive");
    assert_eq!(file.archive().await?, 1);
    assert_eq!(read(puppet.beneath(), &file.archives(None, 0).await?.objects[0]).await?[0].id, young[0]);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn dead_jobs_are_deleted_beyond_their_number() -> Result<()> {
    let (_, file) = puppet(patient()).await?;
    set(&file, Changes { keep: Some(2), ..Changes::default() }).await?;
    let mut dead = vec![];
    for _ in 0..4 {
        dead.push(reject(&file, "bad").await?);
    }
    let left = file.lives(None, 0, u64::MAX, 10).await?.lives;
    assert_eq!(left.iter().map(|l| l.id).collect::<Vec<_>>(), dead[2..]);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn what_is_kept_is_told_and_what_makes_no_sense_is_refused() -> Result<()> {
    let (_, file) = puppet(patient()).await?;
    let policy = set(&file, Changes { archive_ms: Some(Some(5)), ..keep(7) }).await?;
    assert_eq!((policy.keep, policy.archive, policy.archive_ms), (7, true, Some(5)));
    assert_eq!(file.queue(Q)?.policy().await?, policy);
    let before = file.stats(None).await?.commit_seq;
    for bad in [
        keep(u64::MAX),
        Changes { keep_ms: Some(Some(0)), ..keep(1) },
        Changes { archive_ms: Some(Some(-1)), ..keep(1) },
    ] {
        let error = refused(set(&file, bad).await);
        assert_eq!(error.kind(), bucketq::Kind::Invalid, "{error}");
    }
    let error = refused(file.lives(None, 0, 1, 1_001).await);
    assert!(error.message().contains("1000"), "{error}");
    assert_eq!(file.stats(None).await?.commit_seq, before);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn lives_are_told_by_their_place_in_the_order_of_finishes() -> Result<()> {
    let (_, file) = puppet(patient()).await?;
    set(&file, keep(3)).await?;
    finish(&file, 9).await?;
    file.archive().await?;
    let archives = file.archives(None, 0).await?;
    let here = file.lives(Some(Q), 0, u64::MAX, 2).await?.lives;
    assert_eq!(here.len(), 2);
    assert!(here[0].finish_seq > archives.objects[0].last_seq);
    let next = file.lives(Some(Q), here[1].finish_seq, u64::MAX, 2).await?.lives;
    assert_eq!(next.len(), 1);
    assert_eq!(file.lives(Some(Q), 0, here[0].finish_seq, 10).await?.lives, here[..1]);
    assert_eq!(file.lives(Some("other"), 0, u64::MAX, 10).await?.lives, []);
    assert_eq!(file.archives(None, archives.objects[0].last_seq).await?.objects, []);
    assert_eq!(file.archives(Some("other"), 0).await?.objects, []);
    let Answer::Archives(all) = file.ask(Query::Archives { queue: Some(Q.into()), after: 0 }, None).await?
    else {
        panic!("another answer")
    };
    assert_eq!(all, archives);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_life_is_archived_whose_job_is_requeued() -> Result<()> {
    let (puppet, file) = puppet(patient()).await?;
    set(&file, keep(10)).await?;
    let dead = reject(&file, "no such address").await?;
    let [done] = finish(&file, 1).await?[..] else { panic!("one") };
    let before = whole(puppet.beneath(), &file).await?;
    file.requeue(dead).await?;
    file.requeue(done).await?;
    assert_eq!(file.get(done).await?.expect("it lives again").job.state, State::Ready);

    // Earlier runs are returned as before, but without the payload, which the job has.
    let told = |life: &bucketq::life::Life| bucketq::life::Life {
        payload: None,
        payload_type: None,
        ..life.clone()
    };
    let aside = whole(puppet.beneath(), &file).await?;
    assert_eq!(aside, before.iter().map(|(key, life)| (*key, told(life))).collect());
    assert_eq!(aside[&(dead, 0)].last_error.as_deref(), Some("no such address"));
    assert_eq!(aside[&(done, 0)].result.as_deref(), Some(&b"fine"[..]));

    // They leave at once, whatever the retention.
    assert_eq!(file.archive().await?, 2);
    assert_eq!(file.archive().await?, 0);
    assert_eq!(file.lives(None, 0, u64::MAX, 10).await?.lives, []);
    assert_eq!(whole(puppet.beneath(), &file).await?, aside);

    // And the next runs after them, each with its number and the payload.
    set(&file, keep(0)).await?;
    for job in file.queue(Q)?.claim(10).await? {
        file.ack(job.held()).await?;
    }
    file.requeue(dead).await?;
    file.archive().await?;
    let all = whole(puppet.beneath(), &file).await?;
    let runs: Vec<_> =
        all.iter().filter(|((id, _), _)| *id == dead).map(|(key, l)| (key.1, l.state)).collect();
    assert_eq!(runs, [(0, State::Dead), (1, State::Done)]);
    assert_eq!(all[&(done, 1)].payload.as_deref(), Some(&b"job 0"[..]));
    let info = &file.queues(None).await?[0];
    assert_eq!((info.counts[&State::Ready], info.counts[&State::Done], info.counts[&State::Dead]), (1, 0, 0));
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn what_is_purged_is_gone_but_for_the_lives_set_aside_before() -> Result<()> {
    let (puppet, file) = puppet(patient()).await?;
    set(&file, keep(0)).await?;
    let [once, twice] = finish(&file, 2).await?[..] else { panic!("two") };
    file.requeue(twice).await?;
    file.queue(Q)?.purge(&[State::Done, State::Ready]).await?;
    // Enqueued under its old id, it begins with run 0 again.
    let again = bucketq::New { id: twice, ..file.new_job(Payload::text("anew"))? };
    file.call(Op::Enqueue { queue: Q.into(), jobs: vec![again] }).await?;
    let check = || operate::check_with(puppet.store(), NAME, Options::default());
    assert_eq!(check().await?.problems, []);
    assert_eq!(file.archive().await?, 1);
    let all = whole(puppet.beneath(), &file).await?;
    assert_eq!(all.keys().collect::<Vec<_>>(), [&(twice, 0)], "{once} is gone");
    assert_eq!(check().await?.problems, []);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_life_is_archived_whose_job_goes_to_the_dead_letter_queue() -> Result<()> {
    let (puppet, file) = puppet(patient()).await?;
    set(&file, Changes { dead_letter: Some(Some("morgue".into())), ..keep(5) }).await?;
    let id = reject(&file, "no such address").await?;
    let job = file.get(id).await?.expect("it is in the other queue").job;
    assert_eq!((&*job.queue, job.state, job.run), ("morgue", State::Ready, 1));
    let lives = file.lives(Some(Q), 0, u64::MAX, 10).await?.lives;
    let [life] = &lives[..] else { panic!("{lives:?}") };
    assert_eq!((life.id, life.run, &*life.queue, life.state), (id, 0, Q, State::Dead));
    assert_eq!(life.last_error.as_deref(), Some("no such address"));
    assert_eq!(Some(life.finish_commit()), file.history(1).await?.first().map(|c| c.commit_seq));
    assert_eq!(file.archive().await?, 1);
    let archived = whole(puppet.beneath(), &file).await?;
    assert_eq!(archived.values().collect::<Vec<_>>(), [life]);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn lives_set_aside_leave_by_themselves_and_not_at_all_without_an_archive() -> Result<()> {
    let (puppet, file) = puppet(Options { archive_every: Duration::from_mins(10), ..inline() }).await?;
    set(&file, keep(10)).await?;
    let id = reject(&file, "bad").await?;
    file.requeue(id).await?;
    pass(Duration::from_mins(9)).await;
    finish(&file, 1).await?;
    pass(Duration::from_secs(1)).await;
    assert_eq!(file.archives(None, 0).await?.objects, []);
    pass(Duration::from_mins(4)).await;
    finish(&file, 1).await?;
    pass(Duration::from_secs(1)).await;
    assert_eq!(file.archives(None, 0).await?.objects[0].jobs, 1);
    assert_eq!(whole(puppet.beneath(), &file).await?[&(id, 0)].state, State::Dead);

    let again = reject(&file, "bad").await?;
    file.requeue(again).await?;
    set(&file, Changes { archive: Some(false), ..Changes::default() }).await?;
    let left = file.lives(None, 0, u64::MAX, 10).await?.lives;
    assert!(left.iter().all(|life| life.id != again), "nothing waits for an archive that is off");
    for job in file.queue(Q)?.claim(1).await? {
        file.ack(job.held()).await?;
    }
    let last = reject(&file, "bad").await?;
    file.requeue(last).await?;
    let left = file.lives(None, 0, u64::MAX, 10).await?.lives;
    assert!(left.iter().all(|life| life.id != last), "its attempts are with the job");
    assert_eq!(file.get(last).await?.expect("it lives").attempts.len(), 1);
    file.close().await
}

/// A file of 1,500 finished jobs, of which 1,200 are to leave.
async fn many_to_leave(file: &QueueFile) -> Result<()> {
    set(file, keep(300)).await?;
    let queue = file.queue(Q)?;
    for from in (0..1_500).step_by(100) {
        let len = |n| if n % 5 == 0 { 6_000 } else { 500 };
        let some = (from..from + 100).map(|n| queue.new_job(Payload::bytes(noise(n, len(n)))));
        queue.enqueue_many(some.collect::<Result<_>>()?).await?;
        for job in queue.claim(100).await? {
            file.ack(job.held()).await?;
        }
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn leaving_is_a_small_commit_and_the_next_ones_give_the_pages_back() -> Result<()> {
    let (_, file) = puppet(Options { archive_every: Duration::from_mins(10), ..inline() }).await?;
    many_to_leave(&file).await?;
    let full = file.stats(None).await?;
    pass(Duration::from_mins(11)).await;
    file.queue(Q)?.enqueue(Payload::text("any")).await?;
    pass(Duration::from_secs(1)).await;
    assert_eq!(file.archives(None, 0).await?.objects.iter().map(|o| o.jobs).collect::<Vec<_>>(), [1_200]);
    let listing = &file.history(1).await?[0];
    assert!(listing.bytes < 64 * 1024, "{} bytes: with others it fits into HEAD", listing.bytes);
    for _ in 0..40 {
        finish(&file, 1).await?;
    }
    let stats = file.stats(None).await?;
    let live = stats.pages - stats.free_pages;
    assert!(stats.free_pages <= live / 4, "{} of {} are free", stats.free_pages, stats.pages);
    assert!(stats.pages * 2 < full.pages, "{} of {} pages", stats.pages, full.pages);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn who_asks_for_the_archive_has_the_pages_given_back_as_well() -> Result<()> {
    let (_, file) = puppet(patient()).await?;
    many_to_leave(&file).await?;
    assert_eq!(file.archive().await?, 1_200);
    let stats = file.stats(None).await?;
    let live = stats.pages - stats.free_pages;
    assert!(stats.free_pages <= live / 4, "{} of {} are free", stats.free_pages, stats.pages);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn what_lost_a_race_leaves_in_a_small_commit() -> Result<()> {
    let (puppet, file) = puppet(patient()).await?;
    many_to_leave(&file).await?;
    let other = on_puppet(&puppet, patient()).await?;
    puppet.hold();
    let archived = file.archive();
    let faster = async {
        puppet.until_held(1).await;
        let queue = other.queue("other")?;
        let first = async {
            puppet.until_held(2).await;
            puppet.let_go();
        };
        let (other, ()) = tokio::join!(queue.enqueue(Payload::text("first")), first);
        other.map(drop)
    };
    let (jobs, faster) = tokio::join!(archived, faster);
    faster?;
    assert_eq!(jobs?, 1_200);
    let commits = file.history(2).await?;
    assert_eq!(commits.iter().map(|c| c.ops).collect::<Vec<_>>(), [1, 1]);
    assert!(commits[0].bytes < 64 * 1024, "{} bytes", commits[0].bytes);
    file.close().await
}
