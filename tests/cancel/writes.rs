//! An enqueue or an ack cancelled at any point is applied once or not at all, and repeating it is harmless.

use bucketq::{Payload, Result, State};

use crate::steps::{COURSES, MOST, given, polled, polled_closely, quiet};

#[tokio::test(start_paused = true)]
async fn an_enqueue_cancelled_at_any_point_is_there_once_or_not_at_all() -> Result<()> {
    for course in COURSES {
        let (mut applied, mut not, mut done_after) = (0, 0, None);
        for n in 0..MOST {
            let (puppet, file) = given().await?;
            let q = file.queue("q")?;
            let job = q.new_job(Payload::text("x"))?;
            puppet.next_puts(course.iter().copied());
            let done = polled(q.enqueue_job(job.clone()), n).await;
            if let Some(done) = done {
                assert_eq!(done?.id, job.id);
                done_after = Some(n);
                break;
            }
            quiet(&file).await?;
            match file.get(job.id).await? {
                Some(detail) => {
                    applied += 1;
                    assert_eq!(detail.job.state, State::Ready);
                }
                None => not += 1,
            }
            // The same call again returns the same job.
            q.enqueue_job(job.clone()).await?;
            let taken = q.claim(9).await?;
            assert_eq!(taken.iter().map(|t| t.job.id).collect::<Vec<_>>(), [job.id], "{course:?}, {n} polls");
            file.close().await?;
        }
        assert!(done_after >= Some(6), "{course:?}: {done_after:?}");
        assert!(applied >= 4 && not >= 1, "{course:?}: {applied} applied, {not} not");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_enqueue_dropped_between_two_steps_of_the_writer_is_there_once_or_not_at_all() -> Result<()> {
    let mut done_after = None;
    for n in 0..MOST {
        let (puppet, file) = given().await?;
        puppet.takes(std::time::Duration::ZERO);
        let q = file.queue("q")?;
        let job = q.new_job(Payload::text("x"))?;
        if polled_closely(q.enqueue_job(job.clone()), n).await.is_some() {
            done_after = Some(n);
            break;
        }
        quiet(&file).await?;
        q.enqueue_job(job.clone()).await?;
        assert_eq!(q.claim(9).await?.len(), 1, "dropped after {n} close polls");
        file.close().await?;
    }
    assert!(done_after >= Some(2), "{done_after:?}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_ack_cancelled_at_any_point_is_done_or_still_held() -> Result<()> {
    for course in COURSES {
        let (mut applied, mut not, mut done_after) = (0, 0, None);
        for n in 0..MOST {
            let (puppet, file) = given().await?;
            let q = file.queue("q")?;
            q.enqueue(Payload::text("x")).await?;
            let taken = q.claim(1).await?.remove(0);
            puppet.next_puts(course.iter().copied());
            let result = Payload::text("fine");
            if let Some(done) = polled(file.ack_with(taken.held(), result.clone()), n).await {
                done?;
                done_after = Some(n);
                break;
            }
            quiet(&file).await?;
            let when = format!("{course:?}, dropped after {n} polls");
            match file.get(taken.job.id).await?.expect("there") {
                detail if detail.job.state == State::Done => {
                    applied += 1;
                    assert_eq!(detail.result, Some(result.clone()), "{when}");
                }
                detail => {
                    not += 1;
                    assert_eq!((detail.job.state, detail.job.attempt), (State::Leased, 1), "{when}");
                }
            }
            file.ack_with(taken.held(), result).await?;
            assert_eq!(file.queues(None).await?[0].counts[&State::Done], 1, "{when}");
            assert!(file.claim(1).await?.is_empty(), "{when}");
            file.close().await?;
        }
        assert!(done_after >= Some(6), "{course:?}: {done_after:?}");
        assert!(applied >= 4 && not >= 1, "{course:?}: {applied} applied, {not} not");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_close_cancelled_at_any_point_still_answers_and_ends() -> Result<()> {
    let mut done_after = None;
    for n in 0..MOST {
        let (puppet, file) = given().await?;
        let q = file.queue("q")?;
        let sent = tokio::spawn(async move { q.enqueue(Payload::text("x")).await });
        tokio::task::yield_now().await;
        let done = polled(file.close(), n).await;
        sent.await.expect("no panic")?;
        if let Some(done) = done {
            done?;
            done_after = Some(n);
            break;
        }
        let again = bucketq_tests::given::on_puppet(&puppet, bucketq_tests::given::inline()).await?;
        assert_eq!(again.claim(9).await?.len(), 1, "dropped after {n} polls");
        again.close().await?;
    }
    assert!(done_after >= Some(4), "{done_after:?}");
    Ok(())
}
