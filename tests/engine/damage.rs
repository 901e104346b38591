//! Truncated, bit-flipped, foreign and newer objects: named, refused, left unchanged.

use std::sync::Arc;
use std::time::Duration;

use bucketq::internals::head::Head;
use bucketq::internals::wire::hash;
use bucketq::store::{Memory, Store};
use bucketq::{Code, Error, Kind, Payload, QueueFile, Result};
use bucketq_tests::clock::{TestClock, pass};
use bucketq_tests::given::{HEAD, NAME, inline, noise, object, objects, refused};
use bytes::Bytes;

type Objects = Vec<(String, Bytes)>;

async fn store_of(objects: &Objects) -> Result<Arc<dyn Store>> {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    for (key, bytes) in objects {
        store.put_new(key, bytes.clone()).await?;
    }
    Ok(store)
}

async fn open(store: &Arc<dyn Store>) -> Result<QueueFile> {
    QueueFile::open_with(Arc::clone(store), NAME, inline(), TestClock::start().env()).await
}

/// A queue file with a base, segments and a tail.
async fn grown() -> Result<Objects> {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let file = open(&store).await?;
    let q = file.queue("q")?;
    for i in 0..260 {
        q.enqueue(Payload::bytes(noise(i, 3_000))).await?;
    }
    file.close().await?;
    pass(Duration::from_secs(1)).await;
    let all = objects(&store).await?;
    let head = Head::decode(HEAD, &all.iter().find(|(k, _)| k == HEAD).expect("there").1)?;
    assert!(head.base.len > 0 && !head.segments.is_empty() && !head.tail.is_empty(), "{head:?}");
    // Only the objects that HEAD refers to.
    let wanted = |key: &String| {
        let segment = |s: &bucketq::internals::head::SegmentRef| {
            *key == bucketq::internals::keys::segment(NAME, &head.file_id, s.from, s.to, &s.rand)
        };
        key == HEAD
            || *key == bucketq::internals::keys::base(NAME, &head.file_id, head.base.seq, &head.base.rand)
            || head.segments.iter().any(segment)
    };
    Ok(all.into_iter().filter(|(key, _)| wanted(key)).collect())
}

/// Opening these objects fails with an error that names `key`; the bucket is unchanged.
async fn refuses(objects_: &Objects, key: &str, code: Code) -> Result<Error> {
    let store = store_of(objects_).await?;
    let error = refused(open(&store).await);
    assert_eq!((error.kind(), error.code()), (Kind::Corrupt, code), "{error}");
    assert!(error.message().contains(key), "it names {key}: {error}");
    assert_eq!(objects(&store).await?, *objects_, "the bucket is untouched");
    Ok(error)
}

fn with(objects: &Objects, key: &str, bytes: impl Into<Bytes>) -> Objects {
    let mut changed = objects.clone();
    changed.iter_mut().find(|(k, _)| k == key).expect("the key is there").1 = bytes.into();
    changed
}

/// The same bytes with a right hash at their end.
fn resealed(bytes: &[u8]) -> Vec<u8> {
    let body = &bytes[..bytes.len() - 16];
    [body, &hash(body)[..]].concat()
}

fn keys_of(objects: &Objects) -> [String; 3] {
    let find =
        |part: &str| objects.iter().map(|(k, _)| k).find(|k| k.contains(part)).expect("one of each").clone();
    [HEAD.to_owned(), find(".base-"), find(".seg-")]
}

fn bytes_of(objects: &Objects, key: &str) -> Vec<u8> {
    objects.iter().find(|(k, _)| k == key).expect("there").1.to_vec()
}

#[tokio::test(start_paused = true)]
async fn truncated_objects_are_corrupt() -> Result<()> {
    let good = grown().await?;
    open(&store_of(&good).await?).await?.close().await?;
    for key in keys_of(&good) {
        let bytes = bytes_of(&good, &key);
        for cut in [bytes.len() - 1, bytes.len() / 2, 30] {
            let error = refuses(&with(&good, &key, bytes[..cut].to_vec()), &key, Code::Corrupt).await?;
            assert!(
                error.message().contains(if key == HEAD { "hash" } else { "bytes where HEAD says" }),
                "{error}"
            );
        }
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn flipped_bits_are_corrupt() -> Result<()> {
    let good = grown().await?;
    for key in keys_of(&good) {
        let bytes = bytes_of(&good, &key);
        for at in [30, bytes.len() / 3, bytes.len() - 1] {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x10;
            let error = refuses(&with(&good, &key, flipped), &key, Code::Corrupt).await?;
            assert!(error.message().contains("hash"), "{error}");
        }
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn missing_bases_and_segments_are_corrupt() -> Result<()> {
    let good = grown().await?;
    let [_, base, segment] = keys_of(&good);
    for key in [base, segment] {
        let without: Objects = good.iter().filter(|(k, _)| *k != key).cloned().collect();
        let error = refuses(&without, &key, Code::Corrupt).await?;
        assert!(error.message().contains("does not exist"), "{error}");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn something_else_under_the_name_is_foreign_and_stays() -> Result<()> {
    for bytes in [&b""[..], b"hello", b"PK\x03\x04 a zip file of somebody else, long enough to be read"] {
        refuses(&vec![(HEAD.to_owned(), Bytes::from_static(bytes))], HEAD, Code::Foreign).await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn the_segment_of_another_file_is_corrupt() -> Result<()> {
    let (good, other) = (grown().await?, grown().await?);
    let [_, _, key] = keys_of(&good);
    let [_, _, others] = keys_of(&other);
    refuses(&with(&good, &key, bytes_of(&other, &others)), &key, Code::Corrupt).await?;
    // Even when HEAD has its hash.
    let bytes = bytes_of(&other, &others);
    let mut head = Head::decode(HEAD, &bytes_of(&good, HEAD))?;
    let i = segment_of(&head, &key);
    head.segments[i].len = bytes.len() as u32;
    head.segments[i].hash = hash(&bytes);
    let vouched = with(&with(&good, HEAD, head.encode()), &key, bytes);
    let error = refuses(&vouched, &key, Code::Corrupt).await?;
    assert!(error.message().contains("another queue file"), "{error}");
    Ok(())
}

fn segment_of(head: &Head, key: &str) -> usize {
    let is = |s: &bucketq::internals::head::SegmentRef| {
        bucketq::internals::keys::segment(NAME, &head.file_id, s.from, s.to, &s.rand) == key
    };
    head.segments.iter().position(is).expect("HEAD refers to it")
}

#[tokio::test(start_paused = true)]
async fn what_a_newer_version_wrote_is_too_new() -> Result<()> {
    let good = grown().await?;
    let [_, _, segment] = keys_of(&good);
    // Files that only newer writers understand can still be read: see tests/operate.
    let changes: [fn(&mut Head); 2] = [|h| h.min_reader = 2, |h| h.reader_features = 1];
    for change in changes {
        let mut head = Head::decode(HEAD, &bytes_of(&good, HEAD))?;
        change(&mut head);
        let error = refuses(&with(&good, HEAD, head.encode()), HEAD, Code::TooNew).await?;
        assert!(error.message().contains("upgrade"), "{error}");
    }
    // A newer format that permits this version is no problem.
    let mut head = Head::decode(HEAD, &bytes_of(&good, HEAD))?;
    head.format = 2;
    open(&store_of(&with(&good, HEAD, head.encode())).await?).await?.close().await?;

    let mut bytes = bytes_of(&good, &segment);
    bytes[10] = 2;
    let bytes = resealed(&bytes);
    let mut head = Head::decode(HEAD, &bytes_of(&good, HEAD))?;
    let i = segment_of(&head, &segment);
    head.segments[i].hash = hash(&bytes);
    let newer = with(&with(&good, HEAD, head.encode()), &segment, bytes);
    refuses(&newer, &segment, Code::TooNew).await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_delta_that_does_not_give_the_stated_database_is_corrupt() -> Result<()> {
    let good = grown().await?;
    let mut head = Head::decode(HEAD, &bytes_of(&good, HEAD))?;
    head.checksum[0] ^= 1;
    head.tail.last_mut().expect("a tail").checksum = head.checksum;
    let error = refuses(&with(&good, HEAD, head.encode()), HEAD, Code::Corrupt).await?;
    assert!(error.message().contains("checksum"), "{error}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn damage_under_a_running_process_stops_it_and_touches_nothing() -> Result<()> {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let file = open(&store).await?;
    let q = file.queue("q")?;
    q.enqueue(Payload::text("x")).await?;
    pass(Duration::from_millis(1)).await;
    let good = object(&store, HEAD).await?.expect("there");
    let mut flipped = good.to_vec();
    flipped[100] ^= 1;
    store.put_new(HEAD, flipped.into()).await?;
    let before = objects(&store).await?;
    let error = refused(file.stats(None).await);
    assert_eq!(error.code(), Code::Corrupt, "{error}");
    assert!(error.message().contains(HEAD));
    let error = refused(q.enqueue(Payload::text("y")).await);
    assert!(matches!(error.kind(), Kind::Corrupt | Kind::Unknown), "{error}");
    assert_eq!(objects(&store).await?, before);
    // Once it is repaired, work continues.
    store.put_new(HEAD, good).await?;
    q.enqueue(Payload::text("z")).await?;
    file.close().await
}
