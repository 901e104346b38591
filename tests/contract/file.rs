//! The promises of the file store only: several processes, crashes at any moment, problems with the directory.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use bucketq::env::Env;
use bucketq::error::{Code, Kind};
use bucketq::store::{Expect, FileStore, Got, Put, Store};
use bucketq_tests::ground::suite::{count_up, must_get, must_put};
use bytes::Bytes;

/// Set for a process that a test starts as another process; its value is the directory to work in.
const CHILD: &str = "BUCKETQ_TEST_CHILD_DIRECTORY";

/// Size of the bodies of the process that is killed.
const SIZE: usize = 100_000;

fn open(dir: &Path) -> FileStore {
    FileStore::open(dir, &Env::default()).expect("the directory is there")
}

fn temporary() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory can be made")
}

/// Runs one test of this test binary as a child process.
fn child(test: &str, dir: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a test knows its binary"));
    command.args(["--exact", test, "--nocapture"]).env(CHILD, dir).stdin(Stdio::null());
    command
}

#[tokio::test]
async fn several_processes_lose_no_step() {
    if let Some(dir) = std::env::var_os(CHILD) {
        count_up(&open(dir.as_ref()), "jobs.head", std::process::id() as usize, 50).await;
        return;
    }
    let dir = temporary();
    let store = open(dir.path());
    must_put(&store, "jobs.head", "0 start", &Expect::Absent).await;
    let mut children: Vec<_> = (0..4)
        .map(|_| {
            child("file::several_processes_lose_no_step", dir.path())
                .stdout(Stdio::null())
                .spawn()
                .expect("a child starts")
        })
        .collect();
    count_up(&store, "jobs.head", 0, 50).await;
    for child in &mut children {
        assert!(child.wait().expect("a child ends").success());
    }
    let (body, _) = must_get(&store, "jobs.head").await;
    assert!(body.starts_with(b"250 "), "{body:?}");
}

#[tokio::test]
async fn a_process_killed_at_any_moment_leaves_the_old_object_or_the_new() {
    if let Some(dir) = std::env::var_os(CHILD) {
        let store = open(dir.as_ref());
        let (_, mut version) = must_get(&store, "jobs.head").await;
        for step in 0_u64.. {
            let body = Bytes::from(vec![b'a' + (step % 26) as u8; SIZE]);
            version = must_put(&store, "jobs.head", body, &Expect::Is(version)).await;
            println!("step {step}");
            std::io::stdout().flush().expect("the parent listens");
        }
    }
    let dir = temporary();
    let store = open(dir.path());
    must_put(&store, "jobs.head", vec![b'z'; SIZE], &Expect::Absent).await;
    for round in 0..20 {
        let test = "file::a_process_killed_at_any_moment_leaves_the_old_object_or_the_new";
        let mut process = child(test, dir.path()).stdout(Stdio::piped()).spawn().expect("a child starts");
        let mut lines = BufReader::new(process.stdout.take().expect("its output is piped")).lines();
        assert!(lines.any(|line| line.expect("the child writes text").contains("step")), "the child writes");
        // Reading for longer in each round, so that the kill hits another moment of the child's work.
        for _ in 0..=5 * round {
            assert_whole(&must_get(&store, "jobs.head").await.0);
        }
        process.kill().expect("a child can be killed");
        process.wait().expect("a child ends");
        let (body, version) = must_get(&store, "jobs.head").await;
        assert_whole(&body);
        // The lock of the dead process is free.
        must_put(&store, "jobs.head", body, &Expect::Is(version)).await;
    }
    assert_eq!(store.list("").await.expect("the store answers").len(), 1, "unfinished files are not objects");
}

/// One complete body of the child, not half of one and half of another.
fn assert_whole(body: &Bytes) {
    assert_eq!(body.len(), SIZE);
    assert!(body.iter().all(|b| *b == body[0]), "half of one and half of another");
}

#[tokio::test]
async fn versions_are_the_same_for_every_process_and_tell_bodies_apart() {
    let dir = temporary();
    let (one, two) = (open(dir.path()), open(dir.path()));
    let first = must_put(&one, "jobs.head", "1", &Expect::Absent).await;
    assert_eq!(must_get(&two, "jobs.head").await.1, first);
    let second = must_put(&two, "jobs.head", "2", &Expect::Is(first.clone())).await;
    assert_ne!(first, second);
    assert_eq!(must_get(&open(dir.path()), "jobs.head").await.1, second);
}

#[tokio::test]
async fn objects_are_the_plain_bytes_in_a_file_of_their_key() {
    let dir = temporary();
    must_put(&open(dir.path()), "jobs.head", "plain", &Expect::Absent).await;
    assert_eq!(fs::read(dir.path().join("jobs.head")).expect("the object is a file"), b"plain");
}

#[tokio::test]
async fn an_object_changed_in_place_by_hand_is_noticed() {
    let dir = temporary();
    let store = open(dir.path());
    let version = must_put(&store, "jobs.head", "one", &Expect::Absent).await;
    for _ in 0..2 {
        let got = store.get("jobs.head", Some(&version)).await.expect("the store answers");
        assert!(matches!(got, Got::Unchanged { .. }), "{got:?}");
    }
    let path = dir.path().join("jobs.head");
    // Another length, then the same length and another time.
    for (text, time) in [("longer", 1), ("anders", 2)] {
        fs::write(&path, text).expect("the object can be written to");
        let file = File::options().write(true).open(&path).expect("the object is a file");
        file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(time)).expect("a time can be set");
        match store.get("jobs.head", Some(&version)).await.expect("the store answers") {
            Got::Object { bytes, .. } => assert_eq!(bytes, text),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn what_was_left_half_written_long_ago_is_removed_at_opening() {
    let dir = temporary();
    let young = dir.path().join(".jobs.head.00112233445566ff.tmp");
    let old = dir.path().join(".jobs.head.ff66554433221100.tmp");
    let foreign = dir.path().join(".notes.tmp");
    for path in [&young, &old, &foreign] {
        fs::write(path, "half").expect("the directory can be written to");
    }
    for path in [&old, &foreign] {
        let file = File::options().write(true).open(path).expect("it is there");
        let two_hours_ago = Env::default().wall_ms() as u64 - 2 * 3_600_000;
        file.set_modified(std::time::UNIX_EPOCH + Duration::from_millis(two_hours_ago))
            .expect("a time can be set");
    }
    let store = open(dir.path());
    assert_eq!([young.exists(), old.exists(), foreign.exists()], [true, false, true]);
    assert_eq!(store.list("").await.expect("the store answers"), []);
}

#[tokio::test]
async fn a_directory_is_made_when_only_its_last_part_is_missing() {
    let dir = temporary();
    let fresh = dir.path().join("fresh");
    must_put(&open(&fresh), "jobs.head", "x", &Expect::Absent).await;
    let deep = dir.path().join("no").join("such");
    let error = FileStore::open(&deep, &Env::default()).expect_err("two parts are missing");
    assert_eq!((error.kind(), error.code()), (Kind::Unavailable, Code::NoSuchBucket), "{error}");
    assert!(error.message().contains(deep.to_str().expect("the path is text")), "{error}");
    assert!(!dir.path().join("no").exists());
}

#[tokio::test]
async fn a_file_where_the_directory_should_be_is_refused() {
    let dir = temporary();
    let path = dir.path().join("jobs");
    fs::write(&path, "x").expect("the directory can be written to");
    let error = FileStore::open(&path, &Env::default()).expect_err("it is a file");
    assert_eq!(error.code(), Code::NoSuchBucket, "{error}");
}

#[tokio::test]
async fn a_directory_that_goes_away_is_no_absent_object() {
    let dir = temporary();
    let store = open(dir.path());
    let version = must_put(&store, "jobs.head", "x", &Expect::Absent).await;
    let again = store.get("jobs.head", Some(&version)).await;
    assert!(matches!(again, Ok(Got::Unchanged { .. })), "{again:?}");
    fs::remove_dir_all(dir.path()).expect("the directory can be removed");
    for unless in [None, Some(&version)] {
        let error = store.get("jobs.head", unless).await.expect_err("the directory is gone");
        assert_eq!(error.code(), Code::NoSuchBucket, "{error}");
    }
    for expect in [Expect::Absent, Expect::Is(version)] {
        match store.put_if("jobs.head", Bytes::from("y"), &expect).await {
            Put::Unknown { error, sent: false, .. } => {
                assert_eq!(error.code(), Code::NoSuchBucket, "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(store.list("").await.expect_err("gone").code(), Code::NoSuchBucket);
    assert_eq!(store.delete("jobs.head").await.expect_err("gone").code(), Code::NoSuchBucket);
    assert_eq!(
        store.put_new("jobs.base-1", Bytes::new()).await.expect_err("gone").code(),
        Code::NoSuchBucket
    );
}

/// Even root cannot create a directory there.
#[cfg(target_os = "linux")]
#[test]
fn a_directory_that_may_not_be_made_is_denied() {
    let path = Path::new("/proc/sys/kernel/bucketq-test");
    let error = FileStore::open(path, &Env::default()).expect_err("nobody can make directories there");
    assert!(matches!(error.code(), Code::Denied | Code::NoSuchBucket), "{error}");
    assert!(error.message().contains("/proc/sys/kernel/bucketq-test"), "{error}");
}

#[cfg(unix)]
#[tokio::test]
async fn a_directory_that_may_only_be_read_denies_writes_and_serves_reads() {
    use std::os::unix::fs::PermissionsExt;
    let dir = temporary();
    let store = open(dir.path());
    let version = must_put(&store, "jobs.head", "x", &Expect::Absent).await;
    let mode = |mode| fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).expect("it is ours");
    mode(0o555);
    // Root may write everywhere: then nothing is denied, and the write succeeds.
    let all_powerful = File::create(dir.path().join("attempt")).is_ok();
    assert_eq!(must_get(&open(dir.path()), "jobs.head").await.0, "x");
    let put = store.put_if("jobs.head", Bytes::from("y"), &Expect::Is(version)).await;
    mode(0o755);
    match put {
        Put::Unknown { error, sent: false, .. } if !all_powerful => {
            assert_eq!((error.kind(), error.code()), (Kind::Unavailable, Code::Denied), "{error}");
        }
        Put::Stored { .. } if all_powerful => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn keys_that_are_paths_or_the_stores_own_files_are_refused() {
    let dir = temporary();
    let store = open(dir.path());
    for key in ["", "../jobs.head", "a/b", "a\\b", ".jobs.head.lock", "C:jobs"] {
        assert_eq!(store.get(key, None).await.expect_err(key).kind(), Kind::Invalid, "{key}");
        assert_eq!(store.put_new(key, Bytes::new()).await.expect_err(key).kind(), Kind::Invalid, "{key}");
        let put = store.put_if(key, Bytes::new(), &Expect::Absent).await;
        assert!(matches!(put, Put::Unknown { sent: false, .. }), "{key}: {put:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_creates_and_deletes_is_alone_meanwhile_and_no_lock_stays() {
    let dir = temporary();
    let there = std::sync::Arc::new(std::sync::atomic::AtomicI32::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..8 {
        let (store, there) = (open(dir.path()), std::sync::Arc::clone(&there));
        tasks.spawn(async move {
            let mut won = 0;
            while won < 40 {
                let body = Bytes::from(format!("{task} {won}"));
                let put = store.put_if("jobs.probe-1", body.clone(), &Expect::Absent).await;
                if matches!(put, Put::Stored { .. }) {
                    won += 1;
                    let before = there.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    assert_eq!(before, 0, "two of them created the same object");
                    for _ in 0..20 {
                        let got = store.get("jobs.probe-1", None).await.expect("it can be read");
                        assert!(
                            matches!(got, Got::Object { bytes, .. } if bytes == body),
                            "another's object"
                        );
                    }
                    there.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    store.delete("jobs.probe-1").await.expect("it can be deleted");
                }
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no task panics");
    }
    if cfg!(unix) {
        assert_eq!(fs::read_dir(dir.path()).expect("it is there").count(), 0);
    }
}

/// Holds the replace lock, as another process would.
#[cfg(unix)]
fn take_turn(dir: &Path) -> File {
    let held = File::open(dir.join("jobs.head")).expect("the object is a file");
    held.lock().expect("nobody has it");
    held
}

#[cfg(unix)]
#[tokio::test]
async fn a_lock_whose_holder_does_not_continue_is_passed_and_the_holder_cannot_replace_any_more() {
    let dir = temporary();
    let store = open(dir.path());
    let version = must_put(&store, "jobs.head", "one", &Expect::Absent).await;
    let held = take_turn(dir.path());
    let late = dir.path().join(".jobs.head.00000000000000aa.tmp");
    fs::write(&late, "late").expect("the directory can be written to");
    let of_another = dir.path().join(".jobs.seg.00000000000000aa.tmp");
    fs::write(&of_another, "whole").expect("the directory can be written to");
    must_put(&store, "jobs.head", "two", &Expect::Is(version)).await;
    assert_eq!(must_get(&store, "jobs.head").await.0, "two");
    let error = fs::rename(&late, dir.path().join("jobs.head")).expect_err("its new body is gone");
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    assert!(of_another.exists(), "a write of another object is left alone");
    drop(held);
    fs::remove_file(of_another).expect("it is there");
    assert_eq!(fs::read_dir(dir.path()).expect("it is there").count(), 1, "nothing else is left");
}

/// The holder continues while another writer passes it: that one compares once more, or is cancelled.
#[cfg(unix)]
#[tokio::test]
async fn a_writer_with_the_lock_cancels_those_that_pass() {
    let dir = temporary();
    let store = open(dir.path());
    let version = must_put(&store, "jobs.head", "one", &Expect::Absent).await;
    let passing = dir.path().join(".jobs.head.passing");
    fs::create_dir(&passing).expect("the directory can be written to");
    fs::write(passing.join(".jobs.head.00000000000000bb.tmp"), "late").expect("it can be written");
    must_put(&store, "jobs.head", "two", &Expect::Is(version)).await;
    assert_eq!(fs::read_dir(&passing).expect("it is there").count(), 0);
}

#[cfg(unix)]
#[tokio::test]
async fn a_delete_does_not_pass_a_lock() {
    let dir = temporary();
    let store = open(dir.path());
    must_put(&store, "jobs.head", "one", &Expect::Absent).await;
    let held = take_turn(dir.path());
    let error = store.delete("jobs.head").await.expect_err("it is locked");
    assert_eq!((error.kind(), error.code()), (Kind::Unavailable, Code::Locked), "{error}");
    assert!(error.message().contains("jobs.head"), "{error}");
    held.unlock().expect("it is ours");
    store.delete("jobs.head").await.expect("it is free");
}

#[cfg(unix)]
#[tokio::test]
async fn a_turn_ends_with_the_rename_though_its_holder_does_not_go_on() {
    let dir = temporary();
    let store = open(dir.path());
    let first = must_put(&store, "jobs.head", "one", &Expect::Absent).await;
    let _held = take_turn(dir.path());
    // A process that is stopped right after its rename does this.
    fs::write(dir.path().join("new"), "two").expect("the directory can be written to");
    fs::rename(dir.path().join("new"), dir.path().join("jobs.head")).expect("it can be renamed");
    let put = store.put_if("jobs.head", Bytes::from("x"), &Expect::Is(first)).await;
    assert!(matches!(put, Put::Conflict), "{put:?}");
    let (_, second) = must_get(&store, "jobs.head").await;
    must_put(&store, "jobs.head", "three", &Expect::Is(second)).await;
}
