//! Frees the pages that a drained file no longer needs, a few in each commit that changes something anyway.
//!
//! Called at the end of a transaction. The freed pages depend only on the state, on the number of changed rows and on
//! how many pages may move for them. docs/decisions/0010-vacuum.md has the reasons for the numbers.

use rusqlite::Connection;

/// Free pages to keep: the next jobs use them.
const KEEP: u64 = 32;
/// Most pages that a commit may move, as far as known beforehand; more for many rows.
const MOVES: u64 = 8;
/// Changed rows that allow one more move.
const ROWS: u64 = 4;
/// Pages that a commit may move when it must stay small.
const FEW: u64 = 2;

/// How many pages a commit may move.
#[derive(Clone, Copy, Debug)]
pub(super) enum Moves {
    /// More for more changed rows.
    ByRows,
    Few,
}

/// Frees unused pages while they are more than a quarter of those in use. A used page at the end of the file must be
/// moved for that, which costs a page of delta.
pub(super) fn shrink(conn: &Connection, rows: u64, moves: Moves) -> rusqlite::Result<()> {
    if rows == 0 {
        // Without changes, freeing pages would cost an extra PUT.
        return Ok(());
    }
    let pragma = |sql| conn.prepare_cached(sql)?.query_row([], |row| row.get(0)).map(|n: u32| u64::from(n));
    let free = pragma("PRAGMA freelist_count")?;
    if free <= KEEP {
        return Ok(());
    }
    let size = pragma("PRAGMA page_count")?;
    let live = size.saturating_sub(free).max(1);
    // Most pages at the end of a nearly empty file are free: freeing them moves none.
    let moves = match moves {
        Moves::ByRows => MOVES + rows / ROWS,
        Moves::Few => FEW,
    };
    let most = moves.saturating_mul(size / live);
    let steps = free.saturating_sub((live / 4).max(KEEP)).min(most);
    if steps > 0 {
        // The statement frees one page per step, and only when it is stepped.
        let mut statement = conn.prepare(&format!("PRAGMA incremental_vacuum({steps})"))?;
        let mut pages = statement.query([])?;
        while pages.next()?.is_some() {}
    }
    Ok(())
}
