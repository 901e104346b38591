//! Deletes unused shared texts in passes, some rows in each commit that changes something anyway.
//!
//! A pass begins when a thousand texts were stored since the last one. It walks jobs, results, attempts and earlier
//! runs and marks every text they refer to; then it deletes the texts without its mark. Code that stores a reference
//! gets the text from [`Tx::intern`], which marks it too. A reference that moves goes to a table or place that the walk
//! has yet to reach, or comes from one that it has passed. All of this is in the pages, so writers take turns at a
//! pass.

use rusqlite::{Connection, OptionalExtension, params};

use super::Tx;
use super::columns::{row, sql};
use super::fault::Try;
use super::names::{NOBODY, Names};

/// New texts since the last pass that make another one worthwhile.
const WORTH: i64 = 1_000;
/// Rows that one commit visits.
const ROWS: i64 = 256;
/// Stage of a finished pass.
const REST: i64 = 0;
/// Stage in which texts are deleted.
const NAMES: i64 = 5;

row! {
    /// The progress of a pass.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct Pass {
        number: i64 = "pass",
        stage: i64,
        major: i64,
        minor: i64,
        known: i64,
        ;
        /// A stored text makes the next pass due.
        due: bool,
    }
}
row! { struct PlaceInTable as BY_SEQ, BY_PLACE { major: i64 = "seq" => "queue", minor: i64 = "0" => "place" } }

impl Pass {
    fn current(conn: &Connection) -> rusqlite::Result<Self> {
        let sql = sql!("SELECT ", Pass::COLUMNS, " FROM passes");
        conn.prepare_cached(sql)?.query_row([], Self::read)
    }

    fn write(&self, conn: &Connection) -> rusqlite::Result<()> {
        conn.prepare_cached("UPDATE passes SET pass = ?1, stage = ?2, major = ?3, minor = ?4, known = ?5")?
            .execute([self.number, self.stage, self.major, self.minor, self.known])?;
        Ok(())
    }

    /// Marks the texts that the next rows of the table refer to. Returns true at the table's end.
    fn walk(&mut self, conn: &Connection) -> rusqlite::Result<bool> {
        let (nth, marked) = match self.stage {
            1 => (NTH[0], MARKED[0]),
            2 => (NTH[1], MARKED[1]),
            3 => (NTH[2], MARKED[2]),
            _ => (NTH[3], MARKED[3]),
        };
        let mut stmt = conn.prepare_cached(nth)?;
        let upto = stmt.query_row(params![self.major, self.minor, ROWS], PlaceInTable::read).optional()?;
        let (major, minor) = upto.as_ref().map_or((i64::MAX, i64::MAX), |place| (place.major, place.minor));
        conn.prepare_cached(marked)?.execute(params![self.major, self.minor, major, minor, self.number])?;
        (self.major, self.minor) = (major, minor);
        Ok(upto.is_none())
    }

    /// Deletes unmarked texts among the next ones. Returns true at the end.
    fn delete(&mut self, conn: &Connection) -> rusqlite::Result<bool> {
        let upto: Option<i64> = conn
            .prepare_cached("SELECT id FROM names WHERE id > ?1 ORDER BY id LIMIT 1 OFFSET ?2")?
            .query_row([self.major, ROWS], |row| row.get(0))
            .optional()?;
        let last = upto.unwrap_or(i64::MAX);
        conn.prepare_cached("DELETE FROM names WHERE id > ?1 AND id <= ?2 AND pass < ?3")?.execute([
            self.major,
            last,
            self.number,
        ])?;
        self.major = last;
        Ok(upto.is_none())
    }
}

macro_rules! nth_by_seq {
    ($table:literal) => {
        sql!(
            "SELECT ",
            PlaceInTable::BY_SEQ,
            " FROM ",
            $table,
            " WHERE seq > ?1 AND ?2 = ?2 ORDER BY seq LIMIT 1 OFFSET ?3"
        )
    };
}
/// The row that is a number of rows after a place, in the order of each table.
pub(super) const NTH: [&str; 4] = [
    nth_by_seq!("jobs"),
    nth_by_seq!("results"),
    nth_by_seq!("attempts"),
    sql!(
        "SELECT ",
        PlaceInTable::BY_PLACE,
        " FROM past WHERE (queue, place) > (?1, ?2) ORDER BY queue, place LIMIT 1 OFFSET ?3"
    ),
];

/// Marks the texts that the rows between two places refer to.
macro_rules! mark {
    ($table:literal, $($column:literal),+) => {
        concat!(
            "UPDATE names SET pass = ?5 WHERE pass < ?5 AND id IN (SELECT NULL",
            $(" UNION SELECT ", $column, " FROM ", $table, " WHERE seq > ?1 AND seq <= ?3 AND ?2 + ?4 IS NOT NULL",)+
            ")"
        )
    };
}
pub(super) const MARKED: [&str; 4] = [
    mark!("jobs", "worker", "backoff", "content_type"),
    mark!("results", "content_type"),
    mark!("attempts", "worker"),
    "UPDATE names SET pass = ?5 WHERE pass < ?5 AND id IN (
       SELECT worker FROM past WHERE (queue, place) > (?1, ?2) AND (queue, place) <= (?3, ?4)
       UNION SELECT result_type FROM past WHERE (queue, place) > (?1, ?2) AND (queue, place) <= (?3, ?4))",
];

/// Takes one step of the running or due pass, if any. Called in a transaction that has changed something.
pub(super) fn step(conn: &Connection, pass: &mut Option<Pass>, names: &mut Names) -> rusqlite::Result<()> {
    let mut now = match *pass {
        Some(known) => known,
        None => Pass::current(conn)?,
    };
    if now.stage == REST && now.due {
        now = Pass { number: now.number + 1, stage: 1, major: -1, minor: -1, due: false, ..now };
        // Cached texts do not have the new mark yet.
        names.clear();
        now.write(conn)?;
    } else if now.stage == NAMES {
        if now.delete(conn)? {
            let highest = "SELECT max(id) FROM names";
            let known = conn.prepare_cached(highest)?.query_row([], |row| row.get::<_, Option<i64>>(0))?;
            now = Pass { stage: REST, major: 0, due: false, known: known.unwrap_or(NOBODY), ..now };
        }
        names.clear();
        now.write(conn)?;
    } else if now.stage != REST {
        if now.walk(conn)? {
            let major = if now.stage + 1 == NAMES { NOBODY } else { -1 };
            now = Pass { stage: now.stage + 1, major, minor: -1, ..now };
        }
        now.write(conn)?;
    }
    *pass = Some(now);
    Ok(())
}

impl Tx<'_> {
    /// Returns the mark that a text needs to outlive the running pass.
    pub fn mark_of_pass(&mut self) -> Try<i64> {
        Ok(self.pass()?.number)
    }

    /// Notes that a text was stored under this id.
    pub fn stored(&mut self, id: i64) -> Try<()> {
        let pass = self.pass()?;
        pass.due |= id - pass.known >= WORTH;
        Ok(())
    }

    fn pass(&mut self) -> Try<&mut Pass> {
        if self.cache.pass.is_none() {
            self.cache.pass = Some(Pass::current(self.conn)?);
        }
        self.cache.pass.as_mut().ok_or_else(|| super::Fault::corrupt("there is no pass"))
    }
}
