//! Lists of jobs in the order of their enqueues, page by page.
//!
//! Two ways: walk the jobs from the cursor on and skip those that do not match, or, when the counts show that few
//! match, collect them by the index of their state and sort. Both return the same page.

use rusqlite::params_from_iter;
use rusqlite::types::Value;

use crate::noun::error::{Error, Result};
use crate::noun::job::{Job, JobId, Payload, State};
use crate::noun::query::{Cursor, Detail, DetailPage, Filter, Page};
use crate::state::db::columns::sql;
use crate::state::db::fault::Try;
use crate::state::db::job_row::{JobColumns, WholeJobColumns};
use crate::state::db::{Db, Moment, Tx};

/// Most jobs per page.
const MAX_PAGE: u32 = 1_000;
/// Bytes of the jobs of a result, unless it is a single job.
const MOST_BYTES: usize = 4 << 20;
/// Collecting pays when fewer than one in this many match.
const RARE: i64 = 16;

const ERROR_CONTAINS: &str = " AND instr((SELECT error FROM attempts a WHERE a.seq = jobs.seq \
     AND a.run = jobs.run AND error IS NOT NULL ORDER BY attempt DESC LIMIT 1), #) > 0";

impl Db {
    /// Returns jobs with their payloads in the order of their enqueues, from this `seq` on, at most `limit`; only of
    /// these queues and in these states.
    pub fn whole_jobs(
        &mut self,
        from: u64,
        limit: u32,
        queues: Option<&[String]>,
        states: Option<&[State]>,
        at: &Moment,
    ) -> Result<Vec<(Job, Payload)>> {
        self.look(at, |tx| tx.whole_jobs(from, limit, queues, states))
    }
}

impl Tx<'_> {
    fn whole_jobs(
        &mut self,
        from: u64,
        limit: u32,
        queues: Option<&[String]>,
        states: Option<&[State]>,
    ) -> Try<Vec<(Job, Payload)>> {
        let mut sql = sql!("SELECT ", WholeJobColumns::COLUMNS, " FROM jobs WHERE seq >= ?1").to_owned();
        if let Some(queues) = queues {
            let lines: Vec<_> = self.all_lines()?.map(|line| self.line(line)).collect();
            sql +=
                &among("queue", lines.iter().filter(|l| queues.iter().any(|q| **q == *l.name)).map(|l| l.id));
        }
        if let Some(states) = states {
            sql += &among("state", states.iter().map(|s| *s as i64));
        }
        sql += " ORDER BY seq LIMIT ?2";
        let mut stmt = self.conn.prepare_cached(&sql)?;
        let mut rows = stmt.query([i64::try_from(from).unwrap_or(i64::MAX), limit.into()])?;
        let mut jobs = vec![];
        while let Some(row) = rows.next()? {
            let row = WholeJobColumns::read(row)?;
            let (mut job, payload) = (self.job(row.job)?, self.payload(&row.payload)?);
            self.add_failures(&mut job)?;
            jobs.push((job, payload));
        }
        Ok(jobs)
    }

    pub fn list(&mut self, filter: &Filter, after: Option<Cursor>, limit: u32) -> Try<Page> {
        if limit == 0 || limit > MAX_PAGE {
            return Err(Error::invalid(format!("a page has 1 to {MAX_PAGE} jobs, not {limit}")).into());
        }
        let Some(lines) = self.listed_lines(filter)? else {
            return Ok(Page { jobs: Vec::new(), next: None, last: after });
        };
        let place = after.map_or(-1, |c| i64::try_from(c.0).unwrap_or(i64::MAX));
        let states = listed_states(filter);
        let (mut jobs, cut) = if self.is_rare(&lines, &states) {
            self.gather(filter, &lines, &states, place, limit)?
        } else {
            let whose = filter.queue.is_some().then(|| format!(" AND queue = {}", self.line(lines[0]).id));
            let which =
                (states.len() < State::ALL.len()).then(|| among("state", states.iter().map(|s| *s as i64)));
            let conditions: Vec<_> = [whose, which].into_iter().flatten().collect();
            self.select(&conditions.concat(), filter, place, limit + 1)?
        };
        let more = cut || jobs.len() > limit as usize;
        jobs.truncate(limit as usize);
        for job in &mut jobs {
            self.add_failures(job)?;
        }
        let last = jobs.last().map(|job| Cursor(job.seq)).or(after);
        Ok(Page { jobs, next: last.filter(|_| more), last })
    }

    /// Returns the first of these jobs.
    pub fn details(&mut self, ids: &[JobId]) -> Try<Vec<Option<Detail>>> {
        if ids.len() > MAX_PAGE as usize {
            let text = format!("at most {MAX_PAGE} jobs at a time, not {}", ids.len());
            return Err(Error::invalid(text).into());
        }
        let (mut found, mut bytes) = (Vec::new(), 0);
        for id in ids {
            let detail = self.detail(id)?;
            bytes += detail.as_ref().map_or(0, size);
            if bytes > MOST_BYTES && !found.is_empty() {
                break;
            }
            found.push(detail);
        }
        Ok(found)
    }

    /// Returns a page of jobs with their bytes.
    pub fn list_whole(&mut self, filter: &Filter, after: Option<Cursor>, limit: u32) -> Try<DetailPage> {
        let Page { jobs, mut next, mut last } = self.list(filter, after, limit)?;
        let (mut whole, mut bytes) = (Vec::with_capacity(jobs.len()), 0);
        for job in jobs {
            let Some(detail) = self.detail(&job.id)? else { continue };
            bytes += size(&detail);
            if bytes > MOST_BYTES && !whole.is_empty() {
                last = whole.last().map(|detail: &Detail| Cursor(detail.job.seq));
                next = last;
                break;
            }
            whole.push(detail);
        }
        Ok(DetailPage { jobs: whole, next, last })
    }

    /// Returns the queues to list; none when the named one does not exist.
    fn listed_lines(&mut self, filter: &Filter) -> Try<Option<Vec<usize>>> {
        Ok(match &filter.queue {
            Some(name) => self.find_line(name)?.map(|line| vec![line]),
            None => Some(self.all_lines()?.collect()),
        })
    }

    /// Returns whether few of the file's jobs match. Ready ones are walked: no index has them all.
    fn is_rare(&mut self, lines: &[usize], states: &[State]) -> bool {
        let matching: i64 =
            lines.iter().map(|l| states.iter().map(|s| self.line(*l).marks.count(*s)).sum::<i64>()).sum();
        let all = self.all_lines().unwrap_or(0..0);
        let total: i64 = all.map(|line| self.line(line).marks.total()).sum();
        !states.contains(&State::Ready) && matching * RARE < total
    }

    fn gather(
        &mut self,
        filter: &Filter,
        lines: &[usize],
        states: &[State],
        after: i64,
        limit: u32,
    ) -> Try<(Vec<Job>, bool)> {
        let mut jobs = Vec::new();
        let mut known_until = u64::MAX;
        for line in lines {
            for state in states {
                if self.line(*line).marks.count(*state) > 0 {
                    let which = format!(" AND queue = {} AND state = {}", self.line(*line).id, *state as i64);
                    let (mut some, cut) = self.select(&which, filter, after, limit + 1)?;
                    if let Some(last) = some.last().filter(|_| cut) {
                        known_until = known_until.min(last.seq);
                    }
                    jobs.append(&mut some);
                }
            }
        }
        jobs.retain(|job| job.seq <= known_until);
        jobs.sort_unstable_by_key(|job| job.seq);
        Ok((jobs, known_until < u64::MAX))
    }

    /// Returns the first jobs after the cursor that match the conditions and the rest of the filter. Stops before the
    /// limit, and returns true, when their headers take too many bytes.
    fn select(&mut self, conditions: &str, filter: &Filter, after: i64, limit: u32) -> Try<(Vec<Job>, bool)> {
        let mut params = vec![Value::from(after), Value::from(limit)];
        let mut more = Vec::new();
        let mut also = |condition: &str, value: Value| {
            params.push(value);
            more.push(condition.replace('#', &format!("?{}", params.len())));
        };
        if let Some(group) = &filter.group {
            also(" AND group_name = #", Value::from(group.clone()));
        }
        if filter.expired {
            also(" AND ends_ms <= #", Value::from(self.now_ms));
        }
        if let Some(text) = &filter.error {
            also(ERROR_CONTAINS, Value::from(text.clone()));
        }
        let mut sql =
            format!("SELECT {} FROM jobs WHERE seq > ?1{conditions}{}", JobColumns::COLUMNS, more.concat());
        sql.push_str(" ORDER BY seq LIMIT ?2");
        let mut stmt = self.conn.prepare(&sql)?;
        let mut rows = stmt.query(params_from_iter(params))?;
        let (mut jobs, mut bytes) = (Vec::new(), 0);
        while let Some(row) = rows.next()? {
            if bytes > MOST_BYTES {
                return Ok((jobs, true));
            }
            let job = self.job(JobColumns::read(row)?)?;
            bytes += headers_size(&job);
            jobs.push(job);
        }
        Ok((jobs, false))
    }
}

/// Returns the bytes of a job that users wrote.
fn size(detail: &Detail) -> usize {
    let texts = detail.attempts.iter().map(|attempt| attempt.error.as_ref().map_or(0, String::len));
    let result = detail.result.as_ref().map_or(0, |result| result.bytes.len());
    detail.payload.bytes.len() + result + headers_size(&detail.job) + texts.sum::<usize>()
}

fn headers_size(job: &Job) -> usize {
    job.headers.iter().map(|(name, value)| name.len() + value.len()).sum()
}

/// Returns the condition that a column has one of these values, for a walk in the order of `seq`: the plus keeps the
/// planner from an index that would need a sort.
fn among(column: &str, values: impl Iterator<Item = i64>) -> String {
    let values: Vec<_> = values.map(|value| value.to_string()).collect();
    format!(" AND +{column} IN ({})", values.join(", "))
}

/// Returns the states that a filter includes, in order.
fn listed_states(filter: &Filter) -> Vec<State> {
    let named = |s: &State| filter.states.is_empty() || filter.states.contains(s);
    State::ALL.into_iter().filter(|s| named(s) && (!filter.expired || *s == State::Leased)).collect()
}
