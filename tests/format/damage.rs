//! Damaged objects are refused, whatever the damage, and never make the reader panic.

use bucketq::Result;
use bucketq::internals::head::{BaseRef, Head, SegmentRef};
use bucketq::internals::wire::hash;
use bucketq::internals::{base, segment};

use crate::fixture::{self, MAX_PAGES, by_hand, refused, reseal};

/// Every truncation and every single bit flipped.
fn damaged(good: &[u8], mut read: impl FnMut(&[u8], &str)) {
    for len in 0..good.len() {
        read(&good[..len], "cut off");
    }
    let mut bytes = good.to_vec();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            bytes[at] ^= 1 << bit;
            read(&bytes, "flipped");
            bytes[at] ^= 1 << bit;
        }
    }
    bytes.push(0);
    read(&bytes, "longer");
}

#[tokio::test]
async fn a_head_cut_off_or_with_any_bit_flipped_is_refused() -> Result<()> {
    let store = fixture::used(3).await?;
    let good = fixture::object(&*store, "jobs.head").await;
    assert!(good.len() > 10_000, "{} bytes are not much of a HEAD", good.len());
    damaged(&good, |bytes, how| drop(refused(Head::decode("jobs.head", bytes), how)));
    Ok(())
}

#[tokio::test]
async fn a_segment_cut_off_or_with_any_bit_flipped_is_refused() -> Result<()> {
    let store = fixture::used(2).await?;
    let head = fixture::head(&*store).await;
    let log = fixture::log(&*store, &head).await;
    let good = segment::encode(&head.file_id, &head.lineage_id, &log);
    let key = "jobs.seg";
    let r = SegmentRef { from: 1, to: 3, rand: [0; 8], codec: 0, len: good.len() as u32, hash: hash(&good) };
    assert_eq!(segment::decode(key, &good, &r, &head.file_id, &head.lineage_id)?, log);
    damaged(&good, |bytes, how| {
        // With the length and hash in HEAD, and with a HEAD that has the hash of the damaged bytes: then only the hash
        // at the end can show it.
        drop(refused(segment::decode(key, bytes, &r, &head.file_id, &head.lineage_id), how));
        if how == "flipped" {
            let vouched = SegmentRef { len: bytes.len() as u32, hash: hash(bytes), ..r };
            drop(refused(segment::decode(key, bytes, &vouched, &head.file_id, &head.lineage_id), how));
        }
    });
    Ok(())
}

#[tokio::test]
async fn a_base_cut_off_or_with_any_bit_flipped_is_refused() -> Result<()> {
    let store = fixture::used(2).await?;
    let pages = fixture::replay(&fixture::log(&*store, &fixture::head(&*store).await).await);
    let good = base::encode(&pages.image())?;
    let r = BaseRef { seq: 3, rand: [1; 8], codec: 1, len: good.len() as u64, hash: hash(&good) };
    assert_eq!(base::decode("the base", &good, &r, MAX_PAGES)?.checksum(), pages.checksum());
    damaged(&good, |bytes, how| drop(refused(base::decode("the base", bytes, &r, MAX_PAGES), how)));
    Ok(())
}

/// A flipped bit under a right hash is another HEAD, perhaps a valid one; the reader must never panic.
#[test]
fn flipped_bits_under_a_right_hash_are_read_without_a_panic() {
    let good = by_hand().encode();
    let (mut accepted, mut rejected) = (0, 0);
    for at in 0..good.len() - 16 {
        for bit in 0..8 {
            let mut bytes = good.clone();
            bytes[at] ^= 1 << bit;
            reseal(&mut bytes);
            match Head::decode("jobs.head", &bytes) {
                Ok(_) => accepted += 1,
                Err(_) => rejected += 1,
            }
        }
    }
    assert!(accepted > 1000 && rejected > 1000, "{accepted} accepted, {rejected} rejected");
}

#[test]
fn flipped_bits_of_a_segment_under_a_right_hash_are_read_without_a_panic() {
    let head = by_hand();
    let good = segment::encode(&head.file_id, &head.lineage_id, &head.tail);
    for at in 0..good.len() - 16 {
        for bit in 0..8 {
            let mut bytes = good.clone();
            bytes[at] ^= 1 << bit;
            reseal(&mut bytes);
            let r = SegmentRef {
                from: 0x0906,
                to: 0x0907,
                rand: [0; 8],
                codec: 0,
                len: bytes.len() as u32,
                hash: hash(&bytes),
            };
            for record in
                segment::decode("a segment", &bytes, &r, &head.file_id, &head.lineage_id).unwrap_or_default()
            {
                let _ = record.delta(MAX_PAGES);
            }
        }
    }
}

#[tokio::test]
async fn flipped_bits_of_a_delta_are_read_without_a_panic_and_do_not_keep_the_checksum() -> Result<()> {
    let store = fixture::used(3).await?;
    let log = fixture::log(&*store, &fixture::head(&*store).await).await;
    let (last, before) = log.split_last().expect("it has commits");
    let plain = fixture::plain(last);
    let mut read = 0;
    for at in 0..plain.frame.len() {
        // Each run and each literal byte is independent: one bit of each is enough.
        let mut frame = plain.frame.to_vec();
        frame[at] ^= 1 << (at % 8);
        let Ok(delta) = bucketq::internals::pages::Delta::decode(&frame, MAX_PAGES) else { continue };
        read += 1;
        if at % 61 == 0 {
            let mut pages = fixture::replay(before);
            pages.apply(&delta)?;
            assert_ne!(
                (pages.page_count(), pages.checksum().0),
                (last.page_count, last.checksum),
                "byte {at}"
            );
        }
    }
    assert!(read > 1000, "only {read} damaged deltas could be read at all");
    Ok(())
}
