//! Several writers of one queue file, all of them always busy: each gets its turn, and one alone loses next to nothing.

use std::sync::Arc;
use std::time::Duration;

use bucketq::internals::head::Head;
use bucketq::op::Op;
use bucketq::store::{Memory, Store};
use bucketq::{Options, Payload, QueueFile, Result};
use bucketq_tests::clock::{TestClock, now, pass};
use bucketq_tests::given::{HEAD, NAME, inline, noise, object};
use bucketq_tests::puppet::Puppet;
use futures_util::future::try_join_all;

const ROUND_TRIP: Duration = Duration::from_millis(24);
const CALLERS: usize = 4;

/// The result of one writer.
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

/// Runs `writers` on one file for `time`, each with callers that never rest.
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
        let before = puppet.requests();
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
        // The put that was under way when it came, and the next.
        assert!(longest <= ROUND_TRIP * 5 / 2, "{max_age:?}: {longest:?}");
        let after = puppet.requests();
        let (got, asked) = (after.gets - before.gets, after.knocks - before.knocks);
        assert!(got - asked <= gets, "{max_age:?}: {got} gets, {asked} of them for knocks");
        assert!(asked <= (after.puts - before.puts) / 2, "{asked} gets for knocks");
        file.close().await?;
    }
    Ok(())
}

/// The number of commits.
async fn commits(store: &Arc<dyn Store>) -> Result<u64> {
    Ok(Head::decode(HEAD, &object(store, HEAD).await?.expect("there is a HEAD"))?.commit_seq)
}

/// A writer on its own puppet.
async fn writer(store: &Arc<dyn Store>, seed: u64, options: Options) -> Result<(Puppet, QueueFile)> {
    let puppet = Puppet::over(Arc::clone(store));
    puppet.takes(ROUND_TRIP);
    let env = TestClock::start().seeded(seed);
    let file = QueueFile::open_with(puppet.store(), NAME, options, env).await?;
    Ok((puppet, file))
}

/// Another writer enqueues now and then beside a writer with one caller that never rests. Returns for each of its calls
/// the number of the other's commits it waited for and how long it took, and the work of the busy writer.
async fn beside_a_busy_one(options: Options) -> Result<(Vec<u64>, Vec<Duration>, u64)> {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let (_, busy) = writer(&store, 1, options.clone()).await?;
    let (_, rare) = writer(&store, 2, options).await?;
    let time = Duration::from_mins(2);
    let now_and_then = async {
        let (q, end) = (rare.queue("q")?, now() + time);
        let (mut sat, mut took) = (vec![], vec![]);
        for n in 0.. {
            pass(Duration::from_millis(700 + n * 13 % 600)).await;
            let (before, began) = (commits(&store).await?, now());
            if began >= end {
                break;
            }
            q.enqueue(Payload::text("x")).await?;
            sat.push(commits(&store).await? - before - 1);
            took.push(now() - began);
        }
        Ok::<_, bucketq::Error>((sat, took))
    };
    let (rare_one, busy_one) = tokio::join!(now_and_then, caller(&busy, time));
    let ((sat, mut took), (ops, _)) = (rare_one?, busy_one?);
    took.sort_unstable();
    busy.close().await?;
    rare.close().await?;
    Ok((sat, took, ops))
}

#[tokio::test(start_paused = true)]
async fn a_writer_waits_for_few_commits_of_one_that_never_rests() -> Result<()> {
    let (sat, took, ops) = beside_a_busy_one(inline()).await?;
    let puts = |at: usize| took[at].as_secs_f64() / ROUND_TRIP.as_secs_f64();
    let told = format!(
        "{} calls, {:.1} puts in the middle, {:.1} the 99th, {ops} by the busy one: {sat:?}",
        took.len(),
        puts(took.len() / 2),
        puts(took.len() * 99 / 100)
    );
    assert!(sat.iter().all(|sat| *sat <= 8), "{told}");
    let most = 120_000 / u64::try_from(ROUND_TRIP.as_millis()).expect("few");
    assert!(ops > most * 2 / 3, "{told}");
    Ok(())
}

/// A commit whose segment takes two seconds to upload, beside a writer that commits seven times a second. Returns how
/// often its writer sent HEAD.
async fn slow_beside_small(options: Options) -> Result<u64> {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let (_, small) = writer(&store, 1, options.clone()).await?;
    let (puppet, large) = writer(&store, 2, options).await?;
    puppet.uploads_take(Duration::from_secs(2));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let seven_a_second = async {
        let q = small.queue("q")?;
        let work = async {
            loop {
                q.enqueue(Payload::text("x")).await?;
                pass(Duration::from_millis(140)).await;
            }
        };
        tokio::select! {
            ended = work => ended,
            _ = stopped => Ok::<(), bucketq::Error>(()),
        }
    };
    let load = async {
        pass(Duration::from_secs(2)).await;
        let jobs = (0..900).map(|i| large.new_job(Payload::bytes(noise(i, 300))));
        let before = puppet.requests().puts;
        let done = large.call(Op::Enqueue { queue: "q".into(), jobs: jobs.collect::<Result<_>>()? }).await;
        let _ = stop.send(());
        done?;
        Ok::<_, bucketq::Error>(puppet.requests().puts - before)
    };
    let (puts, rest) = tokio::join!(load, seven_a_second);
    rest?;
    let puts = puts?;
    large.close().await?;
    small.close().await?;
    Ok(puts)
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_takes_long_to_build_gets_a_gap() -> Result<()> {
    let puts = slow_beside_small(inline()).await?;
    assert!(puts <= 5, "{puts} puts");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_lost_a_race_reads_each_segment_once() -> Result<()> {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let options = Options { tail: 2 * 1024, ..inline() };
    let (_, winner) = writer(&store, 1, options.clone()).await?;
    let (puppet, loser) = writer(&store, 2, options).await?;
    for n in 0..40 {
        winner.queue("q")?.enqueue(Payload::bytes(noise(n, 300))).await?;
        pass(Duration::from_millis(100)).await;
    }
    let head = Head::decode(HEAD, &object(&store, HEAD).await?.expect("there is a HEAD"))?;
    let segments = u64::try_from(head.segments.len()).expect("few");
    assert!(segments >= 2, "{segments} segments");
    let before = puppet.requests();
    loser.queue("q")?.enqueue(Payload::text("x")).await?;
    let after = puppet.requests();
    let heads = after.puts - before.puts + 1;
    let read = after.gets - before.gets - (after.knocks - before.knocks);
    assert!(read <= segments + heads, "{read} gets for {segments} segments, {heads} looks at HEAD");
    winner.close().await?;
    loser.close().await
}

#[tokio::test(start_paused = true)]
async fn a_writer_beside_one_that_has_stopped_reads_head_once_and_not_before_every_put() -> Result<()> {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let (_, busy) = writer(&store, 1, inline()).await?;
    let (puppet, rare) = writer(&store, 2, inline()).await?;
    caller(&busy, Duration::from_secs(3)).await?;
    // It learns that the other never rests, by a lost race.
    rare.queue("q")?.enqueue(Payload::text("x")).await?;
    let before = puppet.requests();
    for _ in 0..20 {
        pass(Duration::from_millis(400)).await;
        rare.queue("q")?.enqueue(Payload::text("x")).await?;
    }
    let after = puppet.requests();
    assert_eq!(after.puts - before.puts, 20);
    assert!(after.gets - before.gets <= 1, "{} gets", after.gets - before.gets);
    assert_eq!(after.new, before.new, "a knock where nobody is");
    busy.close().await?;
    rare.close().await
}

/// The tests above notice writers that do not share.
#[cfg(feature = "mutants")]
#[allow(non_snake_case, reason = "a test has the name of its variant")]
mod mutants {
    use bucketq::Options;
    use bucketq::broken::Broken;
    use bucketq_tests::given::inline;

    use super::{beside_a_busy_one, slow_beside_small};

    /// A writer loses every race when the busy one ignores knocks.
    #[tokio::test(start_paused = true)]
    async fn KnockUnheard() {
        let broken = Options { broken: Some(Broken::KnockUnheard), ..inline() };
        let error = beside_a_busy_one(broken).await.expect_err("it loses every race");
        assert!(error.to_string().contains("other writers were faster"), "{error}");
    }

    /// A commit that takes long to build starves where nobody leaves the gap.
    #[tokio::test(start_paused = true)]
    async fn GapIgnored() {
        let broken = Options { broken: Some(Broken::GapIgnored), ..inline() };
        let told = slow_beside_small(broken).await;
        assert!(told.is_err(), "{told:?}");
    }
}
