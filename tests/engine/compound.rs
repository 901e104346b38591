//! Calls of several ops, repeated after an unknown outcome: one effect, however late.

use std::sync::Arc;

use bucketq::op::{Held, Op, Outcome};
use bucketq::policy::Changes;
use bucketq::store::Memory;
use bucketq::{Kind, New, Payload, QueueFile, Result, State};
use bucketq_tests::clock::TestClock;
use bucketq_tests::given::{NAME, inline, refused};
use bucketq_tests::puppet::{OnGet, OnPut, Puppet};

/// A queue file whose finished jobs leave at once, and one held job.
async fn held(keep: u64) -> Result<(Puppet, QueueFile, bucketq::ClaimedJob)> {
    let puppet = Puppet::over(Arc::new(Memory::new()));
    let file = QueueFile::open_with(puppet.store(), NAME, inline(), TestClock::start().env()).await?;
    let q = file.queue("q")?;
    q.configure(Changes { keep: Some(keep), ..Changes::default() }).await?;
    q.enqueue(Payload::text("first")).await?;
    let taken = q.claim(1).await?.remove(0);
    Ok((puppet, file, taken))
}

/// The op is carried out, and its caller gets the error for an unknown outcome.
async fn unknown(puppet: &Puppet, file: &QueueFile, op: Op) -> Result<()> {
    puppet.every_put(OnPut::LoseAnswer);
    puppet.every_get(OnGet::Hang);
    assert_eq!(refused(file.call(op).await).kind(), Kind::Unknown);
    puppet.every_put(OnPut::Pass);
    puppet.every_get(OnGet::Pass);
    Ok(())
}

fn ends(held: Held) -> [Op; 4] {
    [
        Op::Ack { held, result: Some(Payload::text("result")) },
        Op::Nack { held, delay_ms: Some(60_000), error: Some("no luck".into()) },
        Op::Release { held },
        Op::Reject { held, error: None },
    ]
}

#[tokio::test(start_paused = true)]
async fn an_end_with_next_steps_that_is_repeated_is_one_effect() -> Result<()> {
    for keep in [1_000, 0] {
        for n in 0..4 {
            let (puppet, file, taken) = held(keep).await?;
            let call = || {
                let job = New::new(taken.next_id(0), Payload::text("next"));
                let next = Op::Enqueue { queue: "next".into(), jobs: vec![job] };
                Op::Atomic(vec![ends(taken.held())[n].clone(), next])
            };
            unknown(&puppet, &file, call()).await?;
            let Outcome::Atomic(told) = file.call(call()).await?.outcome else { panic!() };
            assert!(matches!(&told[1], Outcome::Enqueued(all) if all[0].existing), "{told:?}");
            let next = file.queue("next")?.claim(9).await?;
            assert_eq!(next.len(), 1, "keep {keep}, end {n}");
            // Also when the next job is finished and has left by now.
            file.ack(next[0].held()).await?;
            file.call(call()).await?;
            assert!(file.queue("next")?.claim(9).await?.is_empty());
            file.close().await?;
        }
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn ops_of_other_kinds_that_are_repeated_together_are_one_effect() -> Result<()> {
    let (puppet, file, _) = held(1_000).await?;
    let q = file.queue("q")?;
    let (a, b) = (q.new_job(Payload::text("a"))?, q.new_job(Payload::text("b"))?);
    let enqueue = |job: &New| Op::Enqueue { queue: "q".into(), jobs: vec![job.clone()] };
    q.enqueue_job(a.clone()).await?;
    let all = Op::Atomic(vec![
        Op::Cancel { id: a.id, leased: false },
        Op::Purge { queue: "q".into(), states: vec![State::Ready, State::Done] },
        enqueue(&b),
        Op::Pause { queue: "other".into() },
    ]);
    unknown(&puppet, &file, all.clone()).await?;
    let first = file.get(b.id).await?.expect("it was carried out").job;
    file.call(all.clone()).await?;
    assert_eq!(file.get(b.id).await?.expect("the purge spares it").job, first);
    let taken = q.claim(9).await?.remove(0);
    assert_eq!(taken.job.id, b.id);
    file.ack(taken.held()).await?;
    file.call(all).await?;
    assert!(q.claim(9).await?.is_empty(), "it is done, and is not worked on again");
    file.close().await
}
