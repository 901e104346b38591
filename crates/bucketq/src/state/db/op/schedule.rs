//! Schedules: stored in the file and fired by claims on their queue, in the commit of the claim. So each time fires
//! once however many processes run, and no background process is needed.

use std::collections::HashSet;
use std::sync::Arc;

use rusqlite::{OptionalExtension, params};
use twox_hash::XxHash3_128;

use crate::noun::error::{Code, Error};
use crate::noun::job::{JobId, When};
use crate::noun::op::Outcome;
use crate::noun::policy::Overflow;
use crate::noun::query::ScheduleInfo;
use crate::noun::schedule::{Missed, ParsedTiming, Schedule, Timing};
use crate::state::db::Tx;
use crate::state::db::columns::{row, sql};
use crate::state::db::fault::{Fault, Try};
use crate::state::db::queues::NEVER;

/// Most jobs that one claim enqueues for missed times.
const BATCH: usize = 100;
/// Most schedules of a queue.
const MOST: i64 = 1_000;

row! { struct ScheduleColumns { name: String, next_ms: i64, schedule: String, payload: Vec<u8> } }
/// Due schedules of a queue.
pub(in crate::state::db) const DUE: &str = sql!(
    "SELECT ",
    ScheduleColumns::COLUMNS,
    " FROM schedules WHERE queue = ?1 AND next_ms <= ?2 ORDER BY next_ms LIMIT ?3"
);
row! {
    struct ScheduleInfoColumns {
        queue: i64, last_ms: Option<i64>, fired: i64, stored: ScheduleColumns = ScheduleColumns::COLUMNS,
    }
}
row! { struct NextTime { name: String, next_ms: i64 } }
/// Next times of the schedules of a queue, soonest first.
pub(in crate::state::db) const NEXT: &str =
    sql!("SELECT ", NextTime::COLUMNS, " FROM schedules WHERE queue = ?1 ORDER BY next_ms");

/// A due schedule.
struct DueSchedule {
    name: String,
    next_ms: i64,
    schedule: Schedule,
    clock: ParsedTiming,
}

/// Schedules that this library cannot run, because a newer one made them: they are paused here, and fire in the claims
/// of newer processes.
#[derive(Debug, Default)]
pub(in crate::state::db) struct Paused {
    /// By queue id and name: those that were due since the pages were last read anew.
    now: HashSet<(i64, String)>,
    /// Those that a log message named already.
    told: HashSet<(i64, String)>,
}

impl Paused {
    /// The pages have changed: schedules may have been replaced.
    pub fn forget(&mut self) {
        self.now.clear();
    }
}

fn read(text: &str, payload: Vec<u8>) -> Try<Schedule> {
    let mut schedule: Schedule = serde_json::from_str(text).map_err(|e| {
        let message = "a schedule has fields that this version does not know: upgrade bucketq";
        Fault::Broken(Error::new(Code::TooNew, message).because(e))
    })?;
    schedule.job.payload.bytes = payload.into();
    Ok(schedule)
}

impl Tx<'_> {
    pub fn schedule(&mut self, queue: &str, name: &str, schedule: &Schedule) -> Try<Outcome> {
        let clock = schedule.timing.clock(self.now_ms)?;
        self.make_room(std::slice::from_ref(&schedule.job))?;
        let found = match self.find_line(queue)? {
            Some(line) => self.find_schedule(self.line(line).id, name)?,
            None => None,
        };
        let mut kept = schedule.clone();
        // The id and time have no meaning; without them, the same schedule from another process compares as equal.
        (kept.job.id, kept.job.when) = (JobId::new(0, [0; 10]), When::Now);
        let mut next_ms = clock.after(self.now_ms).ok_or_else(|| {
            Error::invalid(format!("schedule {name:?} has no next time before the year 10000"))
        })?;
        if let Timing::Every { from_ms, .. } = &mut kept.timing {
            *from_ms = Some(from_ms.unwrap_or(next_ms));
        }
        if let Some((old_next_ms, Some(old))) = &found
            && same_timing(&schedule.timing, &old.timing)
        {
            // Every process may create its schedules when it starts: that moves no time.
            (next_ms, kept.timing) = (*old_next_ms, old.timing.clone());
            if kept == *old {
                return Ok(Outcome::Scheduled { next_ms });
            }
        }
        let line = self.allowed_line(queue)?;
        let id = self.line(line).id;
        if found.is_none() {
            let sql = "SELECT count(*) FROM schedules WHERE queue = ?1";
            if self.conn.prepare_cached(sql)?.query_row([id], |row| row.get::<_, i64>(0))? >= MOST {
                let text = format!("queue {queue:?} has {MOST} schedules: remove some first");
                return Err(Error::new(Code::QueueFull, text).into());
            }
        }
        let payload = std::mem::replace(&mut kept.job.payload.bytes, bytes::Bytes::new());
        let text = serde_json::to_string(&kept).map_err(|e| Fault::corrupt(e.to_string()))?;
        self.conn
            .prepare_cached(
                "INSERT INTO schedules (queue, name, next_ms, fired, schedule, payload) VALUES (?1, ?2, ?3, 0, ?4, ?5) \
                 ON CONFLICT DO UPDATE SET next_ms = ?3, schedule = ?4, payload = ?5",
            )?
            .execute(params![id, name, next_ms, text, &payload[..]])?;
        self.cache.paused.now.remove(&(id, name.to_owned()));
        self.refresh_schedules(line)?;
        Ok(Outcome::Scheduled { next_ms })
    }

    pub fn unschedule(&mut self, queue: &str, name: &str) -> Try<Outcome> {
        let Some(line) = self.find_line(queue)? else { return Ok(Outcome::Unscheduled { was_there: false }) };
        let gone = self
            .conn
            .prepare_cached("DELETE FROM schedules WHERE queue = ?1 AND name = ?2")?
            .execute(params![self.line(line).id, name])?;
        self.refresh_schedules(line)?;
        Ok(Outcome::Unscheduled { was_there: gone > 0 })
    }

    /// Enqueues the due jobs of this queue's schedules, as long as there is room.
    pub fn fire(&mut self, line: usize) -> Try<()> {
        if self.line(line).marks.schedule_ms > self.now_ms {
            return Ok(());
        }
        let mut left = BATCH;
        for due in self.due_schedules(line)? {
            let clock = &due.clock;
            let mut next = Some(match due.schedule.missed {
                Missed::Skip => clock.newest(due.next_ms, self.now_ms),
                Missed::CatchUp => due.next_ms,
            });
            let (mut last_ms, mut fired) = (None, 0);
            while let Some(at_ms) = next.filter(|at_ms| left > 0 && *at_ms <= self.now_ms) {
                let Some(new) = self.fire_at(line, &due, at_ms)? else { break };
                (last_ms, fired, left) = (Some(at_ms), fired + i64::from(new), left - 1);
                next = clock.after(at_ms);
            }
            if last_ms.is_some() {
                self.conn
                    .prepare_cached(
                        "UPDATE schedules SET next_ms = ?3, last_ms = ?4, fired = fired + ?5 \
                         WHERE queue = ?1 AND name = ?2",
                    )?
                    .execute(params![self.line(line).id, due.name, next.unwrap_or(NEVER), last_ms, fired])?;
            }
        }
        self.refresh_schedules(line)
    }

    /// Enqueues the job for one time. Returns none if there is no room, and the schedule stays due; true if the job is
    /// new.
    fn fire_at(&mut self, line: usize, due: &DueSchedule, at_ms: i64) -> Try<Option<bool>> {
        let (queue, policy) = (self.line(line).name.clone(), Arc::clone(&self.line(line).policy));
        let mut job = due.schedule.job.clone();
        job.id = fired_id(&queue, &due.name, at_ms);
        job.when = When::Now;
        job.headers.insert("bucketq-schedule".into(), due.name.clone());
        job.headers.insert("bucketq-due-ms".into(), at_ms.to_string());
        if policy.overflow != Overflow::DropOldest && self.excess(line, 1)?.is_some() {
            return Ok(None);
        }
        match self.enqueue(&queue, std::slice::from_ref(&job)) {
            Ok(done) => Ok(Some(done.first().is_some_and(|d| !d.deduplicated && !d.existing))),
            // This time was enqueued before, for a schedule of the same name.
            Err(Fault::Refused(e)) if e.code() == Code::IdTaken => Ok(Some(false)),
            // The file is full; the claim itself may free space.
            Err(Fault::Refused(_)) => Ok(None),
            Err(broken) => Err(broken),
        }
    }

    fn due_schedules(&mut self, line: usize) -> Try<Vec<DueSchedule>> {
        let queue = self.line(line).id;
        // Paused schedules stay due.
        let most = BATCH + self.cache.paused.now.len();
        let mut stmt = self.conn.prepare_cached(DUE)?;
        let mut rows = stmt.query(params![queue, self.now_ms, most as i64])?;
        let mut due = Vec::new();
        while let Some(row) = rows.next()? {
            let ScheduleColumns { name, next_ms, schedule, payload } = ScheduleColumns::read(row)?;
            match self.understood(&schedule, payload) {
                Ok((schedule, clock)) => due.push(DueSchedule { name, next_ms, schedule, clock }),
                Err(reason) => self.pause_schedule(line, name, &reason),
            }
        }
        Ok(due)
    }

    /// Returns a schedule and its times, or why this library cannot run it.
    fn understood(&self, text: &str, payload: Vec<u8>) -> Result<(Schedule, ParsedTiming), Error> {
        let schedule = read(text, payload).map_err(Fault::into_error)?;
        let clock = schedule.timing.clock(self.now_ms)?;
        Ok((schedule, clock))
    }

    /// Skips this schedule, and logs that once.
    fn pause_schedule(&mut self, line: usize, name: String, reason: &Error) {
        let key = (self.line(line).id, name);
        if self.cache.paused.told.insert(key.clone()) {
            tracing::warn!(
                queue = &*self.line(line).name,
                schedule = key.1,
                "a schedule is paused in this process, which cannot carry it out: {}; upgrade bucketq, or create it again",
                reason.message()
            );
        }
        self.cache.paused.now.insert(key);
    }

    /// Returns the next time of a schedule, and the schedule if this library can read it.
    fn find_schedule(&self, queue: i64, name: &str) -> Try<Option<(i64, Option<Schedule>)>> {
        let sql = sql!("SELECT ", ScheduleColumns::COLUMNS, " FROM schedules WHERE queue = ?1 AND name = ?2");
        let mut stmt = self.conn.prepare_cached(sql)?;
        let found = stmt.query_row(params![queue, name], ScheduleColumns::read).optional()?;
        Ok(found.map(|row| (row.next_ms, read(&row.schedule, row.payload).ok())))
    }

    fn refresh_schedules(&mut self, line: usize) -> Try<()> {
        let queue = self.line(line).id;
        let mut stmt = self.conn.prepare_cached(NEXT)?;
        let mut rows = stmt.query([queue])?;
        let mut first = NEVER;
        while let Some(row) = rows.next()? {
            let NextTime { name, next_ms } = NextTime::read(row)?;
            if !self.cache.paused.now.contains(&(queue, name)) {
                first = next_ms;
                break;
            }
        }
        self.marks(line).schedule_ms = first;
        Ok(())
    }

    /// Returns the schedules of a queue, or of all.
    pub fn schedules(&mut self, queue: Option<&str>) -> Try<Vec<ScheduleInfo>> {
        let only = match queue {
            Some(name) => match self.find_line(name)? {
                Some(line) => Some(self.line(line).id),
                None => return Ok(vec![]),
            },
            None => None,
        };
        let sql =
            sql!("SELECT ", ScheduleInfoColumns::COLUMNS, " FROM schedules WHERE ?1 IS NULL OR queue = ?1");
        let mut stmt = self.conn.prepare_cached(sql)?;
        let mut rows = stmt.query([only])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            let ScheduleInfoColumns { queue, last_ms, fired, stored } = ScheduleInfoColumns::read(row)?;
            let line = self.line_of(queue)?;
            let schedule = read(&stored.schedule, stored.payload)?;
            let paused = schedule.timing.clock(self.now_ms).err().map(|e| e.message().to_owned());
            found.push(ScheduleInfo {
                queue: self.line(line).name.to_string(),
                name: stored.name,
                next_ms: stored.next_ms,
                last_ms,
                fired: fired as u64,
                schedule,
                paused,
            });
        }
        found.sort_unstable_by(|a, b| (&a.queue, &a.name).cmp(&(&b.queue, &b.name)));
        Ok(found)
    }
}

/// Returns whether a new schedule has the same times as the old one.
fn same_timing(new: &Timing, old: &Timing) -> bool {
    match (new, old) {
        (Timing::Every { every_ms, from_ms: None }, Timing::Every { every_ms: old_ms, .. }) => {
            every_ms == old_ms
        }
        _ => new == old,
    }
}

/// Returns the id of the job for one time: the same in every process and every replay.
fn fired_id(queue: &str, name: &str, at_ms: i64) -> JobId {
    let seed = format!("{queue}\0{name}\0{at_ms}");
    let hash = XxHash3_128::oneshot(seed.as_bytes()).to_le_bytes();
    let mut random = [0; 10];
    random.copy_from_slice(&hash[..10]);
    JobId::new(at_ms, random)
}
