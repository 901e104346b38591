//! The effect of each op on the model: the rules of the docs, as briefly as possible, without regard to speed.

use std::collections::BTreeMap;

use bucketq::error::Code;
use bucketq::job::{Backoff, Claimed, DedupScope, JobId, New, Payload, Reason, State, When};
use bucketq::op::{Claim, Enqueued, Held, Op, Outcome};

use crate::model::{Act, Answer, MJob, Model};

impl Model {
    /// Apply an op. `real` is the database's outcome: used only for the jitter of a back-off, which is checked.
    pub fn apply(&mut self, op: &Op, act: Act, real: Option<&Outcome>) -> Answer {
        self.apply_before(op, act, real, &[])
    }

    /// The same before these ops of the same atomic: a purge keeps the jobs that they enqueue.
    pub fn apply_before(&mut self, op: &Op, act: Act, real: Option<&Outcome>, later: &[Op]) -> Answer {
        let spared: Vec<JobId> = later
            .iter()
            .flat_map(|op| if let Op::Enqueue { jobs, .. } = op { &jobs[..] } else { &[] })
            .map(|job| job.id)
            .collect();
        match op {
            Op::Enqueue { queue, jobs } => {
                let before = self.clone();
                let done: Answer<Vec<_>> = jobs.iter().map(|new| self.enqueue(queue, new, act)).collect();
                if done.is_err() {
                    *self = before;
                }
                done.map(Outcome::Enqueued)
            }
            Op::Claim(claim) => Ok(Outcome::Claimed(self.claim(claim, act))),
            Op::ClaimWith(with) => self.end_and_claim(with, act),
            Op::Ack { held, result } => self.ack(held, result.as_ref(), act),
            Op::Nack { held, delay_ms, error } => self.nack(held, *delay_ms, error.as_ref(), act, real),
            Op::Release { held } => {
                let job = self.proven(held)?;
                if job.state != State::Ready {
                    leased(job)?;
                    job.attempt -= 1;
                    job.state = State::Ready;
                    job.run_at_ms = act.now_ms;
                }
                Ok(Outcome::Released)
            }
            Op::Reject { held, .. } if self.left_as(held, State::Dead) => Ok(Outcome::Rejected),
            Op::Reject { held, error } => {
                let job = self.proven(held)?;
                if job.state != State::Dead {
                    leased(job)?;
                    job.last_error = error.clone().or(job.last_error.take());
                    job.dies(Reason::Rejected, act.now_ms);
                    let seq = job.seq;
                    self.finish(seq, State::Dead, act);
                }
                Ok(Outcome::Rejected)
            }
            Op::Extend { held, lease_ms, at_least } => {
                let job = self.proven(held)?;
                leased(job)?;
                let sooner = if *at_least { job.ends_ms } else { i64::MIN };
                job.ends_ms = sooner.max(act.now_ms + lease_ms);
                Ok(Outcome::Extended { expires_ms: job.ends_ms })
            }
            Op::Cancel { id, .. } if self.is_requeued_already(*id, later) => {
                Ok(Outcome::Cancelled { was: State::Cancelled })
            }
            Op::Cancel { id, leased } => self.cancel(*id, *leased, act),
            Op::Requeue { id, run } => self.requeue(*id, *run, act),
            Op::Move { id, run, to } => self.relocate(*id, *run, to, act),
            Op::AckLate { id, run, result } => self.ack_late(*id, *run, result.as_ref(), act),
            Op::Delete { id, .. } if spared.contains(id) => Ok(Outcome::Deleted { was: None }),
            Op::Delete { id, leased } => {
                let Some(job) = self.job(*id) else { return Ok(Outcome::Deleted { was: None }) };
                let (was, seq) = (job.state, job.seq);
                if was == State::Leased && !leased {
                    return Err(Code::State);
                }
                self.delete(seq);
                self.advance(act);
                Ok(Outcome::Deleted { was: Some(was) })
            }
            Op::Purge { queue, states } => {
                let gone: Vec<_> = self
                    .jobs
                    .values()
                    .filter(|j| j.queue == *queue && states.contains(&j.state) && !spared.contains(&j.new.id))
                    .map(|j| j.seq)
                    .collect();
                for seq in &gone {
                    self.delete(*seq);
                }
                self.advance(act);
                Ok(Outcome::Purged { count: gone.len() as u64 })
            }
            Op::Pause { queue } => {
                self.make_queue(queue).paused = true;
                Ok(Outcome::Paused)
            }
            Op::Resume { queue } => {
                self.make_queue(queue).paused = false;
                Ok(Outcome::Resumed)
            }
            Op::Atomic(ops) => self.atomic(ops, act, real),
            other => panic!("the model knows no {other:?}"),
        }
    }

    fn enqueue(&mut self, queue: &str, new: &New, act: Act) -> Answer<Enqueued> {
        let answer = |id, (seq, commit_ms), deduplicated, existing| Enqueued {
            id,
            deduplicated,
            existing,
            commit_seq: seq >> 24,
            commit_ms,
            dropped: vec![],
        };
        if let Some(job) = self.job(new.id) {
            let there = &job.new;
            let same = (job.queue == queue || job.run > 0)
                && (&there.payload, there.priority, &there.group) == (&new.payload, new.priority, &new.group)
                && new.dedup.as_ref().map(|d| &d.key) == there.dedup.as_ref().map(|d| &d.key);
            return if same {
                Ok(answer(new.id, (job.seq, job.enqueued_ms), false, true))
            } else {
                Err(Code::IdTaken)
            };
        }
        if self.left.contains_key(&new.id) {
            return Ok(answer(new.id, (0, 0), false, true));
        }
        if let Some(dedup) = &new.dedup
            && let Some((id, first_seq, until)) = self.dedup.get(&(queue.to_owned(), dedup.key.clone()))
        {
            let job = self.job(*id);
            let counts = until.map_or(job.is_some_and(MJob::live), |until| until > act.now_ms);
            if counts {
                return Ok(answer(*id, job.map_or((*first_seq, 0), |j| (j.seq, j.enqueued_ms)), true, false));
            }
        }
        self.make_queue(queue);
        let seq = self.next_seq(act);
        if let Some(dedup) = &new.dedup {
            let until = match dedup.scope {
                DedupScope::Window(ms) => Some(act.now_ms + ms),
                DedupScope::Unfinished => None,
                DedupScope::Policy => Some(act.now_ms + 3_600_000),
            };
            self.dedup.insert((queue.to_owned(), dedup.key.clone()), (new.id, seq, until));
        }
        let run_at_ms = match new.when {
            When::Now => act.now_ms,
            When::In(ms) => act.now_ms + ms,
            When::At(ms) => ms,
        };
        self.take_turns(queue, new);
        let job = MJob {
            turn: self.next_turn(queue),
            new: new.clone(),
            queue: queue.to_owned(),
            seq,
            state: if run_at_ms > act.now_ms { State::Scheduled } else { State::Ready },
            held: self.busy(queue, new.group.as_ref()),
            run: 0,
            attempt: 0,
            enqueued_ms: act.now_ms,
            run_at_ms,
            claimed: None,
            ends_ms: act.now_ms,
            finish: (0, 0),
            token: None,
            last_error: None,
            died: None,
            result: None,
        };
        self.jobs.insert(seq, job);
        Ok(answer(new.id, (seq, act.now_ms), false, false))
    }

    pub fn take_turns(&mut self, queue: &str, new: &New) {
        if new.group.is_some() {
            self.make_queue(queue).turn.get_or_insert(1);
        }
    }

    pub fn busy(&self, queue: &str, group: Option<&String>) -> bool {
        group.is_some()
            && self.jobs.values().any(|j| j.queue == queue && j.new.group.as_ref() == group && j.live())
    }

    /// Unblock the first unfinished job of each group.
    pub fn advance(&mut self, act: Act) {
        let mut seen = Vec::new();
        for job in self.jobs.values_mut().filter(|j| j.new.group.is_some() && j.live()) {
            let group = (job.queue.clone(), job.new.group.clone());
            if !seen.contains(&group) {
                seen.push(group);
                if job.held {
                    job.held = false;
                    job.turn = self.queues[&job.queue].turn.expect("there is a group") + 1;
                    job.run_at_ms = job.run_at_ms.max(act.now_ms);
                }
            }
        }
    }

    pub fn claim(&mut self, claim: &Claim, act: Act) -> Vec<Claimed> {
        let now_ms = act.now_ms;
        let mine: Vec<_> =
            self.jobs.values().filter(|j| self.looks_at(&claim.queues, &j.queue)).map(|j| j.seq).collect();
        if claim.again {
            let held = self.held_by(claim, now_ms);
            if !held.is_empty() {
                return held;
            }
        }
        let mut by_end = mine.clone();
        by_end.sort_by_key(|seq| (self.jobs[seq].ends_ms, *seq));
        let mut lost = std::collections::BTreeSet::new();
        for seq in &by_end {
            let place = self.ordinal;
            let job = self.at(*seq);
            if job.state == State::Leased && job.ends_ms <= now_ms {
                job.token = None;
                let n = job.new.max_attempts.expect("given");
                if job.attempt >= n {
                    job.last_error = Some(format!("lease expired after attempt {n} of {n}"));
                    job.dies(Reason::LeaseExpired, job.ends_ms);
                    job.state = State::Dead;
                    job.ends_ms = now_ms;
                    job.finish = (act.commit_seq, place);
                    lost.insert(job.queue.clone());
                    self.ordinal += 1;
                } else {
                    job.state = State::Ready;
                    job.run_at_ms = job.ends_ms;
                }
            }
        }
        self.advance(act);
        for queue in lost {
            self.retain(&queue);
        }
        let mine: Vec<_> = mine.into_iter().filter(|seq| self.jobs.contains_key(seq)).collect();
        for seq in &mine {
            let job = self.at(*seq);
            if job.state == State::Scheduled && !job.held && job.run_at_ms <= now_ms {
                job.state = State::Ready;
            }
        }
        let mut lines: BTreeMap<String, Vec<(i32, i64, u64)>> = BTreeMap::new();
        for job in mine.iter().map(|seq| &self.jobs[seq]).filter(|j| j.state == State::Ready && !j.held) {
            lines.entry(job.queue.clone()).or_default().push((job.new.priority, job.turn, job.seq));
        }
        // In a queue the turn is compared before the age; the first jobs of the queues are compared without it.
        for line in lines.values_mut() {
            line.sort_unstable_by(|a, b| b.cmp(a));
        }
        let mut taken = Vec::new();
        while taken.len() < claim.max as usize {
            let first =
                |line: &Vec<_>| line.last().map(|(priority, _, seq): &(i32, i64, u64)| (*priority, *seq));
            let best = lines.iter().filter_map(|(q, line)| Some((first(line)?, q.clone()))).min();
            let Some((_, queue)) = best else { break };
            let Some((_, turn, seq)) = lines.get_mut(&queue).and_then(Vec::pop) else { break };
            let queue = self.make_queue(&queue);
            queue.turn = queue.turn.map(|highest| highest.max(turn));
            let job = self.at(seq);
            job.state = State::Leased;
            job.attempt += 1;
            job.claimed = Some((now_ms, act.commit_seq, claim.worker.clone()));
            job.ends_ms = now_ms + claim.lease_ms.expect("given");
            job.token = Some(claim.token);
            taken.push(job.claimed(now_ms));
        }
        taken
    }

    fn proven(&mut self, held: &Held) -> Answer<&mut MJob> {
        let seq = self.seq_of(held.id)?;
        let job = self.at(seq);
        if job.token == Some(held.token) { Ok(job) } else { Err(Code::LeaseLost) }
    }

    fn ack(&mut self, held: &Held, result: Option<&Payload>, act: Act) -> Answer {
        if self.left_as(held, State::Done) {
            return Ok(Outcome::Acked);
        }
        let job = self.proven(held)?;
        if job.state != State::Done {
            leased(job)?;
            job.result = result.cloned();
            let seq = job.seq;
            self.finish(seq, State::Done, act);
        }
        Ok(Outcome::Acked)
    }

    fn nack(
        &mut self,
        held: &Held,
        delay_ms: Option<i64>,
        error: Option<&String>,
        act: Act,
        real: Option<&Outcome>,
    ) -> Answer {
        if self.left_as(held, State::Dead) {
            return Ok(Outcome::Nacked { state: State::Dead, run_at_ms: act.now_ms });
        }
        let job = self.proven(held)?;
        if matches!(job.state, State::Ready | State::Scheduled | State::Dead) {
            return Ok(Outcome::Nacked { state: job.state, run_at_ms: job.run_at_ms });
        }
        leased(job)?;
        job.last_error = error.cloned().or(job.last_error.take());
        let (seq, run_at_ms) = (job.seq, job.run_at_ms);
        if Some(job.attempt) >= job.new.max_attempts {
            job.dies(Reason::Failed, act.now_ms);
            self.finish(seq, State::Dead, act);
            return Ok(Outcome::Nacked { state: State::Dead, run_at_ms });
        }
        let delay = delay_ms.unwrap_or_else(|| {
            let n = i64::from(job.attempt);
            let (most, jitter) = match job.new.backoff.as_ref().expect("given") {
                Backoff::Exponential { base_ms, max_ms, jitter_percent } => {
                    ((base_ms << (n - 1)).min(*max_ms), i64::from(*jitter_percent))
                }
                Backoff::None => (0, 0),
                Backoff::Fixed { delay_ms } => (*delay_ms, 0),
                Backoff::Linear { base_ms, max_ms } => ((base_ms * n).min(*max_ms), 0),
                Backoff::List { delays_ms } => (delays_ms[(n as usize).min(delays_ms.len()) - 1], 0),
            };
            let least = most - most * jitter / 100;
            match real {
                Some(Outcome::Nacked { run_at_ms, .. }) => {
                    let delay = run_at_ms - act.now_ms;
                    assert!(
                        (least..=most).contains(&delay),
                        "a back-off of {delay} ms, not {least} to {most}"
                    );
                    delay
                }
                // The atomic fails later: any value will do.
                _ => most,
            }
        });
        job.run_at_ms = act.now_ms + delay;
        job.state = if delay > 0 { State::Scheduled } else { State::Ready };
        Ok(Outcome::Nacked { state: job.state, run_at_ms: job.run_at_ms })
    }

    fn finish(&mut self, seq: u64, state: State, act: Act) {
        let place = self.ordinal;
        self.ordinal += 1;
        let job = self.at(seq);
        job.state = state;
        job.ends_ms = act.now_ms;
        job.finish = (act.commit_seq, place);
        let queue = job.queue.clone();
        self.advance(act);
        self.retain(&queue);
    }

    /// The oldest jobs beyond the retention leave, those of each state counted apart.
    fn retain(&mut self, queue: &str) {
        for end in [State::Done, State::Cancelled, State::Dead] {
            let kept = self.jobs.values().filter(|j| j.queue == queue && j.state == end);
            let mut kept: Vec<_> = kept.map(|j| (j.finish, j.seq)).collect();
            kept.sort_unstable();
            let excess = kept.len().saturating_sub(self.queues[queue].retain as usize);
            for (_, seq) in kept.into_iter().take(excess) {
                self.delete(seq);
            }
        }
    }

    fn delete(&mut self, seq: u64) {
        let job = self.jobs.remove(&seq).expect("there");
        self.left.insert(job.new.id, (job.token, job.state));
        self.dedup.retain(|_, (id, _, until)| until.is_some() || *id != job.new.id);
    }

    fn ack_late(&mut self, id: JobId, run: u32, result: Option<&Payload>, act: Act) -> Answer {
        if self.job(id).is_none() && self.left.get(&id) == Some(&(None, State::Done)) {
            return Ok(Outcome::Acked);
        }
        let seq = self.seq_of(id)?;
        let job = self.at(seq);
        match job.state {
            _ if job.run != run => return Err(Code::State),
            State::Done => return Ok(Outcome::Acked),
            State::Dead | State::Cancelled => return Err(Code::State),
            _ => {
                job.result = result.cloned();
                job.token = None;
            }
        }
        self.finish(seq, State::Done, act);
        Ok(Outcome::Acked)
    }

    fn cancel(&mut self, id: JobId, leased: bool, act: Act) -> Answer {
        let seq = self.seq_of(id)?;
        let was = self.at(seq).state;
        match was {
            State::Cancelled => return Ok(Outcome::Cancelled { was }),
            State::Done | State::Dead => return Err(Code::State),
            State::Leased if !leased => return Err(Code::State),
            _ => {}
        }
        self.finish(seq, State::Cancelled, act);
        Ok(Outcome::Cancelled { was })
    }
}

fn leased(job: &MJob) -> Answer<()> {
    if job.state == State::Leased { Ok(()) } else { Err(Code::LeaseLost) }
}
