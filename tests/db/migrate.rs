//! Older schemas: read as they are, upgraded by the first op.

use bucketq::error::Code;
use bucketq::internals::db::{self, Db, SCHEMA_VERSION};
use bucketq::job::{DedupScope, New, State};
use bucketq::op::{Op, Outcome};
use bucketq::query::{Answer, Query};
use bucketq_tests::queue_db::{START_MS, World, check, claim, enqueue, held, job, keyed, number};
use rusqlite::Connection;

const FIRST: &str = include_str!("../../crates/bucketq/src/state/db/schema/1.sql");
/// A job in the file, leased until a minute after the beginning, that has failed once.
const JOB: &str = "
    INSERT INTO names VALUES (65536, ''), (65537, '{\"kind\":\"none\"}'), (65538, 'text/plain'), (65539, 'worker');
    INSERT INTO queues (id, name, leased) VALUES (1, 'q', 1);
    INSERT INTO errors VALUES (33554432, 'no route');";

/// A queue file as version 1 wrote it.
fn first() -> World {
    let conn = Connection::open_in_memory().unwrap();
    conn.execute_batch(&format!(
        "PRAGMA page_size = 4096; BEGIN; PRAGMA application_id = {}; PRAGMA user_version = 1; {FIRST} {JOB}
         INSERT INTO meta VALUES ('created_ms', {START_MS}); COMMIT;",
        db::APPLICATION_ID
    ))
    .unwrap();
    conn.execute(
        "INSERT INTO jobs VALUES (33554432, 1, 4, 0, 4, ?1, ?1, ?1 + 60000, 2, 65539, ?2, 0, 0, 10, ?1, 65537, \
         65538, ?3, 'g', NULL, NULL, 0, 9, NULL, CAST('payload 1' AS BLOB))",
        rusqlite::params![START_MS, [1_u8; 16], bucketq_tests::queue_db::id(1).as_bytes()],
    )
    .unwrap();
    World { db: Db::open(conn).unwrap(), commit_seq: 10, ..World::default() }
}

fn version(w: &World) -> i32 {
    w.db.connection().pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
}

#[test]
fn an_older_file_is_read_as_it_is() {
    let mut w = first();
    check(w.db.connection());
    for _ in 0..2 {
        let job = w.job(1);
        assert_eq!((job.state, job.attempt, job.last_error.as_deref()), (State::Leased, 2, Some("no route")));
        assert_eq!(w.queue("q").counts[&State::Leased], 1);
        assert!(matches!(w.query(&Query::Stats), Answer::Stats(_)));
        assert_eq!(version(&w), 1, "and is not changed by that");
    }
}

#[test]
fn the_first_op_brings_an_older_file_up_and_work_goes_on() {
    let mut w = first();
    w.job(1);
    w.ok(&enqueue("q", [job(2)]));
    assert_eq!(version(&w), SCHEMA_VERSION);
    assert_eq!(db::schema(w.db.connection()).unwrap(), db::schema(World::default().db.connection()).unwrap());
    assert_eq!(w.claim_numbers(claim("q", 9, 2)), [2]);
    assert_eq!(w.job(1).last_error.as_deref(), Some("no route"));
    assert_eq!(w.ok(&Op::Ack { held: held(1, 1), result: None }), Outcome::Acked);
    assert_eq!(w.state(1), State::Done);
}

#[test]
fn a_commit_that_is_undone_leaves_an_older_file_as_it_was() {
    let mut w = first();
    w.db.begin().unwrap();
    w.apply(&enqueue("q", [job(2)])).unwrap();
    w.db.rollback().unwrap();
    assert_eq!(version(&w), 1);
    assert_eq!(w.job(1).attempt, 2);
    w.ok(&enqueue("q", [job(2)]));
    assert_eq!(version(&w), SCHEMA_VERSION);
}

#[test]
fn an_older_file_without_room_for_the_newer_schema_is_full() {
    let mut w = first();
    let pages: u32 = w.db.connection().pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
    w.limits.max_pages = pages;
    w.db.begin().unwrap();
    assert_eq!(w.apply(&Op::Ack { held: held(1, 1), result: None }).unwrap_err().code(), Code::FileFull);
    w.db.rollback().unwrap();
    assert_eq!(w.state(1), State::Leased, "and is still read");
}

#[test]
fn keys_of_an_older_file_keep_out_what_they_kept_out() {
    let mut w = first();
    let old_id = |n| bucketq_tests::queue_db::id(n).as_bytes().to_vec();
    // The keys of a job in the file, requeued since; of one that has left, in a window; of one that left long ago.
    w.db.connection().execute("UPDATE jobs SET dedup = 'there'", []).unwrap();
    for (key, id, seq, until_ms) in [
        ("there", 1, 16_777_217_i64, None),
        ("window", 7, 16_777_218, Some(START_MS + 60_000)),
        ("over", 8, 16_777_219, Some(START_MS - 1)),
    ] {
        let row = rusqlite::params![key, old_id(id), seq, until_ms];
        w.db.connection().execute("INSERT INTO dedup VALUES (1, ?1, ?2, ?3, ?4)", row).unwrap();
    }
    w.db.forget();
    check(w.db.connection());
    let mut first_of = |job: New| match w.ok(&enqueue("q", [job])) {
        Outcome::Enqueued(all) => (all[0].deduplicated, number(all[0].id)),
        other => panic!("{other:?}"),
    };
    assert_eq!(first_of(keyed(2, "there", DedupScope::Unfinished)), (true, 1));
    assert_eq!(first_of(keyed(3, "window", DedupScope::Unfinished)), (true, 7));
    assert_eq!(first_of(keyed(4, "over", DedupScope::Unfinished)), (false, 4));
    check(w.db.connection());
    w.ok(&Op::Ack { held: held(1, 1), result: None });
    w.wait(60_000);
    for (n, key) in [(5, "there"), (6, "window")] {
        let Outcome::Enqueued(all) = w.ok(&enqueue("q", [keyed(n, key, DedupScope::Unfinished)])) else {
            panic!()
        };
        assert_eq!((all[0].deduplicated, number(all[0].id)), (false, n), "{key} is free");
    }
    check(w.db.connection());
}
