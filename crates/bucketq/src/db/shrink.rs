//! Giving back the pages that a drained file no longer needs, a few in each commit that changes something anyway.
//!
//! Called at the end of a transaction. What is given back is a function of the state, of the rows changed and of how many
//! pages may move for them. docs/decisions/0010-vacuum.md has the reasons for the numbers.

use rusqlite::Connection;

/// Free pages worth keeping: the next jobs take them.
const KEEP: u64 = 32;
/// Pages a commit may move at the most, as far as can be told beforehand: some, and more for many rows.
const MOVES: u64 = 8;
/// Rows that pay for one more.
const ROWS: u64 = 4;
/// Pages that a commit which is to be small may move.
const FEW: u64 = 2;

/// How many pages a commit may move.
#[derive(Clone, Copy, Debug)]
pub(super) enum Moves {
    /// The more, the more rows it changes.
    ByRows,
    Few,
}

/// Free pages are given back while they are more than a quarter of those in use. A page in use at the end of the file has
/// to be moved for that, which costs a page of delta.
pub(super) fn shrink(conn: &Connection, rows: u64, moves: Moves) -> rusqlite::Result<()> {
    if rows == 0 {
        // Nothing was changed: it would cost a put of its own.
        return Ok(());
    }
    let pragma = |sql| conn.prepare_cached(sql)?.query_row([], |row| row.get(0)).map(|n: u32| u64::from(n));
    let free = pragma("PRAGMA freelist_count")?;
    if free <= KEEP {
        return Ok(());
    }
    let size = pragma("PRAGMA page_count")?;
    let live = size.saturating_sub(free).max(1);
    // Most pages at the end of a file that is nearly empty are free: nothing moves when they go.
    let moves = match moves {
        Moves::ByRows => MOVES + rows / ROWS,
        Moves::Few => FEW,
    };
    let most = moves.saturating_mul(size / live);
    let steps = free.saturating_sub((live / 4).max(KEEP)).min(most);
    if steps > 0 {
        // The statement gives back a page a step, and stops when nobody steps it.
        let mut statement = conn.prepare(&format!("PRAGMA incremental_vacuum({steps})"))?;
        let mut pages = statement.query([])?;
        while pages.next()?.is_some() {}
    }
    Ok(())
}
