//! A store that does what a test tells it: holds requests, loses them or their answers, refuses, hangs, tells a date.

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

/// What becomes of one conditional put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnPut {
    /// As it should be.
    #[default]
    Pass,
    /// Surely not sent: this error.
    Refuse(Code),
    /// It gets lost on its way; nobody knows.
    LoseRequest,
    /// It is carried out; nobody knows.
    LoseAnswer,
    /// It gets lost, and no answer ever comes.
    Swallow,
    /// It is carried out, and no answer ever comes.
    Hang,
    /// It is carried out, and answered with a conflict, as a repeated request is.
    FalseConflict,
}

/// What becomes of one get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnGet {
    /// As it should be.
    #[default]
    Pass,
    /// This error.
    Fail(Code),
    /// No answer ever comes.
    Hang,
}

/// Requests so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// Conditional puts.
    pub puts: u64,
    /// Other puts.
    pub new: u64,
    /// Gets.
    pub gets: u64,
    /// Lists.
    pub lists: u64,
    /// Deletes.
    pub deletes: u64,
}

#[derive(Debug, Default)]
struct Told {
    puts: VecDeque<OnPut>,
    other_puts: OnPut,
    gets: OnGet,
    takes: Duration,
    clock: Option<TestClock>,
    requests: Requests,
}

/// The strings of the store. Clones are the same store.
#[derive(Clone, Debug)]
pub struct Puppet {
    inner: Arc<dyn Store>,
    told: Arc<Mutex<Told>>,
    open: watch::Sender<bool>,
    held: watch::Sender<usize>,
}

impl Puppet {
    /// An obedient store over this one.
    pub fn over(inner: Arc<dyn Store>) -> Self {
        Self { inner, told: Arc::default(), open: watch::Sender::new(true), held: watch::Sender::new(0) }
    }

    /// The store, for an engine.
    pub fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    /// The store beneath, for looking and for doing what an operator does.
    pub fn beneath(&self) -> &Arc<dyn Store> {
        &self.inner
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().expect("no test panics while it holds this")
    }

    /// What becomes of the next conditional puts, one after another.
    pub fn next_puts(&self, puts: impl IntoIterator<Item = OnPut>) {
        self.told().puts.extend(puts);
    }

    /// What becomes of every other conditional put from now on.
    pub fn every_put(&self, put: OnPut) {
        self.told().other_puts = put;
    }

    /// What becomes of every get from now on.
    pub fn every_get(&self, get: OnGet) {
        self.told().gets = get;
    }

    /// Every request takes this long, half of it before it is carried out.
    pub fn takes(&self, time: Duration) {
        self.told().takes = time;
    }

    /// Answers carry the date of this clock.
    pub fn tells(&self, clock: &TestClock) {
        self.told().clock = Some(clock.clone());
    }

    /// Requests so far.
    pub fn requests(&self) -> Requests {
        self.told().requests
    }

    /// Conditional puts wait from now on.
    pub fn hold(&self) {
        self.open.send_replace(false);
    }

    /// They go on.
    pub fn let_go(&self) {
        self.open.send_replace(true);
    }

    /// Wait until this many conditional puts are held.
    pub async fn until_held(&self, puts: usize) {
        self.held.subscribe().wait_for(|held| *held >= puts).await.expect("the sender is here");
    }

    async fn half_way(&self) {
        let takes = self.told().takes;
        if !takes.is_zero() {
            tokio::time::sleep(takes / 2).await;
        }
    }

    /// Whole seconds, as a Date header has them.
    fn date_ms(&self) -> Option<i64> {
        self.told().clock.as_ref().map(|clock| clock.wall_ms() / 1000 * 1000)
    }

    fn nobody_knows() -> Put {
        Put::Unknown { error: Error::new(Code::Unreachable, "as told"), sent: true, retry_after: None }
    }
}

#[async_trait]
impl Store for Puppet {
    async fn get(&self, key: &str, unless: Option<&Version>) -> Result<Got> {
        self.told().requests.gets += 1;
        self.half_way().await;
        let on_get = self.told().gets;
        match on_get {
            OnGet::Pass => {}
            OnGet::Fail(code) => return Err(Error::new(code, "as told")),
            OnGet::Hang => std::future::pending().await,
        }
        let got = self.inner.get(key, unless).await?;
        self.half_way().await;
        let date_ms = self.date_ms();
        Ok(match got {
            Got::Object { bytes, version, .. } => Got::Object { bytes, version, date_ms },
            Got::Unchanged { .. } => Got::Unchanged { date_ms },
            Got::Absent { .. } => Got::Absent { date_ms },
        })
    }

    async fn put_if(&self, key: &str, body: Bytes, expect: &Expect) -> Put {
        let on_put = {
            let mut told = self.told();
            told.requests.puts += 1;
            let next = told.puts.pop_front();
            next.unwrap_or(told.other_puts)
        };
        self.held.send_modify(|held| *held += 1);
        self.open.subscribe().wait_for(|open| *open).await.expect("the sender is here");
        self.held.send_modify(|held| *held -= 1);
        self.half_way().await;
        match on_put {
            OnPut::Refuse(code) => {
                let error = Error::new(code, "as told");
                return Put::Unknown { error, sent: false, retry_after: None };
            }
            OnPut::LoseRequest => return Self::nobody_knows(),
            OnPut::Swallow => std::future::pending().await,
            _ => {}
        }
        let put = self.inner.put_if(key, body, expect).await;
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
        self.told().requests.new += 1;
        self.half_way().await;
        self.inner.put_new(key, body).await
    }

    async fn delete(&self, key: &str) -> Result<()> {
        self.told().requests.deletes += 1;
        self.inner.delete(key).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Listed>> {
        self.told().requests.lists += 1;
        self.inner.list(prefix).await
    }

    fn describe(&self) -> String {
        format!("puppet over {}", self.inner.describe())
    }

    fn default_max_skew(&self) -> Duration {
        self.inner.default_max_skew()
    }

    fn needs_probe(&self) -> bool {
        false
    }
}
