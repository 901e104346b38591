//! Changes to jobs and queues from outside: cancel, requeue, purge, pause, resume, and several ops as one.

use bucketq::op::{Op, Outcome};
use bucketq::{Code, Held, JobId, Kind, Payload, QueueFile, Result, State, Token};
use bucketq_tests::given::{opened, refused};
use bucketq_tests::ground::Ground;

bucketq_tests::on_every_store! {
    a_cancel_takes_back_what_nobody_works_on
    a_cancel_of_a_leased_job_needs_the_word_and_voids_the_lease
    a_requeue_is_a_fresh_life_at_the_end_of_the_line
    a_purge_deletes_the_states_it_names
    a_paused_queue_gives_nothing_until_it_is_resumed
    an_atomic_is_one_commit
    an_atomic_that_fails_changes_nothing
    what_is_not_there_is_not_found
}

async fn enqueued(file: &QueueFile) -> Result<JobId> {
    Ok(file.queue("q")?.enqueue(Payload::text("x")).await?.id)
}

async fn state(file: &QueueFile, id: JobId) -> Result<State> {
    Ok(file.get(id).await?.expect("there").job.state)
}

async fn a_cancel_takes_back_what_nobody_works_on(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    let id = enqueued(&file).await?;
    assert_eq!(file.cancel(id).await?, State::Ready);
    assert_eq!(file.cancel(id).await?, State::Cancelled, "again changes nothing");
    assert_eq!(state(&file, id).await?, State::Cancelled);
    assert!(file.claim(1).await?.is_empty());
    file.close().await
}

async fn a_cancel_of_a_leased_job_needs_the_word_and_voids_the_lease(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    let id = enqueued(&file).await?;
    let taken = file.claim(1).await?.remove(0);
    let error = refused(file.cancel(id).await);
    assert_eq!((error.kind(), error.code()), (Kind::Invalid, Code::State));
    let done = file.call(Op::Cancel { id, leased: true }).await?;
    assert_eq!(done.outcome, Outcome::Cancelled { was: State::Leased });
    assert_eq!(refused(file.ack(taken.held()).await).code(), Code::LeaseLost);
    assert_eq!(state(&file, id).await?, State::Cancelled);
    file.close().await
}

async fn a_requeue_is_a_fresh_life_at_the_end_of_the_line(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    let id = enqueued(&file).await?;
    assert_eq!(refused(file.requeue(id).await).code(), Code::State, "it is not finished");
    let taken = file.claim(1).await?.remove(0);
    file.ack_with(taken.held(), Payload::text("r")).await?;
    let behind = enqueued(&file).await?;
    assert_eq!(file.requeue(id).await?, 1);
    let detail = file.get(id).await?.expect("there");
    assert_eq!((detail.job.state, detail.job.run, detail.job.attempt), (State::Ready, 1, 0));
    assert_eq!(detail.result, None);
    let order: Vec<_> = file.claim(9).await?.iter().map(|t| t.job.id).collect();
    assert_eq!(order, [behind, id]);
    assert_eq!(refused(file.ack(taken.held()).await).code(), Code::LeaseLost, "that was another life");
    // A requeue that names its run is harmless when repeated.
    assert_eq!(file.call(Op::Requeue { id, run: Some(0) }).await?.outcome, Outcome::Requeued { run: 1 });
    file.close().await
}

async fn a_purge_deletes_the_states_it_names(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    let (done, leased, ready) = (enqueued(&file).await?, enqueued(&file).await?, enqueued(&file).await?);
    let taken = file.claim(2).await?;
    file.ack(taken[0].held()).await?;
    let q = file.queue("q")?;
    assert_eq!(q.purge(&[State::Done, State::Ready, State::Dead]).await?, 2);
    assert!(file.get(done).await?.is_none() && file.get(ready).await?.is_none());
    assert_eq!(state(&file, leased).await?, State::Leased);
    assert_eq!(q.purge(&State::ALL).await?, 1);
    assert_eq!(refused(file.ack(taken[1].held()).await).code(), Code::NoSuchJob);
    assert!(q.list(&[], None, 10).await?.jobs.is_empty());
    file.close().await
}

async fn a_paused_queue_gives_nothing_until_it_is_resumed(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    let id = enqueued(&file).await?;
    let q = file.queue("q")?;
    q.pause().await?;
    assert!(q.claim(1).await?.is_empty() && file.claim(1).await?.is_empty());
    assert!(file.queues(None).await?[0].paused);
    let behind = enqueued(&file).await?;
    q.resume().await?;
    let order: Vec<_> = q.claim(9).await?.iter().map(|t| t.job.id).collect();
    assert_eq!(order, [id, behind]);
    assert!(!file.queues(None).await?[0].paused);
    file.close().await
}

async fn an_atomic_is_one_commit(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    enqueued(&file).await?;
    let taken = file.claim(1).await?.remove(0);
    let next = file.new_job(Payload::text("next"))?;
    let id = next.id;
    let before = file.stats(None).await?.commit_seq;
    let ops = vec![
        Op::Ack { held: taken.held(), result: None },
        Op::Enqueue { queue: "next".into(), jobs: vec![next] },
    ];
    let outcomes = file.atomic(ops).await?;
    assert!(matches!(&outcomes[..], [Outcome::Acked, Outcome::Enqueued(e)] if e[0].commit_seq == before + 1));
    assert_eq!(file.stats(None).await?.commit_seq, before + 1);
    assert_eq!((state(&file, taken.job.id).await?, state(&file, id).await?), (State::Done, State::Ready));
    file.close().await
}

async fn an_atomic_that_fails_changes_nothing(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    let id = enqueued(&file).await?;
    let taken = file.claim(1).await?.remove(0);
    let before = file.stats(None).await?;
    let stale = Held { token: Token([7; 16]), ..taken.held() };
    let ops = vec![
        Op::Enqueue { queue: "new".into(), jobs: vec![file.new_job(Payload::text("n"))?] },
        Op::Ack { held: taken.held(), result: None },
        Op::Ack { held: stale, result: None },
    ];
    let error = refused(file.atomic(ops).await);
    assert_eq!(error.code(), Code::LeaseLost);
    assert!(error.message().contains("op 2"), "{error}");
    assert_eq!(state(&file, id).await?, State::Leased);
    let after = file.stats(None).await?;
    assert_eq!((after.commit_seq, after.queues.len()), (before.commit_seq, 1));
    let nested = refused(file.atomic(vec![Op::Atomic(vec![Op::Pause { queue: "q".into() }])]).await);
    assert_eq!(nested.kind(), Kind::Invalid);
    file.close().await
}

async fn what_is_not_there_is_not_found(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    let nobody = file.new_job(Payload::text("x"))?.id;
    let held = Held { id: nobody, token: Token([1; 16]) };
    assert!(file.get(nobody).await?.is_none());
    for result in
        [file.ack(held).await, file.cancel(nobody).await.map(drop), file.requeue(nobody).await.map(drop)]
    {
        let error = refused(result);
        assert_eq!((error.kind(), error.code()), (Kind::NotFound, Code::NoSuchJob));
    }
    assert_eq!(file.queue("nowhere")?.purge(&[State::Done]).await?, 0);
    file.close().await
}
