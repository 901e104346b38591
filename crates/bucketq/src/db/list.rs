//! Lists of jobs in the order of their enqueues, page by page.
//!
//! Two ways: walk the jobs from the cursor on and leave out what does not match, or, when the counts say that few
//! match, gather them by the index of their state and sort. Both give the same page.

use rusqlite::params_from_iter;
use rusqlite::types::Value;

use super::Turn;
use super::fault::Try;
use super::row::job_columns;
use crate::error::Error;
use crate::job::{Job, State};
use crate::query::{Cursor, Filter, Page};

/// Jobs a page at most.
const MAX_PAGE: u32 = 1_000;
/// Gathering pays when fewer than one in this many match.
const RARE: i64 = 16;

const ERROR_CONTAINS: &str = " AND instr((SELECT error FROM attempts a WHERE a.seq = jobs.seq \
     AND a.run = jobs.run AND error IS NOT NULL ORDER BY attempt DESC LIMIT 1), #) > 0";

impl Turn<'_> {
    pub fn list(&mut self, filter: &Filter, after: Option<Cursor>, limit: u32) -> Try<Page> {
        if limit == 0 || limit > MAX_PAGE {
            return Err(Error::invalid(format!("a page has 1 to {MAX_PAGE} jobs, not {limit}")).into());
        }
        let Some(lines) = self.listed_lines(filter)? else {
            return Ok(Page { jobs: Vec::new(), next: None });
        };
        let after = after.map_or(-1, |c| i64::try_from(c.0).unwrap_or(i64::MAX));
        let states = listed_states(filter);
        let mut jobs = if self.is_rare(&lines, &states) {
            self.gather(filter, &lines, &states, after, limit)?
        } else {
            let whose = filter.queue.is_some().then(|| format!("queue = {}", self.line(lines[0]).id));
            let which = (states.len() < State::ALL.len()).then(|| {
                let codes: Vec<_> = states.iter().map(|s| (*s as i64).to_string()).collect();
                // The plus keeps the planner from an index that would need a sort.
                format!("+state IN ({})", codes.join(", "))
            });
            let conditions: Vec<_> =
                [whose, which].into_iter().flatten().map(|c| format!(" AND {c}")).collect();
            self.select(&conditions.concat(), filter, after, limit + 1)?
        };
        let more = jobs.len() > limit as usize;
        jobs.truncate(limit as usize);
        for job in &mut jobs {
            job.last_error = self.last_error(job.seq as i64, job.run)?;
        }
        let next = if more { jobs.last().map(|job| Cursor(job.seq)) } else { None };
        Ok(Page { jobs, next })
    }

    /// The queues to list; none when the one asked for does not exist.
    fn listed_lines(&mut self, filter: &Filter) -> Try<Option<Vec<usize>>> {
        Ok(match &filter.queue {
            Some(name) => self.find_line(name)?.map(|line| vec![line]),
            None => Some(self.all_lines()?.collect()),
        })
    }

    /// Whether few of the file's jobs match. Ready ones are walked: no index has them all.
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
    ) -> Try<Vec<Job>> {
        let mut jobs = Vec::new();
        for line in lines {
            for state in states {
                if self.line(*line).marks.count(*state) > 0 {
                    let partial = match state {
                        State::Done | State::Cancelled => "state IN (5, 7) AND ",
                        _ => "",
                    };
                    let which = format!(
                        " AND queue = {} AND {partial}state = {}",
                        self.line(*line).id,
                        *state as i64
                    );
                    jobs.append(&mut self.select(&which, filter, after, limit + 1)?);
                }
            }
        }
        jobs.sort_unstable_by_key(|job| job.seq);
        Ok(jobs)
    }

    /// The first jobs after the cursor for which the conditions and the rest of the filter hold.
    fn select(&mut self, conditions: &str, filter: &Filter, after: i64, limit: u32) -> Try<Vec<Job>> {
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
            format!("SELECT {} FROM jobs WHERE seq > ?1{conditions}{}", job_columns!(), more.concat());
        sql.push_str(" ORDER BY seq LIMIT ?2");
        let mut stmt = self.conn.prepare(&sql)?;
        let mut rows = stmt.query(params_from_iter(params))?;
        let mut jobs = Vec::new();
        while let Some(row) = rows.next()? {
            jobs.push(self.job(row)?);
        }
        Ok(jobs)
    }
}

/// The states a filter lets through, in order.
fn listed_states(filter: &Filter) -> Vec<State> {
    let named = |s: &State| filter.states.is_empty() || filter.states.contains(s);
    State::ALL.into_iter().filter(|s| named(s) && (!filter.expired || *s == State::Leased)).collect()
}
