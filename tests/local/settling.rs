//! A sync whose reply is lost, in this process or an earlier one: its changes are published exactly once.

use std::sync::Arc;
use std::time::Duration;

use bucketq::store::Memory;
use bucketq::{Code, Error, Kind, Options, QueueFile, Result};
use bucketq_tests::given::refused;
use bucketq_tests::ground::Ground;
use bucketq_tests::puppet::{OnGet, OnPut, Puppet};
use bucketq_tests::servers;

use crate::fixture::{Machine, abandon, enqueue, texts, watch};

fn puppet() -> Puppet {
    Puppet::over(Arc::new(Memory::new()))
}

/// The published jobs, as every reader sees them.
async fn published(machine: &Machine, puppet: &Puppet) -> Result<Vec<String>> {
    let file = watch(machine, puppet).await?;
    let all = texts(&file).await?;
    file.close().await?;
    Ok(all)
}

#[tokio::test(start_paused = true)]
async fn lost_requests_and_answers_are_ridden_out() -> Result<()> {
    for fate in [
        OnPut::LoseRequest,
        OnPut::LoseAnswer,
        OnPut::FalseConflict,
        OnPut::Hang,
        OnPut::Swallow,
        OnPut::Refuse(Code::Unreachable),
    ] {
        let (machine, puppet) = (Machine::new(), puppet());
        let file = machine.open_paused(&puppet).await?;
        enqueue(&file, "a").await?;
        puppet.next_puts([fate]);
        let synced = file.sync().await?;
        assert_eq!(synced.commits, 1, "{fate:?}");
        enqueue(&file, "b").await?;
        file.sync().await?;
        assert_eq!(published(&machine, &puppet).await?, ["a", "b"], "{fate:?}");
        file.close().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_sync_that_gave_up_is_settled_by_the_next_and_by_the_next_life() -> Result<()> {
    for landed in [false, true] {
        for more in [false, true] {
            for reopen in [false, true] {
                let what = format!("landed {landed}, more {more}, reopen {reopen}");
                let (machine, puppet) = (Machine::new(), puppet());
                let mut file = machine.open_paused(&puppet).await?;
                enqueue(&file, "a").await?;
                puppet.every_put(if landed { OnPut::LoseAnswer } else { OnPut::LoseRequest });
                puppet.every_get(OnGet::Fail(Code::Unreachable));
                let error = refused(file.sync().await);
                assert_eq!(error.kind(), Kind::Unknown, "{what}: {error}");
                assert_eq!(file.dirty()?.commits, 1, "{what}: nothing is lost");
                let mut expected = vec!["a"];
                if more {
                    enqueue(&file, "b").await?;
                    expected.push("b");
                }
                if reopen {
                    abandon(file).await?;
                    file = machine.open_paused(&puppet).await?;
                    assert_eq!(texts(&file).await?, expected, "{what}");
                }
                puppet.every_put(OnPut::Pass);
                puppet.every_get(OnGet::Pass);
                let synced = file.sync().await?;
                assert_eq!(synced.commits, expected.len() as u64, "{what}");
                assert_eq!(file.dirty()?.commits, 0, "{what}");
                assert_eq!(published(&machine, &puppet).await?, expected, "{what}");
                file.close().await?;
            }
        }
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn several_bodies_on_one_base_are_settled_by_the_one_that_landed() -> Result<()> {
    for reopen in [false, true] {
        for first_lands in [true, false] {
            let (machine, puppet) = (Machine::new(), puppet());
            let mut file = machine.open_paused(&puppet).await?;
            puppet.every_get(OnGet::Fail(Code::Unreachable));
            for (i, text) in ["a", "b", "c"].into_iter().enumerate() {
                enqueue(&file, text).await?;
                let lands = if first_lands { i == 0 } else { i == 1 };
                // Only one can land: the others meet another version.
                puppet.every_put(if lands { OnPut::LoseAnswer } else { OnPut::LoseRequest });
                // Once one has landed, a read would settle it.
                let may_look = !first_lands && i < 2;
                puppet.every_get(if may_look { OnGet::Pass } else { OnGet::Fail(Code::Unreachable) });
                let blind = puppet.clone();
                let looks = tokio::spawn(async move {
                    blind.until_held(1).await;
                    blind.every_get(OnGet::Fail(Code::Unreachable));
                    blind.let_go();
                });
                puppet.hold();
                let error = refused(file.sync().await);
                looks.abort();
                puppet.let_go();
                assert_eq!(error.kind(), Kind::Unknown);
            }
            if reopen {
                abandon(file).await?;
                file = machine.open_paused(&puppet).await?;
            }
            puppet.every_put(OnPut::Pass);
            puppet.every_get(OnGet::Pass);
            assert_eq!(file.sync().await?.commits, 3, "reopen {reopen}, first {first_lands}");
            assert_eq!(published(&machine, &puppet).await?, ["a", "b", "c"]);
            file.close().await?;
        }
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn ops_behind_a_body_that_landed_stay_pending_when_others_went_on() -> Result<()> {
    for reopen in [false, true] {
        let (machine, puppet) = (Machine::new(), puppet());
        let mut file = machine.open_paused(&puppet).await?;
        enqueue(&file, "a").await?;
        puppet.every_put(OnPut::LoseAnswer);
        puppet.every_get(OnGet::Fail(Code::Unreachable));
        refused(file.sync().await);
        puppet.every_put(OnPut::Pass);
        puppet.every_get(OnGet::Pass);
        let other = watch(&machine, &puppet).await?;
        enqueue(&other, "foreign").await?;
        if reopen {
            abandon(file).await?;
            file = machine.open_paused(&puppet).await?;
        }
        // The landed commit is settled although another writer committed after it.
        assert_eq!(file.sync().await?.commits, 1);
        assert_eq!(file.dirty()?.commits, 0);
        enqueue(&file, "b").await?;
        // Based on a state that is not the newest: Diverged.
        let error = refused(file.sync().await);
        assert_eq!((error.kind(), error.code()), (Kind::Diverged, Code::Diverged), "{error}");
        assert_eq!(file.dirty()?.commits, 1);
        assert_eq!(texts(&file).await?, ["a", "b"], "nothing is lost");
        assert_eq!(published(&machine, &puppet).await?, ["a", "foreign"]);
        file.close().await?;
        other.close().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn local_calls_are_served_while_a_sync_waits_for_the_store() -> Result<()> {
    let (machine, puppet) = (Machine::new(), puppet());
    let file = machine.open_paused(&puppet).await?;
    enqueue(&file, "a").await?;
    puppet.hold();
    let syncing = {
        let file = file.clone();
        tokio::spawn(async move { file.sync().await })
    };
    puppet.until_held(1).await;
    let before = bucketq_tests::clock::now();
    for text in ["b", "c"] {
        enqueue(&file, text).await?;
    }
    assert_eq!(texts(&file).await?, ["a", "b", "c"]);
    assert_eq!(bucketq_tests::clock::now(), before, "no time has passed");
    assert_eq!(file.dirty()?.commits, 3);
    puppet.let_go();
    let synced = syncing.await.expect("no panic")?;
    assert_eq!(synced.commits, 1, "what came later waits for the next sync");
    assert_eq!(published(&machine, &puppet).await?, ["a"]);
    assert_eq!(file.dirty()?.commits, 2);
    abandon(file).await?;
    let file = machine.open_paused(&puppet).await?;
    assert_eq!(file.dirty()?.commits, 2);
    assert_eq!(texts(&file).await?, ["a", "b", "c"]);
    assert_eq!(file.sync().await?.commits, 2);
    assert_eq!(published(&machine, &puppet).await?, ["a", "b", "c"]);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn what_has_no_place_in_local_mode_says_so_during_a_sync_too() -> Result<()> {
    let (machine, puppet) = (Machine::new(), puppet());
    let file = machine.open_paused(&puppet).await?;
    enqueue(&file, "a").await?;
    puppet.hold();
    let asked = async {
        puppet.until_held(1).await;
        let go_on = async {
            texts(&file).await?;
            puppet.let_go();
            Ok::<_, Error>(())
        };
        tokio::join!(file.archive(), file.collect(Duration::ZERO), go_on)
    };
    let (synced, (archived, collected, gone_on)) = tokio::join!(file.sync(), asked);
    gone_on?;
    assert_eq!(synced?.commits, 1);
    for told in [archived.map(|_| ()), collected.map(|_| ())] {
        assert_eq!(told.expect_err("it needs Durable mode").code(), Code::Argument);
    }
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_directory_with_state_opens_and_works_while_the_store_is_away() -> Result<()> {
    let (machine, puppet) = (Machine::new(), puppet());
    machine.open_paused(&puppet).await?.close().await?;
    for trouble in [OnGet::Fail(Code::Unreachable), OnGet::Hang, OnGet::Fail(Code::Denied)] {
        puppet.every_get(trouble);
        puppet.every_put(OnPut::Refuse(Code::Unreachable));
        let file = machine.open_paused(&puppet).await?;
        enqueue(&file, "a").await?;
        assert_eq!(file.claim(1).await?.len(), 1);
        let error = refused(file.sync().await);
        assert_eq!(error.kind(), Kind::Unavailable, "{trouble:?}: {error}: nothing was sent");
        abandon(file).await?;
    }
    puppet.every_get(OnGet::Pass);
    puppet.every_put(OnPut::Pass);
    let file = machine.open_paused(&puppet).await?;
    file.sync().await?;
    assert_eq!(published(&machine, &puppet).await?.len(), 3);
    file.close().await
}

#[tokio::test]
async fn a_first_opening_needs_the_store() {
    let (machine, puppet) = (Machine::new(), puppet());
    puppet.every_get(OnGet::Fail(Code::Denied));
    assert_eq!(refused(machine.open_on(puppet.store()).await).code(), Code::Denied);
    let ground = Ground::memory();
    assert!(machine.open(&ground).await.is_ok(), "the directory is free again");
}

#[tokio::test]
async fn a_directory_opens_while_its_server_is_gone() -> Result<()> {
    let Some(server) = servers::gofakes3().await else { return Ok(()) };
    let machine = Machine::new();
    let deadline = Duration::from_secs(3);
    let options = Options { s3: server.options(), deadline, ..machine.options() };
    let url = format!("s3://{}/local/jobs", servers::BUCKET);
    let file = QueueFile::open(&url, options.clone()).await?;
    enqueue(&file, "a").await?;
    file.sync().await?;
    file.close().await?;
    drop(server);
    let file = QueueFile::open(&url, options).await?;
    enqueue(&file, "b").await?;
    assert_eq!(texts(&file).await?, ["a", "b"]);
    assert_eq!(file.claim(9).lease(Duration::from_mins(1)).await?.len(), 2);
    let error = refused(file.sync().await);
    assert_eq!((error.kind(), error.code()), (Kind::Unavailable, Code::Unreachable), "{error}");
    file.close().await
}
