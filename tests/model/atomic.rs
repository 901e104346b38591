//! Atomics in the model: all or nothing, and a repeat changes nothing.

use bucketq::error::Code;
use bucketq::job::{Claimed, JobId, State};
use bucketq::op::{Claim, ClaimWith, Held, Op, Outcome};

use crate::model::{Act, Answer, MJob, Model};

impl Model {
    /// Apply several ops, all or none.
    pub fn atomic(&mut self, ops: &[Op], act: Act, real: Option<&Outcome>) -> Answer {
        let before = self.clone();
        let done = self.all(ops, act, real);
        if done.is_err() {
            *self = before;
        }
        done
    }

    fn all(&mut self, ops: &[Op], act: Act, real: Option<&Outcome>) -> Answer {
        let mut outcomes = Vec::new();
        let (mut ends, mut adds) = (vec![], false);
        for (i, op) in ops.iter().enumerate() {
            let real = match real {
                Some(Outcome::Atomic(outcomes)) => outcomes.get(i),
                _ => None,
            };
            let jobs = self.jobs.clone();
            outcomes.push(self.apply_before(op, act, real, &ops[i + 1..])?);
            let changed = self.jobs != jobs;
            match op {
                Op::Ack { .. } | Op::Nack { .. } | Op::Release { .. } | Op::Reject { .. } => {
                    ends.push(changed);
                }
                Op::Enqueue { .. }
                | Op::AckLate { .. }
                | Op::Cancel { .. }
                | Op::Requeue { .. }
                | Op::Move { .. }
                | Op::Delete { .. }
                | Op::Purge { .. } => {
                    adds |= changed;
                }
                _ => {}
            }
        }
        // All its ends are repeats, so the rest has happened before as well.
        if adds && !ends.is_empty() && !ends.contains(&true) {
            return Err(Code::LeaseLost);
        }
        Ok(Outcome::Atomic(outcomes))
    }

    /// The end of a job and a claim; a repeat claims nothing more.
    pub fn end_and_claim(&mut self, with: &ClaimWith, act: Act) -> Answer {
        let ends = with.ends.as_deref().expect("the steps name one");
        let Held { id, token } = ends.held().expect("it has a token");
        let is_first = self.job(id).is_some_and(|j| j.state == State::Leased && j.token == Some(token));
        if is_first {
            self.apply(ends, act, None)?;
            return Ok(Outcome::ClaimedNext(self.claim(&with.claim, act)));
        }
        let held = self.held_by(&with.claim, act.now_ms);
        if held.is_empty() {
            self.apply(ends, act, None)?;
        }
        Ok(Outcome::ClaimedNext(held))
    }

    pub fn held_by(&self, claim: &Claim, now_ms: i64) -> Vec<Claimed> {
        let is_held = |j: &&MJob| {
            self.looks_at(&claim.queues, &j.queue)
                && j.state == State::Leased
                && j.token == Some(claim.token)
                && j.ends_ms > now_ms
        };
        let mut held: Vec<_> = self.jobs.values().filter(is_held).collect();
        held.sort_by_key(|j| (j.new.priority, j.seq));
        held.into_iter().map(|j| j.claimed(now_ms)).collect()
    }

    /// Whether these ops of the same atomic have begun the new run of the job before.
    pub fn is_requeued_already(&self, id: JobId, later: &[Op]) -> bool {
        let run = later.iter().find_map(|op| match op {
            Op::Requeue { id: other, run: Some(run) } | Op::Move { id: other, run: Some(run), .. }
                if *other == id =>
            {
                Some(*run)
            }
            _ => None,
        });
        run.is_some_and(|run| self.job(id).is_some_and(|job| job.run == run + 1))
    }
}
