//! Whether a store keeps its word: the probe every queue file on a store with `needs_probe` passes before it is
//! made (P24, G10). It fails closed: a store that does one thing wrong is refused with what it did.
//!
//! Uses the Store trait only. What it cannot see: rare windows, several gateways or regions (P25).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;

use super::{Expect, Got, Put, Store, Version};
use crate::env::Env;
use crate::error::{Code, Error, Result};

/// Writers in each race.
pub const WRITERS: u32 = 16;
/// Rounds when a queue file is made: takes well under 2 s at 25 ms a request.
pub const ROUNDS_AT_CREATION: u32 = 3;
/// Rounds of the thorough probe.
pub const ROUNDS_THOROUGH: u32 = 50;

/// Races in which too few were answered are run again at most this often in a row.
const MAX_REPEATS: u32 = 5;
const REPEAT_AFTER: Duration = Duration::from_millis(250);

/// A store that passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeReport {
    /// Which store.
    pub store: String,
    /// Rounds asked for, each a race to create and a race to replace.
    pub rounds: u32,
    /// Writers in each race.
    pub writers: u32,
    /// Writes the store refused, as it should.
    pub conflicts: u64,
    /// Writes without a clear answer, such as those it was too busy for.
    pub unanswered: u64,
    /// How long it took.
    pub took: Duration,
}

/// Put the store through its paces. `stores` are the same place over separate connections: writers take turns on
/// them, and what one wrote another reads. Objects `name.probe-...` are made and removed.
///
/// Refusal is `NoCompareAndSwap` and says what the store did. A store that cannot be reached, denies or throttles
/// gives that error instead.
pub async fn probe(
    stores: &[Arc<dyn Store>],
    name: &str,
    rounds: u32,
    writers: u32,
    env: &Env,
) -> Result<ProbeReport> {
    if stores.is_empty() || writers < 2 || rounds < 1 {
        return Err(Error::invalid("a probe needs a store, two writers and a round"));
    }
    let begun = env.monotonic();
    let key = fresh_key(name, env);
    let mut probe =
        Probe { stores, env, name, key, writers, bodies: 0, conflicts: 0, unanswered: 0, open: false };
    let verdict = probe.run(rounds).await;
    // Litter is better than hiding the verdict.
    if let Err(error) = stores[0].delete(&probe.key).await {
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

struct Probe<'a> {
    stores: &'a [Arc<dyn Store>],
    env: &'a Env,
    name: &'a str,
    key: String,
    writers: u32,
    bodies: u64,
    conflicts: u64,
    unanswered: u64,
    /// A write to this key was not answered: it may arrive at any time.
    open: bool,
}

pub(super) fn fresh_key(name: &str, env: &Env) -> String {
    format!("{name}.probe-{:032x}", u128::from_le_bytes(env.bytes()))
}

/// What stands in the store: the probe's own account of it.
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
            // What an earlier round left unanswered must not disturb this one.
            (self.key, self.open) = (fresh_key(self.name, self.env), false);
            let created = self.race(None, round).await?;
            let replaced = self.race(Some(created), round).await?;
            self.remove(&replaced).await?;
        }
        Ok(())
    }

    /// A second create must not happen.
    async fn create_twice(&mut self) -> Result<Standing> {
        let first = match self.put(0, &Expect::Absent).await? {
            (body, Some(version)) => Standing { body, version },
            (_, None) => {
                return Err(self.refuse("it says that an object never written is there (If-None-Match: *)"));
            }
        };
        self.expect_there(1, &first, "a GET right after a PUT").await?;
        if let (_, Some(_)) = self.put(1, &Expect::Absent).await? {
            return Err(self.refuse("it wrote twice with If-None-Match: *"));
        }
        self.expect_there(2, &first, "a GET after a refused If-None-Match: *").await?;
        Ok(first)
    }

    /// The right version must be replaced, a stale one must not.
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

    /// A version of an object that is gone must not bring it back.
    async fn replace_what_is_gone(&mut self, last: Standing) -> Result<()> {
        self.remove(&last).await?;
        if let (_, Some(_)) = self.put(1, &Expect::Is(last.version)).await? {
            return Err(self.refuse("it made a missing object with If-Match"));
        }
        match self.store(0).get(&self.key, None).await? {
            Got::Absent { .. } => Ok(()),
            _ => Err(self.refuse("it said no to If-Match on a missing object and made it all the same")),
        }
    }

    /// One race of all writers; exactly one must win, and what it wrote must stand.
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
            // Nobody is known to have won. That is no proof of anything if somebody was not answered, or if the
            // store answered every one of so many at once with "busy" (409); it must not go on for ever, though.
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
                // An unanswered write landed: the race is over, though nobody was told.
                (Got::Object { bytes, version, .. }, _) if self.open => {
                    return Ok(Standing { body: bytes, version });
                }
                _ => {
                    return Err(
                        self.refuse(&format!("all lost round {round} with {header}, and one was written"))
                    );
                }
            }
        }
    }

    async fn remove(&self, standing: &Standing) -> Result<()> {
        self.store(0).delete(&self.key).await?;
        match self.store(1).get(&self.key, Some(&standing.version)).await? {
            Got::Absent { .. } => Ok(()),
            // Perhaps it arrived only now.
            _ if self.open => Ok(()),
            _ => Err(self.refuse("it still shows an object right after its deletion")),
        }
    }

    /// One write that nobody contends; the version if it happened, none if the store said no.
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
        let store = self.stores[0].describe();
        Error::new(
            Code::NoCompareAndSwap,
            format!("{store} has no working compare-and-swap and cannot hold a queue file: {what}"),
        )
    }
}
