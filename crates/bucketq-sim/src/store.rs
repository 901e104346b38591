//! The faulty store: the bucket as one life of one process sees it.
//!
//! The engine gets it as its [`Store`]. A request travels in a task of the world, so that it may arrive after its
//! caller stopped waiting, crashed or came back. A dead or stalled process gets no replies; requests of a dead one
//! stop.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bucketq::env::Clock;
use bucketq::error::{Code, Error, Result};
use bucketq::store::{Expect, Got, Listed, Put, Store, Version};
use bytes::Bytes;
use tokio::sync::{Notify, oneshot};

use crate::bucket::{Bucket, Who, is_head};
use crate::clock::{EPOCH_MS, pause_ms};
use crate::crowd;
use crate::plan::{Fate, Verb, Wrong};
use crate::rng::Rng;
use crate::variants::Variant;
use crate::world::World;

/// One life of one process, as its store sees it.
#[derive(Debug)]
pub struct Life {
    /// Which life.
    pub who: Who,
    dead: AtomicBool,
    /// It got the store's time.
    dated: AtomicBool,
    /// It has read HEAD: from now on it may get a wrong 404 for it.
    read: AtomicBool,
    /// Its probe met faults that a store which keeps its promises does not have: a false 412, a 409 without a rival, a
    /// request carried out twice, a damaged body.
    pub misled: AtomicBool,
    /// Notified when a step of the store decides that the process dies here.
    pub crash: Notify,
}

impl Life {
    /// A life that begins.
    pub fn new(who: Who) -> Self {
        let no = || AtomicBool::new(false);
        Self { who, dead: no(), dated: no(), read: no(), misled: no(), crash: Notify::new() }
    }

    /// From now on no request of this process reaches the bucket, and it gets no reply.
    pub fn end(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }
}

/// The store of one life.
pub struct FaultyStore {
    world: Arc<World>,
    life: Arc<Life>,
    rng: Arc<Rng>,
    odd: Rng,
}

impl fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultyStore({})", self.life.who)
    }
}

impl FaultyStore {
    /// The store through which this life uses the world's bucket.
    pub fn new(world: Arc<World>, life: Arc<Life>) -> Self {
        let rng = Arc::new(world.rng.fork());
        let Who { node, life: n } = life.who;
        let odd = Rng::new((world.plan.budget << 32) ^ ((node as u64) << 16) ^ u64::from(n));
        Self { world, life, rng, odd }
    }

    /// Between an upload and the HEAD that refers to it, and between a floor and the deletions below it: now and then
    /// the process hangs or dies at this point, in seeds that test collection.
    fn between(&self) {
        if !self.world.plan.frantic || self.world.healed() || self.world.plan.fault_rate == 0 {
            return;
        }
        if self.rng.one_in(12) {
            self.world.stall(self.life.who.node, self.rng.spread(500, 60_000));
        } else if self.rng.one_in(25) && self.world.plan.crash_rate > 0 {
            self.world.fault(|| format!("{} dies between two steps", self.life.who));
            self.life.end();
            self.life.crash.notify_one();
        }
    }

    /// Waits while the process is stalled, and forever once it is dead; perhaps the process dies here.
    async fn step(&self) {
        if !self.life.is_over() && !self.world.healed() && self.rng.chance(self.world.plan.crash_rate) {
            self.world.fault(|| format!("{} dies inside a request", self.life.who));
            self.life.end();
            self.life.crash.notify_one();
        }
        loop {
            if self.life.is_over() {
                std::future::pending::<()>().await;
            }
            let wait = self.world.stalled_for(self.life.who.node);
            if wait == 0 {
                return;
            }
            pause_ms(wait).await;
        }
    }

    fn fate(&self, verb: Verb, key: &str) -> Fate {
        if self.world.healed() {
            return Fate::Fine;
        }
        let fate = if self.world.cut_off(self.life.who.node) {
            [Fate::LostRequest, Fate::LostAnswer, Fate::Failed, Fate::Refused][self.rng.below(4) as usize]
        } else {
            self.world.plan.fate(&self.rng, verb)
        };
        if fate != Fate::Fine {
            self.world.fault(|| format!("{} {verb:?} {key}: {fate:?}", self.life.who));
        }
        fate
    }

    /// A 404 for an existing HEAD, as from a proxy. Drawn separately, so that other seeds stay the same.
    fn calls_it_missing(&self) -> bool {
        let may = self.world.plan.missing && !self.world.healed() && self.life.read.load(Ordering::Relaxed);
        let missing = may && self.odd.one_in(40);
        if missing {
            self.world.fault(|| format!("{} learns that there is no HEAD", self.life.who));
        }
        missing
    }

    fn mislead(&self, fate: Fate, key: &str) {
        let odd =
            matches!(fate, Fate::False412 | Fate::Conflict409 | Fate::Twice | Fate::Torn | Fate::Flipped);
        if odd && !is_head(key) {
            self.life.misled.store(true, Ordering::Relaxed);
        }
    }

    fn half_trip(&self) -> u64 {
        let (low, high) = self.world.plan.latency_ms;
        self.rng.between(low, high) / 2
    }

    /// Sends a request with this `fate`; returns `None` if no reply comes. `apply` runs in the bucket when it arrives.
    async fn send<T: Send + 'static>(
        &self,
        fate: Fate,
        apply: impl Fn(&mut Bucket, u64) -> T + Send + 'static,
    ) -> Option<T> {
        let up = self.half_trip() + if fate == Fate::Slow { self.rng.below(2_000) } else { 0 };
        let down = self.half_trip() + if fate == Fate::Slow { self.rng.below(2_000) } else { 0 };
        let patience = self.rng.spread(50, 9_000);
        if matches!(
            fate,
            Fate::LostRequest | Fate::Refused | Fate::Conflict409 | Fate::False412 | Fate::Throttled
        ) || (fate == Fate::Failed && self.rng.one_in(2))
        {
            pause_ms(if fate == Fate::LostRequest { patience } else { up + down }).await;
            return None;
        }
        let late = if fate == Fate::Late { self.rng.spread(100, 120_000) } else { 0 };
        let again = (fate == Fate::Twice).then(|| self.rng.spread(10, 30_000));
        let (answer, answered) = oneshot::channel();
        let world = self.world.clone();
        world.travelling(1);
        tokio::spawn(async move {
            pause_ms(up + late).await;
            // The caller may be gone: the request counts anyway.
            let _ = answer.send(apply(&mut world.bucket(), world.now_ms()));
            if let Some(wait) = again {
                pause_ms(wait).await;
                apply(&mut world.bucket(), world.now_ms());
            }
            world.travelling(-1);
        });
        if matches!(fate, Fate::LostAnswer | Fate::Late) {
            pause_ms(patience).await;
            return None;
        }
        let value = answered.await.ok()?;
        pause_ms(down).await;
        (fate != Fate::Failed).then_some(value)
    }

    /// The Date of a reply. The first reply of a life has one, right or wrong: a process that starts with a wrong clock
    /// and without a Date cannot notice (decision 6).
    fn date(&self, fate: Fate, key: &str) -> Option<i64> {
        if !self.world.plan.dates {
            return None;
        }
        let first = is_head(key) && !self.life.dated.swap(true, Ordering::Relaxed);
        let mut off = if fate == Fate::StaleDate { -1_500 } else { 0 };
        match self.world.date_off(self.life.who.node) {
            _ if first => off = self.first_date_off(),
            Some(0) => return None,
            Some(by) => off = by,
            None if fate == Fate::NoDate => return None,
            None => {}
        }
        let now = match self.world.variant {
            Some(Variant::DateAgrees) => self.world.clocks[self.life.who.node].wall_ms(),
            _ => EPOCH_MS + self.world.now_ms().cast_signed(),
        };
        Some(now + off - (now + off).rem_euclid(1_000))
    }

    /// How far off the first Date of this life is.
    fn first_date_off(&self) -> i64 {
        if self.world.plan.wrong != Wrong::FirstDate || self.world.healed() || self.rng.one_in(3) {
            return 0;
        }
        let by = match self.rng.below(4) {
            0 => 400 * 86_400_000,
            _ => self.rng.spread(self.world.plan.max_skew_ms + 3_000, 200_000).cast_signed(),
        };
        let by = if self.rng.one_in(2) { by } else { -by };
        self.world.fault(|| format!("the first Date for {} is off by {by} ms", self.life.who));
        by
    }

    fn damaged(&self, fate: Fate, bytes: Bytes) -> Bytes {
        let n = bytes.len() as u64;
        match fate {
            Fate::Torn => bytes.slice(..self.rng.below(n) as usize),
            Fate::Flipped if n > 0 => {
                let mut copy = bytes.to_vec();
                copy[self.rng.below(n) as usize] ^= 1 << self.rng.below(8);
                copy.into()
            }
            _ => bytes,
        }
    }
}

#[async_trait]
impl Store for FaultyStore {
    async fn get(&self, key: &str, unless: Option<&Version>) -> Result<Got> {
        self.world.request(self.life.who, Verb::Get, key).await;
        self.step().await;
        let fate = self.fate(Verb::Get, key);
        self.mislead(fate, key);
        let (name, rng) = (key.to_owned(), self.rng.clone());
        let found = self.send(fate, move |bucket, _| bucket.get(&name, &rng)).await;
        self.step().await;
        let date_ms = if found.is_some() { self.date(fate, key) } else { None };
        match found {
            None => Err(error_of(fate)),
            Some(None) => Ok(Got::Absent { date_ms }),
            // Before the first read a 404 means a new queue file; by P18 other objects may be reported missing.
            Some(_) if is_head(key) && self.calls_it_missing() => Ok(Got::Absent { date_ms }),
            Some(Some(object)) if unless.is_some_and(|v| v.as_str() == object.version) => {
                Ok(Got::Unchanged { date_ms })
            }
            Some(Some(object)) => {
                let bytes = self.damaged(fate, object.bytes);
                if is_head(key) {
                    self.life.read.store(true, Ordering::Relaxed);
                    let now = self.world.now_ms();
                    self.world.bucket().learn(self.life.who, &bytes, false, now);
                }
                Ok(Got::Object { bytes, version: Version::new(object.version), date_ms })
            }
        }
    }

    async fn put_if(&self, key: &str, body: Bytes, expect: &Expect) -> Put {
        self.world.request(self.life.who, Verb::PutIf, key).await;
        self.step().await;
        let fate = self.fate(Verb::PutIf, key);
        let is = match expect {
            Expect::Absent => None,
            Expect::Is(version) => Some(version.as_str().to_owned()),
        };
        let (name, who, rng) = (key.to_owned(), self.life.who, self.rng.clone());
        if is_head(key) && !self.world.plan.dates {
            let wall_ms = self.world.clocks[who.node].latest_ms();
            self.world.bucket().sent(who, wall_ms, &body);
        }
        self.mislead(fate, key);
        // The caller of a second winner must still be waiting for its reply.
        let prompt = is_head(key) && matches!(fate, Fate::Fine | Fate::Slow);
        let sent = body.clone();
        let world = self.world.clone();
        let stored = self
            .send(fate, move |bucket, at_ms| {
                let second = || bucket.betray(who, at_ms, &name, &sent, is.as_deref());
                let stored = match prompt.then(second).flatten() {
                    Some(version) => {
                        world.fault(|| format!("{who} is let in as a second winner"));
                        Some(version)
                    }
                    None => bucket.put_if(who, at_ms, &name, sent.clone(), is.as_deref(), &rng),
                };
                world.note(|| format!("{who} put {name} if {is:?}: {stored:?}"));
                stored
            })
            .await;
        self.step().await;
        match (stored, fate) {
            (_, Fate::Conflict409 | Fate::False412) | (Some(None), _) => Put::Conflict,
            (None | Some(Some(_)), Fate::NoEtag) => Put::Unknown {
                error: Error::new(Code::Unreachable, "200 without an ETag"),
                sent: true,
                retry_after: None,
            },
            (None, _) => Put::Unknown {
                error: error_of(fate),
                sent: fate != Fate::Refused,
                retry_after: (fate == Fate::Throttled)
                    .then(|| Duration::from_millis(self.rng.between(100, 3_000))),
            },
            (Some(Some(version)), _) => {
                if is_head(key) {
                    let now = self.world.now_ms();
                    self.world.bucket().learn(who, &body, true, now);
                }
                Put::Stored { version: Version::new(version), date_ms: self.date(fate, key) }
            }
        }
    }

    async fn put_new(&self, key: &str, body: Bytes) -> Result<()> {
        self.world.request(self.life.who, Verb::PutNew, key).await;
        self.step().await;
        if self.world.plan.crowd && self.life.who.node == crowd::LARGE && !key.contains(".knock") {
            // A commit that needs a segment takes long to build.
            pause_ms(crowd::UPLOAD_MS).await;
        }
        let fate = self.fate(Verb::PutNew, key);
        let name = key.to_owned();
        let stored = self.send(fate, move |bucket, _| bucket.put_new(&name, body.clone())).await;
        self.between();
        self.step().await;
        stored.ok_or_else(|| error_of(fate))
    }

    async fn delete(&self, key: &str) -> Result<()> {
        self.world.request(self.life.who, Verb::Delete, key).await;
        self.step().await;
        let fate = self.fate(Verb::Delete, key);
        let (name, who) = (key.to_owned(), self.life.who);
        let gone = self.send(fate, move |bucket, at_ms| bucket.delete(who, at_ms, &name)).await;
        self.step().await;
        gone.ok_or_else(|| error_of(fate))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Listed>> {
        self.world.request(self.life.who, Verb::List, prefix).await;
        self.step().await;
        self.between();
        self.step().await;
        let fate = self.fate(Verb::List, prefix);
        let name = prefix.to_owned();
        let found = self.send(fate, move |bucket, _| bucket.list(&name)).await;
        self.step().await;
        let found = found.ok_or_else(|| error_of(fate))?;
        Ok(found.into_iter().map(|(key, size)| Listed { key, size }).collect())
    }

    fn describe(&self) -> String {
        "sim://bucket".into()
    }

    fn default_max_skew(&self) -> Duration {
        Duration::from_millis(self.world.plan.max_skew_ms)
    }

    fn needs_probe(&self) -> bool {
        self.world.plan.probe
    }
}

/// The error that the engine gets when no reply came.
fn error_of(fate: Fate) -> Error {
    match fate {
        Fate::Refused => Error::new(Code::Unreachable, "connection refused"),
        Fate::Throttled => Error::new(Code::Throttled, "503 slow down"),
        Fate::Failed => Error::new(Code::Unreachable, "500 internal error"),
        _ => Error::new(Code::Unreachable, "the request timed out"),
    }
}
