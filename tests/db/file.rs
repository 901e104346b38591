//! The file as a whole: which files are opened and which are refused.

use bucketq::error::Code;
use bucketq::internals::db::{APPLICATION_ID, Db, SCHEMA_VERSION};
use bucketq::op::Op;
use bucketq::query::Query;
use bucketq_tests::queue_db::{World, check, claim, dump, enqueue, job};
use rusqlite::Connection;

#[test]
fn a_new_file_is_sound_and_says_what_it_is() {
    let w = World::default();
    check(w.db.connection());
    let pragma = |name| w.db.connection().pragma_query_value(None, name, |r| r.get::<_, i32>(0)).unwrap();
    assert_eq!((pragma("application_id"), pragma("user_version")), (APPLICATION_ID, SCHEMA_VERSION));
    assert_eq!(pragma("page_size"), 4096);
}

#[test]
fn a_foreign_database_is_refused() {
    let conn = Connection::open_in_memory().unwrap();
    conn.execute_batch("CREATE TABLE t (x)").unwrap();
    assert_eq!(Db::open(conn).unwrap_err().code(), Code::Foreign);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    std::fs::write(&path, vec![b'x'; 8192]).unwrap();
    assert_eq!(Db::open(Connection::open(path).unwrap()).unwrap_err().code(), Code::Foreign);
}

#[test]
fn a_newer_schema_is_read_and_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("q.sqlite");
    let mut w = World::on(Connection::open(&path).unwrap());
    w.ok(&enqueue("q", [job(1)]));
    w.db.check_writable().unwrap();
    w.db.connection().pragma_update(None, "user_version", SCHEMA_VERSION + 1).unwrap();
    w.db = Db::open(Connection::open(&path).unwrap()).unwrap();
    assert_eq!(w.db.check_writable().unwrap_err().code(), Code::TooNew);
    assert_eq!(w.job(1).queue, "q");
    w.db.begin().unwrap();
    assert_eq!(w.apply(&Op::Claim(claim("q", 1, 1))).unwrap_err().code(), Code::TooNew);
    w.db.rollback().unwrap();
    w.db.connection().pragma_update(None, "user_version", 0).unwrap();
    assert_eq!(Db::open(Connection::open(&path).unwrap()).unwrap_err().code(), Code::Corrupt);
}

#[test]
fn what_is_reopened_is_what_was_committed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("q.sqlite");
    let mut w = World::on(Connection::open(&path).unwrap());
    w.ok(&enqueue("q", (0..50).map(job)));
    w.claim(claim("q", 10, 1));
    w.db.begin().unwrap();
    w.apply(&enqueue("q", [job(99)])).unwrap();
    let before = { dump(&Connection::open(&path).unwrap()) };
    w.db = Db::open(Connection::open(&path).unwrap()).unwrap();
    assert_eq!(dump(w.db.connection()), before);
    assert_eq!(w.claim(claim("q", 100, 2)).len(), 40);
}

#[test]
fn a_damaged_state_is_corrupt_and_not_a_panic() {
    let hostile = [
        "UPDATE jobs SET backoff = 5",
        "UPDATE jobs SET worker = 5, backoff = 5",
        "UPDATE jobs SET content_type = 5",
        "UPDATE jobs SET tries = -1",
        "UPDATE jobs SET payload_kind = 2",
        "UPDATE jobs SET headers = 'x'",
        "UPDATE jobs SET token = x'00'",
        "UPDATE jobs SET priority = 99999999999",
        "UPDATE names SET name = 'x' || id",
    ];
    for sql in hostile {
        let mut w = World::default();
        w.ok(&enqueue("q", [job(1)]));
        w.db.connection().execute_batch(sql).unwrap();
        w.db.forget();
        w.db.begin().unwrap();
        let error = w.apply(&Op::Claim(claim("q", 1, 1))).expect_err(sql);
        assert!(matches!(error.code(), Code::Corrupt | Code::Internal), "{sql}: {error:?}");
        assert!(w.db.poisoned());
        w.db.rollback().unwrap();
        let at = w.at();
        let _ = w.db.query(&Query::Stats, &at);
        let _ = w.db.query(&Query::Get(bucketq_tests::queue_db::id(1)), &at);
    }
}
