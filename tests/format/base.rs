//! A base is a plain SQLite file: with zstd and SQLite anyone can read the jobs.

use bucketq::Result;
use bucketq::internals::base;
use rusqlite::{Connection, OpenFlags};

use crate::fixture::{self, MAX_PAGES};

const COMMITS: u64 = 150;

#[tokio::test]
async fn a_base_decompresses_to_a_sqlite_file_with_the_jobs_of_its_commit() -> Result<()> {
    let store = fixture::used(COMMITS).await?;
    let head = fixture::head(&*store).await;
    let (r, key, bytes) = fixture::base(&*store, &head).await;
    assert!(r.seq > 50, "{key}");

    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("base.sqlite");
    let image = zstd::decode_all(&bytes[..]).expect("zstd alone reads it");
    std::fs::write(&path, &image).expect("room for it");
    let db = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_ONLY).expect("SQLite opens it");
    let one = |sql: &str| db.query_row(sql, [], |row| row.get::<_, i64>(0)).expect(sql);
    let check: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("it is checked");
    assert_eq!(check, "ok");
    assert_eq!(one("PRAGMA application_id"), 0x626b_7471);
    assert_eq!(one("PRAGMA user_version"), i64::from(bucketq::internals::db::SCHEMA_VERSION));
    assert_eq!(one("PRAGMA page_size"), 4096);
    // Commit 1 created the file, and each later one enqueued one job.
    assert_eq!(one("SELECT count(*) FROM jobs WHERE state = 3"), r.seq as i64 - 1);
    assert_eq!(one("SELECT max(seq) >> 24 FROM jobs"), r.seq as i64);
    let stored: Vec<u8> = db
        .query_row("SELECT bytes FROM bodies ORDER BY id LIMIT 1", [], |row| row.get(0))
        .expect("the first body");
    assert_eq!(stored, fixture::noise(0, 5000));

    // And the engine reads it.
    let pages = base::decode(&key, &bytes, &r, MAX_PAGES)?;
    assert_eq!(fixture::bytes_of(&pages.image()), image);
    Ok(())
}

#[tokio::test]
async fn a_base_stored_plain_is_read_too_and_one_of_an_unknown_codec_is_not() -> Result<()> {
    let store = fixture::used(2).await?;
    let pages = fixture::replay(&fixture::log(&*store, &fixture::head(&*store).await).await);
    let image = fixture::bytes_of(&pages.image());
    let r = |codec| bucketq::internals::head::BaseRef {
        seq: 3,
        rand: [0; 8],
        codec,
        len: image.len() as u64,
        hash: bucketq::internals::wire::hash(&image),
    };
    assert_eq!(base::decode("the base", &image, &r(0), MAX_PAGES)?.checksum(), pages.checksum());
    for codec in [2, 3, 255] {
        fixture::refused(base::decode("the base", &image, &r(codec), MAX_PAGES), format!("codec {codec}"));
    }
    fixture::refused(base::decode("the base", &image, &r(0), 3), "more pages than allowed");
    Ok(())
}
