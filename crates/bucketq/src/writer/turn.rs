//! One turn: run a batch, publish it, answer its callers; then the questions, from settled state.

use tokio::time::Instant;

use super::gather::Expected;
use super::local::succeeded;
use super::push::Pushed;
use super::{Outcomes, Work, Writer, wrong};
use crate::db::{self, Moment};
use crate::door::{self, Done, Question, Slot, Synced, Task, Told, Wait};
use crate::error::{Code, Error, Kind, Result};
use crate::keys;
use crate::metrics::Counters;
use crate::op::{Held, Op, Outcome, Queues};
use crate::pages::Changes;
use crate::query::{Answer, Query};

/// A batch run on the local state.
pub(super) struct Executed {
    pub outcomes: Outcomes,
    pub changes: Changes,
    pub told: db::Told,
    pub commit_ms: i64,
    /// Taken before the time of the commit was (P26).
    pub began: Instant,
}

impl Writer {
    pub(super) async fn turn(&mut self, work: Work) {
        if self.local.is_some() {
            return self.local_turn(work).await;
        }
        let Work { mut slots, mut questions, exports, collections, archives, flushes, tasks, poll, wake: _ } =
            work;
        if let Some(error) = self.halted.clone() {
            self.refuse_all(slots, questions, &error);
            for order in collections {
                let _ = order.begun.send(Err(error.clone()));
            }
            for export in exports {
                let _ = export.reply.send(Err(error.clone()));
            }
            self.archive(archives).await;
        } else {
            let moved = poll && self.poll().await;
            slots.extend(self.archive_made());
            let batch = self.batch(slots, poll || moved);
            if !batch.is_empty() {
                self.commit(batch, &mut questions).await;
            }
            if !questions.is_empty() {
                self.answer(questions).await;
            }
            for order in collections {
                self.collect(order).await;
            }
            for export in exports {
                self.export(export).await;
            }
            self.archive(archives).await;
        }
        for (task, reply) in tasks {
            let _ = reply.send(self.durable_task(task).await);
        }
        for done in flushes {
            let _ = done.send(());
        }
    }

    /// What concerns Local mode has little to do here: everything acknowledged is published.
    async fn durable_task(&mut self, task: Task) -> Result<Told> {
        if let Some(error) = &self.halted {
            return Err(error.clone());
        }
        match task {
            Task::Sync => {
                Ok(Told::Synced(Synced { commits: 0, ops: 0, commit_seq: self.chain.head.commit_seq }))
            }
            Task::Snapshot { .. } => self.refresh().await.map(|_| Told::At(self.chain.head.commit_seq)),
            Task::Export { .. } => {
                Err(Error::invalid("nothing is ever pending in Durable mode: there is nothing to export"))
            }
        }
    }

    pub(super) fn refuse_all(&mut self, slots: Vec<Slot>, questions: Vec<Question>, error: &Error) {
        let parked: Vec<Slot> = self.parked.drain(..).collect();
        for slot in slots.into_iter().chain(parked) {
            respond(slot, Err(error.clone()));
        }
        for q in questions {
            let _ = q.reply.send(Err(error.clone()));
        }
    }

    /// Look at the store on behalf of waiting claims, if it is time. True if something had changed.
    async fn poll(&mut self) -> bool {
        if self.env.monotonic() < self.chain.fresh.max(self.pace.polled) + self.pace.poll {
            return false;
        }
        let moved = self.refresh().await.unwrap_or(false);
        self.pace.polled = self.env.monotonic();
        self.pace.poll =
            if moved { self.options.poll_min } else { (self.pace.poll * 3 / 2).min(self.options.poll_max) };
        moved
    }

    /// Claims run after what brings jobs, so that they find it; those that wait already run first among them. Enqueues
    /// that wait for room run last, when the claims have made some.
    pub(super) fn batch(&mut self, slots: Vec<Slot>, wake: bool) -> Vec<Slot> {
        let is_claim = |slot: &Slot| matches!(&slot.work, door::Work::Op(Op::Claim(_)));
        let (claims, mut batch): (Vec<Slot>, Vec<Slot>) = slots.into_iter().partition(is_claim);
        let mut waiting = vec![];
        if wake || !batch.is_empty() || !claims.is_empty() {
            let (claims, enqueues): (Vec<Slot>, Vec<Slot>) = self.parked.drain(..).partition(is_claim);
            batch.extend(claims);
            waiting = enqueues;
        }
        batch.extend(claims);
        batch.extend(waiting);
        batch
    }

    /// Run the batch until it is stored, surely not applied, or unknowable. The questions of the turn wait.
    pub(super) async fn commit(&mut self, mut batch: Vec<Slot>, waiting: &mut Vec<Question>) {
        let mut losses = 0;
        loop {
            batch.retain(|slot| !slot.is_gone());
            if batch.is_empty() {
                return;
            }
            if let Some(error) = self.halted.clone() {
                return self.refuse_all(batch, vec![], &error);
            }
            if let Err(error) = self.check_writable() {
                return fail(batch, &error);
            }
            self.make_room();
            let executed = match self.prepare(&batch).await {
                Ok(executed) => executed,
                Err(error) => return fail(batch, &error),
            };
            let fence = batch.iter().any(|slot| matches!(slot.work, door::Work::Fence));
            if executed.changes.is_empty() && !fence {
                // Nothing to store; but "empty" or "no such job" may be said only of the newest state.
                let asked = batch.iter().map(|slot| slot.arrived).max();
                if asked.is_some_and(|asked| self.chain.fresh <= asked) {
                    match self.refresh().await {
                        Ok(true) => continue,
                        Ok(false) => {}
                        Err(error) => return fail(batch, &error),
                    }
                }
                self.pace.looked_ms = executed.commit_ms;
                let decided_on = (self.chain.head.commit_seq, self.chain.head.commit_ms);
                // An enqueue that met its double changed nothing either.
                self.tell_batch(executed.told, decided_on);
                self.tell_empty(&executed.outcomes, decided_on);
                return self.reply(batch, executed.outcomes, decided_on, executed.began);
            }
            let Executed { outcomes, changes, told, commit_ms, began } = executed;
            self.answer_too_early(waiting);
            // Settled late, the chain may have moved on beyond it.
            let commit = (self.chain.head.commit_seq + 1, commit_ms);
            match self.push(&batch, &outcomes, changes, commit_ms).await {
                Pushed::Stored => {
                    self.pace.looked_ms = commit_ms;
                    self.share();
                    self.tell_batch(told, commit);
                    self.tell_empty(&outcomes, commit);
                    self.tell_commit(succeeded(&outcomes), began, commit);
                    return self.reply(batch, outcomes, commit, began);
                }
                Pushed::Again => {}
                Pushed::Lost(cause) => {
                    losses += 1;
                    self.tell_conflict(cause);
                    let lost = format!("other writers were faster {losses} times");
                    self.shared.trouble(Some(Error::new(Code::Contended, lost)));
                    // Small, or the gap that the winner leaves is over before the next put.
                    super::back_off(&self.env, self.pace.put / 8, self.pace.put / 4, losses.min(2)).await;
                    // Jobs that leave change many pages, and who takes long to build loses often: callers who came with
                    // them, or since, do not wait for that again and again, and the next try moves few pages.
                    let leaves = |slot: &mut Slot| match &mut slot.work {
                        door::Work::Archive { tidy, .. } => {
                            *tidy = false;
                            true
                        }
                        _ => false,
                    };
                    self.carry.extend(batch.extract_if(.., leaves));
                }
                Pushed::NotApplied(error) => return fail(batch, &error),
                Pushed::Unknown(error) => {
                    Counters::add(&self.shared.counters.unknown, 1);
                    return fail(batch, &error);
                }
            }
        }
    }

    /// A commit is stored: time for a gap, perhaps.
    fn share(&mut self) {
        let Some(sent) = self.pace.last_put else { return };
        self.pace.gap_until = self.pace.sharing.stored(sent, self.env.monotonic(), self.pace.put);
    }

    /// Run the batch locally, at a time the clocks agree on.
    async fn prepare(&mut self, batch: &[Slot]) -> Result<Executed> {
        if self.time.is_skewed() {
            self.refresh().await?;
        }
        let began = self.env.monotonic();
        let commit_ms = self.time.commit_ms(self.chain.head.commit_ms)?;
        let (outcomes, changes) = self.execute(batch, commit_ms)?;
        let told = self.chain.db.take_told();
        Ok(Executed { outcomes, changes, told, commit_ms, began })
    }

    /// One transaction for the batch. An op that fails fails alone; one that breaks the transaction is left out and
    /// the others run again.
    pub(super) fn execute(&mut self, batch: &[Slot], commit_ms: i64) -> Result<(Outcomes, Changes)> {
        let at = self.moment(commit_ms);
        self.chain.db.watch(self.shared.watchers.any());
        let mut out: Vec<Option<Error>> = vec![None; batch.len()];
        loop {
            match self.attempt(batch, &at, &mut out) {
                Ok(outcomes) => {
                    return Ok((outcomes, self.chain.pages.with(crate::pages::Pages::take_changes)));
                }
                Err(Some(culprit)) => {
                    tracing::debug!(op = culprit, "an op broke its batch and is left out");
                    self.abandon()?;
                }
                Err(None) => {
                    self.abandon()?;
                    let failed = out.iter().flatten().next().cloned();
                    return Err(failed.unwrap_or_else(|| {
                        Error::new(Code::Internal, "the batch could not be committed locally")
                    }));
                }
            }
        }
    }

    /// One try at the batch. On an error the transaction is still to be abandoned; `Some` names an op now marked in
    /// `out`, `None` says that the transaction itself could not be begun or committed.
    fn attempt(
        &mut self,
        batch: &[Slot],
        at: &Moment,
        out: &mut [Option<Error>],
    ) -> Result<Outcomes, Option<usize>> {
        let db = &mut self.chain.db;
        wrong::hand_down(&self.options, db);
        if let Err(error) = db.begin() {
            out[0] = Some(error);
            return Err(None);
        }
        let mut outcomes: Outcomes = Vec::with_capacity(batch.len());
        let mut empty: Vec<&Queues> = vec![];
        for (i, slot) in batch.iter().enumerate() {
            if let Some(error) = &out[i] {
                outcomes.push(Err(error.clone()));
                continue;
            }
            let op = match &slot.work {
                door::Work::Op(op) => op,
                door::Work::Fence => {
                    outcomes.push(Ok(Outcome::Atomic(vec![])));
                    continue;
                }
                door::Work::Archive { listing, tidy } => {
                    if !tidy {
                        db.move_few_pages();
                    }
                    let floor = self.chain.head.gc_floor;
                    let done = wrong::archive(&self.options, db, listing.as_deref(), at, floor, &self.limits);
                    if db.poisoned() {
                        out[i] = Some(done.err().unwrap_or_else(broke));
                        return Err(Some(i));
                    }
                    outcomes.push(done.map(|()| Outcome::Atomic(vec![])));
                    continue;
                }
            };
            // A hundred waiting claims on an empty queue cost one look.
            if let Op::Claim(claim) = op
                && slot.wait != Wait::No
                && empty.contains(&&claim.queues)
            {
                outcomes.push(Ok(Outcome::Claimed(vec![])));
                continue;
            }
            let outcome = db.apply(&wrong::with_current_token(&self.options, db, op), at, &self.limits);
            if db.poisoned() {
                out[i] = Some(outcome.err().unwrap_or_else(broke));
                return Err(Some(i));
            }
            if let (Op::Claim(claim), Ok(Outcome::Claimed(jobs))) = (op, &outcome)
                && jobs.is_empty()
            {
                empty.push(&claim.queues);
            }
            outcomes.push(outcome);
        }
        // Nothing was done, but a savepoint rolled back leaves pages that look changed: they would cost a put.
        let refused = !outcomes.is_empty() && outcomes.iter().all(Result::is_err);
        if let Err(error) = if refused { db.rollback() } else { db.commit() } {
            out[0] = Some(error);
            return Err(None);
        }
        Ok(outcomes)
    }

    fn abandon(&mut self) -> Result<()> {
        let rolled_back = self.chain.db.rollback();
        // A commit that failed half-way may have written some pages.
        let changes = self.chain.pages.with(crate::pages::Pages::take_changes);
        self.undo(changes);
        rolled_back
    }

    /// Answer a batch that is settled; claims that found nothing and may wait are parked.
    pub(super) fn reply(&mut self, batch: Vec<Slot>, outcomes: Outcomes, commit: (u64, i64), began: Instant) {
        let (commit_seq, commit_ms) = commit;
        let now = self.env.monotonic();
        let mut released = 0;
        for (mut slot, outcome) in batch.into_iter().zip(outcomes) {
            if let Some(end) = self.room_until(&slot, &outcome).filter(|end| now < *end) {
                slot.wait = Wait::Until(end);
                slot.stage.park();
                self.parked.push_back(slot);
                continue;
            }
            let waits = match slot.wait {
                Wait::No => false,
                Wait::Until(end) => now < end,
                Wait::Forever => true,
            };
            if waits && matches!(&outcome, Ok(Outcome::Claimed(jobs)) if jobs.is_empty()) {
                // No body holds it: whoever gives up now may be told so (P7).
                slot.stage.unsend();
                self.parked.push_back(slot);
                continue;
            }
            // An archive object, or a job that is given back, comes from nobody who will call again.
            released += usize::from(slot.reply.is_some() && !matches!(slot.work, door::Work::Archive { .. }));
            let done = outcome.map(|outcome| Done { outcome, commit_seq, commit_ms, began });
            if let Some(Done { outcome: Outcome::Claimed(jobs), .. }) = respond(slot, done) {
                Counters::add(&self.shared.counters.handed_back, jobs.len() as u64);
                let held = jobs.iter().map(|c| Held { id: c.job.id, token: c.lease.token });
                self.carry.extend(held.map(|held| Slot::release(held, now)));
            }
        }
        self.pace.expect = Some(Expected::back(released, now, self.pace.put, &self.options));
    }

    /// How long an enqueue that found no room waits for some, by the policy of its queue.
    fn room_until(&mut self, slot: &Slot, outcome: &Result<Outcome>) -> Option<Instant> {
        let door::Work::Op(Op::Enqueue { queue, .. }) = &slot.work else { return None };
        if outcome.as_ref().err().is_none_or(|e| e.code() != Code::Blocked) {
            return None;
        }
        let timeout = self.chain.db.block(queue).ok().flatten()?;
        slot.arrived.checked_add(timeout)
    }

    /// Answer questions from settled state that is as fresh as they want it.
    pub(super) async fn answer(&mut self, questions: Vec<Question>) {
        let now = self.env.monotonic();
        let stale = |q: &Question, fresh: Instant| {
            fresh <= q.arrived && q.max_age.is_none_or(|age| now.saturating_duration_since(fresh) > age)
        };
        let fresh = self.chain.fresh;
        let refreshed =
            if questions.iter().any(|q| stale(q, fresh)) { self.refresh().await.map(|_| ()) } else { Ok(()) };
        for q in questions {
            let answer = match &refreshed {
                Err(error) if stale(&q, fresh) => Err(error.clone()),
                _ if matches!(q.query, Query::History { .. }) => {
                    self.tell_history(q);
                    continue;
                }
                _ => self.look_up(&q),
            };
            let _ = q.reply.send(answer);
        }
    }

    pub(super) fn look_up(&mut self, q: &Question) -> Result<Answer> {
        let head = &self.chain.head;
        let last_ms = self.local.as_ref().map_or(head.commit_ms, |l| l.log.last_ms());
        let at = Moment { now_ms: self.time.now_ms().max(last_ms), commit_seq: head.commit_seq };
        let mut answer = self.chain.db.query(&q.query, &at)?;
        match &mut answer {
            Answer::Stats(stats) => {
                stats.commit_ms = self.chain.head.commit_ms;
                stats.commit_id = keys::hex(&self.chain.head.commit_id);
            }
            Answer::Archives(archives) => {
                for a in &mut archives.objects {
                    a.key = keys::archive(&self.source.name, &keys::hex(&a.file), a.seq, &a.rand);
                }
            }
            _ => {}
        }
        Ok(answer)
    }
}

fn broke() -> Error {
    Error::new(Code::Internal, "an op broke its transaction")
}

pub(super) fn fail(batch: Vec<Slot>, error: &Error) {
    for slot in batch {
        respond(slot, Err(error.clone()));
    }
}

/// Hand the answer over. What comes back is an answer whose caller has gone.
pub(super) fn respond(slot: Slot, answer: Result<Done>) -> Option<Done> {
    let Some(reply) = slot.reply else {
        // A job handed back meanwhile finished or expired by itself: just as well.
        if let Err(error) = answer
            && !matches!(error.kind(), Kind::LeaseLost | Kind::NotFound)
        {
            tracing::debug!(%error, "a job could not be handed back; its lease runs out instead");
        }
        return None;
    };
    reply.send(answer).err().and_then(Result::ok)
}
