//! Every frequent statement reads by its index, in order, and touches only the rows it must.

use bucketq::internals::db::PLANNED;
use bucketq::job::{New, Payload};
use bucketq::op::Op;
use bucketq_tests::queue_db::{World, claim, enqueue, grouped, held, job};
use rusqlite::Connection;

fn plan(conn: &Connection, sql: &str) -> String {
    let mut stmt = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).expect(sql);
    let rows = stmt.raw_query().mapped(|row| row.get::<_, String>(3)).collect::<Result<Vec<_>, _>>();
    rows.expect(sql).join("; ")
}

#[test]
fn every_hot_statement_uses_its_index() {
    let expected = [
        ("ready", "jobs_ready (queue=?)"),
        ("mine", "jobs_leased (queue=? AND ends_ms>?)"),
        ("job of a session", "SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)"),
        ("session", "SEARCH sessions USING PRIMARY KEY (id=?)"),
        ("due", "jobs_scheduled (queue=? AND blocked=? AND run_at_ms<?)"),
        ("next expiries", "expiries_at (at_ms>?)"),
        ("expiry of a job", "SEARCH expiries USING INTEGER PRIMARY KEY (rowid=?)"),
        ("last entry", "PRIMARY KEY (seq=? AND run<?)"),
        ("first due", "COVERING INDEX jobs_scheduled (queue=? AND blocked=?)"),
        ("expired", "jobs_leased (queue=? AND ends_ms<?)"),
        ("first expiry", "COVERING INDEX jobs_leased (queue=?)"),
        ("first members of a group", "jobs_group (queue=? AND group_name=?)"),
        ("any group", "jobs_group (queue=?"),
        ("next group", "jobs_group (queue=? AND group_name>?)"),
        ("last error", "PRIMARY KEY (seq=? AND run=?)"),
        ("attempt too old", "PRIMARY KEY (seq=?)"),
        ("oldest to be dropped", "jobs_bounded (queue=?)"),
        ("job at a place", "SEARCH jobs USING INTEGER PRIMARY KEY (rowid>?)"),
        ("mark jobs", "SEARCH jobs USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        ("left ids", "left_bucket (bucket=?)"),
        ("newest left id", "COVERING INDEX left_bucket"),
        ("oldest left ids", "SEARCH left_ids USING INTEGER PRIMARY KEY (rowid>?)"),
        ("leavers", "jobs_done (queue=? AND finish_seq<?)"),
        ("leavers, dead", "jobs_dead (queue=? AND finish_seq<?)"),
        ("leavers, cancelled", "jobs_cancelled (queue=? AND finish_seq<?)"),
        ("due schedules", "schedules_next (queue=? AND next_ms<?)"),
        ("oldest finished", "jobs_done (queue=?)"),
        ("oldest finished, dead", "jobs_dead (queue=?)"),
        ("oldest finished, cancelled", "jobs_cancelled (queue=?)"),
        ("drop results", "SEARCH results USING INTEGER PRIMARY KEY"),
        ("drop results, dead", "SEARCH results USING INTEGER PRIMARY KEY"),
        ("drop results, cancelled", "SEARCH results USING INTEGER PRIMARY KEY"),
        ("drop attempts", "SEARCH attempts USING PRIMARY KEY (seq=?)"),
        ("drop attempts, dead", "SEARCH attempts USING PRIMARY KEY (seq=?)"),
        ("drop attempts, cancelled", "SEARCH attempts USING PRIMARY KEY (seq=?)"),
        ("drop bodies", "SEARCH bodies USING INTEGER PRIMARY KEY"),
        ("drop bodies, dead", "SEARCH bodies USING INTEGER PRIMARY KEY"),
        ("drop bodies, cancelled", "SEARCH bodies USING INTEGER PRIMARY KEY"),
        ("drop jobs", "jobs_done (queue=? AND finish_seq<?)"),
        ("drop jobs, dead", "jobs_dead (queue=? AND finish_seq<?)"),
        ("drop jobs, cancelled", "jobs_cancelled (queue=? AND finish_seq<?)"),
        ("finished lives", "jobs_done (queue=? AND finish_seq>? AND finish_seq<?)"),
        ("finished lives, dead", "jobs_dead (queue=? AND finish_seq>? AND finish_seq<?)"),
        ("finished lives, cancelled", "jobs_cancelled (queue=? AND finish_seq>? AND finish_seq<?)"),
        ("count finished", "jobs_done (queue=? AND finish_seq<?)"),
        ("count finished, dead", "jobs_dead (queue=? AND finish_seq<?)"),
        ("count finished, cancelled", "jobs_cancelled (queue=? AND finish_seq<?)"),
        ("nth finished", "jobs_done (queue=?)"),
        ("nth finished, dead", "jobs_dead (queue=?)"),
        ("nth finished, cancelled", "jobs_cancelled (queue=?)"),
        ("past lives", "past_finished (queue=? AND finish_seq>? AND finish_seq<?)"),
        ("oldest past lives", "PRIMARY KEY (queue=? AND place>?)"),
        ("count past lives", "PRIMARY KEY (queue=? AND place<?)"),
        ("nth past life", "PRIMARY KEY (queue=?)"),
        ("drop past lives", "PRIMARY KEY (queue=? AND place<?)"),
        ("archives too old", "archives_queue (queue=? AND last_ms<?)"),
        ("any archive too old", "archives_queue (queue=? AND last_ms<?)"),
        ("newest archive", "archives_queue (queue=?)"),
        ("forget archives", "archives_dropped (dropped_seq<?)"),
        ("expired keys", "COVERING INDEX dedup_until"),
        ("newer keys", "SEARCH dedup USING INTEGER PRIMARY KEY (rowid>?)"),
        ("drop keys", "SEARCH dedup USING INTEGER PRIMARY KEY (rowid=?)"),
        ("drop keys, dead", "SEARCH dedup USING INTEGER PRIMARY KEY (rowid=?)"),
        ("drop keys, cancelled", "SEARCH dedup USING INTEGER PRIMARY KEY (rowid=?)"),
        ("purge scheduled", "jobs_scheduled (queue=?)"),
        ("purge ready", "jobs_ready (queue=?)"),
        ("purge blocked", "jobs_group (queue=?"),
        ("purge leased", "jobs_leased (queue=?)"),
        ("purge done", "jobs_done (queue=?)"),
        ("purge dead", "jobs_dead (queue=?)"),
        ("purge cancelled", "jobs_cancelled (queue=?)"),
        ("by id", "jobs_id (id=?)"),
        ("state by id", "jobs_id (id=?)"),
        ("count expired", "COVERING INDEX jobs_leased (queue=? AND ends_ms<?)"),
        ("count due", "COVERING INDEX jobs_scheduled (queue=? AND blocked=? AND run_at_ms<?)"),
        ("longest waiting of the returned", "jobs_returned (queue=?)"),
        ("next priority", "COVERING INDEX jobs_ready (queue=? AND priority>?)"),
        ("longest waiting of the fresh", "jobs_ready (queue=? AND priority=?)"),
    ];
    let w = World::default();
    assert_eq!(
        expected.map(|(name, _)| name).to_vec(),
        PLANNED.iter().map(|(name, _)| *name).collect::<Vec<_>>()
    );
    for ((name, index), (_, sql)) in expected.into_iter().zip(PLANNED) {
        let plan = plan(w.db.connection(), sql);
        assert!(plan.contains(index), "{name}: {plan}");
        assert!(!plan.contains("TEMP B-TREE"), "{name} sorts: {plan}");
        assert!(!plan.contains("SCAN"), "{name} scans: {plan}");
    }
}

#[test]
fn a_statement_is_prepared_once_whatever_is_bound() {
    let w = World::default();
    for (name, sql) in PLANNED {
        let mut stmt = w.db.connection().prepare(sql).expect(sql);
        for value in 0..4 {
            for i in 1..=stmt.parameter_count() {
                stmt.raw_bind_parameter(i, value).expect("binds");
            }
            let mut rows = stmt.raw_query();
            while rows.next().expect("runs").is_some() {}
        }
        let again = stmt.get_status(rusqlite::StatementStatus::RePrepare);
        assert_eq!(again, 0, "{name} is prepared again when a value changes");
    }
}

/// The number of pages that an op changes in a file.
fn changed(w: &mut World, path: &std::path::Path, op: &Op) -> usize {
    let before = std::fs::read(path).expect("reads");
    w.run(op).expect("works");
    let after = std::fs::read(path).expect("reads");
    let mut old = before.chunks(4096);
    after.chunks(4096).filter(|page| old.next() != Some(page)).count()
}

fn on_disk() -> (tempfile::TempDir, std::path::PathBuf, World) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("q.sqlite");
    let conn = Connection::open(&path).expect("opens");
    conn.execute_batch("PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF").expect("set");
    let w = World::on(conn);
    (dir, path, w)
}

#[test]
fn a_body_is_written_once() {
    let (_dir, path, mut w) = on_disk();
    w.ok(&enqueue("q", [New { payload: Payload::bytes(vec![9; 256 * 1024]), ..job(1) }]));
    // The page of the file's change counter, queues, jobs and the indexes of the states; names at the first claim,
    // attempts when an attempt has ended.
    let ops = [
        (Op::Claim(claim("q", 1, 1)), 7),
        (Op::Extend { held: held(1, 1), lease_ms: 90_000, at_least: false }, 3),
        (Op::Nack { held: held(1, 1), delay_ms: Some(0), error: None }, 6),
        (Op::Claim(claim("q", 1, 1)), 6),
        (Op::Ack { held: held(1, 1), result: None }, 5),
        (Op::Requeue { id: held(1, 1).id, run: None }, 7),
    ];
    for (op, most) in ops {
        let pages = changed(&mut w, &path, &op);
        assert!(pages <= most, "{} changes {pages} pages", op.name());
    }
}

#[test]
fn a_job_never_grows_while_it_is_worked_on() {
    let mut w = World::default();
    w.ok(&enqueue("q", (0..2000).map(|n| New { max_attempts: Some(100), ..grouped(n, &format!("g{n}")) })));
    let leaves = |w: &World| {
        // The jobs table alone: its pages split when a row grows, as appending has filled them.
        let conn = w.db.connection();
        conn.execute_batch("DELETE FROM attempts").expect("deletes");
        conn.query_row(
            "SELECT page_count - freelist_count FROM pragma_page_count, pragma_freelist_count",
            [],
            |r| r.get::<_, i64>(0),
        )
        .expect("counts")
    };
    let round = |w: &mut World| {
        assert_eq!(w.claim(claim("q", 2000, 1)).len(), 2000);
        w.db.begin().unwrap();
        for n in 0..2000 {
            w.apply(&Op::Nack { held: held(n, 1), delay_ms: Some(0), error: None }).unwrap();
        }
        w.db.commit().unwrap();
        w.commit_seq += 1;
        w.wait(1);
    };
    let before = leaves(&w);
    round(&mut w);
    let after_one = leaves(&w);
    for _ in 0..4 {
        round(&mut w);
    }
    let after_five = leaves(&w);
    // Only indexes change: the index of returned jobs is created, and moved entries leave gaps.
    assert!(after_one - before < 60, "{before} pages, then {after_one}");
    assert!(after_five - after_one < 60, "{after_one} pages, then {after_five}");
}
