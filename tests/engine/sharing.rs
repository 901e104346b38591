//! Several writers of one queue file, all of them always busy: each gets its turn, and one alone loses next to nothing.

use std::sync::Arc;
use std::time::Duration;

use bucketq::store::Memory;
use bucketq::{Payload, QueueFile, Result};
use bucketq_tests::clock::{TestClock, now};
use bucketq_tests::given::{NAME, inline};
use bucketq_tests::puppet::Puppet;
use futures_util::future::try_join_all;

const ROUND_TRIP: Duration = Duration::from_millis(24);
const CALLERS: usize = 4;

/// What one writer got.
#[derive(Debug, Default)]
struct Share {
    ops: u64,
    longest: Duration,
}

async fn caller(file: &QueueFile, time: Duration) -> Result<(u64, Duration)> {
    let q = file.queue("q")?;
    let end = now() + time;
    let (mut ops, mut longest) = (0, Duration::ZERO);
    while now() < end {
        let before = now();
        q.enqueue(Payload::text("x")).await?;
        ops += 1;
        longest = longest.max(now() - before);
    }
    Ok((ops, longest))
}

/// `writers` on one file for so long, each with callers that never rest.
async fn race(writers: usize, time: Duration) -> Result<Vec<Share>> {
    let store = Arc::new(Memory::new());
    let mut files = vec![];
    for writer in 0..writers {
        let puppet = Puppet::over(store.clone());
        puppet.takes(ROUND_TRIP);
        let env = TestClock::start().seeded(1_000 + writer as u64);
        files.push(QueueFile::open_with(puppet.store(), NAME, inline(), env).await?);
    }
    let shares = try_join_all(files.iter().map(async |file| {
        let its = try_join_all((0..CALLERS).map(|_| caller(file, time))).await?;
        Ok::<_, bucketq::Error>(Share {
            ops: its.iter().map(|(ops, _)| ops).sum(),
            longest: its.iter().map(|(_, longest)| *longest).max().unwrap_or_default(),
        })
    }))
    .await?;
    for file in files {
        file.close().await?;
    }
    Ok(shares)
}

fn ops(shares: &[Share]) -> u64 {
    shares.iter().map(|share| share.ops).sum()
}

#[tokio::test(start_paused = true)]
async fn busy_writers_all_get_their_turn() -> Result<()> {
    let time = Duration::from_secs(30);
    let alone = ops(&race(1, time).await?);
    for writers in [2, 4] {
        let shares = race(writers, time).await?;
        let fair = ops(&shares) / writers as u64;
        assert!(shares.iter().all(|share| share.ops > fair / 2), "{writers}: {shares:?}");
        assert!(shares.iter().all(|share| share.longest < time / 3), "{writers}: {shares:?}");
        assert!(ops(&shares) > alone * 7 / 10, "{writers} together against {alone}: {shares:?}");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_busy_writer_alone_leaves_few_gaps() -> Result<()> {
    let time = Duration::from_mins(1);
    let most = time.as_millis() / ROUND_TRIP.as_millis() * CALLERS as u128;
    let got = u128::from(ops(&race(1, time).await?));
    assert!(got > most * 98 / 100, "{got} of {most}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn reads_beside_commits_wait_for_no_gap_and_need_no_get_outside_one() -> Result<()> {
    for (max_age, gets) in [(Some(Duration::from_mins(1)), 0), (None, 30)] {
        let puppet = Puppet::over(Arc::new(Memory::new()));
        puppet.takes(ROUND_TRIP);
        let file = QueueFile::open_with(puppet.store(), NAME, inline(), TestClock::start().seeded(7)).await?;
        let before = puppet.requests().gets;
        let reads = async {
            let (end, mut longest) = (now() + Duration::from_secs(20), Duration::ZERO);
            while now() < end {
                let before = now();
                file.stats(max_age).await?;
                longest = longest.max(now() - before);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Ok::<_, bucketq::Error>(longest)
        };
        let (longest, written) = tokio::join!(reads, caller(&file, Duration::from_secs(20)));
        written?;
        let longest = longest?;
        // The put under way when it came, and the next.
        assert!(longest <= ROUND_TRIP * 5 / 2, "{max_age:?}: {longest:?}");
        let got = puppet.requests().gets - before;
        assert!(got <= gets, "{max_age:?}: {got} gets");
        file.close().await?;
    }
    Ok(())
}
