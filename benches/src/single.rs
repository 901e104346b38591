//! One caller against a raw PUT: whether an op costs one round trip and nothing more.
//!
//! An op and a raw PUT of the size of the HEAD just written take turns on the same store, so that a slow moment of the
//! machine hits both.

use std::time::Duration;

use bucketq::env::Env;
use bucketq::error::{Code, Error, Result};
use bucketq::job::Payload;
use bytes::Bytes;
use std::sync::Arc;

use crate::load::{PAYLOAD, Subject};
use crate::raw::RawPut;
use crate::stats::{mean, now};

/// The times of one caller.
#[derive(Clone, Copy, Debug)]
pub struct Single {
    /// Mean time of an op.
    pub op: Duration,
    /// Mean time of a raw PUT of the same size.
    pub raw: Duration,
}

impl Single {
    /// Returns the time of an op over that of a PUT.
    pub fn ratio(&self) -> f64 {
        self.op.as_secs_f64() / self.raw.as_secs_f64()
    }
}

/// Measures enqueue, claim and ack `turns` times, each followed by a raw PUT under `key` of the store beneath.
pub async fn measure(subject: &Subject, key: &str, round_trip: Duration, turns: usize) -> Result<Single> {
    subject.store.set_round_trip(round_trip);
    let mut raw = RawPut::new(Arc::new(subject.store.clone()), key);
    let (mut ops, mut puts) = (Vec::new(), Vec::new());
    for turn in 0..=turns {
        // The first turn opens connections and is not counted.
        let counted = turn > 0;
        let payload = Payload::bytes(Bytes::copy_from_slice(&Env::default().bytes::<PAYLOAD>()));
        let enqueue = async { subject.queue.enqueue(payload).await.map(drop) };
        pair(subject, &mut raw, counted, &mut ops, &mut puts, enqueue).await?;
        let claim = async { subject.queue.claim(1).lease(Duration::from_mins(10)).await };
        let taken = pair(subject, &mut raw, counted, &mut ops, &mut puts, claim).await?;
        let job = taken.first().ok_or_else(|| Error::new(Code::Internal, "a claim came back empty"))?;
        pair(subject, &mut raw, counted, &mut ops, &mut puts, subject.file.ack(job.held())).await?;
    }
    subject.store.set_round_trip(Duration::ZERO);
    Ok(Single { op: mean(&ops), raw: mean(&puts) })
}

async fn pair<T>(
    subject: &Subject,
    raw: &mut RawPut,
    counted: bool,
    ops: &mut Vec<Duration>,
    puts: &mut Vec<Duration>,
    op: impl Future<Output = Result<T>>,
) -> Result<T> {
    let before = subject.store.requests();
    let start = now();
    let answer = op.await?;
    let took = now() - start;
    let size = subject.store.requests().since(&before).mean_put();
    let plain = raw.put(size).await?;
    if counted {
        ops.push(took);
        puts.push(plain);
    }
    Ok(answer)
}
