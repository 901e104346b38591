//! One caller at work: its calls are random, and each reply is written down.

use std::time::Duration;

use bucketq::{ClaimedJob, Env, Held, JobId, New, Op, Payload, Queue, QueueFile, Result};
use serde_json::{Value, json};

use super::diary::now;
use super::{Diary, Dice, Orders};

const LEASE: Duration = Duration::from_secs(4);

struct Caller {
    file: QueueFile,
    queue: Queue,
    diary: Diary,
    dice: Dice,
    env: Env,
    /// Jobs it enqueued, to cancel some.
    mine: Vec<JobId>,
}

/// Work until it is time to rest.
pub(super) async fn work(file: QueueFile, orders: Orders, diary: Diary, task: u64) {
    let queue = file.queue(&format!("q{}", orders.number % 3)).expect("the name is right");
    let dice = Dice::new(orders.seed ^ (task << 24));
    let mut caller = Caller { file, queue, diary, dice, env: Env::default(), mine: vec![] };
    while !orders.idle.exists() {
        match caller.dice.below(100) {
            0..34 => caller.enqueue().await,
            34..90 => caller.claim().await,
            90..94 => caller.cancel().await,
            _ => caller.read().await,
        }
        let pause = caller.dice.below(50);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
}

/// Until when the lease surely lasts, on the clock of the diaries.
fn until(env: &Env, deadline: tokio::time::Instant) -> i64 {
    let at = now();
    at + deadline.saturating_duration_since(env.monotonic()).as_nanos() as i64
}

fn names(jobs: &[New]) -> Vec<String> {
    jobs.iter().map(|job| job.id.to_string()).collect()
}

impl Caller {
    fn job(&mut self) -> Result<New> {
        let len = [50, 200, 200, 3_000][self.dice.below(4) as usize];
        let payload: Vec<u8> = (0..len).map(|_| self.dice.below(256) as u8).collect();
        let mut job = self.file.new_job(Payload::bytes(payload))?;
        job.max_attempts = Some(10_000);
        Ok(job)
    }

    async fn enqueue(&mut self) {
        let count = [1, 1, 1, 2, 4][self.dice.below(5) as usize];
        let Ok(jobs) = (0..count).map(|_| self.job()).collect::<Result<Vec<_>>>() else { return };
        let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
        let asked = self.diary.ask("enqueue", json!({ "jobs": names(&jobs) }));
        let answer = self.queue.enqueue_many(jobs).await;
        let told = self.diary.answer(
            asked,
            answer,
            |all| json!({ "seq": all.iter().map(|one| one.commit_seq).max() }),
        );
        if told.is_some() {
            self.mine.extend(ids);
        }
    }

    async fn cancel(&mut self) {
        if self.mine.is_empty() {
            return;
        }
        let at = self.dice.below(self.mine.len() as u64) as usize;
        let id = self.mine.swap_remove(at);
        let asked = self.diary.ask("cancel", json!({ "job": id.to_string() }));
        self.diary.answer(asked, self.file.cancel(id).await, |_| json!({}));
    }

    async fn read(&mut self) {
        let asked = self.diary.ask("read", json!({}));
        let stats = self.file.stats(None).await;
        self.diary.answer(asked, stats, |stats| json!({ "seq": stats.commit_seq }));
    }

    async fn claim(&mut self) {
        let most = [1, 2, 4][self.dice.below(3) as usize];
        let asked = self.diary.ask("claim", json!({ "most": most }));
        let answer = self.file.claim(most).lease(LEASE).await;
        let env = self.env.clone();
        let taken = self.diary.answer(asked, answer, |taken| {
            let told = taken.iter().map(|t| {
                let job = &t.job;
                json!([job.id.to_string(), t.lease.fence, job.attempt, until(&env, t.deadline)])
            });
            json!({ "jobs": told.collect::<Vec<Value>>() })
        });
        for taken in taken.unwrap_or_default() {
            if self.dice.below(10) == 0 {
                let pause = self.dice.below(300);
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
            self.finish(&taken).await;
        }
    }

    async fn finish(&mut self, taken: &ClaimedJob) {
        let (id, fence) = (taken.job.id.to_string(), taken.lease.fence);
        if self.dice.below(8) == 0 {
            let asked = self.diary.ask("extend", json!({ "job": id }));
            let answer = self.file.extend(taken.held(), LEASE).await;
            let env = self.env.clone();
            if let Some(deadline) = self.diary.answer(asked, answer, |_| json!({})) {
                let at = until(&env, deadline);
                self.diary.note("held", json!({ "job": id, "fence": fence, "at": at }));
            }
        }
        let word = u128::from_le_bytes(self.env.bytes()).to_string();
        let facts = |then: &[String]| json!({ "job": id, "fence": fence, "word": word, "then": then });
        let held: Held = taken.held();
        match self.dice.below(20) {
            0..9 => {
                let asked = self.diary.ask("ack", facts(&[]));
                self.diary.answer(
                    asked,
                    self.file.ack_with(held, Payload::text(&word)).await,
                    |()| json!({}),
                );
            }
            9..13 => {
                let Ok(then) = (0..2).map(|_| self.job()).collect::<Result<Vec<_>>>() else { return };
                let asked = self.diary.ask("ack", facts(&names(&then)));
                let queue = self.queue.name().to_owned();
                let ack = Op::Ack { held, result: Some(Payload::text(&word)) };
                let answer = self.file.atomic(vec![ack, Op::Enqueue { queue, jobs: then }]).await;
                self.diary.answer(asked, answer, |_| json!({}));
            }
            13..16 => {
                let delay = Duration::from_millis(self.dice.below(1_000));
                let asked = self.diary.ask("nack", facts(&[]));
                let answer = self.file.nack(held, Some(delay), Some(word.clone())).await;
                self.diary.answer(asked, answer, |_| json!({}));
            }
            16..18 => {
                let asked = self.diary.ask("release", facts(&[]));
                self.diary.answer(asked, self.file.release(held).await, |()| json!({}));
            }
            18 => {
                let asked = self.diary.ask("reject", facts(&[]));
                self.diary.answer(asked, self.file.reject(held, Some(word.clone())).await, |()| json!({}));
            }
            // Forgotten: the lease expires by itself.
            _ => {}
        }
    }
}
