//! Archive objects: the columns of docs/archive.md, read back by the engine and by pyarrow.

use std::path::{Path, PathBuf};
use std::process::Command;

use bucketq::internals::archive::{COLUMNS, ColumnKind, VERSION, decode, encode};
use bucketq::job::{JobId, State};
use bucketq::life::Life;
use bucketq::policy::Changes;
use bucketq::{Code, Env, Op, Options, Payload, QueueFile, Result};
use serde_json::{Value, json};

use crate::fixture::{here, refused};

const FILE: [u8; 16] = [0xab; 16];

/// A run with a different value in each column, and one with as few values as possible.
fn lives() -> Vec<Life> {
    let full = Life {
        finish_seq: (9 << 24) + 4,
        id: JobId::new(1_767_225_600_123, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        run: 3,
        queue: "mail".into(),
        group: Some("tenant ä".into()),
        state: State::Dead,
        priority: -7,
        attempts: 5,
        max_attempts: 6,
        worker: Some("w1".into()),
        enqueued_ms: 1_767_225_600_001,
        run_at_ms: 1_767_225_601_002,
        first_claimed_ms: Some(1_767_225_602_004),
        claimed_ms: Some(1_767_225_603_008),
        finished_ms: 1_767_225_604_016,
        seq: (2 << 24) + 1,
        fence: Some(8),
        payload_len: 3,
        payload: Some(vec![0, 255, 1].into()),
        payload_type: Some("application/x".into()),
        result: Some(vec![].into()),
        result_type: Some("text/plain".into()),
        last_error: Some("it broke: \u{1f4a5}".into()),
    };
    let bare = Life {
        finish_seq: full.finish_seq + 1,
        run: 0,
        state: State::Cancelled,
        group: None,
        worker: None,
        attempts: 0,
        first_claimed_ms: None,
        claimed_ms: None,
        fence: None,
        payload: None,
        payload_type: None,
        result: None,
        result_type: None,
        last_error: None,
        ..full.clone()
    };
    vec![full, bare]
}

#[test]
fn what_is_written_is_read() -> Result<()> {
    let lives = lives();
    let bytes = encode(&lives, &FILE, 77)?;
    let (about, read) = decode("it", bytes.into())?;
    assert_eq!((about.version, about.commit_seq, &*about.file_id), (VERSION, 77, "ab".repeat(16).as_str()));
    assert_eq!(read, lives);
    assert_eq!(decode("it", encode(&[], &FILE, 1)?.into())?.1, []);
    Ok(())
}

#[test]
fn the_same_lives_are_the_same_bytes() -> Result<()> {
    assert_eq!(encode(&lives(), &FILE, 77)?, encode(&lives(), &FILE, 77)?);
    Ok(())
}

#[test]
fn what_is_no_archive_object_is_refused() -> Result<()> {
    let bytes = encode(&lives(), &FILE, 77)?;
    for cut in [0, 4, bytes.len() / 2, bytes.len() - 1] {
        drop(refused(decode("it", bytes[..cut].to_vec().into()), cut));
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    assert!(text.contains("bucketq.archive"), "its version is told");
    let at = bytes.windows(15).position(|w| w == b"bucketq.archive").expect("it is there");
    // The value comes after its key: a field header, a length, the digit.
    let digit = (at + 15..bytes.len()).find(|i| bytes[*i] == b'1').expect("its version");
    let mut newer = bytes;
    newer[digit] = b'9';
    assert_eq!(refused(decode("it", newer.into()), "newer").code(), Code::TooNew);
    Ok(())
}

#[test]
fn an_archive_object_with_any_byte_changed_is_read_or_refused_without_a_panic() -> Result<()> {
    let bytes = encode(&lives(), &FILE, 77)?;
    let mut refused = 0;
    for at in 0..bytes.len() {
        for with in [bytes[at] ^ 1, bytes[at] ^ 0x80, 0, 0xff] {
            let mut changed = bytes.clone();
            changed[at] = with;
            if let Err(error) = decode("it", changed.into()) {
                assert!(
                    matches!(error.code(), Code::Corrupt | Code::TooNew),
                    "byte {at} is {with}: {error:?}"
                );
                refused += 1;
            }
        }
    }
    assert!(refused > bytes.len() / 2, "most of it matters: {refused}");
    Ok(())
}

#[test]
fn the_documentation_has_every_column() {
    let docs = std::fs::read_to_string(here("../../docs/archive.md")).expect("docs/archive.md");
    let told: Vec<[&str; 3]> = docs
        .lines()
        .filter(|line| line.starts_with("| `"))
        .filter_map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            (cells.len() == 6).then(|| [cells[1].trim_matches('`'), cells[2], cells[3]])
        })
        .collect();
    let columns: Vec<[&str; 3]> =
        COLUMNS.iter().map(|c| [c.name, c.kind.as_str(), if c.optional() { "yes" } else { "" }]).collect();
    assert_eq!(told, columns);
}

/// The name of each of our types in pyarrow.
fn arrow(kind: ColumnKind) -> &'static str {
    match kind {
        ColumnKind::Int => "int64",
        ColumnKind::Time => "timestamp[ms, tz=UTC]",
        ColumnKind::Text => "string",
        ColumnKind::Bytes => "binary",
    }
}

fn row(life: &Life) -> Value {
    let bytes = |b: &Option<bytes::Bytes>| b.as_ref().map(|b| base64(b));
    json!({
        "finish_seq": life.finish_seq, "id": life.id.to_string(), "run": life.run, "queue": life.queue,
        "group": life.group, "state": life.state.as_str(), "priority": life.priority,
        "attempts": life.attempts, "max_attempts": life.max_attempts, "worker": life.worker,
        "enqueued_at": life.enqueued_ms, "run_at": life.run_at_ms, "first_claimed_at": life.first_claimed_ms,
        "claimed_at": life.claimed_ms, "finished_at": life.finished_ms, "wait_ms": life.wait_ms(),
        "run_ms": life.run_ms(), "seq": life.seq, "enqueue_commit_seq": life.enqueue_commit(),
        "claim_commit_seq": life.fence, "finish_commit_seq": life.finish_commit(),
        "payload_len": life.payload_len, "payload": bytes(&life.payload), "payload_type": life.payload_type,
        "result": bytes(&life.result), "result_type": life.result_type, "last_error": life.last_error,
    })
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let mut three = [0; 3];
        three[..chunk.len()].copy_from_slice(chunk);
        let n = u32::from_be_bytes([0, three[0], three[1], three[2]]);
        for i in 0..4 {
            let digit = DIGITS[(n >> (18 - 6 * i)) as usize & 63];
            out.push(if i <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    out
}

/// Returns a Python that has pyarrow: from the environment, or the repository's own. Without one the test prints a
/// message; with `BUCKETQ_REQUIRE_SERVERS=1`, as in CI, it fails.
fn python() -> Option<PathBuf> {
    let own = here("../../.venv/bin/python");
    let candidates = std::env::var_os("PYTHON").map(PathBuf::from).into_iter().chain([own, "python3".into()]);
    for python in candidates {
        let has = Command::new(&python).args(["-c", "import pyarrow"]).output();
        if has.is_ok_and(|out| out.status.success()) {
            return Some(python);
        }
    }
    assert_ne!(
        std::env::var("BUCKETQ_REQUIRE_SERVERS").as_deref(),
        Ok("1"),
        "no Python here has pyarrow and BUCKETQ_REQUIRE_SERVERS=1: run `make develop`"
    );
    eprintln!("skipped: no Python here has pyarrow; run `make develop`");
    None
}

fn read(python: &Path, objects: &[PathBuf]) -> Value {
    let out = Command::new(python).arg(here("read_archive.py")).args(objects).output().expect("Python runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).expect("it prints JSON")
}

#[test]
fn pyarrow_reads_every_column_as_the_documentation_has_it() -> Result<()> {
    let Some(python) = python() else { return Ok(()) };
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("object.parquet");
    std::fs::write(&path, encode(&lives(), &FILE, 77)?).expect("room for it");
    let told = &read(&python, &[path])[0];
    let columns: Vec<Value> = COLUMNS.iter().map(|c| json!([c.name, arrow(c.kind), c.optional()])).collect();
    assert_eq!(told["columns"], json!(columns));
    assert_eq!(told["meta"]["bucketq.archive"], VERSION.to_string());
    assert_eq!(told["meta"]["bucketq.commit_seq"], "77");
    assert_eq!(told["meta"]["bucketq.file_id"], "ab".repeat(16));
    assert_eq!(told["rows"], json!(lives().iter().map(row).collect::<Vec<_>>()));
    Ok(())
}

#[tokio::test]
async fn pyarrow_finds_in_the_bucket_what_has_left_the_file() -> Result<()> {
    let Some(python) = python() else { return Ok(()) };
    let dir = tempfile::tempdir().expect("a directory");
    let url = dir.path().join("jobs").to_string_lossy().into_owned();
    let file = QueueFile::open(&url, Options::default()).await?;
    file.queue("mail")?
        .configure(Changes { keep: Some(3), archive: Some(true), ..Changes::default() })
        .await?;
    let queue = file.queue("mail")?;
    let env = Env::default();
    let mut wanted = vec![];
    for round in 0..2 {
        let new = |n: u32| {
            bucketq::New::new(JobId::new(env.wall_ms(), env.bytes()), Payload::text(format!("{round} {n}")))
        };
        file.call(Op::Enqueue { queue: "mail".into(), jobs: (0..50).map(new).collect() }).await?;
        for job in queue.claim(50).worker("w").await? {
            file.ack_with(job.held(), Payload::text("fine")).await?;
        }
        wanted.extend(file.lives(Some("mail"), 0, u64::MAX, 1_000).await?.lives);
        file.archive().await?;
        let left = file.lives(None, 0, u64::MAX, 1_000).await?.lives;
        wanted.retain(|life| left.iter().all(|l| l.id != life.id));
    }
    let objects = file.archives(None, 0).await?.objects;
    let paths: Vec<PathBuf> = objects.iter().map(|a| dir.path().join(&a.key)).collect();
    file.close().await?;
    let told = read(&python, &paths);
    let rows: Vec<&Value> =
        told.as_array().expect("a list").iter().flat_map(|t| t["rows"].as_array().expect("rows")).collect();
    assert_eq!(objects.len(), 2);
    assert_eq!(json!(rows), json!(wanted.iter().map(row).collect::<Vec<_>>()));
    Ok(())
}
