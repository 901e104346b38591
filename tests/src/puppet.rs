//! A store that a test controls: it holds requests, loses them or their replies, refuses, hangs, sends a date.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use bucketq::env::Clock;
use bucketq::store::{Expect, Got, Listed, Put, Store, Version};
use bucketq::{Code, Error, Result};
use bytes::Bytes;
use tokio::sync::watch;

use crate::clock::TestClock;

/// The fate of one conditional put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnPut {
    /// It works.
    #[default]
    Pass,
    /// Surely not sent: it fails with this error.
    Refuse(Code),
    /// It gets lost on its way; the engine cannot know.
    LoseRequest,
    /// It is carried out and the reply is lost; the engine cannot know.
    LoseAnswer,
    /// It gets lost, and no reply ever comes.
    Swallow,
    /// It is carried out, and no reply ever comes.
    Hang,
    /// It is carried out, and the reply is a conflict, as for a repeated request.
    FalseConflict,
    /// It is carried out whatever the condition.
    Overwrite,
}

/// The fate of one get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnGet {
    /// It works.
    #[default]
    Pass,
    /// It fails with this error.
    Fail(Code),
    /// The store replies that the object does not exist.
    Absent,
    /// No reply ever comes.
    Hang,
}

/// Whether the store can be reached and replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Silent {
    /// It does both.
    #[default]
    No,
    /// No request reaches it.
    Unreached,
    /// Every request is carried out, and no reply ever comes.
    Deaf,
}

/// Requests so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// Conditional puts.
    pub puts: u64,
    /// Other puts.
    pub new: u64,
    /// Their bytes.
    pub new_bytes: u64,
    /// Gets.
    pub gets: u64,
    /// Gets of a knock.
    pub knocks: u64,
    /// Lists.
    pub lists: u64,
    /// Deletes.
    pub deletes: u64,
}

#[derive(Debug, Default)]
struct Controls {
    puts: VecDeque<OnPut>,
    other_puts: OnPut,
    gets: VecDeque<OnGet>,
    other_gets: OnGet,
    takes: Duration,
    /// By how much requests take more or less, in percent, and how many have drawn their time.
    varies: (u32, u64),
    uploads_take: Duration,
    clock: Option<TestClock>,
    dates: VecDeque<i64>,
    requests: Requests,
    probed: bool,
    silent: Silent,
}

/// Which conditional puts pass: all of them, or those up to this one.
#[derive(Clone, Copy, Debug)]
enum Gate {
    Open,
    UpTo(u64),
}

impl Gate {
    fn passes(self, put: u64) -> bool {
        match self {
            Self::Open => true,
            Self::UpTo(last) => put <= last,
        }
    }
}

/// The controls of the store. Clones control the same store.
#[derive(Clone, Debug)]
pub struct Puppet {
    inner: Arc<dyn Store>,
    controls: Arc<Mutex<Controls>>,
    gate: watch::Sender<Gate>,
    held: watch::Sender<usize>,
    /// The number of the newest put that has passed the gate.
    passed: watch::Sender<u64>,
}

impl Puppet {
    /// A store without faults over this one.
    pub fn over(inner: Arc<dyn Store>) -> Self {
        Self {
            inner,
            controls: Arc::default(),
            gate: watch::Sender::new(Gate::Open),
            held: watch::Sender::new(0),
            passed: watch::Sender::new(0),
        }
    }

    /// The store, for an engine.
    pub fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    /// The store beneath, to read from and to change as an operator does.
    pub fn beneath(&self) -> &Arc<dyn Store> {
        &self.inner
    }

    fn controls(&self) -> MutexGuard<'_, Controls> {
        self.controls.lock().expect("no test panics while it holds this")
    }

    /// Sets the fates of the next conditional puts, one after another.
    pub fn next_puts(&self, puts: impl IntoIterator<Item = OnPut>) {
        self.controls().puts.extend(puts);
    }

    /// Sets the fate of every other conditional put from now on.
    pub fn every_put(&self, put: OnPut) {
        self.controls().other_puts = put;
    }

    /// Sets the fates of the next gets, one after another.
    pub fn next_gets(&self, gets: impl IntoIterator<Item = OnGet>) {
        self.controls().gets.extend(gets);
    }

    /// Sets the fate of every other get from now on.
    pub fn every_get(&self, get: OnGet) {
        self.controls().other_gets = get;
    }

    /// Makes the store silent from now on, or lets it reply again.
    pub fn falls(&self, silent: Silent) {
        self.controls().silent = silent;
    }

    /// Waits forever while no request reaches the store.
    async fn unreached(&self) {
        if self.controls().silent == Silent::Unreached {
            std::future::pending::<()>().await;
        }
    }

    /// Waits forever while no reply comes back.
    async fn unheard(&self) {
        if self.controls().silent == Silent::Deaf {
            std::future::pending::<()>().await;
        }
    }

    /// Whether it has to be probed, as stores on a network do.
    pub fn wants_probe(&self, probed: bool) {
        self.controls().probed = probed;
    }

    /// Makes every request take this long, half of it before it is carried out.
    pub fn takes(&self, time: Duration) {
        self.controls().takes = time;
    }

    /// Makes every request take up to `percent` more or less than the others.
    pub fn varies(&self, percent: u32) {
        self.controls().varies.0 = percent;
    }

    /// Makes segments and bases take this much longer.
    pub fn uploads_take(&self, time: Duration) {
        self.controls().uploads_take = time;
    }

    /// Makes replies carry the date of this clock.
    pub fn tells(&self, clock: &TestClock) {
        self.controls().clock = Some(clock.clone());
    }

    /// Makes the Dates of the next replies wrong by this much, one after another. Needs a clock.
    pub fn next_dates(&self, off_ms: impl IntoIterator<Item = i64>) {
        self.controls().dates.extend(off_ms);
    }

    /// Requests so far.
    pub fn requests(&self) -> Requests {
        self.controls().requests
    }

    /// Holds conditional puts from now on.
    pub fn hold(&self) {
        let sent = self.requests().puts;
        self.gate.send_replace(Gate::UpTo(sent));
    }

    /// Lets the held puts continue, and those that come later.
    pub fn let_go(&self) {
        self.gate.send_replace(Gate::Open);
    }

    /// Lets the puts continue that are held now, and waits until they do. Later ones are held.
    pub async fn let_these_go(&self) {
        self.hold();
        let newest = self.requests().puts;
        self.passed.subscribe().wait_for(|passed| *passed >= newest).await.expect("the sender is here");
    }

    /// Wait until this many conditional puts are held.
    pub async fn until_held(&self, puts: usize) {
        self.held.subscribe().wait_for(|held| *held >= puts).await.expect("the sender is here");
    }

    /// Wait until none is held.
    pub async fn until_released(&self) {
        self.held.subscribe().wait_for(|held| *held == 0).await.expect("the sender is here");
    }

    async fn half_way(&self) {
        let takes = {
            let mut controls = self.controls();
            let (percent, drawn) = &mut controls.varies;
            *drawn += 1;
            // The high bits of a product with the golden ratio are spread evenly.
            let draw = (drawn.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) % 201;
            let share = 100.0 + f64::from(*percent) * (draw as f64 / 100.0 - 1.0);
            controls.takes.mul_f64(share / 100.0)
        };
        if !takes.is_zero() {
            tokio::time::sleep(takes / 2).await;
        }
    }

    /// Whole seconds, as a Date header has them.
    fn date_ms(&self) -> Option<i64> {
        let mut controls = self.controls();
        let right = controls.clock.as_ref()?.wall_ms();
        let off = controls.dates.pop_front().unwrap_or(0);
        Some((right + off) / 1000 * 1000)
    }

    async fn overwrite(&self, key: &str, body: Bytes) -> Put {
        let written = self.inner.put_new(key, body).await;
        match written.and(self.inner.get(key, None).await) {
            Ok(Got::Object { version, .. }) => Put::Stored { version, date_ms: self.date_ms() },
            _ => Self::nobody_knows(),
        }
    }

    fn nobody_knows() -> Put {
        Put::Unknown { error: Error::new(Code::Unreachable, "as told"), sent: true, retry_after: None }
    }
}

#[async_trait]
impl Store for Puppet {
    async fn get(&self, key: &str, unless: Option<&Version>) -> Result<Got> {
        {
            let requests = &mut self.controls().requests;
            requests.gets += 1;
            requests.knocks += u64::from(key.contains(".knock"));
        }
        self.unreached().await;
        self.half_way().await;
        let on_get = {
            let mut controls = self.controls();
            let next = controls.gets.pop_front();
            next.unwrap_or(controls.other_gets)
        };
        match on_get {
            OnGet::Pass => {}
            OnGet::Absent => return Ok(Got::Absent { date_ms: self.date_ms() }),
            OnGet::Fail(code) => return Err(Error::new(code, "as told")),
            OnGet::Hang => std::future::pending().await,
        }
        let got = self.inner.get(key, unless).await?;
        self.unheard().await;
        self.half_way().await;
        let date_ms = self.date_ms();
        Ok(match got {
            Got::Object { bytes, version, .. } => Got::Object { bytes, version, date_ms },
            Got::Unchanged { .. } => Got::Unchanged { date_ms },
            Got::Absent { .. } => Got::Absent { date_ms },
        })
    }

    async fn put_if(&self, key: &str, body: Bytes, expect: &Expect) -> Put {
        let (on_put, number) = {
            let mut controls = self.controls();
            controls.requests.puts += 1;
            let next = controls.puts.pop_front();
            (next.unwrap_or(controls.other_puts), controls.requests.puts)
        };
        self.held.send_modify(|held| *held += 1);
        self.gate.subscribe().wait_for(|gate| gate.passes(number)).await.expect("the sender is here");
        self.held.send_modify(|held| *held -= 1);
        self.passed.send_modify(|passed| *passed = number.max(*passed));
        self.unreached().await;
        self.half_way().await;
        match on_put {
            OnPut::Refuse(code) => {
                let error = Error::new(code, "as told");
                return Put::Unknown { error, sent: false, retry_after: None };
            }
            OnPut::LoseRequest => return Self::nobody_knows(),
            OnPut::Swallow => std::future::pending().await,
            OnPut::Overwrite => return self.overwrite(key, body).await,
            _ => {}
        }
        let put = self.inner.put_if(key, body, expect).await;
        self.unheard().await;
        self.half_way().await;
        match (on_put, put) {
            (OnPut::LoseAnswer, _) => Self::nobody_knows(),
            (OnPut::Hang, _) => std::future::pending().await,
            (OnPut::FalseConflict, _) => Put::Conflict,
            (_, Put::Stored { version, .. }) => Put::Stored { version, date_ms: self.date_ms() },
            (_, other) => other,
        }
    }

    async fn put_new(&self, key: &str, body: Bytes) -> Result<()> {
        {
            let requests = &mut self.controls().requests;
            requests.new += 1;
            requests.new_bytes += body.len() as u64;
        }
        self.unreached().await;
        self.half_way().await;
        let takes = self.controls().uploads_take;
        if !takes.is_zero() && !key.contains(".knock") {
            tokio::time::sleep(takes).await;
        }
        let put = self.inner.put_new(key, body).await;
        self.unheard().await;
        put
    }

    async fn delete(&self, key: &str) -> Result<()> {
        self.controls().requests.deletes += 1;
        self.unreached().await;
        let gone = self.inner.delete(key).await;
        self.unheard().await;
        gone
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Listed>> {
        self.controls().requests.lists += 1;
        self.unreached().await;
        let listed = self.inner.list(prefix).await;
        self.unheard().await;
        listed
    }

    fn describe(&self) -> String {
        format!("puppet over {}", self.inner.describe())
    }

    fn needs_probe(&self) -> bool {
        self.controls().probed
    }

    bucketq::forward_to_inner!(default_max_skew);
}
