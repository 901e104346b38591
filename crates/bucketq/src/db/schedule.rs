//! Schedules: kept in the file, fired by the claims that look at their queue, in the commit of the claim. So a time
//! fires once however many processes run, and nothing has to run in between.

use std::sync::Arc;

use rusqlite::{OptionalExtension, params};
use twox_hash::XxHash3_128;

use super::Turn;
use super::fault::{Fault, Try};
use super::queues::NEVER;
use crate::broken::Broken;
use crate::error::{Code, Error};
use crate::job::{JobId, When};
use crate::op::Outcome;
use crate::policy::Overflow;
use crate::query::ScheduleInfo;
use crate::schedule::{Missed, Schedule, Timing};

/// Jobs one claim enqueues at most for what it catches up with.
const BATCH: usize = 100;
/// Schedules a queue may have.
const MOST: i64 = 1_000;

/// Schedules of a queue whose time has come.
pub(super) const DUE: &str = "SELECT name, next_ms, schedule, payload FROM schedules \
     WHERE queue = ?1 AND next_ms <= ?2 ORDER BY next_ms LIMIT ?3";
const FIRST: &str = "SELECT min(next_ms) FROM schedules WHERE queue = ?1";

/// A schedule whose time has come.
struct Due {
    name: String,
    next_ms: i64,
    schedule: Schedule,
}

fn read(text: &str, payload: Vec<u8>) -> Try<Schedule> {
    let mut schedule: Schedule = serde_json::from_str(text).map_err(|e| {
        let message = "a schedule says what this library does not know: upgrade bucketq";
        Fault::Broken(Error::new(Code::TooNew, message).because(e))
    })?;
    schedule.job.payload.bytes = payload.into();
    Ok(schedule)
}

impl Turn<'_> {
    pub fn schedule(&mut self, queue: &str, name: &str, schedule: &Schedule) -> Try<Outcome> {
        let clock = schedule.timing.clock(self.now_ms)?;
        self.make_room(std::slice::from_ref(&schedule.job))?;
        let found = match self.find_line(queue)? {
            Some(line) => self.find_schedule(self.line(line).id, name)?,
            None => None,
        };
        let mut kept = schedule.clone();
        // They mean nothing; left out, the same schedule is known again whoever makes it.
        (kept.job.id, kept.job.when) = (JobId::new(0, [0; 10]), When::Now);
        let mut next_ms = clock.after(self.now_ms).ok_or_else(|| {
            Error::invalid(format!("schedule {name:?} has no time after now that can be written down"))
        })?;
        if let Timing::Every { from_ms, .. } = &mut kept.timing {
            *from_ms = Some(from_ms.unwrap_or(next_ms));
        }
        if let Some((old_next_ms, old)) = &found
            && same_timing(&schedule.timing, &old.timing)
        {
            // Every process may make its schedules when it starts: that moves nothing.
            (next_ms, kept.timing) = (*old_next_ms, old.timing.clone());
            if kept == *old {
                return Ok(Outcome::Scheduled { next_ms });
            }
        }
        let line = self.make_line(queue)?;
        let id = self.line(line).id;
        if found.is_none() {
            let sql = "SELECT count(*) FROM schedules WHERE queue = ?1";
            if self.conn.prepare_cached(sql)?.query_row([id], |row| row.get::<_, i64>(0))? >= MOST {
                let text = format!("queue {queue:?} has {MOST} schedules: take some away first");
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

    /// Enqueue what the schedules of this queue have due, as far as there is room.
    pub fn fire(&mut self, line: usize) -> Try<()> {
        if self.line(line).marks.schedule_ms > self.now_ms {
            return Ok(());
        }
        let mut left = BATCH;
        for due in self.due_schedules(line)? {
            let clock = due.schedule.timing.clock(self.now_ms)?;
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
            if self.is_broken(Broken::ScheduleNotMoved) {
                continue;
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

    /// Enqueue the job for one time. None if there is no room: it stays due. True if it was not there yet.
    fn fire_at(&mut self, line: usize, due: &Due, at_ms: i64) -> Try<Option<bool>> {
        let (queue, policy) = (self.line(line).name.clone(), Arc::clone(&self.line(line).policy));
        let mut job = due.schedule.job.clone();
        job.id = fired_id(&queue, &due.name, at_ms);
        if self.is_broken(Broken::ScheduleNotMoved) {
            job.id = fired_id(&queue, &self.commit_seq.to_string(), at_ms);
        }
        job.when = When::Now;
        job.headers.insert("bucketq-schedule".into(), due.name.clone());
        job.headers.insert("bucketq-due-ms".into(), at_ms.to_string());
        if policy.overflow != Overflow::DropOldest && self.excess(line, 1)?.is_some() {
            return Ok(None);
        }
        match self.enqueue(&queue, std::slice::from_ref(&job)) {
            Ok(done) => {
                Ok(Some(done.first().is_some_and(|d| !d.deduplicated && d.commit_seq == self.commit_seq)))
            }
            // The file is full, which the claim is about to ease.
            Err(Fault::Refused(_)) => Ok(None),
            Err(broken) => Err(broken),
        }
    }

    fn due_schedules(&mut self, line: usize) -> Try<Vec<Due>> {
        let mut stmt = self.conn.prepare_cached(DUE)?;
        let mut rows = stmt.query(params![self.line(line).id, self.now_ms, BATCH as i64])?;
        let mut due = Vec::new();
        while let Some(row) = rows.next()? {
            let schedule = read(&row.get::<_, String>(2)?, row.get(3)?)?;
            due.push(Due { name: row.get(0)?, next_ms: row.get(1)?, schedule });
        }
        Ok(due)
    }

    fn find_schedule(&self, queue: i64, name: &str) -> Try<Option<(i64, Schedule)>> {
        let found = self
            .conn
            .prepare_cached(
                "SELECT next_ms, schedule, payload FROM schedules WHERE queue = ?1 AND name = ?2",
            )?
            .query_row(params![queue, name], |row| {
                Ok((row.get(0)?, row.get::<_, String>(1)?, row.get::<_, Vec<u8>>(2)?))
            })
            .optional()?;
        found.map(|(next_ms, text, payload)| Ok((next_ms, read(&text, payload)?))).transpose()
    }

    fn refresh_schedules(&mut self, line: usize) -> Try<()> {
        let queue = self.line(line).id;
        let first: Option<i64> = self.conn.prepare_cached(FIRST)?.query_row([queue], |row| row.get(0))?;
        self.marks(line).schedule_ms = first.unwrap_or(NEVER);
        Ok(())
    }

    /// The schedules of a queue, or of all.
    pub fn schedules(&mut self, queue: Option<&str>) -> Try<Vec<ScheduleInfo>> {
        let only = match queue {
            Some(name) => match self.find_line(name)? {
                Some(line) => Some(self.line(line).id),
                None => return Ok(vec![]),
            },
            None => None,
        };
        let mut stmt = self.conn.prepare_cached(
            "SELECT queue, name, next_ms, last_ms, fired, schedule, payload FROM schedules \
             WHERE ?1 IS NULL OR queue = ?1",
        )?;
        let mut rows = stmt.query([only])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            let line = self.line_of(row.get(0)?)?;
            found.push(ScheduleInfo {
                queue: self.line(line).name.to_string(),
                name: row.get(1)?,
                next_ms: row.get(2)?,
                last_ms: row.get(3)?,
                fired: row.get::<_, i64>(4)? as u64,
                schedule: read(&row.get::<_, String>(5)?, row.get(6)?)?,
            });
        }
        found.sort_unstable_by(|a, b| (&a.queue, &a.name).cmp(&(&b.queue, &b.name)));
        Ok(found)
    }
}

/// Whether a schedule that is made again means the times it meant before.
fn same_timing(new: &Timing, old: &Timing) -> bool {
    match (new, old) {
        (Timing::Every { every_ms, from_ms: None }, Timing::Every { every_ms: old_ms, .. }) => {
            every_ms == old_ms
        }
        _ => new == old,
    }
}

/// The id of the job for one time: the same whoever builds the commit, and however often.
fn fired_id(queue: &str, name: &str, at_ms: i64) -> JobId {
    let seed = format!("{queue}\0{name}\0{at_ms}");
    let hash = XxHash3_128::oneshot(seed.as_bytes()).to_le_bytes();
    let mut random = [0; 10];
    random.copy_from_slice(&hash[..10]);
    JobId::new(at_ms, random)
}
