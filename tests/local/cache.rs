//! Durable mode with a cache: reopening costs one GET, and `sqlite3` opens a copy that is always settled.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bucketq::store::{Memory, Store};
use bucketq::{Env, Host, Options, Payload, QueueFile, Result};
use bucketq_tests::clock::{TestClock, pass};
use bucketq_tests::given::NAME;
use bucketq_tests::ground::Ground;
use bucketq_tests::puppet::{OnPut, Puppet};
use tempfile::TempDir;

use crate::fixture::{enqueue, files, texts};

fn options(cache: &TempDir) -> Options {
    Options {
        cache: Some(cache.path().to_owned()),
        tail: 1024,
        max_head: 24 * 1024,
        copy_interval: Duration::from_millis(5),
        ..Options::default()
    }
}

async fn open(store: Arc<dyn Store>, options: Options) -> Result<QueueFile> {
    QueueFile::open_with(store, NAME, options, Env::default()).await
}

/// Text that does not compress.
fn noise(len: usize) -> String {
    let mut text = String::new();
    while text.len() < len {
        let random: [u8; 64] = Env::default().bytes();
        text.extend(random.iter().map(|b| char::from(b'!' + b % 90)));
    }
    text
}

/// Enough for segments and a base.
async fn fill(file: &QueueFile) -> Result<()> {
    for i in 0..100 {
        enqueue(file, &format!("{i} {}", noise(12_000))).await?;
    }
    Ok(())
}

fn kept(cache: &TempDir) -> Vec<PathBuf> {
    let dir =
        std::fs::read_dir(cache.path()).expect("there").next().expect("one file").expect("readable").path();
    files(&dir).into_iter().filter(|p| p.extension().is_some_and(|e| e == "kept")).collect()
}

/// Returns the bytes of all objects that are in the cache at one moment, the last one of the listing. Objects that the
/// writer has deleted since they were listed count as nothing.
fn kept_bytes(cache: &Path) -> u64 {
    let entries = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten().collect::<Vec<_>>();
    let objects: Vec<_> = entries(cache).iter().flat_map(|dir| entries(&dir.path())).collect();
    let kept = objects.iter().filter(|entry| entry.path().extension().is_some_and(|e| e == "kept"));
    kept.filter_map(|entry| Some(entry.metadata().ok()?.len())).sum()
}

bucketq_tests::on_every_store! {
    reopening_reads_head_only
    a_damaged_or_missing_copy_is_fetched_anew
}

async fn reopening_reads_head_only(ground: &Ground) -> Result<()> {
    let cache = tempfile::tempdir().expect("made");
    let file = open(ground.store(), options(&cache)).await?;
    fill(&file).await?;
    let expected = texts(&file).await?;
    let uploads = file.metrics()?.uploads;
    assert!(uploads > 3, "there is something to keep");
    file.close().await?;
    // Whether this process wrote or read them: both are there.
    for _ in 0..2 {
        let file = open(ground.store(), options(&cache)).await?;
        assert_eq!(file.metrics()?.gets, 1, "HEAD");
        assert_eq!(texts(&file).await?, expected);
        file.close().await?;
    }
    let other = tempfile::tempdir().expect("made");
    let file = open(ground.store(), options(&other)).await?;
    assert!(file.metrics()?.gets > 1);
    file.close().await?;
    let file = open(ground.store(), options(&other)).await?;
    assert_eq!(file.metrics()?.gets, 1);
    file.close().await
}

async fn a_damaged_or_missing_copy_is_fetched_anew(ground: &Ground) -> Result<()> {
    let cache = tempfile::tempdir().expect("made");
    let file = open(ground.store(), options(&cache)).await?;
    fill(&file).await?;
    let expected = texts(&file).await?;
    file.close().await?;
    let damage: [fn(&Path); 5] = [
        |p| std::fs::remove_file(p).expect("removable"),
        |p| std::fs::write(p, b"").expect("writable"),
        |p| std::fs::write(p, b"neither here nor there").expect("writable"),
        |p| {
            let mut bytes = std::fs::read(p).expect("readable");
            let at = bytes.len() / 2;
            bytes[at] ^= 1;
            std::fs::write(p, bytes).expect("writable");
        },
        |p| {
            // Undamaged, but another object.
            let other = p.with_file_name("other");
            std::fs::rename(p, other).expect("movable");
        },
    ];
    for harm in damage {
        let all = kept(&cache);
        assert!(!all.is_empty());
        for path in &all {
            harm(path);
        }
        let file = open(ground.store(), options(&cache)).await?;
        assert!(file.metrics()?.gets > 1, "fetched");
        assert_eq!(texts(&file).await?, expected);
        file.close().await?;
        let file = open(ground.store(), options(&cache)).await?;
        assert_eq!(file.metrics()?.gets, 1, "and kept again");
        file.close().await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_cache_keeps_within_its_bound() -> Result<()> {
    let cache = tempfile::tempdir().expect("made");
    let most = 200 * 1024;
    let file = open(Arc::new(Memory::new()), Options { cache_bytes: most, ..options(&cache) }).await?;
    let filled = Arc::new(AtomicBool::new(false));
    let watcher = std::thread::spawn({
        let (dir, filled) = (cache.path().to_owned(), Arc::clone(&filled));
        move || {
            let mut peak = 0;
            while !filled.load(Ordering::SeqCst) {
                peak = peak.max(kept_bytes(&dir));
            }
            peak
        }
    });
    for _ in 0..3 {
        fill(&file).await?;
    }
    filled.store(true, Ordering::SeqCst);
    let peak = watcher.join().expect("watched");
    assert!(peak > 0 && peak <= most, "{peak} bytes at some moment");
    assert!(!kept(&cache).is_empty());
    file.close().await
}

#[tokio::test]
async fn two_processes_share_a_cache() -> Result<()> {
    let cache = tempfile::tempdir().expect("made");
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let (a, b) =
        (open(Arc::clone(&store), options(&cache)).await?, open(Arc::clone(&store), options(&cache)).await?);
    let (one, two) = tokio::join!(fill(&a), fill(&b));
    one?;
    two?;
    let expected = texts(&a).await?;
    assert_eq!(texts(&b).await?, expected);
    assert_eq!(expected.len(), 200);
    a.close().await?;
    b.close().await?;
    let file = open(store, options(&cache)).await?;
    assert_eq!(texts(&file).await?, expected);
    file.close().await
}

/// Reads the copy with Python's sqlite3: the number of jobs, if the integrity check passes.
fn python(path: &Path) -> Option<i64> {
    let script = "import sqlite3, sys
c = sqlite3.connect('file:' + sys.argv[1] + '?mode=ro', uri=True)
assert c.execute('PRAGMA integrity_check').fetchone() == ('ok',)
assert c.execute('PRAGMA journal_mode').fetchone() != ('wal',)
print(c.execute('SELECT count(*) FROM jobs').fetchone()[0])";
    let interpreter = std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
    let out = Command::new(interpreter).arg("-c").arg(script).arg(path).output().expect("python3 runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("text").trim().parse().ok()
}

fn copy_of(file: &QueueFile) -> PathBuf {
    let dir = file.directory().expect("open").expect("it has a cache");
    dir.join(format!("{NAME}.sqlite"))
}

#[tokio::test]
async fn python_opens_the_copy_while_the_queue_runs() -> Result<()> {
    let cache = tempfile::tempdir().expect("made");
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let file = open(Arc::clone(&store), options(&cache)).await?;
    let running = {
        let file = file.clone();
        tokio::spawn(async move {
            for i in 0..200 {
                enqueue(&file, &i.to_string()).await?;
            }
            Ok::<_, bucketq::Error>(())
        })
    };
    let path = copy_of(&file);
    let mut last = 0;
    let mut looks = 0;
    while !running.is_finished() || looks < 3 {
        if path.exists() {
            let path = path.clone();
            let jobs =
                tokio::task::spawn_blocking(move || python(&path)).await.expect("sound").expect("a number");
            assert!(jobs >= last, "it never goes back: {jobs} after {last}");
            last = jobs;
            looks += 1;
        }
        tokio::task::yield_now().await;
    }
    running.await.expect("no panic")?;
    file.close().await?;
    assert_eq!(python(&path), Some(200), "what is left behind is the newest state");
    // Nothing new: it is not written again.
    let before = path.metadata().and_then(|m| m.modified()).expect("there");
    open(store, options(&cache)).await?.close().await?;
    assert_eq!(path.metadata().and_then(|m| m.modified()).expect("there"), before);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn the_copy_never_shows_what_is_not_settled_and_costs_no_requests() -> Result<()> {
    let cache = tempfile::tempdir().expect("made");
    let puppet = Puppet::over(Arc::new(Memory::new()));
    let options = Options { host: Host::CurrentRuntime, ..options(&cache) };
    let file = QueueFile::open_with(puppet.store(), NAME, options, TestClock::start().env()).await?;
    enqueue(&file, "a").await?;
    let path = copy_of(&file);
    let reaches = |jobs| {
        let path = path.clone();
        async move {
            while !path.exists() || python(&path) != Some(jobs) {
                pass(Duration::from_millis(1)).await;
            }
        }
    };
    reaches(1).await;
    puppet.hold();
    let waiting = {
        let file = file.clone();
        tokio::spawn(async move { enqueue(&file, "b").await })
    };
    puppet.until_held(1).await;
    pass(Duration::from_secs(1)).await;
    assert_eq!(python(&path), Some(1), "b is not in the store");
    puppet.next_puts([OnPut::Pass]);
    puppet.let_go();
    waiting.await.expect("no panic")?;
    let requests = puppet.requests();
    reaches(2).await;
    pass(Duration::from_mins(1)).await;
    assert_eq!(puppet.requests(), requests, "an idle queue asks nothing");
    file.close().await
}

#[tokio::test]
async fn without_a_cache_nothing_is_kept() -> Result<()> {
    let file = open(Arc::new(Memory::new()), Options::default()).await?;
    file.queue("q")?.enqueue(Payload::text("x")).await?;
    assert_eq!(file.directory()?, None);
    file.close().await
}
