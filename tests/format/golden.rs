//! The bytes in golden/ are never deleted: every later version must read them with the same result.
//!
//! head, segment and delta-* are built by hand and today's encoders reproduce them to the byte. bucket/ and bucket-2/
//! are complete small queue files as the engine left them in a directory when the schema had version 1 and 2. Their
//! frames are zstd, and another zstd may compress the same content differently, so these are compared decoded. The
//! tests open and change copies of them. If an encoder or the schema changes on purpose, the old files stay and get a
//! sibling: `BUCKETQ_WRITE_GOLDEN=1 cargo test --test format golden` writes all but those of older schemas again.

use std::collections::BTreeMap;
use std::sync::Arc;

use bucketq::internals::head::{BaseRef, Head, SegmentRef};
use bucketq::internals::pages::{Delta, PAGE, Pages};
use bucketq::internals::wire::hash;
use bucketq::internals::{base, keys, segment};
use bucketq::job::When;
use bucketq::store::{Memory, Store};
use bucketq::{Filter, Options, Payload, QueueFile, Result, State};

use crate::fixture::{self, MAX_PAGES, by_hand, bytes_of, here};

/// The bytes kept under this name. With the variable set it writes `today` instead.
fn golden(name: &str, today: &[u8]) -> Vec<u8> {
    let path = here("golden").join(name);
    if std::env::var_os("BUCKETQ_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, today).expect("room for it");
    }
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn the_head_is_encoded_and_decoded_as_ever() -> Result<()> {
    let kept = golden("head.bin", &by_hand().encode());
    assert_eq!(Head::decode("head.bin", &kept)?, by_hand());
    assert!(by_hand().encode() == kept, "HEAD is encoded in another way than before");
    Ok(())
}

#[test]
fn the_segment_is_encoded_and_decoded_as_ever() -> Result<()> {
    let head = by_hand();
    let today = segment::encode(&head.file_id, &head.lineage_id, &head.tail);
    let kept = golden("segment.bin", &today);
    let r = SegmentRef {
        from: 0x0906,
        to: 0x0907,
        rand: [0; 8],
        codec: 0,
        len: kept.len() as u32,
        hash: hash(&kept),
    };
    assert_eq!(segment::decode("segment.bin", &kept, &r, &head.file_id, &head.lineage_id)?, head.tail);
    assert!(today == kept, "a segment is encoded in another way than before");
    Ok(())
}

/// Three pages that look like nothing else.
fn before() -> Vec<u8> {
    fixture::noise(99, 3 * PAGE)
}

/// Some bytes changed, a stretch moved, a page unchanged, two pages added, one of them empty.
fn grown() -> Vec<u8> {
    let mut after = [before(), vec![0; 2 * PAGE]].concat();
    after[24..28].copy_from_slice(b"seen");
    after[4000..4004].copy_from_slice(b"last");
    after.copy_within(PAGE + 100..PAGE + 900, PAGE + 107);
    after[3 * PAGE..3 * PAGE + 5].copy_from_slice(b"fresh");
    after
}

/// The first page changed, the others gone.
fn cut() -> Vec<u8> {
    let mut after = before()[..PAGE].to_vec();
    after[PAGE - 1] ^= 0xff;
    after
}

#[test]
fn the_deltas_are_encoded_and_decoded_as_ever() -> Result<()> {
    for (name, after, patched) in [("delta-grow.bin", grown(), 3), ("delta-cut.bin", cut(), 1)] {
        let mut pages = Pages::from_image(&before())?;
        pages.truncate(after.len() as u64);
        pages.write(0, &after);
        let today = pages.take_changes().delta().encode();
        let kept = golden(name, &today);
        let delta = Delta::decode(&kept, MAX_PAGES)?;
        assert_eq!((delta.page_count() as usize * PAGE, delta.patched()), (after.len(), patched), "{name}");
        let mut pages = Pages::from_image(&before())?;
        pages.apply(&delta)?;
        assert!(bytes_of(&pages.image()) == after, "{name} gives other pages than before");
        assert!(delta.encode() == kept && today == kept, "{name} is encoded in another way than before");
    }
    Ok(())
}

/// One job in each of five states, by nine commits: HEAD, the segment of commits 4 to 6, the base of commit 3, with their
/// keys.
async fn made() -> Result<[(String, Vec<u8>); 3]> {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let file = fixture::open(&store, fixture::options(), 5).await?;
    let q = file.queue("emails")?;
    q.enqueue(Payload::text("first")).await?;
    let more = ["second", "third", &"large ".repeat(500)];
    let more = more.into_iter().map(|text| q.new_job(Payload::text(text)));
    q.enqueue_many(more.collect::<Result<_>>()?).await?;
    let mut later = q.new_job(Payload::text("later"))?;
    later.when = When::In(3_600_000);
    let later = q.enqueue_job(later).await?;
    let taken = q.claim(2).worker("one").await?;
    file.ack_with(taken[0].held(), Payload::text("it is sent")).await?;
    file.nack(taken[1].held(), None, Some("no route".into())).await?;
    q.claim(1).worker("two").await?;
    file.cancel(later.id).await?;
    file.close().await?;

    let head = fixture::head(&*store).await;
    let log = fixture::log(&*store, &head).await;
    assert_eq!(log.len(), 9);
    let image = fixture::replay(&log[..3]).image();
    let base = base::encode(&image)?;
    let segment = segment::encode(&head.file_id, &head.lineage_id, &log[3..6]);
    let head = Head {
        base: BaseRef { seq: 3, rand: [3; 8], codec: 1, len: base.len() as u64, hash: hash(&base) },
        segments: vec![SegmentRef {
            from: 4,
            to: 6,
            rand: [6; 8],
            codec: 0,
            len: segment.len() as u32,
            hash: hash(&segment),
        }],
        tail: log[6..].to_vec(),
        ..head
    };
    Ok([
        (keys::head("jobs"), head.encode()),
        (keys::segment("jobs", &head.file_id, 4, 6, &[6; 8]), segment),
        (keys::base("jobs", &head.file_id, 3, &[3; 8]), base),
    ])
}

#[tokio::test]
async fn the_same_clock_randomness_and_ops_give_the_same_bytes() -> Result<()> {
    assert!(made().await? == made().await?);
    Ok(())
}

/// The directories that are never deleted, and the version of the schema in each. Today's output belongs to the last
/// one.
const BUCKETS: [(&str, i32); 2] = [("bucket", 1), ("bucket-2", 2)];

#[tokio::test]
async fn the_objects_of_a_queue_file_made_long_ago_are_decoded_as_ever() -> Result<()> {
    for (key, today) in &made().await? {
        golden(&format!("{}/{key}", BUCKETS[1].0), today);
    }
    for (bucket, schema) in BUCKETS {
        let keys = made().await?.map(|(key, _)| here("golden").join(bucket).join(key));
        let kept =
            keys.map(|path| std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())));
        let [head, segment, base] = &kept;
        // The containers are reproduced to the byte, whatever frames they contain.
        let decoded = Head::decode("jobs.head", head)?;
        assert!(decoded.encode() == *head);
        let (s, b) = (decoded.segments[0], decoded.base);
        let records = segment::decode("the segment", segment, &s, &decoded.file_id, &decoded.lineage_id)?;
        assert!(segment::encode(&decoded.file_id, &decoded.lineage_id, &records) == *segment);
        let pages = base::decode("the base", base, &b, MAX_PAGES)?;
        let image = fixture::bytes_of(&pages.image());
        assert_eq!(i32::from_be_bytes([image[60], image[61], image[62], image[63]]), schema, "{bucket}");
        let again = base::encode(&pages.image())?;
        assert!(zstd::decode_all(&again[..]).ok() == zstd::decode_all(&base[..]).ok());
    }
    Ok(())
}

/// A copy of such a directory, and the URL of the queue file in it.
fn copied(bucket: &str) -> (tempfile::TempDir, String) {
    let copy = tempfile::tempdir().expect("a temporary directory can be made");
    for entry in std::fs::read_dir(here("golden").join(bucket)).expect("it is kept") {
        let from = entry.expect("it can be read").path();
        std::fs::copy(&from, copy.path().join(from.file_name().expect("a file"))).expect("room for it");
    }
    let url = copy.path().join("jobs").to_str().expect("plain").to_owned();
    (copy, url)
}

#[tokio::test]
async fn a_queue_file_made_long_ago_is_sound() -> Result<()> {
    for (bucket, _) in BUCKETS {
        let (_copy, url) = copied(bucket);
        let report = bucketq::check(&url, Options::default()).await?;
        assert!(report.is_clean(), "{report:?}");
        assert_eq!((report.commit_seq, report.commits, report.jobs), (Some(9), 6, 5));
        assert_eq!((report.referenced.count, report.unreferenced.map(|t| t.count)), (3, Some(0)));
    }
    Ok(())
}

#[tokio::test]
async fn a_queue_file_made_long_ago_opens_and_work_goes_on() -> Result<()> {
    for (bucket, _) in BUCKETS {
        work_goes_on(bucket).await?;
    }
    Ok(())
}

async fn work_goes_on(bucket: &str) -> Result<()> {
    let (copy, url) = copied(bucket);
    let file = QueueFile::open(&url, Options::default()).await?;
    let mut found = BTreeMap::new();
    for job in file.list(Filter::default(), None, 100).await?.jobs {
        let detail = file.get(job.id).await?.expect("it was listed");
        let result = detail.result.map(|r| r.bytes.to_vec());
        found.insert(detail.payload.bytes.to_vec(), (job.state, job.attempt, result));
    }
    let wanted = [
        ("first", (State::Done, 1, Some(b"it is sent".to_vec()))),
        ("second", (State::Scheduled, 1, None)),
        ("third", (State::Leased, 1, None)),
        (&"large ".repeat(500), (State::Ready, 0, None)),
        ("later", (State::Cancelled, 0, None)),
    ];
    assert_eq!(found, wanted.into_iter().map(|(p, w)| (p.as_bytes().to_vec(), w)).collect());
    let history = file.history(100).await?;
    assert_eq!(history.iter().map(|c| c.commit_seq).collect::<Vec<_>>(), [9, 8, 7, 6, 5, 4]);

    // The old lease has expired by now, and the back-off has passed.
    let q = file.queue("emails")?;
    q.enqueue(Payload::text("sixth")).await?;
    let taken = q.claim(100).await?;
    assert_eq!(taken.len(), 4);
    for t in &taken {
        file.ack(t.held()).await?;
    }
    file.export(copy.path().join("image.sqlite"), false).await?;
    file.close().await?;
    let report = bucketq::check(&url, Options::default()).await?;
    assert!(report.is_clean() && report.commit_seq > Some(10), "{report:?}");
    bucketq::restore(&url, &copy.path().join("image.sqlite"), Options::default()).await?;
    assert!(bucketq::check(&url, Options::default()).await?.is_clean());
    Ok(())
}
