//! HEAD deleted, rolled back or created again under a running process (P21, P22).

use std::sync::Arc;
use std::time::Duration;

use bucketq::internals::head::Head;
use bucketq::store::{Memory, Store};
use bucketq::{Code, Error, Kind, Options, Payload, QueueFile, Result};
use bucketq_tests::clock::{TestClock, now, pass};
use bucketq_tests::given::{HEAD, NAME, inline, object, objects, on_puppet, puppet, refused};
use bucketq_tests::puppet::{OnGet, OnPut};

async fn open(store: &Arc<dyn Store>) -> Result<QueueFile> {
    QueueFile::open_with(Arc::clone(store), NAME, inline(), TestClock::start().env()).await
}

/// A queue file with this many jobs.
async fn given(jobs: usize) -> Result<(Arc<dyn Store>, QueueFile)> {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let file = open(&store).await?;
    for i in 0..jobs {
        file.queue("q")?.enqueue(Payload::text(i.to_string())).await?;
    }
    pass(Duration::from_millis(1)).await;
    Ok((store, file))
}

/// Everything on this handle fails with this code from now on, and the bucket stays as it is.
async fn halted(store: &Arc<dyn Store>, file: &QueueFile, code: Code) -> Result<()> {
    let before = objects(store).await?;
    for _ in 0..2 {
        let errors = [
            refused(file.stats(None).await),
            refused(file.stats(Some(Duration::from_hours(1))).await),
            refused(file.claim(1).await),
            refused(file.claim(1).wait_forever().await),
            refused(file.queue("q")?.enqueue(Payload::text("x")).await),
            refused(file.settle().await),
        ];
        for error in errors {
            assert_eq!((error.kind(), error.code()), (Kind::Corrupt, code), "{error}");
        }
        pass(Duration::from_secs(10)).await;
    }
    assert_eq!(objects(store).await?, before);
    Ok(())
}

/// The op that met it was sent, and nothing shows whether it was applied before (P7).
fn met(error: &Error, code: Code) {
    assert_eq!(error.kind(), Kind::Unknown, "{error}");
    assert!(format!("{error:?}").contains(code.as_str()), "the cause is told: {error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_deleted_head_stops_the_process_and_is_not_made_again() -> Result<()> {
    let (store, file) = given(2).await?;
    store.delete(HEAD).await?;
    let error = refused(file.stats(None).await);
    assert_eq!(error.code(), Code::HeadMissing, "{error}");
    halted(&store, &file, Code::HeadMissing).await?;
    file.close().await?;

    let (store, file) = given(2).await?;
    store.delete(HEAD).await?;
    met(&refused(file.queue("q")?.enqueue(Payload::text("x")).await), Code::HeadMissing);
    halted(&store, &file, Code::HeadMissing).await?;
    assert!(objects(&store).await?.is_empty());
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn one_wrong_404_for_head_passes_like_any_other_bad_answer() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    let q = file.queue("q")?;
    q.enqueue(Payload::text("first")).await?;
    pass(Duration::from_millis(1)).await;
    puppet.next_gets([OnGet::Absent]);
    assert_eq!(file.queues(None).await?.len(), 1, "a reader looks again");
    puppet.next_puts([OnPut::LoseAnswer]);
    puppet.next_gets([OnGet::Absent, OnGet::Fail(Code::Unreachable), OnGet::Absent]);
    q.enqueue(Payload::text("second")).await?;
    assert_eq!(file.claim(9).await?.len(), 2, "settling looks again");
    // At the next opening too, once a process has read HEAD.
    file.close().await?;
    puppet.next_gets([OnGet::Pass, OnGet::Absent]);
    let again = on_puppet(&puppet, inline()).await?;
    again.settle().await?;
    again.close().await
}

#[tokio::test(start_paused = true)]
async fn a_head_that_is_gone_is_looked_for_more_than_once_over_some_time() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    puppet.beneath().delete(HEAD).await?;
    pass(Duration::from_millis(1)).await;
    let (before, gets) = (now(), puppet.requests().gets);
    assert_eq!(refused(file.stats(None).await).code(), Code::HeadMissing);
    assert!(puppet.requests().gets - gets >= 4, "{:?}", puppet.requests());
    assert!(now() - before >= Duration::from_secs(1), "{:?}", now() - before);
    file.close().await?;

    // A caller with less time learns that nothing was changed, and nothing halts.
    let options = Options { deadline: Duration::from_millis(600), ..inline() };
    let (puppet, file) = self::puppet(options).await?;
    puppet.every_get(OnGet::Absent);
    pass(Duration::from_millis(1)).await;
    assert_eq!(refused(file.stats(None).await).kind(), Kind::Unavailable);
    puppet.every_get(OnGet::Pass);
    file.queue("q")?.enqueue(Payload::text("x")).await?;
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_deleted_head_wakes_waiting_claims() -> Result<()> {
    let (store, file) = given(0).await?;
    let waiting = tokio::spawn(file.claim(1).wait_forever().into_future());
    pass(Duration::from_millis(1)).await;
    store.delete(HEAD).await?;
    assert_eq!(refused(waiting.await.expect("no panic")).code(), Code::HeadMissing);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_head_rolled_back_stops_the_process_and_a_fresh_opening_works() -> Result<()> {
    for reads_first in [true, false] {
        let (store, file) = given(2).await?;
        let old = object(&store, HEAD).await?.expect("there");
        file.queue("q")?.enqueue(Payload::text("lost")).await?;
        pass(Duration::from_millis(1)).await;
        store.put_new(HEAD, old).await?;
        if reads_first {
            let error = refused(file.stats(None).await);
            assert_eq!(error.code(), Code::RolledBack, "{error}");
        } else {
            met(&refused(file.queue("q")?.enqueue(Payload::text("x")).await), Code::RolledBack);
        }
        halted(&store, &file, Code::RolledBack).await?;
        file.close().await?;
        let fresh = open(&store).await?;
        assert_eq!(fresh.claim(9).await?.len(), 2, "the state that was restored");
        fresh.close().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_head_rolled_back_and_overtaken_is_noticed_all_the_same() -> Result<()> {
    let (store, file) = given(2).await?;
    let old = object(&store, HEAD).await?.expect("there");
    file.queue("q")?.enqueue(Payload::text("lost")).await?;
    store.put_new(HEAD, old).await?;
    let other = open(&store).await?;
    for i in 0..5 {
        other.queue("q")?.enqueue(Payload::text(format!("other {i}"))).await?;
    }
    pass(Duration::from_millis(1)).await;
    let error = refused(file.stats(None).await);
    assert!(matches!(error.code(), Code::RolledBack | Code::StoreBroken), "{error}");
    halted(&store, &file, error.code()).await?;
    assert_eq!(other.claim(99).await?.len(), 7);
    other.close().await?;
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_file_made_anew_is_another_file() -> Result<()> {
    for reads_first in [true, false] {
        let (store, file) = given(2).await?;
        store.delete(HEAD).await?;
        let other = open(&store).await?;
        assert!(other.claim(9).await?.is_empty());
        for _ in 0..9 {
            other.queue("q")?.enqueue(Payload::text("new")).await?;
        }
        pass(Duration::from_millis(1)).await;
        if reads_first {
            assert_eq!(refused(file.stats(None).await).code(), Code::RolledBack);
        } else {
            met(&refused(file.queue("q")?.enqueue(Payload::text("x")).await), Code::RolledBack);
        }
        halted(&store, &file, Code::RolledBack).await?;
        assert_eq!(other.claim(99).await?.len(), 9, "the new file is untouched");
        other.close().await?;
        file.close().await?;
    }
    Ok(())
}

/// The same chain under another identity: only the ids differ.
#[tokio::test(start_paused = true)]
async fn a_head_of_another_file_or_lineage_is_noticed_by_its_ids_alone() -> Result<()> {
    let changes: [fn(&mut Head); 2] = [|h| h.file_id[0] ^= 1, |h| h.lineage_id[0] ^= 1];
    for change in changes {
        let (store, file) = given(2).await?;
        let mut head = Head::decode(HEAD, &object(&store, HEAD).await?.expect("there"))?;
        change(&mut head);
        store.put_new(HEAD, head.encode().into()).await?;
        assert_eq!(refused(file.stats(None).await).code(), Code::RolledBack);
        halted(&store, &file, Code::RolledBack).await?;
        file.close().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_missing_head_with_objects_left_is_no_invitation_to_make_one() -> Result<()> {
    let (store, file) = given(1).await?;
    file.close().await?;
    store.delete(HEAD).await?;
    for kind in ["base", "seg", "arch"] {
        let key = format!("jobs.{kind}-0011aabb-0000000000000005-0123456789abcdef");
        store.put_new(&key, vec![1].into()).await?;
        let before = objects(&store).await?;
        let error = refused(open(&store).await);
        assert_eq!((error.kind(), error.code()), (Kind::Corrupt, Code::HeadMissing), "{error}");
        assert!(error.message().contains(&key), "{error}");
        assert_eq!(objects(&store).await?, before);
        store.delete(&key).await?;
    }
    // Objects of another name are ignored.
    store.put_new("jobs2.base-0011aabb-0000000000000005-0123456789abcdef", vec![1].into()).await?;
    open(&store).await?.close().await
}

#[tokio::test(start_paused = true)]
async fn a_head_that_vanishes_while_it_is_being_opened_is_not_made_again() -> Result<()> {
    let (store, file) = given(1).await?;
    file.close().await?;
    let Some(whole) = object(&store, HEAD).await? else { panic!("the file is there") };
    // It reads as damaged at first, which may be temporary.
    store.put_new(HEAD, whole.slice(..whole.len() / 2)).await?;
    let opening = tokio::spawn({
        let store = Arc::clone(&store);
        async move { open(&store).await }
    });
    pass(Duration::from_millis(1)).await;
    assert!(!opening.is_finished(), "it looks again");
    store.delete(HEAD).await?;
    let before = objects(&store).await?;
    let error = refused(opening.await.expect("no panic"));
    assert_eq!((error.kind(), error.code()), (Kind::Corrupt, Code::HeadMissing), "{error}");
    assert_eq!(objects(&store).await?, before);
    Ok(())
}

#[tokio::test]
async fn a_halted_writer_is_replaced_at_the_next_opening_of_its_url() -> Result<()> {
    let (url, options) = ("memory://halted", bucketq::Options::default());
    let first = QueueFile::open(url, options.clone()).await?;
    first.queue("q")?.enqueue(Payload::text("x")).await?;
    let store = Memory::named("halted");
    store.delete("halted.head").await?;
    assert_eq!(refused(first.stats(None).await).code(), Code::HeadMissing);
    let second = QueueFile::open(url, options).await?;
    second.queue("q")?.enqueue(Payload::text("y")).await?;
    assert_eq!(refused(first.stats(None).await).code(), Code::HeadMissing, "the old handle stays halted");
    assert_eq!(second.claim(9).await?.len(), 1);
    first.close().await?;
    second.close().await?;
    Memory::forget("halted");
    Ok(())
}
