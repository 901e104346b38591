//! Random SQL on two writers' files that race each other, as the engine does it, against SQLite's own memory database.

use std::fmt::Write as _;

use bucketq::internals::pages::{Delta, PageChanges, PageFile, Pages};
use rusqlite::{Connection, params};

use crate::{Rng, contents, whole};

const MAX_PAGES: u32 = 4_000;
const TABLES: u64 = 4;

struct Writer {
    file: PageFile,
    connection: Connection,
}

impl Writer {
    fn new() -> Self {
        let file = PageFile::new(Pages::new());
        let connection = file.connect(MAX_PAGES).expect("a new file opens");
        Self { file, connection }
    }

    fn take(&self) -> PageChanges {
        self.file.with(Pages::take_changes)
    }

    fn bytes(&self) -> Vec<u8> {
        whole(&self.file.with(|pages| pages.image()))
    }

    fn receive(&self, delta: &Delta, reset: bool) -> Result<(), String> {
        let decoded = Delta::decode(&delta.encode(), MAX_PAGES).map_err(|e| e.to_string())?;
        self.file.with(|pages| pages.apply(&decoded)).map_err(|e| e.to_string())?;
        self.forget(reset)
    }

    fn undo(&self, changes: PageChanges, reset: bool) -> Result<(), String> {
        self.file.with(|pages| pages.undo(changes)).map_err(|e| e.to_string())?;
        self.forget(reset)
    }

    fn forget(&self, reset: bool) -> Result<(), String> {
        if reset { self.file.reset_cache(&self.connection).map_err(|e| e.to_string()) } else { Ok(()) }
    }
}

/// One transaction: begun, some random statements, committed or rolled back. `true` if it was committed.
fn transaction(on: &Connection, seed: u64) -> rusqlite::Result<bool> {
    let mut rng = Rng(seed);
    on.execute_batch("BEGIN IMMEDIATE")?;
    for _ in 0..=rng.below(6) {
        statement(on, &mut rng)?;
    }
    let commit = rng.below(6) > 0;
    on.execute_batch(if commit { "COMMIT" } else { "ROLLBACK" })?;
    Ok(commit)
}

fn statement(on: &Connection, rng: &mut Rng) -> rusqlite::Result<()> {
    let table = format!("t{}", rng.below(TABLES));
    on.execute_batch(&format!(
        "CREATE TABLE IF NOT EXISTS {table}(k INTEGER PRIMARY KEY, v BLOB, n INTEGER)"
    ))?;
    let (low, high) = (rng.small(200), rng.small(200));
    match rng.below(16) {
        0..=5 => {
            let sql = format!("INSERT OR REPLACE INTO {table} VALUES(?1, ?2, ?3)");
            for _ in 0..rng.below(20) {
                let len = rng.below(300) as usize;
                on.prepare_cached(&sql)?.execute(params![rng.small(200), rng.bytes(len), rng.small(9)])?;
            }
        }
        6 => {
            let blob = vec![rng.next() as u8; rng.below(60_000) as usize];
            on.execute(&format!("INSERT OR REPLACE INTO {table} VALUES(?1, ?2, 0)"), params![low, blob])?;
        }
        7..=9 => {
            on.execute(&format!("UPDATE {table} SET n = n + 1 WHERE k BETWEEN ?1 AND ?2"), [low, high])?;
        }
        10..=11 => {
            on.execute(&format!("DELETE FROM {table} WHERE k BETWEEN ?1 AND ?2"), [low, high])?;
        }
        12 => on.execute_batch(&format!("DROP TABLE {table}"))?,
        13 => on.execute_batch(&format!("CREATE INDEX IF NOT EXISTS {table}_n ON {table}(n, k)"))?,
        14 => {
            on.execute_batch("SAVEPOINT s")?;
            on.execute(&format!("UPDATE {table} SET v = zeroblob(5000) WHERE k < ?1"), [low])?;
            on.execute_batch("ROLLBACK TO s; RELEASE s")?;
        }
        _ => {
            // Each step frees one page.
            let mut vacuum = on.prepare("PRAGMA incremental_vacuum(50)")?;
            let mut rows = vacuum.query([])?;
            while rows.next()?.is_some() {}
        }
    }
    Ok(())
}

/// All rows of the tables, and SQLite's integrity check of the file.
fn dump(on: &Connection) -> rusqlite::Result<String> {
    let mut out = String::new();
    let mut names = on.prepare("SELECT name, sql FROM sqlite_schema ORDER BY name")?;
    let names: Vec<(String, String)> =
        names.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<rusqlite::Result<_>>()?;
    for (name, sql) in names {
        let _ = writeln!(out, "{sql}");
        if sql.starts_with("CREATE TABLE") {
            let mut rows = on.prepare_cached(&format!("SELECT k, hex(v), n FROM {name} ORDER BY k"))?;
            let mut rows = rows.query([])?;
            while let Some(row) = rows.next()? {
                let _ = writeln!(
                    out,
                    "{:?}",
                    (row.get::<_, i64>(0)?, row.get::<_, String>(1)?, row.get::<_, i64>(2)?)
                );
            }
        }
    }
    let check: String = on.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    out.push_str(&check);
    Ok(out)
}

/// Two writers from one empty file; each round one of them wins the race and the other applies its delta, undoing its
/// own commit first if it had one. The error names the first difference.
fn race(seed: u64, rounds: u64, reset: bool) -> Result<(), String> {
    let told = |e: rusqlite::Error| e.to_string();
    let mut rng = Rng(seed);
    let writers = [Writer::new(), Writer::new()];
    let oracle = Connection::open_in_memory().map_err(told)?;
    let first = writers[0].take();
    writers[1].take();
    writers[1].bytes().eq(&writers[0].bytes()).then_some(()).ok_or("two new files differ")?;
    let mut wins = vec![first];

    for round in 0..rounds {
        let winner = rng.below(2) as usize;
        let loser = 1 - winner;
        let before = writers[loser].bytes();

        if rng.below(2) == 0 {
            transaction(&writers[loser].connection, rng.next()).map_err(told)?;
            let lost = writers[loser].take();
            writers[loser].undo(lost, reset)?;
            if contents_of(&writers[loser]) != before {
                return Err(format!("round {round}: undo left something behind"));
            }
            if rng.below(3) == 0 {
                // Run a query in between: pages cached now must not survive the delta.
                dump(&writers[loser].connection).map_err(told)?;
            }
        }

        let tx = rng.next();
        transaction(&writers[winner].connection, tx).map_err(told)?;
        transaction(&oracle, tx).map_err(told)?;
        let won = writers[winner].take();
        writers[loser].receive(&won.delta(), reset)?;
        wins.push(won);

        if writers[0].bytes() != writers[1].bytes() {
            return Err(format!("round {round}: the files differ"));
        }
        let sums = writers.each_ref().map(|w| w.file.with(|pages| pages.checksum()));
        let fresh = Pages::from_image(&writers[0].bytes()).map_err(|e| e.to_string())?.checksum();
        if sums != [fresh, fresh] {
            return Err(format!("round {round}: a checksum is wrong"));
        }
        if rng.below(4) == 0 || round + 1 == rounds {
            let want = dump(&oracle).map_err(told)?;
            for writer in &writers {
                if dump(&writer.connection).map_err(told)? != want {
                    return Err(format!("round {round}: the rows differ, or the file is not sound"));
                }
            }
        }
    }

    // Every commit can be undone again, down to the file's first.
    let last = &writers[rng.below(2) as usize];
    let mut wins_of_last = wins;
    while let Some(win) = wins_of_last.pop() {
        last.undo(win, reset)?;
    }
    if last.file.with(|pages| pages.page_count()) == 0 {
        Ok(())
    } else {
        Err("undoing all left pages".to_owned())
    }
}

fn contents_of(writer: &Writer) -> Vec<u8> {
    writer.file.with(|pages| contents(pages))
}

#[test]
fn racing_writers_agree_with_sqlite_itself() {
    for seed in 0..40 {
        race(seed, 60, true).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
}

#[test]
fn leaving_out_the_reset_of_the_cache_is_noticed() {
    let caught = (0..12).filter(|&seed| race(seed, 60, false).is_err()).count();
    assert!(caught >= 10, "only {caught} of 12 seeds noticed");
}
