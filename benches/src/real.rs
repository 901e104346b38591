//! The same closed loop against a real server and against the simulated store, with the same round trip.
//!
//! The figure of each side is `ops/s x raw PUT / callers`: the ops of a caller in the time of one PUT. It does
//! not depend on the speed of the server, so the two sides can be compared; the difference is the cost of the S3
//! client and of a real network beyond the round trip.

use std::sync::Arc;
use std::time::Duration;

use bucketq::error::Result;
use bucketq::store::Store;
use bucketq::store::memory::Memory;
use bucketq::store::s3::S3Store;
use serde_json::{Value, json};

use crate::load::{Subject, closed_loop};
use crate::raw::RawPut;
use crate::servers::{BUCKET, Missing, SlowServer};
use crate::stats::{Rate, mean, number};

const CALLERS: usize = 64;
const BACKLOG: usize = 10_000;
const UPSTREAM: Duration = Duration::from_millis(13);
const DOWNSTREAM: Duration = Duration::from_millis(12);

/// One side of the comparison.
struct Side {
    subject: Subject,
    raw: RawPut,
    rate: Rate,
    puts: Vec<Duration>,
}

impl Side {
    async fn new(store: Arc<dyn Store>, round_trip: Duration) -> Result<Self> {
        let subject = Subject::create(Arc::clone(&store), "jobs", BACKLOG).await?;
        subject.store.set_round_trip(round_trip);
        let raw = RawPut::new(Arc::new(subject.store.clone()), "raw");
        Ok(Self { subject, raw, rate: Rate::default(), puts: Vec::new() })
    }

    async fn round(&mut self, warm: Duration, window: Duration, raw_puts: usize) -> Result<()> {
        let before = self.subject.store.requests();
        let stretch = closed_loop(&self.subject, CALLERS, warm, window).await?;
        self.rate.add(stretch.ops, stretch.time);
        let size = self.subject.store.requests().since(&before).mean_put();
        // The first PUT opens a connection.
        self.raw.put(size).await?;
        for _ in 0..raw_puts {
            self.puts.push(self.raw.put(size).await?);
        }
        Ok(())
    }

    fn figure(&self) -> f64 {
        self.rate.per_second() * mean(&self.puts).as_secs_f64() / CALLERS as f64
    }
}

/// Returns the ratio and both sides of it. Null, with the reason, when no server is installed.
pub async fn measure(
    rounds: usize,
    warm: Duration,
    window: Duration,
    raw_puts: usize,
) -> Result<(Value, Value)> {
    let server = match SlowServer::start(UPSTREAM, DOWNSTREAM).await {
        Ok(server) => server,
        Err(Missing::NotInstalled(why)) => return Ok((Value::Null, json!({ "why_null": why }))),
        Err(Missing::Failed(error)) => return Err(error),
    };
    let s3: Arc<dyn Store> = Arc::new(S3Store::open(BUCKET, "bench", &server.options).await?);
    let mut real = Side::new(s3, Duration::ZERO).await?;
    let mut simulated = Side::new(Arc::new(Memory::new()), UPSTREAM + DOWNSTREAM).await?;
    for _ in 0..rounds {
        real.round(warm, window, raw_puts).await?;
        simulated.round(warm, window, raw_puts).await?;
    }
    let side = |s: &Side| {
        json!({
            "ops_s": number(s.rate.per_second(), 0),
            "raw_put_ms": number(mean(&s.puts).as_secs_f64() * 1e3, 2),
            "ops_per_caller_and_put": number(s.figure(), 3),
        })
    };
    let detail = json!({ "server": server.name, "real": side(&real), "simulated": side(&simulated) });
    Ok((number(real.figure() / simulated.figure(), 3), detail))
}
