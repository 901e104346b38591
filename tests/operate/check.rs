//! A check reads everything, reports every fault, and writes nothing.

use std::sync::Arc;

use bucketq::operate::{Report, check_with};
use bucketq::store::{Memory, Store};
use bucketq::{Code, Options, Payload, QueueFile, Result, check};
use bucketq_tests::given::{HEAD, NAME, inline, object, objects, refused};
use bucketq_tests::puppet::Puppet;

use crate::{grown, head, open};

async fn report(store: &Arc<dyn Store>) -> Result<Report> {
    let before = objects(store).await?;
    let report = check_with(Arc::clone(store), NAME, Options::default()).await?;
    assert_eq!(objects(store).await?, before, "nothing was written");
    Ok(report)
}

/// The keys of the base and of the first segment HEAD refers to.
async fn parts(store: &Arc<dyn Store>) -> Result<[String; 2]> {
    let head = head(store).await?;
    let s = &head.segments[0];
    Ok([
        bucketq::internals::keys::base(NAME, &head.file_id, head.base.seq, &head.base.rand),
        bucketq::internals::keys::segment(NAME, &head.file_id, s.from, s.to, &s.rand),
    ])
}

async fn change(store: &Arc<dyn Store>, key: &str, change: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
    let mut bytes = object(store, key).await?.expect("there").to_vec();
    change(&mut bytes);
    store.put_new(key, bytes.into()).await
}

#[tokio::test]
async fn a_sound_file_is_clean_and_its_figures_are_told() -> Result<()> {
    let store = grown(260).await?;
    let head = head(&store).await?;
    let report = report(&store).await?;
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.commit_seq, Some(head.commit_seq));
    assert_eq!((report.jobs, report.pages), (260, u64::from(head.page_count)));
    assert_eq!(report.commits, head.commit_seq - head.base.seq);
    assert_eq!(report.referenced.count, 2 + head.segments.len() as u64);
    let all: u64 = objects(&store).await?.iter().map(|(_, bytes)| bytes.len() as u64).sum();
    assert_eq!(report.referenced.bytes + report.unreferenced.expect("listed").bytes, all);
    assert_eq!(report.read, report.referenced);
    assert_eq!(report.foreign.expect("listed").count, 0);
    Ok(())
}

#[tokio::test]
async fn every_damaged_object_is_named_and_the_others_are_read_all_the_same() -> Result<()> {
    let store = grown(260).await?;
    let [base, segment] = parts(&store).await?;
    change(&store, &base, |b| b[100] ^= 1).await?;
    change(&store, &segment, |b| b.truncate(200)).await?;
    let report = report(&store).await?;
    for key in [&base, &segment] {
        assert!(report.problems.iter().any(|p| p.object == *key), "{key}: {report:?}");
    }
    assert!(report.problems.iter().any(|p| p.object == "database"), "{report:?}");
    assert_eq!(report.read, {
        let mut read = report.referenced;
        read.bytes = report.read.bytes;
        read
    });
    Ok(())
}

#[tokio::test]
async fn missing_objects_are_named() -> Result<()> {
    let store = grown(260).await?;
    for key in parts(&store).await? {
        let kept = object(&store, &key).await?.expect("there");
        store.delete(&key).await?;
        let report = report(&store).await?;
        let about = report.problems.iter().find(|p| p.object == key).expect("named");
        assert!(about.found.contains("does not exist"), "{about:?}");
        store.put_new(&key, kept).await?;
    }
    assert!(report(&store).await?.is_clean());
    Ok(())
}

#[tokio::test]
async fn a_wrong_delta_is_found_at_its_commit() -> Result<()> {
    let store = grown(12).await?;
    let mut head = head(&store).await?;
    let at = head.tail.len() - 2;
    head.tail[at].checksum[3] ^= 1;
    store.put_new(HEAD, head.encode().into()).await?;
    let report = report(&store).await?;
    assert_eq!(report.problems[0].object, HEAD);
    assert!(report.problems[0].check.contains(&format!("commit {}", head.tail[at].seq)), "{report:?}");
    Ok(())
}

#[tokio::test]
async fn a_damaged_or_missing_head_leaves_the_objects_to_be_judged_alone() -> Result<()> {
    let store = grown(260).await?;
    let [base, segment] = parts(&store).await?;
    change(&store, &segment, |b| b[150] ^= 1).await?;
    change(&store, HEAD, |b| b[30] ^= 1).await?;
    for gone in [false, true] {
        if gone {
            store.delete(HEAD).await?;
        }
        let report = report(&store).await?;
        assert_eq!(report.problems[0].object, HEAD);
        assert!(report.problems.iter().any(|p| p.object == segment), "{report:?}");
        assert!(report.sound_objects.contains(&base) && !report.sound_objects.contains(&segment));
        assert_eq!(report.commit_seq, None);
    }
    Ok(())
}

#[tokio::test]
async fn what_no_head_refers_to_is_counted_by_whose_it_is() -> Result<()> {
    let store = grown(260).await?;
    let before = report(&store).await?;
    let head = head(&store).await?;
    let low = bucketq::internals::keys::base(NAME, &head.file_id, 1, &[1; 8]);
    let foreign = bucketq::internals::keys::segment(NAME, &[9; 16], 1, 2, &[1; 8]);
    for (key, bytes) in
        [(&low, 10), (&foreign, 20), (&"jobs.note".to_owned(), 40), (&"jobs2.head".to_owned(), 80)]
    {
        store.put_new(key, vec![0; bytes].into()).await?;
    }
    let after = report(&store).await?;
    let (was, is) = (before.unreferenced.expect("listed"), after.unreferenced.expect("listed"));
    assert_eq!((is.count - was.count, is.bytes - was.bytes), (1, 10));
    assert_eq!(after.foreign.map(|t| (t.count, t.bytes)), Some((1, 20)));
    assert_eq!(after.collectable.map(|t| t.count), Some(0), "the floor is at the beginning");
    let mut raised = head.clone();
    raised.gc_floor = 2;
    store.put_new(HEAD, raised.encode().into()).await?;
    let after = report(&store).await?;
    assert!(after.collectable.is_some_and(|t| t.count >= 1), "{after:?}");
    assert!(after.is_clean());
    Ok(())
}

#[tokio::test]
async fn a_rule_broken_inside_the_database_is_found() -> Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let store = grown(5).await?;
    let file = open(&store).await?;
    let image = dir.path().join("image.sqlite");
    file.export(&image, false).await?;
    file.close().await?;
    rusqlite::Connection::open(&image)
        .and_then(|c| c.execute_batch("UPDATE queues SET ready = ready + 1"))
        .expect("sqlite changes it");
    // No writer does this: a base whose counts are wrong, and a HEAD with its hash.
    let pages = bucketq::internals::pages::Pages::from_image(&std::fs::read(&image).expect("it is there"))?;
    let body = bucketq::internals::base::encode(&pages.image())?;
    let mut head = head(&store).await?;
    head.base = bucketq::internals::head::BaseRef {
        seq: head.commit_seq,
        rand: [7; 8],
        codec: 1,
        len: body.len() as u64,
        hash: bucketq::internals::wire::hash(&body),
    };
    (head.page_count, head.checksum) = (pages.page_count(), pages.checksum().0);
    (head.segments, head.tail) = (vec![], vec![]);
    let key = bucketq::internals::keys::base(NAME, &head.file_id, head.base.seq, &head.base.rand);
    store.put_new(&key, body.into()).await?;
    store.put_new(HEAD, head.encode().into()).await?;
    let report = report(&store).await?;
    assert_eq!(report.problems.len(), 1, "{report:?}");
    assert!(report.problems[0].check.contains("counter of a queue"), "{report:?}");
    assert_eq!((&*report.problems[0].object, &*report.problems[0].found), ("database", "queue q"));
    Ok(())
}

#[tokio::test]
async fn nothing_foreign_or_newer_is_checked() -> Result<()> {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let error = refused(check_with(Arc::clone(&store), NAME, Options::default()).await);
    assert_eq!(error.code(), Code::NoSuchFile);
    store.put_new(HEAD, b"something else, and quite long".to_vec().into()).await?;
    assert!(!report(&store).await?.is_clean());
    let store = grown(3).await?;
    let mut newer = head(&store).await?;
    newer.min_reader = 2;
    store.put_new(HEAD, newer.encode().into()).await?;
    assert_eq!(refused(check_with(Arc::clone(&store), NAME, Options::default()).await).code(), Code::TooNew);
    Ok(())
}

#[tokio::test]
async fn a_check_works_while_others_commit() -> Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let url = dir.path().join("jobs").to_str().expect("plain").to_owned();
    let file = QueueFile::open(&url, Options::default()).await?;
    let q = file.queue("q")?;
    let (stop, mut stopped) = tokio::sync::watch::channel(false);
    let busy = tokio::spawn(async move {
        for i in 0.. {
            q.enqueue(Payload::bytes(crate::noise(i, 2_000))).await?;
            if *stopped.borrow_and_update() {
                break;
            }
        }
        Ok::<_, bucketq::Error>(())
    });
    let mut newest = 0;
    // However late the other task runs.
    while newest < 5 {
        let report = check(&url, Options::default()).await?;
        assert!(report.is_clean(), "{report:?}");
        newest = report.commit_seq.expect("HEAD was read");
    }
    stop.send_replace(true);
    busy.await.expect("no panic")?;
    file.close().await
}

#[tokio::test]
async fn a_check_sends_gets_and_one_list_and_nothing_else() -> Result<()> {
    let store = grown(260).await?;
    let puppet = Puppet::over(store);
    let report = check_with(puppet.store(), NAME, inline()).await?;
    let requests = puppet.requests();
    assert_eq!((requests.gets, requests.lists), (report.read.count, 1));
    assert_eq!((requests.puts, requests.new, requests.deletes), (0, 0, 0));
    Ok(())
}
