//! Atomics in the model: all or nothing, and a repeat changes nothing.

use bucketq::error::Code;
use bucketq::job::JobId;
use bucketq::op::{Op, Outcome};

use crate::model::{Act, Answer, Model};

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
