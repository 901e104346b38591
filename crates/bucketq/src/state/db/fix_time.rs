//! Moves the times in a database back to the present, after commits at times in the future.
//!
//! Called to fix the time of a queue file, and before a sync whose local commits were made by a clock that was ahead.
//! Changes only times after the present: no job is added, lost or moved to another state.

use rusqlite::{Connection, named_params, params};

use super::columns::{row, sql};
use super::fault::{Fault, Try};
use super::left_ids::LeftIdsBounds;
use super::{Db, Limits};
use crate::noun::config::REMEMBERED_MS;
use crate::noun::error::{Error, Result};
use crate::noun::lease::FOREVER_MS;
use crate::noun::schedule::{Schedule, Timing};

/// A lease that was claimed before the present and ends later than this was extended by the wrong clock: it ends now.
const LONGEST_LEASE_MS: i64 = 24 * 3_600_000;

/// Numbers of times that were moved back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BroughtBack {
    /// Leases that end earlier than before.
    pub leases: u64,
    /// Jobs that had any time after the present, leased ones included.
    pub jobs: u64,
    /// Schedules whose next time is earlier than before.
    pub schedules: u64,
}

/// A lease claimed after the present keeps its length from now on: its holder counts from the true time of the claim
/// and has no more than that.
const LEASES: &str = "
  UPDATE jobs SET ends_ms = :now + iif(left > :longest, 0, left)
  FROM (SELECT seq AS of, ends_ms - max(claimed_ms, :now) AS left FROM jobs
        WHERE state = 4 AND ends_ms > :now AND ends_ms < :forever)
  WHERE seq = of AND (claimed_ms > :now OR left > :longest)";

/// A window keeps its length from the present on, as far as it is known.
const WINDOWS: &str = "
  UPDATE dedup SET until_ms = until_ms - ifnull((SELECT enqueued_ms - :now FROM jobs j
                                                 WHERE j.seq = dedup.seq AND j.enqueued_ms > :now),
                                                iif(until_ms > :now + :ahead, :ahead, 0))
  WHERE until_ms > :now";

/// A delay or a back-off that began after the present begins now; a time that was set before stays.
const JOBS: &str = "
  UPDATE jobs SET
    run_at_ms = iif(state <> 2, min(run_at_ms, :now), max(:now, run_at_ms - max(0, iif(tries > 2,
      ifnull((SELECT max(a.ended_ms) FROM attempts a WHERE a.seq = jobs.seq), claimed_ms), enqueued_ms) - :now))),
    due_ms = due_ms - max(0, enqueued_ms - :now),
    claimed_ms = min(claimed_ms, :now), first_ms = min(first_ms, :now), enqueued_ms = min(enqueued_ms, :now),
    ends_ms = iif(state = 4, ends_ms, min(ends_ms, :now))
  WHERE max(run_at_ms, claimed_ms, first_ms, enqueued_ms, iif(state = 4, 0, ends_ms)) > :now
    AND (state <> 2 OR max(claimed_ms, first_ms, enqueued_ms,
         ifnull((SELECT max(a.ended_ms) FROM attempts a WHERE a.seq = jobs.seq), 0)) > :now)";

/// No id is remembered for longer than one that leaves now. Rows leave in their order, so a later end would keep those
/// after it, too.
const LEFT: &str = "UPDATE left_ids SET until_ms = :now + :remembered WHERE until_ms > :now + :remembered";

/// Past events happened at the latest now.
const PAST: &str = "
  UPDATE attempts SET claimed_ms = min(claimed_ms, :now), ended_ms = min(ended_ms, :now)
    WHERE max(ended_ms, ifnull(claimed_ms, 0)) > :now;
  UPDATE past SET enqueued_ms = min(enqueued_ms, :now), due_ms = min(due_ms, :now), first_ms = min(first_ms, :now),
    claimed_ms = min(claimed_ms, :now), ends_ms = min(ends_ms, :now)
    WHERE max(enqueued_ms, first_ms, claimed_ms, ends_ms) > :now;
  UPDATE archives SET first_ms = min(first_ms, :now), last_ms = min(last_ms, :now), listed_ms = min(listed_ms, :now)
    WHERE max(first_ms, last_ms, listed_ms) > :now;
  UPDATE queues SET rate_ns = :now * 1000000 WHERE rate_ns > :now * 1000000;
  UPDATE schedules SET last_ms = :now WHERE last_ms > :now;
  UPDATE meta SET value = :now WHERE name = 'created_ms' AND value > :now;";

impl Db {
    /// Moves every time that commits of up to `ahead_ms` after `now_ms` have left back to `now_ms`, in its own
    /// transaction. A second call changes nothing more.
    pub fn bring_back(&mut self, now_ms: i64, ahead_ms: i64, limits: &Limits) -> Result<BroughtBack> {
        self.check_writable()?;
        self.begin()?;
        let done = self.limit_pages(limits.max_pages).and_then(|()| self.bring_up());
        let done = done.and_then(|()| bring_back(&self.conn, now_ms, ahead_ms));
        // The cache has the old times.
        self.cache.lines = super::queues::Lines::default();
        self.cache.sweep_ms = i64::MIN;
        self.cache.expiry_ms = i64::MIN;
        self.cache.left = LeftIdsBounds::default();
        match done.map_err(Fault::into_error).and_then(|done| self.commit().map(|()| done)) {
            Ok(done) => Ok(done),
            Err(error) => {
                self.rollback()?;
                Err(error)
            }
        }
    }
}

fn bring_back(conn: &Connection, now: i64, ahead: i64) -> Try<BroughtBack> {
    let leases = conn.execute(
        LEASES,
        named_params! { ":now": now, ":longest": LONGEST_LEASE_MS, ":forever": FOREVER_MS },
    )?;
    conn.execute(WINDOWS, named_params! { ":now": now, ":ahead": ahead })?;
    let jobs = conn.execute(JOBS, named_params! { ":now": now })?;
    conn.execute(LEFT, named_params! { ":now": now, ":remembered": REMEMBERED_MS })?;
    for statement in PAST.split(';').map(str::trim).filter(|s| !s.is_empty()) {
        conn.execute(statement, named_params! { ":now": now })?;
    }
    let schedules = bring_back_schedules(conn, now, ahead)?;
    Ok(BroughtBack { leases: leases as u64, jobs: jobs as u64, schedules })
}

row! { struct ScheduleAhead { queue: i64, name: String, next_ms: i64, schedule: String } }

/// A schedule that fired for times after the present fires at its next time from now on.
fn bring_back_schedules(conn: &Connection, now: i64, ahead: i64) -> Try<u64> {
    let sql = sql!("SELECT ", ScheduleAhead::COLUMNS, " FROM schedules WHERE next_ms > ?1");
    let found = conn.prepare(sql)?.query_map([now], ScheduleAhead::read)?.collect::<Result<Vec<_>, _>>()?;
    let mut moved = 0;
    for ScheduleAhead { queue, name, next_ms, schedule: text } in found {
        // A schedule made by a newer library stays as it is.
        let Ok(mut schedule) = serde_json::from_str::<Schedule>(&text) else { continue };
        if let Timing::Every { every_ms, from_ms: Some(from) } = &mut schedule.timing {
            // Made by the wrong clock, it was to begin one interval after that; its times stay in step.
            let late = from.saturating_sub(now).saturating_sub(*every_ms);
            if *every_ms > 0 && late > ahead / 2 {
                *from -= (late + *every_ms - 1) / *every_ms * *every_ms;
            }
        }
        let next = schedule.timing.after(now).ok().flatten().filter(|next| *next < next_ms);
        let Some(next) = next else { continue };
        let text = serde_json::to_string(&schedule)
            .map_err(|e| Fault::Broken(Error::bug("a schedule cannot be written").because(e)))?;
        conn.execute(
            "UPDATE schedules SET next_ms = ?3, schedule = ?4 WHERE queue = ?1 AND name = ?2",
            params![queue, name, next, text],
        )?;
        moved += 1;
    }
    Ok(moved)
}
