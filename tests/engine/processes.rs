//! Several processes on one queue file in a directory. This test binary starts itself again as those processes.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use bucketq::{Env, Options, Payload, QueueFile, Result};

const DIR: &str = "BUCKETQ_TEST_CHILD_DIR";
const NAME: &str = "BUCKETQ_TEST_CHILD_NAME";
const FULL: &str = "BUCKETQ_TEST_CHILD_FULL";
const JOBS: usize = 25;

/// One process: it enqueues, claims and acks, and prints each acknowledgement.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_a_child_it_works() -> Result<()> {
    let (Ok(dir), Ok(name)) = (std::env::var(DIR), std::env::var(NAME)) else { return Ok(()) };
    let file = QueueFile::open(&dir, Options::default()).await?;
    let q = file.queue("q")?;
    for i in 0..JOBS {
        q.enqueue(Payload::text(format!("{name}-{i}"))).await?;
        println!("enqueued {name}-{i}");
        for taken in q.claim(2).await? {
            file.ack(taken.held()).await?;
            println!("acked {}", String::from_utf8_lossy(&taken.payload.bytes));
        }
    }
    file.close().await
}

fn child(dir: &Path, name: &str) -> Child {
    Command::new(std::env::current_exe().expect("this test has a file"))
        .args(["--exact", "processes::as_a_child_it_works", "--nocapture", "--test-threads=1"])
        .env(DIR, dir.join("jobs"))
        .env(NAME, name)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("this test can start itself")
}

/// The content of a line, wherever the test harness puts its own text.
fn told(line: &str, what: &str) -> Option<String> {
    line.split_once(what).map(|(_, name)| name.trim().to_owned())
}

async fn rest(dir: &Path) -> Result<Vec<String>> {
    let url = dir.join("jobs");
    let file = QueueFile::open(url.to_str().expect("plain"), Options::default()).await?;
    let mut left = vec![];
    loop {
        let taken = file.claim(100).await?;
        if taken.is_empty() {
            break;
        }
        for t in taken {
            file.ack(t.held()).await?;
            left.push(String::from_utf8_lossy(&t.payload.bytes).into_owned());
        }
    }
    file.close().await?;
    Ok(left)
}

#[tokio::test]
async fn processes_lose_and_double_nothing() -> Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let children: Vec<Child> = (0..4).map(|i| child(dir.path(), &format!("c{i}"))).collect();
    let (mut enqueued, mut acked) = (vec![], vec![]);
    for child in children {
        let output = child.wait_with_output().expect("a child ends");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        enqueued.extend(text.lines().filter_map(|l| told(l, "enqueued ")));
        acked.extend(text.lines().filter_map(|l| told(l, "acked ")));
    }
    assert_eq!(enqueued.len(), 4 * JOBS);
    let others = acked.len();
    assert!(others > 0);
    acked.extend(rest(dir.path()).await?);
    assert_eq!(acked.len(), 4 * JOBS, "each job was acked once");
    assert_eq!(acked.into_iter().collect::<BTreeSet<_>>(), enqueued.into_iter().collect());
    Ok(())
}

/// One process: it enqueues until a job is refused, and then acks what it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_a_child_without_room_it_works() -> Result<()> {
    let Ok(dir) = std::env::var(FULL) else { return Ok(()) };
    let deadline = std::time::Duration::from_secs(2);
    let file = QueueFile::open(&dir, Options { deadline, ..Options::default() }).await?;
    let q = file.queue("q")?;
    for i in 0..100_u8 {
        // Bytes that do not compress.
        let bytes =
            (0..30_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8 ^ i).collect::<Vec<_>>();
        match q.enqueue(Payload::bytes(bytes)).await {
            Ok(_) => println!("enqueued {i}"),
            Err(error) => {
                println!("refused {}: {error}", error.code().as_str());
                break;
            }
        }
    }
    // Reads continue; the refused job is not there.
    println!("there {}", file.list(bucketq::Filter::default(), None, 1_000).await?.jobs.len());
    file.close().await
}

/// No file may become larger than the limit. For a program this is like a full disk, and it needs no disk to be filled.
#[cfg(unix)]
#[tokio::test]
async fn a_disk_without_room_refuses_what_does_not_fit_and_keeps_the_rest() -> Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().expect("this test has a file"))
        .args(["--exact", "processes::as_a_child_without_room_it_works", "--nocapture", "--test-threads=1"])
        .env(FULL, dir.path().join("jobs"))
        .output()
        .expect("a shell is there");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let enqueued = text.lines().filter_map(|l| told(l, "enqueued ")).count();
    let refused: Vec<String> = text.lines().filter_map(|l| told(l, "refused ")).collect();
    assert!(enqueued > 0, "{text}");
    assert!(
        refused.len() == 1
            && refused[0].starts_with("disk_full: ")
            && refused[0].contains("cannot write")
            && refused[0].contains("make room on this disk"),
        "{text}"
    );
    assert!(text.contains(&format!("there {enqueued}\n")), "{text}");
    assert_eq!(
        rest(dir.path()).await?.len(),
        enqueued,
        "and with room again everything acknowledged is there"
    );
    let unfinished = std::fs::read_dir(dir.path())
        .expect("it is there")
        .filter_map(|e| e.ok()?.file_name().into_string().ok());
    assert_eq!(unfinished.filter(|name| name.contains(".tmp")).count(), 0, "nothing half-written is left");
    Ok(())
}

#[tokio::test]
async fn a_process_killed_at_work_loses_nothing_it_acknowledged() -> Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let mut victim = child(dir.path(), "victim");
    let mut lines = BufReader::new(victim.stdout.take().expect("it is piped")).lines();
    let (mut enqueued, mut acked) = (BTreeSet::new(), BTreeSet::new());
    let mut note = |line: &str| {
        enqueued.extend(told(line, "enqueued "));
        acked.extend(told(line, "acked "));
        enqueued.len()
    };
    while note(&lines.next().expect("it is at work").expect("a line is text")) < JOBS / 2 {}
    victim.kill().expect("it can be killed");
    victim.wait().expect("it ends");
    // Lines that it wrote before it died count too.
    lines.map_while(std::result::Result::ok).for_each(|line| {
        note(&line);
    });
    let store = bucketq::store::FileStore::open(dir.path(), &Env::default())?;
    let file =
        QueueFile::open_with(std::sync::Arc::new(store), "jobs", Options::default(), Env::default()).await?;
    let page = file.list(bucketq::Filter::default(), None, 1_000).await?;
    let mut there = BTreeSet::new();
    for job in &page.jobs {
        let detail = file.get(job.id).await?.expect("listed");
        let name = String::from_utf8_lossy(&detail.payload.bytes).into_owned();
        assert!(!acked.contains(&name) || job.state == bucketq::State::Done, "{name} was acked: {job:?}");
        assert!(there.insert(name), "a job stands there twice");
    }
    assert!(there.is_superset(&enqueued), "{enqueued:?} were acknowledged, {there:?} are there");
    assert!(there.len() <= enqueued.len() + 1, "at most one was under way");
    file.close().await
}
