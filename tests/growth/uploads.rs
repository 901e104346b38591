//! Bytes uploaded beside HEAD: several light processes write about as many as one with the same load.

use std::sync::Arc;
use std::time::Duration;

use bucketq::store::Memory;
use bucketq::{Options, QueueFile, Result};
use bucketq_tests::clock::{TestClock, now};
use bucketq_tests::given::{NAME, inline};
use bucketq_tests::puppet::Puppet;
use futures_util::future::try_join_all;

use crate::kit::noise;

const ROUND_TRIP: Duration = Duration::from_millis(25);
const TIME: Duration = Duration::from_mins(2);

/// Number of writers, each one's mean pause, and how much more than one writer they may upload a job.
const LIGHT: [(u64, Duration, f64); 2] =
    [(4, Duration::from_millis(250), 1.3), (16, Duration::from_millis(500), 2.0)];

/// Bytes uploaded a job by `writers` on one file, each with a caller that enqueues a job and then pauses, for at most
/// twice `pause`.
async fn light(writers: u64, pause: Duration, options: &Options) -> Result<f64> {
    let store = Arc::new(Memory::new());
    let work = (0..writers).map(async |writer| {
        let puppet = Puppet::over(store.clone());
        puppet.takes(ROUND_TRIP);
        let env = TestClock::start().seeded(1_000 + writer);
        let file = QueueFile::open_with(puppet.store(), NAME, options.clone(), env.clone()).await?;
        let (queue, end) = (file.queue("q")?, now() + TIME);
        let mut jobs = 0;
        while now() < end {
            queue.enqueue(noise(writer * 1_000_000 + jobs, 200)).await?;
            jobs += 1;
            tokio::time::sleep(Duration::from_micros(env.below(2 * pause.as_micros() as u64))).await;
        }
        let requests = puppet.requests();
        file.close().await?;
        Ok::<_, bucketq::Error>((jobs, requests.new_bytes))
    });
    let all = try_join_all(work.collect::<Vec<_>>()).await?;
    let (jobs, bytes) = all.iter().fold((0, 0), |(jobs, bytes), its| (jobs + its.0, bytes + its.1));
    Ok(bytes as f64 / jobs as f64)
}

/// One writer at the rate of all of them together.
async fn alone(writers: u64, pause: Duration) -> Result<f64> {
    let share = (pause + ROUND_TRIP) / u32::try_from(writers).expect("few");
    light(1, share.saturating_sub(ROUND_TRIP), &inline()).await
}

#[tokio::test(start_paused = true)]
async fn light_writers_upload_little_more_than_one_that_does_their_work() -> Result<()> {
    for (writers, pause, most) in LIGHT {
        let (one, all) = (alone(writers, pause).await?, light(writers, pause, &inline()).await?);
        let ratio = all / one;
        assert!(ratio <= most, "{writers}: {ratio:.2}: {all:.0} bytes a job where one uploads {one:.0}");
    }
    Ok(())
}

/// The test above notices writers that all upload as if they were alone.
#[cfg(feature = "mutants")]
#[allow(non_snake_case, reason = "a test has the name of its variant")]
mod mutants {
    use bucketq::broken::Broken;
    use bucketq::{Options, Result};
    use bucketq_tests::given::inline;

    use super::{LIGHT, alone, light};

    #[tokio::test(start_paused = true)]
    async fn EverybodyUploads() -> Result<()> {
        let broken = Options { broken: Some(Broken::EverybodyUploads), ..inline() };
        for (writers, pause, most) in LIGHT {
            let (one, all) = (alone(writers, pause).await?, light(writers, pause, &broken).await?);
            let ratio = all / one;
            assert!(ratio > most, "{writers}: {ratio:.2}: {all:.0} bytes a job where one uploads {one:.0}");
        }
        Ok(())
    }
}
