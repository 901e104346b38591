//! Limits on HEAD's size, since a PUT of it has to stay one round trip.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bucketq::internals::head::{
    Head, MAX_RETIRED, MAX_SEGMENTS, MAX_WRITERS, Retired, SegmentRef, WriterEntry,
};
use bucketq::internals::record::Record;
use bucketq::store::{Expect, Memory, Put, Store};
use bucketq::{Payload, Result};
use bytes::Bytes;

use crate::fixture::{self, by_hand, noise};

const FIXED_MOST: usize = 16 * 1024;
const HEAD_MOST: usize = 128 * 1024;

fn tail_len(head: &Head) -> usize {
    head.tail.iter().map(Record::encoded_len).sum()
}

fn full() -> Head {
    let hand = by_hand();
    let (s, w, r) = (hand.segments[0], hand.writers[0], hand.retired[0]);
    let first = hand.tail[0].seq - MAX_SEGMENTS as u64;
    Head {
        base: bucketq::internals::head::BaseRef { seq: first, ..hand.base },
        segments: (0..MAX_SEGMENTS as u64)
            .map(|i| SegmentRef { from: first + i, to: first + i, ..s })
            .collect(),
        writers: (0..MAX_WRITERS as u64).map(|i| WriterEntry { id: i.to_be_bytes(), ..w }).collect(),
        retired: vec![Retired { at: 1, ..r }; MAX_RETIRED],
        ..hand
    }
}

#[test]
fn a_head_with_every_list_full_keeps_its_fixed_part_within_16_kib() -> Result<()> {
    let head = full();
    let bytes = head.encode();
    assert_eq!(Head::decode("jobs.head", &bytes)?, head);
    let fixed = bytes.len() - tail_len(&head);
    assert!(fixed <= FIXED_MOST, "{fixed} bytes");
    Ok(())
}

#[test]
fn the_length_a_head_counts_with_is_the_one_it_has() {
    for head in [by_hand(), full()] {
        assert_eq!(head.fixed_len() + tail_len(&head), head.encode().len());
    }
}

/// Remembers every HEAD that was sent.
#[derive(Debug, Default)]
struct Heads {
    inner: Memory,
    sent: Mutex<Vec<Bytes>>,
}

#[async_trait]
impl Store for Heads {
    async fn put_if(&self, key: &str, body: Bytes, expect: &Expect) -> Put {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).push(body.clone());
        self.inner.put_if(key, body, expect).await
    }

    bucketq::forward_to_inner!(get put_new delete list describe default_max_skew needs_probe);
}

impl Heads {
    /// Check each HEAD sent; returns the results of `look`.
    fn check<T>(&self, look: impl Fn(&Head) -> T) -> Vec<T> {
        let sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let one = |(n, bytes): (usize, &Bytes)| {
            let head = Head::decode("jobs.head", bytes).unwrap_or_else(|e| panic!("HEAD {n}: {e}"));
            let fixed = bytes.len() - tail_len(&head);
            assert!(bytes.len() <= HEAD_MOST && fixed <= FIXED_MOST, "HEAD {n}: {} of {fixed}", bytes.len());
            look(&head)
        };
        sent.iter().enumerate().map(one).collect()
    }
}

#[tokio::test]
async fn head_stays_within_128_kib_however_large_the_batches_are() -> Result<()> {
    let heads = Arc::new(Heads::default());
    let store: Arc<dyn Store> = Arc::clone(&heads) as _;
    let file = fixture::open(&store, fixture::options(), 3).await?;
    let queue = file.queue("bulk")?;
    for i in 0..160_u64 {
        // From nothing to a delta far larger than HEAD may be.
        let (jobs, size) = [(1, 50), (1, 30_000), (40, 2_000), (1, 250_000), (300, 1_000)][i as usize % 5];
        let payload = |j| Payload::bytes(noise(i * 1000 + j, size));
        let jobs: Vec<_> = (0..jobs).map(|j| queue.new_job(payload(j))).collect::<Result<_>>()?;
        queue.enqueue_many(jobs).await?;
    }
    file.close().await?;
    let seen = heads.check(|h| (h.segments.len(), h.base.len > 0, h.tail.len()));
    assert_eq!(seen.len(), 161);
    assert!(seen.iter().any(|s| s.0 > 3) && seen.iter().any(|s| s.1), "{seen:?}");
    assert!(seen.iter().any(|s| s.2 == 0), "no commit was too large for HEAD: {seen:?}");
    Ok(())
}

#[tokio::test]
async fn head_remembers_256_writers_and_says_up_to_where_it_forgot_others() -> Result<()> {
    let heads = Arc::new(Heads::default());
    let store: Arc<dyn Store> = Arc::clone(&heads) as _;
    for seed in 0..260 {
        let file = fixture::open(&store, fixture::options(), seed).await?;
        file.queue("q")?.enqueue(Payload::text("x")).await?;
        file.close().await?;
    }
    let seen = heads.check(|h| (h.writers.len(), h.forgotten_seq));
    let most = MAX_WRITERS;
    for (n, (writers, forgotten)) in seen.iter().enumerate() {
        let wanted = (n + 1).min(most);
        assert_eq!(
            (*writers, *forgotten as usize),
            (wanted, (n + 1).saturating_sub(most)),
            "commit {}",
            n + 1
        );
    }
    assert!(seen.last().is_some_and(|s| s.1 == 5), "{:?}", seen.last());
    Ok(())
}
