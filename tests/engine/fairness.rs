//! Several writers of one queue file that share no process: how many commits of others a call waits for (decision 32).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bucketq::internals::head::Head;
use bucketq::op::Op;
use bucketq::store::{Memory, Store};
use bucketq::{Options, Payload, QueueFile, Result};
use bucketq_tests::clock::{TestClock, now, pass};
use bucketq_tests::given::{HEAD, NAME, inline, object};
use bucketq_tests::puppet::Puppet;
use futures_util::future::try_join_all;

const ROUND_TRIP: Duration = Duration::from_millis(24);
/// The most commits of others that a call waits for, but for a few ...
const MOST: u64 = 8;
/// ... and the most for all.
const LONGEST: u64 = 12;
/// By this commit the writers, which all begin at the same moment, have met.
const MET: u64 = 30;

/// The callers of one kind that a writer has. They enqueue this number of jobs with a pause up to this long.
#[derive(Clone, Copy, Debug)]
struct Callers {
    count: usize,
    jobs: usize,
    pause_ms: u64,
}

const BUSY: Callers = Callers { count: 4, jobs: 1, pause_ms: 0 };
const RARE: Callers = Callers { count: 1, jobs: 1, pause_ms: 1_300 };
const LARGE: Callers = Callers { count: 1, jobs: 1_000, pause_ms: 500 };

/// A call: the newest commit before it, and its own.
type Call = (u64, u64);

async fn newest(store: &Arc<dyn Store>) -> Result<u64> {
    Ok(Head::decode(HEAD, &object(store, HEAD).await?.expect("there is a HEAD"))?.commit_seq)
}

async fn caller(
    store: &Arc<dyn Store>,
    file: &QueueFile,
    does: Callers,
    time: Duration,
) -> Result<Vec<Call>> {
    let (end, mut calls) = (now() + time, vec![]);
    for n in 0_u64.. {
        if does.pause_ms > 0 {
            pass(Duration::from_millis(does.pause_ms / 2 + n * 131 % (does.pause_ms / 2))).await;
        }
        if now() >= end {
            break;
        }
        let jobs = (0..does.jobs).map(|_| file.new_job(Payload::text("x"))).collect::<Result<_>>()?;
        let before = newest(store).await?;
        let done = file.call(Op::Enqueue { queue: "q".into(), jobs }).await?;
        calls.push((before, done.commit_seq));
    }
    Ok(calls)
}

/// Runs these writers beside each other. Returns for each kind of its callers how many commits of others each call
/// waited for, and the number of all commits.
async fn crowd(
    writers: &[&[Callers]],
    varies: u32,
    time: Duration,
    options: Options,
) -> Result<(Vec<Vec<Vec<u64>>>, u64)> {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let mut files = vec![];
    for seed in 0..writers.len() as u64 {
        let puppet = Puppet::over(Arc::clone(&store));
        puppet.takes(ROUND_TRIP);
        puppet.varies(varies);
        let env = TestClock::start().seeded(1_000 + seed);
        files.push(QueueFile::open_with(puppet.store(), NAME, options.clone(), env).await?);
    }
    let all = try_join_all(files.iter().zip(writers).map(async |(file, groups)| {
        let groups = groups.iter().map(async |does| {
            let callers = (0..does.count).map(|_| caller(&store, file, *does, time));
            Ok::<_, bucketq::Error>(try_join_all(callers).await?.concat())
        });
        let calls = try_join_all(groups).await?;
        let own: BTreeSet<u64> = calls.iter().flatten().map(|(_, seq)| *seq).collect();
        let waited = |(before, seq): &Call| {
            let late = seq - before.min(seq) - own.range(before + 1..=*seq).count() as u64;
            (*before >= MET).then_some(late)
        };
        Ok::<_, bucketq::Error>(calls.iter().map(|calls| calls.iter().filter_map(waited).collect()).collect())
    }))
    .await?;
    let commits = newest(&store).await?;
    for file in files {
        file.close().await?;
    }
    Ok((all, commits))
}

/// Checks how many commits of others the calls of these writers wait for, whether requests take the same time or not: at
/// most eight, but for one call in a hundred, and never more than `LONGEST`.
async fn nobody_waits_long(writers: &[&[Callers]]) -> Result<()> {
    for varies in [0, 30] {
        let (waited, commits) = crowd(writers, varies, Duration::from_mins(1), inline()).await?;
        let most: Vec<Vec<_>> = waited.iter().map(|w| w.iter().map(|g| g.iter().max()).collect()).collect();
        let all: Vec<u64> = waited.iter().flatten().flatten().copied().collect();
        let late = all.iter().filter(|waited| **waited > MOST).count();
        let told = format!(
            "{} writers, {varies} %: at most {most:?}; {late} of {} calls late, {commits} commits",
            writers.len(),
            all.len()
        );
        println!("{told}");
        assert!(late * 100 <= all.len() && all.iter().all(|waited| *waited <= LONGEST), "{told}");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn writers_that_never_rest_take_turns() -> Result<()> {
    for writers in 2..=6 {
        nobody_waits_long(&vec![&[BUSY][..]; writers]).await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_writer_gets_its_turn_now_and_then_beside_several_that_never_rest() -> Result<()> {
    for busy in 1..=4 {
        let mut writers = vec![&[BUSY][..]; busy];
        writers.push(&[RARE]);
        nobody_waits_long(&writers).await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn two_writers_get_their_turns_now_and_then_beside_several_that_never_rest() -> Result<()> {
    for busy in 1..=3 {
        let mut writers = vec![&[BUSY][..]; busy];
        writers.extend([&[RARE][..]; 2]);
        nobody_waits_long(&writers).await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn large_commits_and_small_ones_take_turns() -> Result<()> {
    nobody_waits_long(&[&[BUSY, LARGE], &[BUSY, RARE], &[BUSY], &[BUSY]]).await
}

/// The tests above notice writers that do not wait for their turns.
#[cfg(feature = "mutants")]
#[allow(non_snake_case, reason = "a test has the name of its variant")]
mod mutants {
    use std::time::Duration;

    use bucketq::broken::Broken;
    use bucketq::{Options, Result};
    use bucketq_tests::given::inline;

    use super::{BUSY, LONGEST, crowd};

    #[tokio::test(start_paused = true)]
    async fn TurnIgnored() -> Result<()> {
        let broken = Options { broken: Some(Broken::TurnIgnored), ..inline() };
        let (waited, _) = crowd(&[&[BUSY][..]; 4], 30, Duration::from_secs(30), broken).await?;
        assert!(waited.iter().flatten().flatten().any(|waited| *waited > LONGEST), "{waited:?}");
        Ok(())
    }
}
