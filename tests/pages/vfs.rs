//! The promises of one connection on a page file.

use bucketq::error::Code;
use bucketq::internals::pages::{PAGE, PageFile, Pages};
use rusqlite::Connection;

use crate::whole;

const MAX_PAGES: u32 = 1_000;

fn filled() -> (PageFile, Connection) {
    let file = PageFile::new(Pages::new());
    let connection = file.connect(MAX_PAGES).expect("a new file opens");
    connection
        .execute_batch("CREATE TABLE t(k INTEGER PRIMARY KEY, v); INSERT INTO t VALUES(1, 'one'), (2, 'two')")
        .expect("plain SQL");
    file.with(Pages::take_changes);
    (file, connection)
}

fn values(connection: &Connection) -> String {
    connection
        .query_row("SELECT group_concat(v, ' ') FROM t", [], |row| row.get(0))
        .expect("the table is there")
}

fn pragma(connection: &Connection, name: &str) -> String {
    connection
        .query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, rusqlite::types::Value>(0))
        .map(|value| format!("{value:?}"))
        .expect("a pragma with an answer")
}

#[test]
fn plain_sqlite_opens_an_image() {
    let (file, _connection) = filled();
    let bytes = whole(&file.with(|pages| pages.image()));
    assert_eq!(&bytes[..16], b"SQLite format 3\0");
    assert_eq!(bytes[18..20], [1, 1], "a rollback journal, no WAL");
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("plain.sqlite");
    std::fs::write(&path, &bytes).expect("room on the disk");
    let plain = Connection::open(&path).expect("a plain file");
    assert_eq!(values(&plain), "one two");
    assert_eq!(pragma(&plain, "integrity_check"), "Text(\"ok\")");
    assert_eq!(pragma(&plain, "auto_vacuum"), "Integer(2)");
}

#[test]
fn an_image_of_plain_sqlite_opens_and_opening_changes_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("plain.sqlite");
    Connection::open(&path)
        .and_then(|c| c.execute_batch("CREATE TABLE t(k, v); INSERT INTO t VALUES(1, 'plain')"))
        .expect("a plain file");
    let bytes = std::fs::read(&path).expect("it was written");
    let file = PageFile::new(Pages::from_image(&bytes).expect("whole pages"));
    let connection = file.connect(MAX_PAGES).expect("SQLite made it");
    assert_eq!(values(&connection), "plain");
    assert!(file.with(Pages::take_changes).is_empty());
}

#[test]
fn reading_and_rolling_back_change_nothing() {
    let (file, connection) = filled();
    values(&connection);
    connection.execute_batch("BEGIN; DELETE FROM t; ROLLBACK").expect("plain SQL");
    assert!(file.with(Pages::take_changes).is_empty());
    assert_eq!(values(&connection), "one two");
}

#[test]
fn a_file_has_one_connection_at_a_time() {
    let (file, connection) = filled();
    assert_eq!(file.connect(MAX_PAGES).expect_err("one is open").code(), Code::Internal);
    assert_eq!(values(&connection), "one two", "the first goes on");
    drop(connection);
    assert_eq!(values(&file.connect(MAX_PAGES).expect("the first is closed")), "one two");
}

#[test]
fn a_connection_keeps_its_pages_alive() {
    let (file, connection) = filled();
    drop(file);
    assert_eq!(values(&connection), "one two");
}

#[test]
fn nothing_but_registered_files_opens() {
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE | rusqlite::OpenFlags::SQLITE_OPEN_CREATE;
    let (_file, connection) = filled();
    for path in ["elsewhere", "/tmp/elsewhere", "pages-0"] {
        Connection::open_with_flags_and_vfs(path, flags, c"bucketq")
            .and_then(|c| c.execute_batch("PRAGMA temp_store=FILE; CREATE TABLE t(k)"))
            .expect_err("not a page file");
    }
    connection.execute_batch("ATTACH 'elsewhere' AS other").expect_err("no second file");
    connection.execute_batch("VACUUM INTO 'elsewhere'").expect_err("no second file");
}

#[test]
fn there_is_no_wal_and_no_clock() {
    let (_file, connection) = filled();
    assert_eq!(pragma(&connection, "journal_mode=WAL"), "Text(\"memory\")");
    let now = connection.query_row("SELECT datetime('now')", [], |row| row.get::<_, Option<String>>(0));
    assert!(now.map_or(true, |now| now.is_none()), "SQL must not see the clock");
}

#[test]
fn a_full_file_refuses_and_stays_sound() {
    let file = PageFile::new(Pages::new());
    let connection = file.connect(20).expect("a new file opens");
    connection.execute_batch("CREATE TABLE t(k INTEGER PRIMARY KEY, v)").expect("room enough");
    let refused = connection.execute("INSERT INTO t VALUES(1, zeroblob(200000))", []).expect_err("no room");
    assert_eq!(refused.sqlite_error_code(), Some(rusqlite::ErrorCode::DiskFull));
    connection.execute("INSERT INTO t VALUES(2, 'small')", []).expect("room enough");
    assert_eq!(values(&connection), "small");
    assert_eq!(pragma(&connection, "integrity_check"), "Text(\"ok\")");
    assert!(file.with(|pages| pages.page_count()) <= 20);
}

#[test]
fn the_size_limit_is_not_only_a_pragma() {
    let file = PageFile::new(Pages::new());
    let connection = file.connect(20).expect("a new file opens");
    connection.execute_batch("CREATE TABLE t(k INTEGER PRIMARY KEY, v)").expect("room enough");
    file.with(Pages::take_changes);
    pragma(&connection, "max_page_count=1000");
    let refused = connection.execute("INSERT INTO t VALUES(1, zeroblob(200000))", []).expect_err("no room");
    assert_eq!(refused.sqlite_error_code(), Some(rusqlite::ErrorCode::DiskFull));
    assert!(file.with(Pages::take_changes).is_empty(), "SQLite took back what it had written");
    assert_eq!(pragma(&connection, "integrity_check"), "Text(\"ok\")");
}

#[test]
fn what_is_no_database_is_corrupt() {
    let noise = PageFile::new(Pages::from_image(&[0x5A; 2 * PAGE]).expect("whole pages"));
    assert_eq!(noise.connect(MAX_PAGES).expect_err("noise").code(), Code::Corrupt);

    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("small-pages.sqlite");
    Connection::open(&path)
        .and_then(|c| {
            c.execute_batch("PRAGMA page_size=1024; CREATE TABLE a(k); CREATE TABLE b(k); CREATE TABLE c(k)")
        })
        .expect("a plain file");
    let bytes = std::fs::read(&path).expect("it was written");
    let small = PageFile::new(Pages::from_image(&bytes).expect("four small pages make one"));
    assert_eq!(small.connect(MAX_PAGES).expect_err("small pages").code(), Code::Corrupt);
}

#[test]
fn the_cache_is_not_reset_inside_a_transaction() {
    let (file, connection) = filled();
    connection.execute_batch("BEGIN").expect("plain SQL");
    assert_eq!(file.reset_cache(&connection).expect_err("begun").code(), Code::Internal);
    values(&connection);
    assert_eq!(file.reset_cache(&connection).expect_err("read in").code(), Code::Internal);
    connection.execute_batch("COMMIT").expect("plain SQL");
    {
        let mut statement = connection.prepare("SELECT k FROM t").expect("plain SQL");
        let mut rows = statement.query([]).expect("plain SQL");
        assert!(rows.next().expect("a row").is_some());
        assert_eq!(file.reset_cache(&connection).expect_err("a statement is open").code(), Code::Internal);
    }
    file.reset_cache(&connection).expect("nothing is open");
}

#[test]
fn another_schema_under_the_same_cookie_is_seen() {
    let (file, mine) = filled();
    let bytes = whole(&file.with(|pages| pages.image()));
    let other = PageFile::new(Pages::from_image(&bytes).expect("whole pages"));
    let theirs = other.connect(MAX_PAGES).expect("the same file");

    mine.execute_batch("CREATE TABLE mine(a); INSERT INTO mine VALUES(1)").expect("plain SQL");
    theirs.execute_batch("CREATE TABLE theirs(a, b); INSERT INTO theirs VALUES(2, 3)").expect("plain SQL");
    assert_eq!(pragma(&mine, "schema_version"), pragma(&theirs, "schema_version"));

    let lost = file.with(Pages::take_changes);
    let won = other.with(Pages::take_changes).delta();
    file.with(|pages| pages.undo(lost).and_then(|()| pages.apply(&won))).expect("a lost race");
    file.reset_cache(&mine).expect("nothing is open");

    mine.prepare("SELECT a FROM mine").expect_err("it never happened");
    let sum: i64 = mine.query_row("SELECT a + b FROM theirs", [], |row| row.get(0)).expect("it did");
    assert_eq!(sum, 5);
}

#[test]
fn a_panic_while_looking_at_the_pages_harms_nobody() {
    let (file, connection) = filled();
    let clone = file.clone();
    std::thread::spawn(move || clone.with(|_| panic!("the caller's own fault")))
        .join()
        .expect_err("it panics");
    assert_eq!(values(&connection), "one two");
}
