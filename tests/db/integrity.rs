//! The check of each database rule can fail: it names a state that breaks it.

use bucketq::internals::db::violations;
use bucketq::job::DedupScope;
use bucketq::op::Op;
use bucketq_tests::queue_db::{World, claim, enqueue, grouped, held, job, keyed};

fn world() -> World {
    let mut w = World::default();
    let mut large = job(3);
    large.payload.bytes = vec![7; 5_000].into();
    w.ok(&enqueue("q", [job(1), large, keyed(4, "k", DedupScope::Unfinished)]));
    w.ok(&enqueue("q", [grouped(5, "g"), grouped(6, "g"), grouped(7, "g")]));
    w.claim(claim("q", 1, 1));
    let result = Some(bucketq::Payload::text("it is done"));
    w.ok(&Op::Ack { held: held(1, 1), result });
    w
}

#[test]
fn a_state_that_breaks_a_rule_is_named() {
    let cases = [
        ("counter of a queue", "UPDATE queues SET done = done - 1"),
        ("counter of a queue", "INSERT INTO queues (name, ready) VALUES ('empty', 1)"),
        ("belongs to a queue", "UPDATE jobs SET queue = 99 WHERE state = 5"),
        ("states are known", "UPDATE jobs SET state = 9 WHERE state = 5"),
        ("without a group", "UPDATE jobs SET blocked = 1 WHERE group_name IS NULL"),
        ("the first unfinished jobs are not blocked", "UPDATE jobs SET blocked = 0"),
        (
            "the first unfinished jobs are not blocked",
            "UPDATE jobs SET blocked = 1 WHERE group_name IS NOT NULL",
        ),
        (
            "the first unfinished jobs are not blocked",
            // Three may be claimed together, so only the blocked one before it shows what is wrong.
            "INSERT INTO policies SELECT id, '{\"group_concurrency\": 3}' FROM queues WHERE name = 'q';
             UPDATE jobs SET blocked = 0 WHERE seq = (SELECT max(seq) FROM jobs WHERE group_name = 'g')",
        ),
        (
            "no blocked job is leased",
            "UPDATE jobs SET state = 4, token = x'00112233445566778899aabbccddeeff'",
        ),
        ("in the column of its kind", "UPDATE jobs SET payload_len = payload_len + 1 WHERE payload_kind = 1"),
        ("in the column of its kind", "UPDATE jobs SET payload = NULL WHERE payload_kind = 0"),
        ("in the column of its kind", "DELETE FROM bodies"),
        ("every large payload belongs to a job", "INSERT INTO bodies VALUES (7, x'00')"),
        ("every result belongs to a job", "UPDATE results SET seq = seq + 1"),
        ("every attempt has a job", "INSERT INTO attempts VALUES (7, 0, 1, 1, 2, 65536, 1, 1, 'x')"),
        (
            "every attempt has a job",
            "INSERT INTO attempts SELECT seq, run, 1, 1, 11, 65536, 1, 1, 'x' FROM jobs LIMIT 1",
        ),
        (
            "are marked for it",
            "INSERT INTO policies SELECT id, '{\"overflow\": \"drop_oldest\"}' FROM queues WHERE name = 'q'",
        ),
        ("every remembered id is complete", "INSERT INTO left_ids VALUES (1, 1, 1, x'00')"),
        ("every policy belongs to a queue", "INSERT INTO policies VALUES (77, '{}')"),
        ("every policy belongs to a queue", "INSERT INTO policies VALUES (1, 'x')"),
        ("every schedule belongs to a queue", "INSERT INTO schedules VALUES (77, 's', 1, 1, 0, '{}', x'')"),
        ("has a lease token", "UPDATE jobs SET tries = 3"),
        ("every dedup key without a window", "UPDATE dedup SET id = zeroblob(16)"),
        ("has a dedup key twice", "INSERT INTO dedup SELECT seq + 1, queue, key, id, 1 FROM dedup"),
        ("every shared text", "UPDATE jobs SET content_type = 1"),
        ("of a later commit", "UPDATE jobs SET fence = 1 << 30 WHERE state = 5"),
        ("of a later commit", "UPDATE dedup SET seq = 1 << 50"),
        (
            "SQLite finds no damage",
            "PRAGMA writable_schema = 1; UPDATE sqlite_schema SET rootpage = 2 WHERE name = 'attempts'; PRAGMA writable_schema = RESET",
        ),
        ("application_id", "PRAGMA application_id = 5"),
    ];
    for (rule, sql) in cases {
        let w = world();
        let newest = Some(w.commit_seq);
        assert_eq!(violations(w.db.connection(), newest), [], "sound before {sql}");
        let allow = rusqlite::config::DbConfig::SQLITE_DBCONFIG_DEFENSIVE;
        w.db.connection().set_db_config(allow, false).unwrap();
        w.db.connection().execute_batch(sql).unwrap();
        let found = violations(w.db.connection(), newest);
        assert!(found.iter().any(|f| f.rule.contains(rule)), "{sql}: {found:?}");
    }
}

#[test]
fn a_rule_broken_a_thousand_times_is_reported_a_few_times() {
    let mut w = World::default();
    w.ok(&enqueue("q", (0..1_000).map(job)));
    w.db.connection().execute_batch("UPDATE jobs SET blocked = 1").unwrap();
    let found = violations(w.db.connection(), None);
    assert!(found.len() < 20, "{}", found.len());
    assert_eq!(found.last().map(|f| &*f.what), Some("and more"));
}
