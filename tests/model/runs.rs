//! New runs in the model: of requeued jobs, and of jobs that move to another queue.

use bucketq::error::Code;
use bucketq::job::{JobId, State};
use bucketq::op::Outcome;

use crate::model::{Act, Answer, Model};

impl Model {
    pub fn requeue(&mut self, id: JobId, run: Option<u32>, act: Act) -> Answer {
        let seq = self.seq_of(id)?;
        let job = &self.jobs[&seq];
        if run.is_some_and(|run| run + 1 == job.run) {
            return Ok(Outcome::Requeued { run: job.run });
        }
        if run.is_some_and(|run| run != job.run) || job.live() {
            return Err(Code::State);
        }
        let queue = job.queue.clone();
        Ok(Outcome::Requeued { run: self.new_run(seq, &queue, None, act) })
    }

    pub fn relocate(&mut self, id: JobId, run: Option<u32>, to: &str, act: Act) -> Answer {
        let seq = self.seq_of(id)?;
        let job = &self.jobs[&seq];
        let is_there = job.queue == to;
        if is_there && run.is_none_or(|run| run + 1 == job.run) {
            return Ok(Outcome::Moved { run: job.run });
        }
        if run.is_some_and(|run| run != job.run) {
            return Err(Code::State);
        }
        if is_there {
            return Ok(Outcome::Moved { run: job.run });
        }
        if job.state == State::Leased {
            return Err(Code::State);
        }
        let waits = job.state == State::Scheduled && job.run_at_ms > act.now_ms;
        let until = waits.then_some(job.run_at_ms);
        // Its key is for the queue that it leaves.
        self.dedup.retain(|_, (owner, _, until)| until.is_some() || *owner != id);
        self.make_queue(to);
        let run = self.new_run(seq, to, until, act);
        self.advance(act);
        Ok(Outcome::Moved { run })
    }

    /// Begins a new run of the job in a queue, which waits until a time.
    fn new_run(&mut self, seq: u64, queue: &str, until: Option<i64>, act: Act) -> u32 {
        let held = self.busy(queue, self.jobs[&seq].new.group.clone().as_ref());
        let mut job = self.jobs.remove(&seq).expect("there");
        queue.clone_into(&mut job.queue);
        self.take_turns(&job.queue, &job.new);
        job.turn = self.next_turn(&job.queue);
        job.seq = self.next_seq(act);
        // Its key goes with it.
        for (_, first_seq, _) in self.dedup.values_mut().filter(|(_, first_seq, _)| *first_seq == seq) {
            *first_seq = job.seq;
        }
        job.state = if until.is_some() { State::Scheduled } else { State::Ready };
        job.held = held;
        job.run += 1;
        job.attempt = 0;
        (job.enqueued_ms, job.run_at_ms, job.ends_ms) = (act.now_ms, until.unwrap_or(act.now_ms), act.now_ms);
        (job.claimed, job.token, job.last_error, job.result, job.died) = (None, None, None, None, None);
        let run = job.run;
        self.jobs.insert(job.seq, job);
        run
    }
}
