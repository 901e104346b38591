//! The calls of one process: enqueue, work, read, cancel, requeue and purge, as users do.
//!
//! Spawned by a node into its set of clients. Every call and its reply is recorded in the history; nothing is judged
//! here. A client whose handle can no longer be used (Corrupt, Closed) returns true.

use std::sync::Arc;

use bucketq::QueueFile;
use bucketq::error::Kind;
use bucketq::job::{Backoff, Dedup, DedupScope, JobId, New, Payload, State, When};
use bucketq::lease::Token;
use bucketq::op::{Held, Op};
use bucketq::query::{Answer, Filter, Query};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::bucket::Who;
use crate::clock::pause_ms;
use crate::history::{Call, Look, Reply};
use crate::policies;
use crate::rng::{Rng, mix};
use crate::store::Life;
use crate::work;
use crate::world::World;

/// No job expires sooner after its enqueue.
pub const SOONEST_EXPIRY_MS: i64 = 2_000;
/// The queues of the simulation.
pub const QUEUES: [&str; 3] = ["alpha", "beta", "gamma"];

/// One caller.
pub struct Client {
    /// Its world.
    pub world: Arc<World>,
    /// Its handle.
    pub file: QueueFile,
    /// The life it belongs to.
    pub who: Who,
    /// Its own random draws.
    pub rng: Rng,
}

/// Whether a client ended because its handle can no longer be used.
pub type Halted = bool;

/// Start the clients of a life.
pub fn spawn(
    world: &Arc<World>,
    file: &QueueFile,
    who: Who,
    life: &Arc<Life>,
    rng: &Rng,
    into: &mut JoinSet<Halted>,
) {
    let client = || Client { world: world.clone(), file: file.clone(), who, rng: rng.fork() };
    let [producers, workers, readers] = world.plan.clients;
    for _ in 0..producers {
        let c = client();
        into.spawn(async move { c.produce().await });
    }
    for _ in 0..workers {
        let (c, life) = (client(), life.clone());
        into.spawn(async move { work::work(&c, &life).await });
    }
    for _ in 0..readers {
        let c = client();
        into.spawn(async move { c.read().await });
    }
}

/// Wait until a client ends because of its handle; forever if none does.
pub async fn halted(clients: &mut JoinSet<Halted>) {
    while let Some(end) = clients.join_next().await {
        if end.unwrap_or(true) {
            return;
        }
    }
    std::future::pending::<()>().await;
}

impl Client {
    /// Send an op and record its reply; `held` as in [`Call`].
    pub async fn call(&self, op: Op, again: bool, held: Option<(u64, u64)>) -> Call {
        self.call_since(op, again, held).await.0
    }

    /// The same; returns also the time from which leases count.
    pub async fn call_since(&self, op: Op, again: bool, held: Option<(u64, u64)>) -> (Call, Option<Instant>) {
        let wait = self.world.stalled_for(self.who.node);
        pause_ms(wait).await;
        self.world.count_call();
        let at_ms = self.world.now_ms();
        let call = Call { who: self.who, at_ms, op: op.clone(), again, held, reply: None };
        let n = {
            let mut history = self.world.history();
            history.calls.push(call);
            history.calls.len() - 1
        };
        let name = op.name();
        self.world.note(|| format!("{} #{n} {name}", self.who));
        let done = self.file.call(op).await;
        let began = done.as_ref().ok().map(|done| done.began);
        let result = done.map(|done| (done.commit_seq, done.commit_ms, done.outcome));
        let at_ms = self.world.now_ms();
        let bucket_seq = self.world.bucket().seq();
        self.world.note(|| match &result {
            Ok((seq, ..)) => format!("{} #{n} {name} ok in commit {seq}", self.who),
            Err(error) => format!("{} #{n} {name} {error:?}", self.who),
        });
        let mut history = self.world.history();
        if let Err(error) = &result {
            history.told_error(self.who, error);
        }
        history.calls[n].reply = Some(Reply { at_ms, bucket_seq, result });
        (history.calls[n].clone(), began)
    }

    /// Send an op, and again while the error allows a retry, as a careful caller does. Returns true when the handle can
    /// no longer be used.
    pub async fn insist(&self, op: Op, held: Option<(u64, u64)>) -> Halted {
        self.insist_since(op, held).await.is_none()
    }

    /// The same; returns the last call and the time from which leases count, or none when the handle can no longer be
    /// used.
    pub async fn insist_since(&self, op: Op, held: Option<(u64, u64)>) -> Option<(Call, Option<Instant>)> {
        let mut attempt = 0;
        loop {
            let (call, began) = self.call_since(op.clone(), attempt > 0, held).await;
            if is_fatal(&call) {
                return None;
            }
            attempt += 1;
            let temporary = call.reply.as_ref().and_then(|r| r.result.as_ref().err()).is_some_and(|e| {
                matches!(e.kind(), Kind::Unknown | Kind::Unavailable | Kind::Contended | Kind::Full)
            });
            if !temporary || self.rng.one_in(3) || self.world.is_over() || attempt == 4 {
                return Some((call, began));
            }
            pause_ms(self.rng.spread(20, 4_000)).await;
        }
    }

    async fn produce(&self) -> Halted {
        while !self.world.is_over() {
            pause_ms(self.rng.spread(1, 1_200)).await;
            if self.rng.one_in(8) {
                for _ in 0..6 {
                    if self.insist(self.edge(), None).await {
                        return true;
                    }
                }
            }
            let op = if self.rng.one_in(12) { self.chain_of_ops() } else { self.enqueue() };
            if self.insist(op, None).await {
                return true;
            }
            if self.world.plan.repeats
                && self.rng.one_in(6)
                && let Some((op, held)) = self.sent_before()
                && is_fatal(&self.call(op, true, held).await)
            {
                return true;
            }
        }
        false
    }

    /// A job whose dedup window is about one round trip long, so that the next enqueue meets its end.
    fn edge(&self) -> Op {
        let (low, high) = self.world.plan.latency_ms;
        let scope = DedupScope::Window(self.rng.between(low, high + 4).cast_signed());
        let dedup = Some(Dedup { key: "edge".into(), scope });
        Op::Enqueue { queue: QUEUES[2].to_owned(), jobs: vec![New { dedup, group: None, ..self.job() }] }
    }

    fn enqueue(&self) -> Op {
        let count = if self.rng.one_in(5) { self.rng.between(2, 4) } else { 1 };
        let jobs = (0..count).map(|_| self.job()).collect();
        Op::Enqueue { queue: self.queue(), jobs }
    }

    /// Several ops in one atomic; now and then one of them cannot succeed, so that none may.
    fn chain_of_ops(&self) -> Op {
        let mut ops = vec![self.enqueue(), self.enqueue()];
        match self.rng.below(6) {
            0 | 1 => {
                let held = Held { id: self.job_id(), token: Token([9; 16]) };
                ops.push(Op::Ack { held, result: None });
            }
            2 => ops.extend(self.one_job()),
            3 => ops.push(self.pause_or_resume()),
            4 => ops.insert(0, self.purge()),
            _ => {}
        }
        Op::Atomic(ops)
    }

    /// An enqueue or an atomic that a caller sent seconds or minutes ago, whatever its outcome.
    fn sent_before(&self) -> Option<(Op, Option<(u64, u64)>)> {
        let history = self.world.history();
        let n = self.rng.below(history.calls.len() as u64) as usize;
        let old = history.calls.iter().skip(n).find(|c| matches!(c.op.name(), "enqueue" | "atomic"))?;
        old.reply.is_some().then(|| (old.op.clone(), old.held))
    }

    fn queue(&self) -> String {
        QUEUES[self.rng.below(3) as usize].to_owned()
    }

    fn job_id(&self) -> JobId {
        let (a, b) = (self.rng.draw().to_le_bytes(), self.rng.draw().to_le_bytes());
        let random = [a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], b[0], b[1]];
        JobId::new(crate::clock::EPOCH_MS + self.world.now_ms().cast_signed(), random)
    }

    /// A job whose payload contains its id, so that a mix-up is found.
    pub fn job(&self) -> New {
        let id = self.job_id();
        let most = if self.rng.one_in(self.world.plan.large) { 60_000 } else { 1_800 };
        let mut new = New::new(id, Payload::bytes(payload_of(id, self.rng.spread(36, most) as usize)));
        new.priority = self.rng.below(3) as i32;
        new.max_attempts = Some(self.rng.between(2, 6) as u32);
        new.backoff = Some(Backoff::Exponential { base_ms: 200, max_ms: 4_000, jitter_percent: 50 });
        if self.rng.one_in(4) {
            new.when = When::In(self.rng.spread(10, 20_000).cast_signed());
        }
        if self.rng.one_in(12) {
            let scope = DedupScope::Window(self.rng.spread(500, 30_000).cast_signed());
            new.dedup = Some(Dedup { key: format!("key-{}", self.rng.below(4)), scope });
        }
        if self.rng.one_in(6) {
            new.group = Some(format!("group-{}", self.rng.below(3)));
        }
        if self.world.plan.expires && self.rng.one_in(15) {
            new.expires_ms = Some(SOONEST_EXPIRY_MS + self.rng.spread(10, 30_000).cast_signed());
        }
        new
    }

    async fn read(&self) -> Halted {
        for op in policies::settings(&self.world.plan) {
            if self.insist(op, None).await {
                return true;
            }
        }
        while !self.world.is_over() {
            pause_ms(self.rng.spread(20, 3_000)).await;
            let halted = match self.rng.below(12) {
                0 => match self.one_job() {
                    Some(op) => self.insist(op, None).await,
                    None => false,
                },
                1 => self.insist(self.pause_or_resume(), None).await,
                2 if self.rng.one_in(2) => self.insist(self.purge(), None).await,
                3 if self.world.plan.asks && self.rng.one_in(2) => self.collect().await,
                4 if self.world.plan.keep.is_some() && self.rng.one_in(3) => self.archive().await,
                2..=6 => self.list().await,
                _ => self.stats().await,
            };
            if halted {
                return true;
            }
        }
        false
    }

    fn pause_or_resume(&self) -> Op {
        let queue = self.queue();
        if self.rng.one_in(3) { Op::Pause { queue } } else { Op::Resume { queue } }
    }

    /// Purges one queue only, unless every commit is replayed: a purge leaves little to check at the end.
    fn purge(&self) -> Op {
        let queue = if self.world.plan.deep { self.queue() } else { QUEUES[2].to_owned() };
        let states = match self.rng.below(4) {
            0 => State::ALL.to_vec(),
            1 => vec![State::Scheduled, State::Ready],
            _ => vec![State::Done, State::Dead, State::Cancelled],
        };
        Op::Purge { queue, states }
    }

    /// Cancels, requeues, moves, deletes or acks a job that a reader has seen.
    fn one_job(&self) -> Option<Op> {
        let (id, run, _) = {
            let history = self.world.history();
            let n = self.rng.below(history.seen.len() as u64) as usize;
            history.seen.iter().nth(n).copied()?
        };
        Some(match self.rng.below(8) {
            0..4 => Op::Cancel { id, leased: self.rng.one_in(2) },
            4 => Op::Move { id, run: Some(run), to: self.queue() },
            5 if self.rng.one_in(2) => Op::Delete { id, leased: self.rng.one_in(2) },
            6 if self.world.plan.expires && self.rng.one_in(2) => Op::AckLate { id, run, result: None },
            _ => Op::Requeue { id, run: Some(run) },
        })
    }

    /// Request a collection. A Corrupt error refers to the objects it read: the handle stays usable.
    async fn collect(&self) -> Halted {
        let grace = if self.rng.one_in(2) { 0 } else { self.rng.spread(1, 10_000) };
        self.world.bucket().asked_to_collect += 1;
        self.world.count_call();
        let answer = self.file.collect(std::time::Duration::from_millis(grace)).await;
        let who = self.who;
        self.world.note(|| format!("{who} collect with {grace} ms: {answer:?}"));
        if let Err(error) = answer {
            self.world.history().told_error(who, &error);
            return error.kind() == Kind::Closed;
        }
        false
    }

    /// Archive the jobs that may leave.
    async fn archive(&self) -> Halted {
        self.world.count_call();
        let answer = self.file.archive().await;
        let who = self.who;
        self.world.note(|| format!("{who} archive: {answer:?}"));
        if let Err(error) = answer {
            self.world.history().told_error(who, &error);
            return is_final(error.kind());
        }
        false
    }

    async fn stats(&self) -> Halted {
        let fresh = self.rng.one_in(2);
        let max_age = (!fresh).then(|| std::time::Duration::from_millis(self.rng.spread(1, 5_000)));
        let before = self.world.bucket().seq();
        let answer = self.file.ask(Query::Stats, max_age).await;
        let after = self.world.bucket().seq();
        let who = self.who;
        self.world.note(|| format!("{who} stats: {:?}", answer.as_ref().err().map(ToString::to_string)));
        let mut history = self.world.history();
        match answer {
            Ok(Answer::Stats(stats)) => {
                history.looks.push(Look { who, before, after, seen: stats.commit_seq, fresh });
                false
            }
            Ok(other) => {
                history.odd.push(format!("{who} asked for stats and got {other:?}"));
                false
            }
            Err(error) => {
                history.told_error(self.who, &error);
                is_final(error.kind())
            }
        }
    }

    async fn list(&self) -> Halted {
        let filter = Filter { queue: Some(self.queue()), ..Filter::default() };
        let answer = self.file.ask(Query::List { filter, after: None, limit: 1_000 }, None).await;
        let mut history = self.world.history();
        match answer {
            Ok(Answer::Page(page)) => {
                history.seen.extend(page.jobs.iter().map(|j| (j.id, j.run, j.seq)));
                false
            }
            Ok(other) => {
                history.odd.push(format!("{} asked for a list and got {other:?}", self.who));
                false
            }
            Err(error) => {
                history.told_error(self.who, &error);
                is_final(error.kind())
            }
        }
    }
}

/// Bytes that show their job's id and do not compress.
pub fn payload_of(id: JobId, len: usize) -> Vec<u8> {
    let seed = id.as_bytes().iter().fold(0, |n, b| mix(n ^ u64::from(*b)));
    (0..len as u64).step_by(8).flat_map(|n| mix(seed ^ n).to_le_bytes()).take(len).collect()
}

/// Whether the reply means that the handle can no longer be used.
pub fn is_fatal(call: &Call) -> bool {
    matches!(call.reply.as_ref().map(|r| &r.result), Some(Err(e)) if is_final(e.kind()))
}

fn is_final(kind: Kind) -> bool {
    matches!(kind, Kind::Corrupt | Kind::Closed)
}
