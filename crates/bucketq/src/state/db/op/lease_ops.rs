//! The ops of a lease's holder: ack, nack, release, reject, extend.
//!
//! Each needs the current token and a leased job; a lease that has run out still counts while no worker has claimed the
//! job again (P27). A repeated op of the same holder has the same outcome as long as the job is where the op left it,
//! or has left the file from there less than an hour after its enqueue. For ack and reject that is certain; for the
//! others until the job is claimed again.

use rusqlite::params;
use twox_hash::XxHash3_128;

use super::claim::end;
use crate::noun::error::{Code, Error};
use crate::noun::event::{Happened, Loss};
use crate::noun::job::{Ended, JobId, Payload, State};
use crate::noun::lease::{FOREVER_MS, Token};
use crate::noun::op::{Held, Outcome};
use crate::state::db::Tx;
use crate::state::db::fault::{Fault, Try};
use crate::state::db::job_row::{JobRow, NO_TOKEN, attempt};

/// The token of a job that was claimed and then ended by a late ack.
const LATE: Token = Token([0xff; 16]);

impl Tx<'_> {
    pub fn ack(&mut self, held: &Held, result: Option<&Payload>) -> Try<Outcome> {
        let Some(job_row) = self.proven_unless_left(held, State::Done)? else { return Ok(Outcome::Acked) };
        if job_row.state == State::Done {
            return Ok(Outcome::Acked);
        }
        self.leased(&job_row, held)?;
        self.complete(&job_row, result)
    }

    /// Acks a job of this run that is not finished, leased or not.
    pub fn ack_late(&mut self, id: &JobId, run: u32, result: Option<&Payload>) -> Try<Outcome> {
        let job_row = match self.job_row(id) {
            Err(Fault::Refused(e)) if e.code() == Code::NoSuchJob && self.left_late(id)? => {
                return Ok(Outcome::Acked);
            }
            job_row => job_row?,
        };
        let refused = |why: &str| Err(Error::new(Code::State, format!("job {id} {why}")).into());
        match job_row.state {
            _ if job_row.run != run => refused(&format!(
                "has run {} by now, not {run}: it was requeued or moved, and that run is not ended",
                job_row.run
            )),
            State::Done => Ok(Outcome::Acked),
            State::Dead | State::Cancelled => refused(&format!(
                "is {}: only a job that is not finished can be acked; requeue() makes it ready again",
                job_row.state.as_str()
            )),
            State::Scheduled | State::Ready | State::Leased => {
                if job_row.token != NO_TOKEN {
                    // Or an ack of its holder would be taken for a repeat, and its result would be lost.
                    self.conn
                        .prepare_cached("UPDATE jobs SET token = ?2 WHERE seq = ?1")?
                        .execute(params![job_row.seq, LATE.0])?;
                }
                self.complete(&job_row, result)
            }
        }
    }

    /// Returns whether the job has left after a late ack: no other op ends a job as done without a holder's token.
    fn left_late(&mut self, id: &JobId) -> Try<bool> {
        Ok(self.left_as(id, LATE, State::Done)? || self.left_as(id, Token(NO_TOKEN), State::Done)?)
    }

    fn complete(&mut self, job_row: &JobRow, result: Option<&Payload>) -> Try<Outcome> {
        if let Some(result) = result {
            let content_type = self.intern(&result.content_type)?;
            self.conn
                .prepare_cached("INSERT INTO results (seq, content_type, bytes) VALUES (?1, ?2, ?3)")?
                .execute(params![job_row.seq, content_type, &result.bytes[..]])?;
        }
        self.finish(job_row, State::Done)?;
        let run_ms = (self.now_ms - job_row.claimed_ms).max(0);
        if job_row.state == State::Leased {
            self.cache.reported.runs_ms.push(run_ms);
        }
        self.report_job(job_row, |job| Happened::Acked { job, run_ms });
        Ok(Outcome::Acked)
    }

    pub fn nack(&mut self, held: &Held, delay_ms: Option<i64>, error: Option<&str>) -> Try<Outcome> {
        let Some(job_row) = self.proven_unless_left(held, State::Dead)? else {
            return Ok(Outcome::Nacked { state: State::Dead, run_at_ms: self.now_ms });
        };
        if matches!(job_row.state, State::Ready | State::Scheduled | State::Dead) {
            return Ok(Outcome::Nacked { state: job_row.state, run_at_ms: job_row.run_at_ms });
        }
        self.leased(&job_row, held)?;
        let attempt = attempt(job_row.tries)?;
        self.store_attempt(&job_row.ending(Ended::Failed, attempt, self.now_ms, error))?;
        // A lease without end means at most once: there is no second attempt.
        if i64::from(attempt) >= job_row.max_attempts || job_row.ends_ms == FOREVER_MS {
            self.report_job(&job_row, |job| Happened::Nacked { job, state: State::Dead });
            self.bury(&job_row)?;
            return Ok(Outcome::Nacked { state: State::Dead, run_at_ms: job_row.run_at_ms });
        }
        let delay_ms = match delay_ms {
            Some(ms) => ms,
            None => {
                self.terms(job_row.backoff)?.backoff.delay_ms(attempt, draw(&held.id, job_row.run, attempt))
            }
        };
        let run_at_ms = self.now_ms.saturating_add(delay_ms);
        let state = self.put_back(&job_row, job_row.tries, run_at_ms)?;
        self.report_job(&job_row, |job| Happened::Nacked { job, state });
        Ok(Outcome::Nacked { state, run_at_ms })
    }

    pub fn release(&mut self, held: &Held) -> Try<Outcome> {
        let job_row = self.proven(held)?;
        if job_row.state != State::Ready {
            self.leased(&job_row, held)?;
            self.put_back(&job_row, job_row.tries - 1, self.now_ms)?;
            self.report_job(&job_row, Happened::Released);
        }
        Ok(Outcome::Released)
    }

    pub fn reject(&mut self, held: &Held, error: Option<&str>) -> Try<Outcome> {
        let Some(job_row) = self.proven_unless_left(held, State::Dead)? else { return Ok(Outcome::Rejected) };
        if job_row.state != State::Dead {
            self.leased(&job_row, held)?;
            let attempt = attempt(job_row.tries)?;
            self.store_attempt(&job_row.ending(Ended::Rejected, attempt, self.now_ms, error))?;
            self.bury(&job_row)?;
        }
        Ok(Outcome::Rejected)
    }

    pub fn extend(&mut self, held: &Held, lease_ms: i64, at_least: bool) -> Try<Outcome> {
        let job_row = self.proven(held)?;
        self.leased(&job_row, held)?;
        // A lease that never runs out has nothing to extend.
        let lease_ms = if job_row.ends_ms == FOREVER_MS { FOREVER_MS } else { lease_ms };
        let expires_ms = end(self.now_ms, lease_ms);
        if at_least && expires_ms < job_row.ends_ms {
            return Ok(Outcome::Extended { expires_ms: job_row.ends_ms });
        }
        self.conn
            .prepare_cached("UPDATE jobs SET ends_ms = ?2 WHERE seq = ?1")?
            .execute([job_row.seq, expires_ms])?;
        let marks = self.marks(job_row.line);
        marks.expiry_ms = marks.expiry_ms.min(expires_ms);
        self.report_job(&job_row, |job| Happened::Extended { job, expires_ms });
        Ok(Outcome::Extended { expires_ms })
    }

    /// Returns the job, if this token is its current one.
    fn proven(&mut self, held: &Held) -> Try<JobRow> {
        let job_row = self.job_row(&held.id)?;
        if job_row.token == held.token.0 { Ok(job_row) } else { Err(self.lost(&job_row, held)) }
    }

    /// Does the same; returns none if this holder ended the job in this state and the job has left since.
    fn proven_unless_left(&mut self, held: &Held, state: State) -> Try<Option<JobRow>> {
        match self.proven(held) {
            Err(Fault::Refused(e))
                if e.code() == Code::NoSuchJob && self.left_as(&held.id, held.token, state)? =>
            {
                Ok(None)
            }
            job_row => job_row.map(Some),
        }
    }

    fn leased(&mut self, job_row: &JobRow, held: &Held) -> Try<()> {
        if job_row.state == State::Leased { Ok(()) } else { Err(self.lost(job_row, held)) }
    }

    /// Returns the refusal, and reports the lost lease.
    fn lost(&mut self, job_row: &JobRow, held: &Held) -> Fault {
        self.report_job(job_row, |job| Happened::LeaseLost { job, reason: Loss::Taken });
        Fault::Refused(Error::new(
            Code::LeaseLost,
            format!(
                "the lease of job {} is lost: the job was claimed again, finished, cancelled or deleted",
                held.id
            ),
        ))
    }

    /// Finishes the job in this state, unblocks its group and applies retention.
    pub fn finish(&mut self, job_row: &JobRow, state: State) -> Try<()> {
        let finish_seq = self.next_seq();
        self.conn
            .prepare_cached("UPDATE jobs SET state = ?2, ends_ms = ?3, finish_seq = ?4 WHERE seq = ?1")?
            .execute([job_row.seq, state as i64, self.now_ms, finish_seq])?;
        self.drop_overdue(job_row.seq)?;
        let marks = self.marks(job_row.line);
        marks.shift(job_row.state, state, 1);
        if job_row.state == State::Ready {
            marks.withdraw();
        }
        self.cache.reported.ended.push(JobId(uuid::Uuid::from_bytes(job_row.id)));
        if !job_row.blocked {
            self.advance(job_row.line, job_row.group.as_deref())?;
        }
        self.retain(job_row.line)
    }

    /// Puts a leased job back for its next claim. It keeps its token, which identifies a repeated op.
    fn put_back(&mut self, job_row: &JobRow, tries: i64, run_at_ms: i64) -> Try<State> {
        let state = if run_at_ms > self.now_ms { State::Scheduled } else { State::Ready };
        self.conn
            .prepare_cached("UPDATE jobs SET state = ?2, tries = ?3, run_at_ms = ?4 WHERE seq = ?1")?
            .execute([job_row.seq, state as i64, tries, run_at_ms])?;
        let line = job_row.line;
        self.marks(line).shift(State::Leased, state, 1);
        self.expire_returned(job_row.seq)?;
        if self.step_back(job_row)?.is_some() {
            return Ok(state);
        }
        let marks = self.marks(line);
        if state == State::Ready {
            marks.offer((job_row.priority, job_row.seq));
        } else {
            marks.due_ms = marks.due_ms.min(run_at_ms);
        }
        Ok(state)
    }
}

/// Returns a number that looks random and is the same whenever the commit is built again.
fn draw(id: &JobId, run: u32, attempt: u32) -> u64 {
    let mut seed = [0; 24];
    seed[..16].copy_from_slice(id.as_bytes());
    seed[16..20].copy_from_slice(&run.to_le_bytes());
    seed[20..].copy_from_slice(&attempt.to_le_bytes());
    XxHash3_128::oneshot(&seed) as u64
}
