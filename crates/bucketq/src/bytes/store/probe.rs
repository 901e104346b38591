//! Tests whether a store's compare-and-swap works: every queue file on a store with `needs_probe` passes the probe
//! before it is created (P24, G10). It fails closed: a store with one wrong reaction is refused with a description of
//! it.
//!
//! Uses the Store trait only. It cannot detect rare windows, or differences between gateways or regions (P25).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;

use super::{Expect, Got, Put, Store, Version};
use crate::bytes::wrap::limited::{CallLimit, within};
use crate::noun::env::Env;
use crate::noun::error::{Code, Error, Result};

/// Writers in each race.
pub const WRITERS: u32 = 16;
/// Rounds when a queue file is created: takes well under 2 s at 25 ms a request.
pub const ROUNDS_AT_CREATION: u32 = 3;
/// Rounds of the thorough probe.
pub const ROUNDS_THOROUGH: u32 = 50;

/// A race in which too few writers got a reply is repeated at most this often in a row.
const MAX_REPEATS: u32 = 5;
const REPEAT_AFTER: Duration = Duration::from_millis(250);

/// The report of a store that passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeReport {
    /// The store.
    pub store: String,
    /// Rounds requested, each a race to create and a race to replace.
    pub rounds: u32,
    /// Writers in each race.
    pub writers: u32,
    /// Writes that the store refused, rightly.
    pub conflicts: u64,
    /// Writes without a clear reply, such as throttled ones.
    pub unanswered: u64,
    /// Duration of the probe.
    pub took: Duration,
}

/// Tests the store. `stores` are the same store over separate connections: writers use them in turn, and a write on one
/// is read on another. Creates and deletes objects `name.probe-...`.
///
/// A store that fails is refused with `NoCompareAndSwap` and a description of its reaction. A store that cannot be
/// reached, denies or throttles fails with that error instead. Ends at the deadline, or later as soon as the store has
/// been silent for a third of the deadline.
pub async fn probe(
    stores: &[Arc<dyn Store>],
    name: &str,
    rounds: u32,
    writers: u32,
    deadline: Duration,
    env: &Env,
) -> Result<ProbeReport> {
    if stores.is_empty() || writers < 2 || rounds < 1 {
        return Err(Error::invalid("a probe needs a store, two writers and a round"));
    }
    let begun = env.monotonic();
    let key = fresh_key(name, env);
    let call_limit = CallLimit::new(env, deadline);
    let heard: Vec<_> = stores.iter().map(|store| call_limit.over_store(Arc::clone(store))).collect();
    let stores = heard.as_slice();
    let mut probe =
        Probe { stores, env, name, key, writers, bodies: 0, conflicts: 0, unanswered: 0, open: false };
    let verdict = call_limit.run("the probe", probe.run(rounds)).await;
    // A leftover object is better than losing the verdict or waiting for a silent store.
    let left = (begun + deadline + deadline / 10).saturating_duration_since(env.monotonic());
    if let Err(error) = within(env, left.max(deadline / 20), stores[0].delete(&probe.key)).await {
        tracing::warn!(key = probe.key, %error, "the probe could not remove its object");
    }
    verdict?;
    Ok(ProbeReport {
        store: stores[0].describe(),
        rounds,
        writers,
        conflicts: probe.conflicts,
        unanswered: probe.unanswered,
        took: env.monotonic() - begun,
    })
}

/// Checks on a separate object that the store refuses what a compare-and-swap must refuse: the least test before a
/// process replaces the HEAD of an existing queue file. `stale` is a version that this object never has, such as that
/// of HEAD. Takes three PUTs, two of them at once, and a DELETE.
///
/// A store that writes nevertheless is refused with `NoCompareAndSwap`; without a reply, the error is the store's.
pub async fn conditions_hold(store: &Arc<dyn Store>, name: &str, stale: &Version, env: &Env) -> Result<()> {
    let (verdict, keys) = ask_conditions(store, name, stale, env).await;
    remove(store, keys).await;
    verdict
}

/// Returns the verdict of [`conditions_hold`] and the keys to delete afterwards.
pub(crate) async fn ask_conditions(
    store: &Arc<dyn Store>,
    name: &str,
    stale: &Version,
    env: &Env,
) -> (Result<()>, Vec<String>) {
    let (mut keys, mut made) = (vec![], Ok(false));
    for _ in 0..MAX_REPEATS {
        keys.push(fresh_key(name, env));
        made = asked(store, keys.last().map_or("", String::as_str), &Expect::Absent, env).await;
        if !matches!(made, Ok(false)) {
            break;
        }
    }
    let key = keys.last().cloned().unwrap_or_default();
    let verdict = match made {
        Ok(true) => {
            let (replace, create) = (Expect::Is(stale.clone()), Expect::Absent);
            let both = (asked(store, &key, &replace, env), asked(store, &key, &create, env));
            match futures_util::future::join(both.0, both.1).await {
                (Ok(true), _) => Err(no_swap(store.as_ref(), "it wrote with If-Match and a wrong ETag")),
                (_, Ok(true)) => Err(no_swap(store.as_ref(), "it wrote twice with If-None-Match: *")),
                (Ok(false), Ok(false)) => Ok(()),
                (Err(error), _) | (_, Err(error)) => Err(error),
            }
        }
        Ok(false) => {
            let what = "it refuses If-None-Match: * for an object that was never written";
            Err(no_swap(store.as_ref(), what))
        }
        Err(error) => Err(error),
    };
    (verdict, keys)
}

/// Deletes the objects of a probe. A leftover object is better than losing the verdict.
pub(crate) async fn remove(store: &Arc<dyn Store>, keys: Vec<String>) {
    for key in keys {
        if let Err(error) = store.delete(&key).await {
            tracing::warn!(key, %error, "the probe could not remove its object");
        }
    }
}

/// Returns whether the store wrote the body; retries when the outcome is unknown. A PUT that was carried out without a
/// reply is refused when it is repeated, so a repeated creation may return false.
async fn asked(store: &Arc<dyn Store>, key: &str, expect: &Expect, env: &Env) -> Result<bool> {
    let mut trouble = None;
    for tries in 1..=MAX_REPEATS {
        match store.put_if(key, Bytes::from(format!("{key} {tries}")), expect).await {
            Put::Stored { .. } => return Ok(true),
            Put::Conflict => return Ok(false),
            Put::Unknown { error, retry_after, .. } => {
                if !matches!(error.code(), Code::Unreachable | Code::Throttled | Code::Timeout) {
                    return Err(error);
                }
                trouble = Some(error);
                env.sleep(retry_after.unwrap_or_default().max(REPEAT_AFTER)).await;
            }
        }
    }
    Err(trouble.unwrap_or_else(|| Error::new(Code::Unreachable, "the store does not reply")))
}

fn no_swap(store: &dyn Store, what: &str) -> Error {
    let store = store.describe();
    Error::new(
        Code::NoCompareAndSwap,
        format!("{store} has no working compare-and-swap and cannot hold a queue file: {what}"),
    )
}

struct Probe<'a> {
    stores: &'a [Arc<dyn Store>],
    env: &'a Env,
    name: &'a str,
    key: String,
    writers: u32,
    bodies: u64,
    conflicts: u64,
    unanswered: u64,
    /// A write to this key got no reply: it may arrive at any time.
    open: bool,
}

pub(super) fn fresh_key(name: &str, env: &Env) -> String {
    format!("{name}.probe-{:032x}", u128::from_le_bytes(env.bytes()))
}

/// The object that should be in the store, by the probe's own records.
#[derive(Clone)]
struct Standing {
    body: Bytes,
    version: Version,
}

impl Probe<'_> {
    async fn run(&mut self, rounds: u32) -> Result<()> {
        let first = self.create_twice().await?;
        let last = self.replace(first).await?;
        self.replace_what_is_gone(last).await?;
        for round in 1..=rounds {
            // A write of an earlier round without a reply must not disturb this one.
            (self.key, self.open) = (fresh_key(self.name, self.env), false);
            let created = self.race(None, round).await?;
            let replaced = self.race(Some(created), round).await?;
            self.remove(&replaced).await?;
        }
        Ok(())
    }

    /// Checks that a second create does not happen.
    async fn create_twice(&mut self) -> Result<Standing> {
        let first = match self.put(0, &Expect::Absent).await? {
            (body, Some(version)) => Standing { body, version },
            (_, None) => {
                return Err(self.refuse("it refuses If-None-Match: * for an object that was never written"));
            }
        };
        self.expect_there(1, &first, "a GET right after a PUT").await?;
        if let (_, Some(_)) = self.put(1, &Expect::Absent).await? {
            return Err(self.refuse("it wrote twice with If-None-Match: *"));
        }
        self.expect_there(2, &first, "a GET after a refused If-None-Match: *").await?;
        Ok(first)
    }

    /// Checks that the right version is replaced and a stale one is not.
    async fn replace(&mut self, first: Standing) -> Result<Standing> {
        let second = match self.put(1, &Expect::Is(first.version.clone())).await? {
            (body, Some(version)) => Standing { body, version },
            (_, None) => {
                return Err(self.refuse("it refused to write with If-Match and the ETag it had just given"));
            }
        };
        if second.version == first.version {
            return Err(self.refuse("it gave another body the same ETag"));
        }
        self.expect_there(2, &second, "a GET right after a PUT with If-Match").await?;
        if let (_, Some(_)) = self.put(0, &Expect::Is(first.version)).await? {
            return Err(self.refuse("it wrote with If-Match and a stale ETag"));
        }
        self.expect_there(1, &second, "a GET after a refused If-Match").await?;
        Ok(second)
    }

    /// Checks that a PUT with the version of a deleted object does not create it again.
    async fn replace_what_is_gone(&mut self, last: Standing) -> Result<()> {
        self.remove(&last).await?;
        if let (_, Some(_)) = self.put(1, &Expect::Is(last.version)).await? {
            return Err(self.refuse("it created a missing object with If-Match"));
        }
        match self.store(0).get(&self.key, None).await? {
            Got::Absent { .. } => Ok(()),
            _ => Err(self.refuse("it refused If-Match on a missing object but created it")),
        }
    }

    /// Runs one race of all writers; exactly one must win, and its body must be stored.
    async fn race(&mut self, from: Option<Standing>, round: u32) -> Result<Standing> {
        let header = if from.is_some() { "If-Match" } else { "If-None-Match: *" };
        let expect = from.as_ref().map_or(Expect::Absent, |s| Expect::Is(s.version.clone()));
        let mut repeats = 0;
        loop {
            let bodies: Vec<Bytes> = (0..self.writers).map(|_| self.fresh_body()).collect();
            let writers = bodies.iter().enumerate();
            let puts =
                join_all(writers.map(|(i, body)| self.store(i).put_if(&self.key, body.clone(), &expect)))
                    .await;
            let mut won = Vec::new();
            let mut trouble = None;
            let mut wait = REPEAT_AFTER;
            let mut refused = 0;
            for (put, body) in puts.into_iter().zip(bodies) {
                match put {
                    Put::Stored { version, .. } => won.push(Standing { body, version }),
                    Put::Conflict => refused += 1,
                    Put::Unknown { error, retry_after, .. } => {
                        (self.unanswered, self.open) = (self.unanswered + 1, true);
                        wait = wait.max(retry_after.unwrap_or_default());
                        trouble = Some(error);
                    }
                }
            }
            self.conflicts += refused;
            if won.len() > 1 {
                let (n, of) = (won.len(), self.writers);
                return Err(self.refuse(&format!("{n} of {of} writers won round {round} with {header}")));
            }
            if let Some(winner) = won.pop() {
                self.expect_there(
                    round as usize,
                    &winner,
                    &format!("a GET after round {round} with {header}"),
                )
                .await?;
                return Ok(winner);
            }
            // No writer is known to have won. That proves nothing if a writer got no reply, or if the store replied
            // "busy" (409) to all of these simultaneous writes. But it must not continue forever.
            repeats += 1;
            if repeats > MAX_REPEATS {
                return Err(trouble.unwrap_or_else(|| {
                    self.refuse(&format!("no writer won round {round} with {header}, {repeats} times over"))
                }));
            }
            self.env.sleep(wait).await;
            match (self.store(0).get(&self.key, None).await?, &from) {
                (Got::Absent { .. }, None) => {}
                (Got::Object { version, .. }, Some(standing)) if version == standing.version => {}
                // A write without a reply landed: the race is over, although no writer knows that it won.
                (Got::Object { bytes, version, .. }, _) if self.open => {
                    return Ok(Standing { body: bytes, version });
                }
                _ => {
                    return Err(self.refuse(&format!(
                        "no writer won round {round} with {header}, but one body was written"
                    )));
                }
            }
        }
    }

    async fn remove(&self, standing: &Standing) -> Result<()> {
        self.store(0).delete(&self.key).await?;
        match self.store(1).get(&self.key, Some(&standing.version)).await? {
            Got::Absent { .. } => Ok(()),
            // The unanswered write may have arrived only now.
            _ if self.open => Ok(()),
            _ => Err(self.refuse("it still shows an object right after its deletion")),
        }
    }

    /// Sends one uncontended write; returns the version if it happened, none if the store refused.
    async fn put(&mut self, connection: usize, expect: &Expect) -> Result<(Bytes, Option<Version>)> {
        let body = self.fresh_body();
        match self.store(connection).put_if(&self.key, body.clone(), expect).await {
            Put::Stored { version, .. } => Ok((body, Some(version))),
            Put::Conflict => {
                self.conflicts += 1;
                Ok((body, None))
            }
            Put::Unknown { error, .. } => Err(error),
        }
    }

    async fn expect_there(&self, connection: usize, standing: &Standing, when: &str) -> Result<()> {
        match self.store(connection).get(&self.key, None).await? {
            Got::Object { bytes, version, .. } if bytes == standing.body => {
                if version == standing.version {
                    return Ok(());
                }
                let (get, put) = (version.as_str(), standing.version.as_str());
                Err(self
                    .refuse(&format!("{when} on another connection has the ETag {get}, the PUT had {put}")))
            }
            Got::Object { .. } => {
                Err(self.refuse(&format!("{when} on another connection shows another body")))
            }
            _ => Err(self.refuse(&format!("{when} on another connection shows nothing"))),
        }
    }

    fn store(&self, connection: usize) -> &dyn Store {
        self.stores[connection % self.stores.len()].as_ref()
    }

    fn fresh_body(&mut self) -> Bytes {
        self.bodies += 1;
        Bytes::from(format!("{} {}", self.key, self.bodies))
    }

    fn refuse(&self, what: &str) -> Error {
        no_swap(self.stores[0].as_ref(), what)
    }
}
