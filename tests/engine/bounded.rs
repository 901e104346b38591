//! Every public call that may use a store ends within its deadline plus a tenth, whatever the store does; and it
//! reports "surely not applied" only when that is true (P7). The tables name every such call: a missing one fails a
//! test.

use std::collections::BTreeSet;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bucketq::internals::head::Head;
use bucketq::internals::keys;
use bucketq::operate::{Objects, check_with, fix_time_with, restore_with, set_max_skew_with};
use bucketq::store::probe::conditions_hold;
use bucketq::store::{Memory, StoreUrl, Version, measure, open_store, probe};
use bucketq::{
    Changes, Filter, Held, Kind, Missed, Mode, Op, Options, Payload, Query, Queue, QueueFile, Result,
    Schedule, State, Timing, check, fix_time, restore, set_max_skew,
};
use bucketq_tests::clock::{TestClock, now, pass};
use bucketq_tests::gate::Gate;
use bucketq_tests::given::{HEAD, NAME, inline, object, on_puppet};
use bucketq_tests::puppet::{OnGet, OnPut, Puppet, Silent};
use bucketq_tests::servers::{self, BUCKET};
use bytes::Bytes;

const DEADLINE: Duration = Duration::from_secs(20);
/// The source files with calls that users await.
const SOURCES: [&str; 13] = [
    "handle/file.rs",
    "handle/queue.rs",
    "handle/sync.rs",
    "handle/manage.rs",
    "handle/workload.rs",
    "handle/finished.rs",
    "operate/check.rs",
    "operate/restore.rs",
    "operate/fix_time.rs",
    "operate/max_skew.rs",
    "operate/pinned.rs",
    "bytes/store/probe.rs",
    "bytes/store/measure.rs",
];
/// Calls that the tables have under another name, or that another call makes.
const ELSEWHERE: [(&str, &str); 2] = [
    ("open_local", "open"),
    // Made by the first write, under its deadline.
    ("conditions_hold", "first write"),
];

/// The objects that a call may use.
struct Given {
    puppet: Puppet,
    file: QueueFile,
    q: Queue,
    held: Held,
    objects: Objects,
    head: Bytes,
    dir: PathBuf,
    options: Options,
}

impl Given {
    /// A queue file with some jobs, one of them claimed and one finished, in a store that still replies.
    async fn new(dir: &Path, mode: Mode) -> Result<Self> {
        let puppet = Puppet::over(Arc::new(Memory::new()));
        let cache = (mode == Mode::Local).then(|| dir.join("local"));
        let options = Options { deadline: DEADLINE, grace: DEADLINE, mode, cache, ..inline() };
        let file = on_puppet(&puppet, options.clone()).await?;
        let q = file.queue("q")?;
        for n in 0..4 {
            q.enqueue(Payload::text(n.to_string())).await?;
        }
        let done = file.claim(1).await?.remove(0);
        file.ack(done.held()).await?;
        let claimed = file.claim(1).await?.remove(0).held();
        if mode == Mode::Local {
            file.sync().await?;
            q.enqueue(Payload::text("pending")).await?;
        }
        let objects = Objects::with(puppet.store(), NAME, &options, TestClock::start().env())?;
        let head = object(puppet.beneath(), HEAD).await?.expect("it is there");
        file.export(dir.join("image.sqlite"), true).await?;
        // No earlier read is fresh enough for a call.
        pass(Duration::from_secs(1)).await;
        Ok(Self { puppet, file, q, held: claimed, objects, head, dir: dir.to_owned(), options })
    }
}

type Called<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;
type Call = (&'static str, for<'a> fn(&'a Given) -> Called<'a>);

/// The call; its return value is dropped.
macro_rules! call {
    ($name:literal, $given:ident => $call:expr) => {{
        fn made(given: &Given) -> Called<'_> {
            let $given = given;
            Box::pin(async move { $call.await.map(drop) })
        }
        ($name, made as for<'a> fn(&'a Given) -> Called<'a>)
    }};
}

fn text() -> Payload {
    Payload::text("x")
}

/// Every call on an open queue file and every one that opens none.
fn calls() -> Vec<Call> {
    vec![
        call!("call", g => g.file.call(Op::Pause { queue: "q".into() })),
        call!("ask", g => g.file.ask(Query::Stats, None)),
        call!("ack", g => g.file.ack(g.held)),
        call!("ack_with", g => g.file.ack_with(g.held, text())),
        call!("ack_late", g => g.file.ack_late(g.held.id, 0, None)),
        call!("nack", g => g.file.nack(g.held, None, None)),
        call!("release", g => g.file.release(g.held)),
        call!("reject", g => g.file.reject(g.held, None)),
        call!("extend", g => g.file.extend(g.held, Duration::from_mins(5))),
        call!("cancel", g => g.file.cancel(g.held.id)),
        call!("requeue", g => g.file.requeue(g.held.id)),
        call!("atomic", g => g.file.atomic(vec![Op::Ack { held: g.held, result: None }])),
        call!("get", g => g.file.get(g.held.id)),
        call!("get_within", g => g.file.get_within(g.held.id, Duration::ZERO)),
        call!("get_many", g => g.file.get_many(&[g.held.id], None)),
        call!("list", g => g.file.list(Filter::default(), None, 9)),
        call!("list_whole", g => g.file.list_whole(Filter::default(), None, 9)),
        call!("list", g => g.q.list(&[State::Ready], None, 9)),
        call!("queues", g => g.file.queues(None)),
        call!("stats", g => g.file.stats(None)),
        call!("history", g => g.file.history(9)),
        call!("export", g => g.file.export(g.dir.join("exported.sqlite"), true)),
        call!("settle", g => g.file.settle()),
        call!("collect", g => g.file.collect(Duration::ZERO)),
        call!("archive", g => g.file.archive()),
        call!("archives", g => g.file.archives(None, 0)),
        call!("lives", g => g.file.lives(None, 0, u64::MAX, 9)),
        call!("prometheus", g => g.file.prometheus(None)),
        call!("workload", g => g.file.workload()),
        call!("finished", g => g.file.finished(g.held.id, Some(Duration::ZERO))),
        call!("claim", g => g.file.claim(1).into_future()),
        call!("sync", g => g.file.sync()),
        call!("snapshot", g => g.file.snapshot(false)),
        call!("snapshot", g => g.file.snapshot(true)),
        call!("export_pending", g => g.file.export_pending(&g.dir.join("pending.sqlite"))),
        call!("enqueue", g => g.q.enqueue(text())),
        call!("enqueue_job", g => g.q.enqueue_job(g.q.new_job(text())?)),
        call!("enqueue_many", g => g.q.enqueue_many(vec![g.q.new_job(text())?])),
        call!("purge", g => g.q.purge(&[State::Ready])),
        call!("pause", g => g.q.pause()),
        call!("resume", g => g.q.resume()),
        call!("move_job", g => g.file.move_job(g.held.id, "p")),
        call!("move_all", g => g.file.move_all(&Filter { queue: Some("q".into()), ..Filter::default() }, "p")),
        call!("redrive", g => g.q.redrive(None, None, None)),
        call!("delete", g => g.file.delete(g.held.id, true)),
        call!("delete", g => g.q.delete()),
        call!("create", g => g.q.create()),
        call!("strict_queues", g => g.file.strict_queues(true)),
        call!("requeue_all", g => g.file.requeue_all(&Filter::default())),
        call!("schedules", g => g.file.schedules()),
        call!("schedules", g => g.q.schedules()),
        call!("configure", g => g.q.configure(Changes { max_attempts: Some(9), ..Changes::default() })),
        call!("policy", g => g.q.policy()),
        call!("schedule", g => g.q.schedule("tick", hourly(&g.q)?)),
        call!("unschedule", g => g.q.unschedule("tick")),
        call!("drain", g => g.q.drain(Some(Duration::ZERO))),
        call!("open_with", g => on_puppet(&g.puppet, inline_within())),
        call!("open_with", g => first(g)),
        call!("close", g => g.file.clone().close()),
        call!("check_with", g => check_with(g.puppet.store(), NAME, g.options.clone())),
        call!("restore_with", g => restored(g)),
        call!("fix_time_with", g => fixed(g)),
        call!("set_max_skew_with", g => skewed(g)),
        call!("get", g => g.objects.get(HEAD, None)),
        call!("stage", g => g.objects.stage(&file_id(g), &[0; 8], Bytes::from_static(b"rows"))),
        call!("unstage", g => unstaged(g)),
        call!("staged", g => g.objects.staged(&file_id(g), &[0; 8])),
        call!("pin", g => g.objects.pin()),
        call!("at", g => g.objects.at(g.head.clone())),
        call!("head", g => g.objects.head(None)),
        call!("probe", g => probed(g)),
        call!("first write", g => proven(g)),
        call!("measure", g => measured(g)),
    ]
}

fn inline_within() -> Options {
    Options { deadline: DEADLINE, ..inline() }
}

fn hourly(q: &Queue) -> Result<Schedule> {
    let timing = Timing::Every { every_ms: 3_600_000, from_ms: None };
    Ok(Schedule { timing, missed: Missed::Skip, job: q.new_job(text())? })
}

fn file_id(g: &Given) -> [u8; 16] {
    Head::decode(HEAD, &g.head).expect("it is whole").file_id
}

async fn unstaged(g: &Given) -> Result<()> {
    g.objects.unstage(&keys::stage(NAME, &file_id(g), &[0; 8], 0, &[0; 8])).await
}

/// An opening that finds no queue file and creates one.
async fn first(g: &Given) -> Result<()> {
    let env = TestClock::start().env();
    QueueFile::open_with(g.puppet.store(), "first", inline_within(), env).await?.close().await
}

async fn restored(g: &Given) -> Result<()> {
    let (image, env) = (g.dir.join("image.sqlite"), TestClock::start().env());
    restore_with(g.puppet.store(), NAME, &image, inline_within(), env).await.map(drop)
}

async fn fixed(g: &Given) -> Result<()> {
    let env = TestClock::start().env();
    fix_time_with(g.puppet.store(), NAME, false, inline_within(), env).await.map(drop)
}

async fn skewed(g: &Given) -> Result<()> {
    let env = TestClock::start().env();
    let skew = Duration::from_secs(9);
    set_max_skew_with(g.puppet.store(), NAME, skew, inline_within(), env).await.map(drop)
}

async fn probed(g: &Given) -> Result<()> {
    probe(&[g.puppet.store()], NAME, 3, 16, DEADLINE, &TestClock::start().env()).await.map(drop)
}

async fn measured(g: &Given) -> Result<()> {
    measure(&g.puppet.store(), NAME, 9, DEADLINE, &TestClock::start().env(), &|_| true).await.map(drop)
}

/// The first write of a process to an existing queue file.
async fn proven(g: &Given) -> Result<()> {
    g.puppet.wants_probe(true);
    let found = Puppet::over(Arc::clone(g.puppet.beneath()));
    found.wants_probe(true);
    let file = on_puppet(&found, inline_within()).await?;
    found.falls(Silent::Unreached);
    file.queue("q")?.enqueue(text()).await.map(drop)
}

/// How the store fails a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// No request reaches it.
    Unreached,
    /// Every request is carried out, and no reply comes.
    Deaf,
    /// An earlier commit cannot be settled.
    Unsettled,
}

async fn ends_in_time((name, call): Call, mode: Mode, trouble: Trouble, dir: &Path) -> Result<()> {
    let given = Given::new(dir, mode).await?;
    match trouble {
        Trouble::Unreached => given.puppet.falls(Silent::Unreached),
        Trouble::Deaf => given.puppet.falls(Silent::Deaf),
        Trouble::Unsettled => {
            given.puppet.every_put(OnPut::LoseAnswer);
            given.puppet.every_get(OnGet::Hang);
            let q = given.q.clone();
            tokio::spawn(async move { q.enqueue(text()).await });
            pass(Duration::from_secs(1)).await;
        }
    }
    let before = object(given.puppet.beneath(), HEAD).await?;
    let began = now();
    let told = tokio::time::timeout(DEADLINE * 10, call(&given)).await;
    let took = now() - began;
    let what = format!("{name} in {mode:?} mode, {trouble:?}: {took:?}, {told:?}");
    assert!(took <= DEADLINE + DEADLINE / 10, "{what}");
    let after = object(given.puppet.beneath(), HEAD).await?;
    if let Ok(Err(error)) = told {
        let fine = matches!(error.kind(), Kind::Unavailable | Kind::Unknown | Kind::Invalid | Kind::NotFound);
        assert!(fine, "{what}");
        if error.kind() == Kind::Unavailable && trouble == Trouble::Deaf {
            assert!(before == after, "told that nothing was applied: {what}");
        }
    }
    given.puppet.falls(Silent::No);
    given.puppet.every_put(OnPut::Pass);
    given.puppet.every_get(OnGet::Pass);
    Ok(())
}

async fn all_end_in_time(mode: Mode, trouble: Trouble) -> Result<()> {
    for call in calls() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        ends_in_time(call, mode, trouble, dir.path()).await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn every_call_ends_in_time_when_nothing_gets_to_the_store() -> Result<()> {
    all_end_in_time(Mode::Durable, Trouble::Unreached).await
}

#[tokio::test(start_paused = true)]
async fn every_call_ends_in_time_when_the_store_never_answers() -> Result<()> {
    all_end_in_time(Mode::Durable, Trouble::Deaf).await
}

#[tokio::test(start_paused = true)]
async fn every_call_ends_in_time_while_an_earlier_commit_is_unsettled() -> Result<()> {
    all_end_in_time(Mode::Durable, Trouble::Unsettled).await
}

#[tokio::test(start_paused = true)]
async fn every_call_of_local_mode_ends_in_time_too() -> Result<()> {
    all_end_in_time(Mode::Local, Trouble::Unreached).await?;
    all_end_in_time(Mode::Local, Trouble::Deaf).await
}

/// The calls by URL, over connections that are accepted but never served.
const BY_URL: [&str; 6] = ["open", "check", "restore", "fix_time", "set_max_skew", "Objects::open"];

#[tokio::test(flavor = "multi_thread")]
async fn every_call_ends_in_time_behind_a_firewall_that_drops_packets() -> Result<()> {
    let Some(server) = servers::s3().await else { return Ok(()) };
    let gate = Gate::before(server.address()).await;
    let deadline = Duration::from_secs(2);
    let options = Options { s3: server.options_at(&gate.endpoint), deadline, ..Options::default() };
    let url = format!("s3://{BUCKET}/gate/jobs");
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let image = dir.path().join("image.sqlite");
    let file = QueueFile::open(&url, options.clone()).await?;
    let q = file.queue("q")?;
    q.enqueue(text()).await?;
    file.export(&image, true).await?;
    let local = Options { mode: Mode::Local, cache: Some(dir.path().join("local")), ..options.clone() };
    let there = QueueFile::open(&format!("s3://{BUCKET}/gate/local"), local).await?;
    there.queue("q")?.enqueue(text()).await?;
    gate.shut(true);
    let other = format!("s3://{BUCKET}/gate/other");
    let place = StoreUrl::parse(&url)?;
    let env = bucketq::Env::default();
    let store = open_store(&place, &options, &env).await?;
    let calls: Vec<(&str, Called<'_>)> = vec![
        ("open", Box::pin(async { QueueFile::open(&other, options.clone()).await.map(drop) })),
        ("check", Box::pin(async { check(&url, options.clone()).await.map(drop) })),
        ("restore", Box::pin(async { restore(&url, &image, options.clone()).await.map(drop) })),
        ("fix_time", Box::pin(async { fix_time(&url, false, options.clone()).await.map(drop) })),
        ("set_max_skew", Box::pin(async { set_max_skew(&url, deadline, options.clone()).await.map(drop) })),
        (
            "Objects::open",
            Box::pin(async { Objects::open(&url, options.clone()).await?.pin().await.map(drop) }),
        ),
        (
            "probe",
            Box::pin(async { probe(&[Arc::clone(&store)], "jobs", 3, 16, deadline, &env).await.map(drop) }),
        ),
        (
            "measure",
            Box::pin(async { measure(&store, "jobs", 9, deadline, &env, &|_| true).await.map(drop) }),
        ),
        ("enqueue", Box::pin(async { q.enqueue(text()).await.map(drop) })),
        ("claim", Box::pin(async { q.claim(1).await.map(drop) })),
        ("stats", Box::pin(async { file.stats(None).await.map(drop) })),
        ("snapshot", Box::pin(async { file.snapshot(false).await.map(drop) })),
        ("sync", Box::pin(async { there.sync().await.map(drop) })),
        ("close", Box::pin(async { file.clone().close().await })),
        ("close", Box::pin(async { there.clone().close().await })),
    ];
    for (name, call) in calls {
        let began = now();
        let told = call.await;
        let took = now() - began;
        // A tenth is the contract; a busy machine may take another second to notice.
        let most = deadline + deadline / 10 + Duration::from_secs(1);
        assert!(took <= most, "{name}: {took:?}, {told:?}");
        match told {
            Ok(()) => assert_eq!(name, "close"),
            Err(error) => {
                assert!(matches!(error.kind(), Kind::Unavailable | Kind::Unknown), "{name}: {error}");
            }
        }
    }
    gate.shut(false);
    Ok(())
}

/// Each awaited call is in a table, so that a new one cannot be forgotten.
#[test]
fn the_tables_have_every_call_there_is() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/bucketq/src");
    let mut there = BTreeSet::new();
    for source in SOURCES {
        let text = std::fs::read_to_string(sources.join(source)).expect("the source is there");
        let calls = text.lines().filter_map(|line| line.trim_start().strip_prefix("pub async fn "));
        there.extend(calls.filter_map(|rest| rest.split(['(', '<']).next()).map(str::to_owned));
    }
    let mut known: BTreeSet<String> = calls().iter().map(|(name, _)| (*name).to_owned()).collect();
    known.extend(BY_URL.map(str::to_owned));
    known.extend(ELSEWHERE.map(|(name, _)| name.to_owned()));
    let missing: Vec<_> = there.difference(&known).collect();
    assert!(missing.is_empty(), "no table has {missing:?}");
}

/// The probe before the first write is a call that programs make too.
#[tokio::test]
async fn a_store_that_keeps_its_word_passes_the_short_probe() -> Result<()> {
    let store: Arc<dyn bucketq::store::Store> = Arc::new(Memory::new());
    conditions_hold(&store, NAME, &Version::new("another"), &bucketq::Env::default()).await
}
