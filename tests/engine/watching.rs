//! Events come after the commits they report, and the metrics for a scraper.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use bucketq::event::Cause;
use bucketq::policy::Changes;
use bucketq::{Code, Event, Events, Happened, Loss, Op, Options, Payload, QueueFile, Result};
use bucketq_tests::clock::pass;
use bucketq_tests::given::{inline, on_puppet, puppet, refused};
use bucketq_tests::puppet::OnPut;

/// Names of the events so far, without commits.
fn names(events: &mut Events) -> Vec<&'static str> {
    all(events).into_iter().map(|e| e.what.name()).filter(|n| *n != "committed").collect()
}

fn all(events: &mut Events) -> Vec<Event> {
    std::iter::from_fn(|| events.try_next()).collect()
}

async fn work(file: &QueueFile) -> Result<()> {
    let queue = file.queue("mail")?;
    queue
        .configure(Changes { max_attempts: Some(2), max_pending: Some(Some(9)), ..Changes::default() })
        .await?;
    let id = queue.enqueue(Payload::text("a")).await?.id;
    let mut new = file.new_job(Payload::text("b"))?;
    new.dedup = Some(bucketq::Dedup { key: "k".into(), scope: bucketq::DedupScope::Unfinished });
    queue.enqueue_job(new.clone()).await?;
    queue.enqueue_job(bucketq::New { id: file.new_job(Payload::text("c"))?.id, ..new }).await?;
    let taken = queue.claim(1).lease(Duration::from_secs(10)).worker("w").await?;
    file.extend(taken[0].held(), Duration::from_secs(30)).await?;
    file.release(taken[0].held()).await?;
    let taken = queue.claim(1).lease(Duration::from_secs(10)).worker("w").await?;
    assert_eq!(taken[0].job.id, id);
    pass(Duration::from_secs(11)).await;
    let taken = queue.claim(2).lease(Duration::from_secs(10)).worker("w").await?;
    file.nack(taken[0].held(), None, Some("bad".into())).await?;
    pass(Duration::from_millis(1_500)).await;
    file.ack(taken[1].held()).await?;
    file.requeue(id).await?;
    file.move_job(id, "post").await?;
    file.move_job(id, "mail").await?;
    file.cancel(id).await?;
    assert!(queue.claim(1).await?.is_empty());
    file.call(Op::Purge { queue: "mail".into(), states: vec![bucketq::State::Done] }).await?;
    Ok(())
}

const HAPPENED: [&str; 20] = [
    "enqueued",
    "enqueued",
    "deduplicated",
    "claimed",
    "extended",
    "released",
    "claimed",
    "expired",
    "claimed",
    "claimed",
    "nacked",
    "dead",
    "acked",
    "requeued",
    "moved",
    "moved",
    "cancelled",
    "claimed_nothing",
    "purged",
    "",
];

#[tokio::test(start_paused = true)]
async fn every_change_of_a_job_is_told_in_order_with_its_commit() -> Result<()> {
    let (_, file) = puppet(inline()).await?;
    let mut events = file.events(100)?;
    work(&file).await?;
    let told = all(&mut events);
    let names: Vec<_> = told.iter().map(|e| e.what.name()).filter(|n| *n != "committed").collect();
    assert_eq!(names, HAPPENED[..19]);
    assert!(told.is_sorted_by(|a, b| a.commit_seq <= b.commit_seq && a.commit_ms <= b.commit_ms));
    let waits: Vec<_> = told
        .iter()
        .filter_map(|e| {
            if let Happened::Claimed { wait_ms, job, .. } = &e.what {
                Some((job.attempt, *wait_ms))
            } else {
                None
            }
        })
        .collect();
    assert_eq!(waits, [(1, 0), (1, 0), (2, 1_000), (1, 11_000)]);
    let ran = told
        .iter()
        .find_map(|e| if let Happened::Acked { run_ms, .. } = e.what { Some(run_ms) } else { None });
    assert_eq!(ran, Some(1_500));
    let commits = told.iter().filter(|e| e.what.name() == "committed").count() as u64;
    assert_eq!(commits, file.metrics()?.commits);
    let json = serde_json::to_value(&told[1]).expect("events are data");
    assert_eq!(json["event"], told[1].what.name());
    assert_eq!(events.missed(), 0);
    file.close().await?;
    assert_eq!(events.next().await, None, "the writer has ended");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn refused_enqueues_are_events() -> Result<()> {
    let (_, file) = puppet(inline()).await?;
    let queue = file.queue("mail")?;
    queue.configure(Changes { max_pending: Some(Some(1)), ..Changes::default() }).await?;
    queue.enqueue(Payload::text("a")).await?;
    let mut events = file.events(100)?;
    let jobs = vec![file.new_job(Payload::text("b"))?, file.new_job(Payload::text("c"))?];
    let enqueue = Op::Enqueue { queue: "mail".into(), jobs };
    assert_eq!(refused(file.call(enqueue.clone()).await).code(), Code::QueueFull);
    assert_eq!(refused(file.call(Op::Atomic(vec![enqueue])).await).code(), Code::QueueFull);
    file.call(Op::Drain { queue: "mail".into() }).await?;
    assert_eq!(refused(queue.enqueue(Payload::text("d")).await).code(), Code::Draining);
    let told = all(&mut events).into_iter().filter(|e| e.what.name() != "committed").map(|e| e.what);
    let full = |code, jobs| Happened::Refused { queue: "mail".into(), jobs, code };
    let expected = [full(Code::QueueFull, 2), full(Code::QueueFull, 2), full(Code::Draining, 1)];
    assert_eq!(told.collect::<Vec<_>>(), expected);
    // Another error of an enqueue is none of the queue's.
    assert_eq!(refused(queue.enqueue(Payload::bytes(vec![0; 2 << 20])).await).code(), Code::PayloadTooLarge);
    assert!(all(&mut events).is_empty());
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn nothing_is_told_before_it_is_stored() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    let mut events = file.events(100)?;
    puppet.hold();
    let queue = file.queue("mail")?;
    let enqueued = queue.enqueue(Payload::text("a"));
    let watched = async {
        puppet.until_held(1).await;
        pass(Duration::from_secs(1)).await;
        let early = all(&mut events);
        puppet.let_go();
        early
    };
    let (enqueued, early) = tokio::join!(enqueued, watched);
    assert_eq!(early, []);
    let told = all(&mut events);
    assert_eq!(told[0].commit_seq, enqueued?.commit_seq);
    assert_eq!(told[0].what.name(), "enqueued");
    let Happened::Committed { ops: 1, bytes, took_ms } = told[1].what else { panic!("{told:?}") };
    assert!(bytes > 100 && took_ms == 1_000, "{told:?}");
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn what_was_not_applied_is_not_told() -> Result<()> {
    let (_, file) = puppet(inline()).await?;
    let mut events = file.events(100)?;
    let job = file.new_job(Payload::text("a"))?;
    let unknown = file.new_job(Payload::text("b"))?.id;
    let ops = vec![
        Op::Enqueue { queue: "mail".into(), jobs: vec![job] },
        Op::Cancel { id: unknown, leased: false },
    ];
    file.atomic(ops).await.expect_err("there is no such job");
    assert_eq!(all(&mut events), []);
    // One op fails, and another one of the same commit does not.
    let queue = file.queue("mail")?;
    let (good, bad) = tokio::join!(queue.enqueue(Payload::text("a")), file.cancel(unknown));
    good?;
    bad.expect_err("there is no such job");
    assert_eq!(names(&mut events), ["enqueued"]);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_slow_listener_misses_events_and_harms_nobody() -> Result<()> {
    let (_, file) = puppet(inline()).await?;
    let mut slow = file.events(3)?;
    let mut quick = file.events(1_000)?;
    let gone = file.events(1)?;
    drop(gone);
    work(&file).await?;
    assert_eq!(names(&mut quick).len(), 19);
    let kept = all(&mut slow).len() as u64;
    assert_eq!(kept, 3);
    assert!(slow.missed() > 17 && quick.missed() == 0);
    assert_eq!(file.metrics()?.events_missed, slow.missed());
    file.queue("mail")?.enqueue(Payload::text("a")).await?;
    assert_eq!(names(&mut slow), ["enqueued"], "it has room again");
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn lost_races_and_lost_answers_are_told_with_their_cause() -> Result<()> {
    let (puppet, a) = puppet(inline()).await?;
    let b = on_puppet(&puppet, inline()).await?;
    let mut events = a.events(100)?;
    b.queue("mail")?.enqueue(Payload::text("b")).await?;
    a.queue("mail")?.enqueue(Payload::text("a")).await?;
    let told = all(&mut events);
    assert_eq!(told[0].what, Happened::Conflict { cause: Cause::Race });
    assert_eq!(told[1].what.name(), "enqueued");
    b.queue("mail")?.enqueue(Payload::text("b")).await?;
    // Sooner, `a` would wait for a turn of `b` and see its commit.
    pass(Duration::from_secs(1)).await;
    puppet.next_puts([OnPut::LoseRequest]);
    a.queue("mail")?.enqueue(Payload::text("a")).await?;
    assert_eq!(all(&mut events)[0].what, Happened::Conflict { cause: Cause::Unanswered });
    puppet.next_puts([OnPut::LoseRequest]);
    a.queue("mail")?.enqueue(Payload::text("a")).await?;
    assert_eq!(names(&mut events), ["resent", "enqueued"]);
    let metrics = a.metrics()?;
    assert_eq!((metrics.conflicts, metrics.conflicts_unanswered, metrics.resends), (2, 1, 1));
    let text = a.prometheus(None).await?;
    assert!(text.contains("bucketq_conflicts_total{cause=\"race\"} 1\n"), "{text}");
    assert!(text.contains("bucketq_conflicts_total{cause=\"unanswered\"} 1\n"), "{text}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn bases_and_archives_are_told() -> Result<()> {
    let (_, file) = puppet(Options { base_after: 4_096, tail: 1_024, ..inline() }).await?;
    let mut events = file.events(1_000)?;
    let queue = file.queue("mail")?;
    queue.configure(Changes { keep: Some(0), archive: Some(true), ..Changes::default() }).await?;
    for _ in 0..30 {
        let id = queue.enqueue(Payload::bytes(vec![7; 900])).await?.id;
        file.cancel(id).await?;
    }
    file.archive().await?;
    let told = all(&mut events);
    let archived = told
        .iter()
        .filter_map(|e| if let Happened::Archived { count, .. } = e.what { Some(count) } else { None });
    assert_eq!(archived.sum::<u64>(), 30);
    assert!(told.iter().any(|e| e.what.name() == "checkpoint"), "{told:?}");
    assert_eq!(file.metrics()?.archived_jobs, 30);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_is_told_when_an_op_of_its_holder_is_refused_whatever_else_the_commit_holds()
-> Result<()> {
    let (_, file) = puppet(inline()).await?;
    let queue = file.queue("mail")?;
    let id = queue.enqueue(Payload::text("a")).await?.id;
    let stale = queue.claim(1).lease(Duration::from_secs(10)).await?[0].held();
    pass(Duration::from_secs(11)).await;
    let taken = queue.claim(1).lease(Duration::from_secs(10)).await?;
    let mut events = file.events(100)?;
    file.ack(stale).await.expect_err("another has it");
    let told = all(&mut events);
    let Happened::LeaseLost { job, reason: Loss::Taken } = &told[0].what else { panic!("{told:?}") };
    assert_eq!((job.id, &*job.queue, job.attempt, told.len()), (id, "mail", 2, 1));
    assert_eq!(told[0].commit_seq, taken[0].lease.fence, "the newest commit");
    // Beside an op that is applied, and inside an atomic that is not.
    let (refused, enqueued) = tokio::join!(file.release(stale), queue.enqueue(Payload::text("b")));
    refused.expect_err("another has it");
    enqueued?;
    assert_eq!(names(&mut events), ["lease_lost", "enqueued"]);
    let job = file.new_job(Payload::text("c"))?;
    let ops =
        vec![Op::Enqueue { queue: "mail".into(), jobs: vec![job] }, Op::Ack { held: stale, result: None }];
    file.atomic(ops).await.expect_err("another has it");
    assert_eq!(names(&mut events), ["lease_lost"]);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn an_hour_costs_what_its_requests_and_the_storage_do() -> Result<()> {
    let metrics = bucketq::Metrics { puts: 60, uploads: 30, lists: 10, gets: 1_000, ..Default::default() };
    let cost = metrics.cost(Duration::from_mins(30), 1_000_000);
    // 100 puts at 5 and 1,000 gets at 0.4 dollars a million; 4.096 GB at 0.023 dollars a month.
    assert!((cost.total - 0.0009).abs() < 1e-12, "{cost:?}");
    assert!((cost.per_hour - 0.0018 - 4.096 * 0.023 / 730.0).abs() < 1e-12, "{cost:?}");
    let young = metrics.cost(Duration::from_secs(1), 0);
    assert!((young.per_hour - 0.0009 * 60.0).abs() < 1e-12, "{young:?}");
    let (_, file) = puppet(inline()).await?;
    pass(Duration::from_hours(1)).await;
    let cost = file.cost(&file.stats(None).await?)?;
    assert!(cost.total > 0.0 && cost.per_hour > cost.total && cost.per_hour < 1.1 * cost.total, "{cost:?}");
    file.close().await
}

/// One sample: its name, its labels, its value.
type Sample = (String, BTreeMap<String, String>, f64);

/// The text as families (name to type) and samples; as strict as the format is.
fn parse(text: &str) -> (BTreeMap<String, String>, Vec<Sample>) {
    let (mut families, mut samples) = (BTreeMap::new(), vec![]);
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect(line);
            assert!(families.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} has two types");
        } else if !line.starts_with("# HELP ") {
            let (what, value) = line.rsplit_once(' ').expect(line);
            let (name, labels) =
                what.split_once('{').map_or((what, ""), |(n, l)| (n, l.strip_suffix('}').expect(line)));
            let mut told = BTreeMap::new();
            for pair in labels.split("\",").filter(|l| !l.is_empty()) {
                let (key, value) = pair.split_once("=\"").expect(line);
                told.insert(key.to_owned(), value.trim_end_matches('"').to_owned());
            }
            samples.push((name.to_owned(), told, value.parse().expect(line)));
        }
    }
    (families, samples)
}

#[tokio::test(start_paused = true)]
async fn the_text_for_a_scraper_has_every_number_and_the_page_every_name() -> Result<()> {
    let (_, file) = puppet(inline()).await?;
    work(&file).await?;
    file.queue("odd \"name\"\n")?.enqueue(Payload::text("a")).await?;
    pass(Duration::from_secs(7)).await;
    let (families, samples) = parse(&file.prometheus(None).await?);
    let value = |name: &str, label: Option<(&str, &str)>| {
        let of = |s: &&Sample| s.0 == name && label.is_none_or(|(k, v)| s.1.get(k).is_some_and(|t| t == v));
        samples.iter().find(of).unwrap_or_else(|| panic!("no {name} {label:?}")).2.to_string()
    };
    assert_eq!(value("bucketq_oldest_ready_seconds", Some(("queue", "odd \\\"name\\\"\\n"))), "7");
    assert_eq!(value("bucketq_jobs", Some(("state", "cancelled"))), "1");
    assert_eq!(value("bucketq_commits_total", None), file.metrics()?.commits.to_string());
    assert_eq!(value("bucketq_wait_seconds_count", None), "4");
    assert_eq!(value("bucketq_wait_seconds_sum", None), "12");
    assert_eq!(value("bucketq_wait_seconds_bucket", Some(("le", "0.001"))), "2");
    assert_eq!(value("bucketq_wait_seconds_bucket", Some(("le", "1"))), "3");
    assert_eq!(value("bucketq_wait_seconds_bucket", Some(("le", "+Inf"))), "4");
    assert_eq!(value("bucketq_run_seconds_sum", None), "1.5");
    assert_eq!(
        value("bucketq_store_requests_total", Some(("kind", "put"))),
        file.metrics()?.puts.to_string()
    );

    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/watching.md"))
        .expect("docs/watching.md");
    let rows = |part: &str| -> Vec<(String, String)> {
        let section = page.split_once(&format!("\n## {part}\n")).expect("a section").1;
        let section = section.split("\n## ").next().unwrap_or_default().to_owned();
        let cells = |line: &str| {
            let mut cells =
                line.strip_prefix("| `")?.split('|').map(|c| c.trim().trim_matches('`').to_owned());
            Some((cells.next()?, cells.next()?))
        };
        section.lines().filter_map(cells).collect()
    };
    assert_eq!(rows("Metrics").into_iter().collect::<BTreeMap<_, _>>(), families);
    let told: BTreeSet<String> = rows("Events").into_iter().map(|(name, _)| name).collect();
    let happened = HAPPENED[..19].iter().copied();
    let others = [
        "lease_lost",
        "dropped",
        "archived",
        "unclaimed",
        "refused",
        "committed",
        "conflict",
        "resent",
        "synced",
        "snapshot",
        "checkpoint",
    ];
    assert_eq!(told, happened.chain(others).map(str::to_owned).collect());
    file.close().await
}
