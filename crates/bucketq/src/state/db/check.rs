//! Checks that an op must pass whatever the state: names, sizes, ranges. Pure.
//!
//! Called before an op goes through the door, and again before it is applied.

use super::Limits;
use crate::noun::config::{LAST_MS, MAX_CLAIM, MAX_CONTENT_TYPE, MAX_HEADERS, MAX_JOBS_PER_OP, MAX_NAME};
use crate::noun::error::{Code, Error, Result};
use crate::noun::job::{Backoff, DedupScope, New, Payload, State, When};
use crate::noun::lease::{FOREVER_MS, Token};
use crate::noun::op::{Claim, Held, Op, Queues};
use crate::noun::policy::span;
use crate::noun::query::Filter;

/// Refuses an op that no state could accept, with an error that says what is wrong.
pub fn check(op: &Op, limits: &Limits) -> Result<()> {
    match op {
        Op::Enqueue { queue, jobs } => {
            name("queue", queue)?;
            count("jobs", jobs.len())?;
            jobs.iter().try_for_each(|job| new(job, limits))
        }
        Op::Claim(claim) => check_claim(claim),
        Op::ClaimWith(with) => {
            check_claim(&with.claim)?;
            if with.ids.len() > with.claim.max as usize {
                return Err(Error::invalid(format!(
                    "a claim of {} jobs cannot name {} of them",
                    with.claim.max,
                    with.ids.len()
                )));
            }
            let Some(ends) = &with.ends else { return Ok(()) };
            if !ends.parts().first().is_some_and(Op::ends_lease) {
                return Err(Error::invalid(format!(
                    "a claim can follow an op that ends a job, or an atomic that begins with one, not {}",
                    ends.name()
                )));
            }
            check(ends, limits)
        }
        Op::Ack { held, result } => {
            held_by(held)?;
            result.as_ref().map_or(Ok(()), |r| payload("result", r, limits))
        }
        Op::AckLate { result, .. } => result.as_ref().map_or(Ok(()), |r| payload("result", r, limits)),
        Op::Nack { held, delay_ms, .. } => {
            held_by(held)?;
            delay_ms.map_or(Ok(()), |ms| span("delay", ms, 0))
        }
        Op::Extend { held, lease_ms, .. } => {
            held_by(held)?;
            span("lease", *lease_ms, 1)
        }
        Op::Release { held } | Op::Reject { held, .. } => held_by(held),
        Op::Cancel { .. } | Op::Requeue { .. } | Op::Delete { .. } | Op::StrictQueues { .. } => Ok(()),
        Op::Purge { queue, states } => {
            name("queue", queue)?;
            count("states", states.len())
        }
        Op::PurgeSome { queue, states, limit, .. } => {
            name("queue", queue)?;
            count("states", states.len())?;
            count("jobs", *limit as usize)
        }
        Op::ConfigureSome { queue, limit, .. } | Op::DeleteQueue { queue, limit } => {
            name("queue", queue)?;
            count("jobs", *limit as usize)
        }
        Op::Pause { queue }
        | Op::Resume { queue }
        | Op::Drain { queue }
        | Op::Configure { queue, .. }
        | Op::CreateQueue { queue } => name("queue", queue),
        Op::RequeueMany { filter, limit } => requeue_many(filter, *limit),
        Op::Move { to, .. } => name("queue", to),
        Op::MoveSome { filter, redrive, to, limit, .. } => {
            move_some(filter, *redrive, to.as_deref())?;
            count("jobs", *limit as usize)
        }
        Op::Schedule { queue, name: called, schedule } => {
            name("queue", queue)?;
            name("schedule", called)?;
            schedule.timing.clock(0)?;
            new(&schedule.job, limits)
        }
        Op::Unschedule { queue, name: called } => {
            name("queue", queue)?;
            name("schedule", called)
        }
        Op::Atomic(ops) => {
            count("ops", ops.len())?;
            count("ops and jobs", op.changes())?;
            ops.iter().enumerate().try_for_each(|(i, op)| {
                if !op.may_be_part() {
                    return Err(Error::invalid(format!("op {i}: an atomic cannot contain {}", op.name())));
                }
                check(op, limits).map_err(|e| e.during(format_args!("op {i} of the atomic, {}", op.name())))
            })
        }
    }
}

fn check_claim(claim: &Claim) -> Result<()> {
    if let Queues::Named(names) = &claim.queues {
        count("queues", names.len())?;
        names.iter().try_for_each(|n| name("queue", n))?;
    }
    if claim.max == 0 || claim.max > MAX_CLAIM {
        return Err(Error::invalid(format!("a claim takes 1 to {MAX_CLAIM} jobs, not {}", claim.max)));
    }
    if let Some(ms) = claim.lease_ms.filter(|ms| *ms != FOREVER_MS) {
        span("lease", ms, 1)?;
    }
    at_most("worker", claim.worker.len(), MAX_NAME)?;
    token(&claim.token)
}

fn held_by(held: &Held) -> Result<()> {
    token(&held.token)
}

/// Zeros stand for a job that was never claimed.
fn token(token: &Token) -> Result<()> {
    if token.0 == [0; 16] { Err(Error::invalid("a lease token must be random, not zeros")) } else { Ok(()) }
}

fn new(job: &New, limits: &Limits) -> Result<()> {
    payload("payload", &job.payload, limits)?;
    match job.when {
        When::Now => {}
        When::In(ms) => span("delay", ms, 0)?,
        When::At(ms) if (0..=LAST_MS).contains(&ms) => {}
        When::At(ms) => {
            return Err(Error::invalid(format!("run_at {ms} ms is outside the years 1970 to 9999")));
        }
    }
    job.expires_ms.map_or(Ok(()), |ms| span("expires", ms, 1))?;
    job.max_run_ms.map_or(Ok(()), |ms| span("max_run", ms, 1))?;
    if job.max_attempts == Some(0) {
        return Err(Error::invalid("max_attempts must be at least 1"));
    }
    job.backoff.as_ref().map_or(Ok(()), Backoff::check)?;
    if let Some(dedup) = &job.dedup {
        name("dedup key", &dedup.key)?;
        if let DedupScope::Window(ms) = dedup.scope {
            span("dedup window", ms, 1)?;
        }
    }
    if let Some(group) = &job.group {
        name("group", group)?;
    }
    at_most("headers", job.headers.iter().map(|(k, v)| k.len() + v.len()).sum(), MAX_HEADERS)
}

fn payload(what: &str, payload: &Payload, limits: &Limits) -> Result<()> {
    let len = payload.bytes.len();
    if len > limits.max_payload {
        return Err(Error::new(
            Code::PayloadTooLarge,
            format!("the {what} has {len} bytes; the option max_payload allows {}", limits.max_payload),
        ));
    }
    at_most("content type", payload.content_type.len(), MAX_CONTENT_TYPE)
}

fn name(what: &str, text: &str) -> Result<()> {
    if text.is_empty() {
        return Err(Error::invalid(format!("{what}: the name is empty")));
    }
    at_most(what, text.len(), MAX_NAME)
}

fn at_most(what: &str, len: usize, max: usize) -> Result<()> {
    if len > max { Err(Error::invalid(format!("{what}: {len} bytes, at most {max}"))) } else { Ok(()) }
}

fn count(what: &str, n: usize) -> Result<()> {
    if n == 0 || n > MAX_JOBS_PER_OP {
        return Err(Error::invalid(format!("{what}: 1 to {MAX_JOBS_PER_OP} in one op, not {n}")));
    }
    Ok(())
}

fn requeue_many(filter: &Filter, limit: u32) -> Result<()> {
    count("jobs", limit as usize)?;
    filter.queue.as_ref().map_or(Ok(()), |queue| name("queue", queue))?;
    if let Some(state) = filter.states.iter().find(|state| !state.is_finished()) {
        return Err(Error::invalid(format!(
            "only finished jobs can be requeued, not {} ones: name done, dead or cancelled",
            state.as_str()
        )));
    }
    if filter.expired {
        return Err(Error::invalid("a job whose lease has expired is not finished: leave out expired"));
    }
    Ok(())
}

fn move_some(filter: &Filter, redrive: bool, to: Option<&str>) -> Result<()> {
    let Some(from) = &filter.queue else {
        return Err(Error::invalid("name the queue that the jobs are in"));
    };
    name("queue", from)?;
    to.map_or(Ok(()), |to| name("queue", to))?;
    if to.is_none() && !redrive {
        return Err(Error::invalid("name the queue that the jobs move to"));
    }
    if to == Some(from) {
        return Err(Error::invalid(format!("the jobs are in queue {from:?} already: name another one")));
    }
    if filter.expired || filter.states.contains(&State::Leased) {
        return Err(Error::invalid("a leased job cannot be moved: its worker has it"));
    }
    Ok(())
}

/// Refuses a name that is empty or too long.
pub(super) fn check_name(what: &str, text: &str) -> Result<()> {
    name(what, text)
}
