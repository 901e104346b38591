//! Bases: plain SQLite files when configured, and no commit that waits for one.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bucketq::config::BaseCodec;
use bucketq::internals::head::MAX_SEGMENTS;
use bucketq::op::Op;
use bucketq::store::{Memory, Store};
use bucketq::{Env, Fsync, Host, Mode, Options, Payload, QueueFile, Result, State};
use bucketq_tests::clock::{TestClock, now, pass};
use bucketq_tests::given::{NAME, inline, object, on_puppet, puppet};

use crate::kit::{Busy, drain, fill, garbage, hasty, head, noise, referred};

/// The output of these programs for the database at `path`: jobs in state 3, and whether the check passes.
fn asked(program: &str, arguments: &[&str]) -> Option<String> {
    let out = match Command::new(program).args(arguments).output() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return None,
        out => out.expect("it starts"),
    };
    assert!(out.status.success(), "{program}: {}", String::from_utf8_lossy(&out.stderr));
    Some(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_base_without_a_codec_is_a_sqlite_file_for_everybody() -> Result<()> {
    let (puppet, file) = puppet(Options { base_codec: BaseCodec::None, ..hasty() }).await?;
    let store = puppet.beneath();
    fill(&file, 50).await?;
    pass(Duration::from_secs(1)).await;
    file.collect(Duration::ZERO).await?;
    let now = head(store).await?;
    assert_eq!(now.base.codec, 0);
    let key = referred(&now).into_iter().find(|key| key.contains(".base-")).expect("there is one");
    let bytes = object(store, &key).await?.expect("it is there");

    // As downloaded: no journal beside it, nothing decompressed.
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let path = dir.path().join("base.sqlite");
    std::fs::write(&path, &bytes).expect("room for it");
    let path = path.to_str().expect("an ordinary path");
    let wanted = format!("ok|delete|{}", now.base.seq - 1);
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".into());
    let script = "import sqlite3, sys\n\
        db = sqlite3.connect(f'file:{sys.argv[1]}?mode=ro', uri=True)\n\
        one = lambda sql: db.execute(sql).fetchone()[0]\n\
        print(one('PRAGMA integrity_check'), one('PRAGMA journal_mode'), one('SELECT count(*) FROM jobs WHERE state = 3'), sep='|')";
    assert_eq!(asked(&python, &["-c", script, path]).as_deref(), Some(&*wanted));
    let sql = "SELECT (SELECT * FROM pragma_integrity_check) || '|' || (SELECT * FROM pragma_journal_mode) || '|' || \
        (SELECT count(*) FROM jobs WHERE state = 3)";
    if let Some(told) = asked("sqlite3", &["-readonly", path, sql]) {
        assert_eq!(told, wanted);
    }
    assert_eq!(std::fs::read(path).ok().as_deref(), Some(&bytes[..]), "looking at it changes nothing");

    // Handles with either codec work on the same file.
    let other = on_puppet(&puppet, hasty()).await?;
    assert_eq!(other.stats(None).await?.queues[0].counts[&State::Ready], 50);
    drain(&other).await?;
    // Until the log is as long as the plain base was.
    fill(&other, 100).await?;
    pass(Duration::from_secs(1)).await;
    fill(&other, 1).await?;
    assert_eq!(head(store).await?.base.codec, 1);
    assert_eq!(file.stats(None).await?.queues[0].counts[&State::Ready], 101);
    other.close().await?;
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn no_commit_waits_for_a_base() -> Result<()> {
    let memory: Arc<dyn Store> = Arc::new(Memory::new());
    let busy = Busy::over(Arc::clone(&memory));
    busy.no_bases.store(true, std::sync::atomic::Ordering::Relaxed);
    let file = QueueFile::open_with(busy.clone(), NAME, hasty(), TestClock::start().env()).await?;
    let before = now();
    fill(&file, 200).await?;
    assert!(now() - before < Duration::from_secs(1), "a base that never arrives holds nobody up");
    let found = head(&memory).await?;
    assert_eq!(found.base.len, 0);
    assert!(found.segments.len() < 64, "{} segments without a base", found.segments.len());
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn bases_grow_geometrically() -> Result<()> {
    let (puppet, file) = puppet(hasty()).await?;
    let mut bases = vec![];
    for i in 0..400 {
        fill(&file, 1).await?;
        let base = head(puppet.beneath()).await?.base;
        if base.len > 0 && bases.last() != Some(&base.len) {
            bases.push(base.len);
        }
        assert!(bases.len() <= 9, "{} bases after {i} commits: {bases:?}", bases.len());
    }
    assert!(bases.len() >= 5, "{bases:?}");
    let written: u64 = bases.iter().sum();
    let newest = bases.last().expect("there are some");
    assert!(written < 3 * newest, "{bases:?}");
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn an_opening_fetches_base_and_segments_at_once_but_not_all_of_them() -> Result<()> {
    let (puppet, file) = puppet(Options { base_after: 64 * 1024, ..hasty() }).await?;
    // Many segments after a base: the most that may exist before another base comes.
    let mut most = 0;
    for _ in 0..150 {
        fill(&file, 1).await?;
        let now = head(puppet.beneath()).await?;
        most = now.segments.len() + usize::from(now.base.len > 0);
        if most > 4 && now.base.len > 0 {
            break;
        }
    }
    assert!(most > 4, "{most} objects");
    puppet.takes(Duration::from_millis(100));
    let before = now();
    let other = on_puppet(&puppet, hasty()).await?;
    let took = now() - before;
    // HEAD, then everything else in parallel; one after another, each would take one request's time.
    assert!(took < Duration::from_millis(300), "{most} objects in {took:?}");
    other.queue("q")?.enqueue(Payload::text("x")).await?;
    other.close().await?;
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_ends_at_any_moment_leaves_only_orphans() -> Result<()> {
    let memory: Arc<dyn Store> = Arc::new(Memory::new());
    let clock = TestClock::start();
    let mut jobs = 0;
    for life in 1..=30 {
        let slow = bucketq_tests::puppet::Puppet::over(Arc::clone(&memory));
        slow.takes(Duration::from_millis(7));
        let file = QueueFile::open_with(slow.store(), NAME, hasty(), clock.env()).await?;
        let found = file.stats(None).await?.queues.first().map_or(0, |q| q.counts[&State::Ready]);
        assert!(found == jobs || found == jobs + 1, "{found} jobs where {jobs} were acknowledged");
        jobs = found;
        // The runtime ends in the middle of its work, uploads and deletes included.
        let runtime = tokio::time::timeout(Duration::from_millis(life * 11), async {
            for n in 0.. {
                fill(&file, 1).await?;
                jobs += 1;
                if n % 5 == 4 {
                    file.collect(Duration::ZERO).await?;
                }
            }
            Ok::<_, bucketq::Error>(())
        });
        let _ = runtime.await;
        slow.every_put(bucketq_tests::puppet::OnPut::Swallow);
        drop(file);
        garbage(&memory).await?;
    }
    let file = QueueFile::open_with(Arc::clone(&memory), NAME, hasty(), clock.env()).await?;
    fill(&file, 1).await?;
    file.collect(Duration::ZERO).await?;
    assert_eq!(garbage(&memory).await?, [""; 0]);
    file.close().await
}

#[tokio::test]
async fn processes_that_live_for_one_commit_never_run_out_of_room_for_segments() -> Result<()> {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let disk = tempfile::tempdir().expect("a temporary directory can be made");
    let small = Options { tail: 1024, max_head: 24 * 1024, base_after: 16 * 1024, ..Options::default() };
    let local =
        Options { mode: Mode::Local, cache: Some(disk.path().into()), fsync: Fsync::Never, ..small.clone() };
    let mut most = 0;
    // Each process is gone before its base is written, and none has the records in memory that it would merge.
    for life in 0..150 {
        let file = QueueFile::open_with(Arc::clone(&store), NAME, local.clone(), Env::default()).await?;
        file.queue("q")?.enqueue(noise(life, 30_000)).await?;
        file.sync().await?;
        file.close().await?;
        most = most.max(head(&store).await?.segments.len());
    }
    assert_eq!(most, MAX_SEGMENTS, "all the room there is was used");
    let file = QueueFile::open_with(Arc::clone(&store), NAME, small, Env::default()).await?;
    assert_eq!(file.stats(None).await?.queues[0].counts[&State::Ready], 150);
    file.close().await
}

#[tokio::test]
async fn where_nobody_lives_for_longer_than_a_commit_the_log_stays_short() -> Result<()> {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let mut longest = 0;
    for _ in 0..100 {
        let options = Options { host: Host::default(), ..hasty() };
        let file = QueueFile::open_with(Arc::clone(&store), NAME, options, Env::default()).await?;
        fill(&file, 1).await?;
        file.close().await?;
        let now = head(&store).await?;
        longest = longest.max(now.log_len() / now.base.len.max(hasty().base_after));
    }
    assert!(longest <= 2, "a log {longest} times as long as it should be");
    let file = QueueFile::open_with(Arc::clone(&store), NAME, Options::default(), Env::default()).await?;
    assert_eq!(file.stats(None).await?.queues[0].counts[&State::Ready], 100);
    file.close().await
}

#[tokio::test]
async fn a_commit_that_finds_no_room_for_its_segment_waits_for_a_base() -> Result<()> {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let small = Options { tail: 1024, max_head: 24 * 1024, ..Options::default() };
    // Segments too large to be merged, until the file is full.
    let busy = Busy::over(Arc::clone(&store));
    busy.no_bases.store(true, std::sync::atomic::Ordering::Relaxed);
    // It closes without its base, after a third of that.
    let brief = Options { deadline: Duration::from_secs(3), ..small.clone() };
    let file = QueueFile::open_with(busy, NAME, brief, Env::default()).await?;
    let load = |file: &QueueFile, commit: u64| {
        let jobs = (0..6).map(|i| file.new_job(noise(commit * 6 + i, 250_000)));
        Ok::<_, bucketq::Error>(Op::Enqueue { queue: "q".into(), jobs: jobs.collect::<Result<_>>()? })
    };
    let mut commits = 0;
    while head(&store).await?.segments.len() < MAX_SEGMENTS {
        file.call(load(&file, commits)?).await?;
        commits += 1;
    }
    file.close().await?;
    let file = QueueFile::open_with(Arc::clone(&store), NAME, small, Env::default()).await?;
    file.call(load(&file, commits)?).await?;
    let now = head(&store).await?;
    assert!(now.base.len > 0 && now.segments.len() == 1, "{} segments", now.segments.len());
    assert_eq!(file.stats(None).await?.queues[0].counts[&State::Ready], 6 * (commits + 1));
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn large_commits_leave_few_segments_and_need_no_base_for_that() -> Result<()> {
    let (puppet, file) = puppet(Options { base_after: 1 << 30, ..inline() }).await?;
    let (mut most, mut large) = (0, 0);
    for i in 0..120 {
        file.queue("q")?.enqueue(noise(i, 230_000)).await?;
        let now = head(puppet.beneath()).await?;
        assert_eq!(now.base.len, 0, "a base although the log is short, with {} segments", now.segments.len());
        most = most.max(now.segments.len());
        large = now.segments.iter().filter(|s| s.len > 1_500_000).count();
    }
    assert!(most < 40, "{most} segments");
    assert!(large >= 10, "{large} merged ones");
    file.close().await
}
