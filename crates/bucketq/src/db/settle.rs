//! What the holder of a lease does with its job: ack, nack, release, reject, extend.
//!
//! Each needs the current token and the job leased; a lease that has run out still counts while nobody claimed the job
//! again (P27). A repeated op of the same holder gets the same answer as long as the job is where the op left it; that
//! is certain for ack and reject, and for the others until the job is claimed again.

use rusqlite::params;
use twox_hash::XxHash3_128;

use super::Turn;
use super::claim::end;
use super::fault::{Fault, Try};
use super::row::{Slot, attempt};
use crate::error::{Code, Error};
use crate::event::{Happened, Loss};
use crate::job::{Ended, JobId, Payload, State};
use crate::lease::FOREVER_MS;
use crate::op::{Held, Outcome};

impl Turn<'_> {
    pub fn ack(&mut self, held: &Held, result: Option<&Payload>) -> Try<Outcome> {
        let slot = self.proven(held)?;
        if slot.state == State::Done {
            return Ok(Outcome::Acked);
        }
        self.leased(&slot, held)?;
        if let Some(result) = result {
            let content_type = self.intern(&result.content_type)?;
            self.conn
                .prepare_cached("INSERT INTO results (seq, content_type, bytes) VALUES (?1, ?2, ?3)")?
                .execute(params![slot.seq, content_type, &result.bytes[..]])?;
        }
        self.finish(&slot, State::Done)?;
        let run_ms = (self.now_ms - slot.claimed_ms).max(0);
        self.cache.told.runs_ms.push(run_ms);
        self.tell_of(&slot, |job| Happened::Acked { job, run_ms });
        Ok(Outcome::Acked)
    }

    pub fn nack(&mut self, held: &Held, delay_ms: Option<i64>, error: Option<&str>) -> Try<Outcome> {
        let slot = self.proven(held)?;
        if matches!(slot.state, State::Ready | State::Scheduled | State::Dead) {
            return Ok(Outcome::Nacked { state: slot.state, run_at_ms: slot.run_at_ms });
        }
        self.leased(&slot, held)?;
        let attempt = attempt(slot.tries)?;
        self.keep_attempt(&slot.ending(Ended::Failed, attempt, self.now_ms, error))?;
        // Claimed at most once: there is no second time.
        if i64::from(attempt) >= slot.max_attempts || slot.ends_ms == FOREVER_MS {
            self.tell_of(&slot, |job| Happened::Nacked { job, state: State::Dead });
            self.bury(&slot)?;
            return Ok(Outcome::Nacked { state: State::Dead, run_at_ms: slot.run_at_ms });
        }
        let delay_ms = match delay_ms {
            Some(ms) => ms,
            None => self.backoff(slot.backoff)?.delay_ms(attempt, draw(&held.id, slot.run, attempt)),
        };
        let run_at_ms = self.now_ms.saturating_add(delay_ms);
        let state = self.put_back(&slot, slot.tries, run_at_ms)?;
        self.tell_of(&slot, |job| Happened::Nacked { job, state });
        Ok(Outcome::Nacked { state, run_at_ms })
    }

    pub fn release(&mut self, held: &Held) -> Try<Outcome> {
        let slot = self.proven(held)?;
        if slot.state != State::Ready {
            self.leased(&slot, held)?;
            self.put_back(&slot, slot.tries - 1, self.now_ms)?;
            self.tell_of(&slot, Happened::Released);
        }
        Ok(Outcome::Released)
    }

    pub fn reject(&mut self, held: &Held, error: Option<&str>) -> Try<Outcome> {
        let slot = self.proven(held)?;
        if slot.state != State::Dead {
            self.leased(&slot, held)?;
            let attempt = attempt(slot.tries)?;
            self.keep_attempt(&slot.ending(Ended::Rejected, attempt, self.now_ms, error))?;
            self.bury(&slot)?;
        }
        Ok(Outcome::Rejected)
    }

    pub fn extend(&mut self, held: &Held, lease_ms: i64) -> Try<Outcome> {
        let slot = self.proven(held)?;
        self.leased(&slot, held)?;
        // A lease that never runs out has nothing to extend.
        let lease_ms = if slot.ends_ms == FOREVER_MS { FOREVER_MS } else { lease_ms };
        let expires_ms = end(self.now_ms, lease_ms);
        self.conn
            .prepare_cached("UPDATE jobs SET ends_ms = ?2 WHERE seq = ?1")?
            .execute([slot.seq, expires_ms])?;
        let marks = self.marks(slot.line);
        marks.expiry_ms = marks.expiry_ms.min(expires_ms);
        self.tell_of(&slot, |job| Happened::Extended { job, expires_ms });
        Ok(Outcome::Extended { expires_ms })
    }

    /// The job, if this is the newest proof of holding it.
    fn proven(&mut self, held: &Held) -> Try<Slot> {
        let slot = self.slot(&held.id)?;
        if slot.token == held.token.0 { Ok(slot) } else { Err(self.lost(&slot, held)) }
    }

    fn leased(&mut self, slot: &Slot, held: &Held) -> Try<()> {
        if slot.state == State::Leased { Ok(()) } else { Err(self.lost(slot, held)) }
    }

    /// The refusal, which is also told.
    fn lost(&mut self, slot: &Slot, held: &Held) -> Fault {
        self.tell_of(slot, |job| Happened::LeaseLost { job, reason: Loss::Taken });
        Fault::Refused(Error::new(
            Code::LeaseLost,
            format!("the lease of job {} is lost: claimed again, finished or taken away", held.id),
        ))
    }

    /// The job is finished in this state, and what follows from that.
    pub fn finish(&mut self, slot: &Slot, state: State) -> Try<()> {
        let finish_seq = self.next_seq();
        self.conn
            .prepare_cached("UPDATE jobs SET state = ?2, ends_ms = ?3, finish_seq = ?4 WHERE seq = ?1")?
            .execute([slot.seq, state as i64, self.now_ms, finish_seq])?;
        let marks = self.marks(slot.line);
        marks.shift(slot.state, state, 1);
        if slot.state == State::Ready {
            marks.withdraw();
        }
        if !slot.held {
            self.advance(slot.line, slot.group.as_deref())?;
        }
        self.retain(slot.line)
    }

    /// The leased job waits for its next claim. It keeps its token, by which a repeated op is known.
    fn put_back(&mut self, slot: &Slot, tries: i64, run_at_ms: i64) -> Try<State> {
        let state = if run_at_ms > self.now_ms { State::Scheduled } else { State::Ready };
        self.conn
            .prepare_cached("UPDATE jobs SET state = ?2, tries = ?3, run_at_ms = ?4 WHERE seq = ?1")?
            .execute([slot.seq, state as i64, tries, run_at_ms])?;
        let marks = self.marks(slot.line);
        marks.shift(State::Leased, state, 1);
        if state == State::Ready {
            marks.offer((slot.priority, slot.seq));
        } else {
            marks.due_ms = marks.due_ms.min(run_at_ms);
        }
        Ok(state)
    }
}

/// A number that looks random and is the same whenever the commit is built again.
fn draw(id: &JobId, run: u32, attempt: u32) -> u64 {
    let mut seed = [0; 24];
    seed[..16].copy_from_slice(id.as_bytes());
    seed[16..20].copy_from_slice(&run.to_le_bytes());
    seed[20..].copy_from_slice(&attempt.to_le_bytes());
    XxHash3_128::oneshot(&seed) as u64
}
