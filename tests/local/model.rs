//! Random local ops, syncs, crashes, power cuts, late puts and foreign commits, against a plain model: three lists of
//! texts. No acknowledged op is lost, none is published twice, and Diverged is raised only when another writer came
//! first. Rules left out on purpose are caught.

use std::sync::Arc;
use std::time::Duration;

use bucketq::store::{Memory, Store};
use bucketq::{Fsync, Host, Kind, Mode, Options, Payload, QueueFile, Result};
use bucketq_sim::rng::Rng;
use bucketq_tests::clock::TestClock;
use bucketq_tests::given::NAME;

use crate::fixture::texts;
use crate::power::{Fate, Faulty, Power};

/// The expected state.
#[derive(Debug, Default)]
struct Model {
    /// Published, before the unpublished changes.
    base: Vec<String>,
    /// Acknowledged here since.
    pending: Vec<String>,
    /// The number of those that must survive a power cut.
    durable: usize,
    /// A text that was neither acknowledged nor refused.
    maybe: Option<String>,
    /// The state that a snapshot in the last moments of a process may have moved to.
    moved: Option<Vec<String>>,
    /// Another writer has committed on top of the base, or may have.
    foreign: bool,
}

impl Model {
    fn local(&self) -> Vec<String> {
        self.base.iter().chain(&self.pending).cloned().collect()
    }
}

struct World {
    rng: Rng,
    fsync: Fsync,
    clock: TestClock,
    power: Power,
    store: Arc<dyn Store>,
    faulty: Faulty,
    options: Options,
    other: QueueFile,
    texts: u64,
    /// Most puts arrive late.
    harsh: bool,
}

type Checked = std::result::Result<(), String>;

#[expect(clippy::needless_pass_by_value, reason = "as map_err hands it over")]
fn told(error: bucketq::Error) -> String {
    format!("{error:?}")
}

fn equal(what: &str, real: &[String], model: &[String]) -> Checked {
    if real == model { Ok(()) } else { Err(format!("{what}: {real:?} where the model has {model:?}")) }
}

impl World {
    async fn new(seed: u64, options: Options, harsh: bool) -> Result<Self> {
        let rng = Rng::new(seed);
        let fsync =
            [Fsync::EachCommit, Fsync::Interval(Duration::from_mins(1)), Fsync::Never][rng.below(3) as usize];
        let options = Options {
            mode: Mode::Local,
            fsync,
            host: Host::CurrentRuntime,
            deadline: Duration::from_secs(2),
            ..options
        };
        let clock = TestClock::start();
        let store: Arc<dyn Store> = Arc::new(Memory::new());
        let faulty = Faulty::over(Arc::clone(&store));
        let durable = bucketq_tests::given::inline();
        let other = QueueFile::open_with(Arc::clone(&store), NAME, durable, clock.env()).await?;
        Ok(Self {
            rng,
            fsync,
            clock,
            power: Power::default(),
            store,
            faulty,
            options,
            other,
            texts: 0,
            harsh,
        })
    }

    async fn open(&self) -> Result<QueueFile> {
        let dir = Arc::new(self.power.clone());
        let store = Arc::new(self.faulty.clone());
        QueueFile::open_local(store, NAME, self.options.clone(), self.clock.env(), dir).await
    }

    fn text(&mut self, who: &str) -> String {
        self.texts += 1;
        format!("{who}{}", self.texts)
    }

    fn fates(&self) -> (Vec<Fate>, bool) {
        let all = [Fate::Late, Fate::Behind, Fate::LoseRequest, Fate::LoseAnswer, Fate::Refuse, Fate::Pass];
        let (n, kinds) = if self.harsh { (4, 2) } else { (self.rng.below(4), 6) };
        ((0..n).map(|_| all[self.rng.below(kinds) as usize]).collect(), self.rng.one_in(4))
    }

    async fn published(&self) -> std::result::Result<Vec<String>, String> {
        texts(&self.other).await.map_err(told)
    }

    /// Opens the next process, after a power cut or without one.
    async fn reopen(&self, file: QueueFile, model: &mut Model) -> std::result::Result<QueueFile, String> {
        file.close().await.map_err(told)?;
        let cut = self.rng.one_in(2);
        self.power.revive(cut, &self.rng);
        let file = self.open().await.map_err(|e| format!("it does not open again: {e:?}"))?;
        let local = texts(&file).await.map_err(told)?;
        let clean = file.dirty().map_err(told)?.commits == 0;
        if let Some(moved) = model.moved.take()
            && moved == local
            && clean
        {
            *model = Model { base: moved, ..Model::default() };
            return Ok(file);
        }
        let there = local.get(model.base.len()..).unwrap_or_default().to_vec();
        equal("the base after a reopening", &local[..model.base.len().min(local.len())], &model.base)?;
        let mut may: Vec<String> = model.pending.clone();
        may.extend(model.maybe.take());
        let least = if cut { model.durable } else { model.pending.len() };
        if !may.starts_with(&there) || there.len() < least {
            return Err(format!(
                "after a crash (power cut: {cut}) {there:?} is pending, at least {least} of {may:?} should be"
            ));
        }
        model.durable = there.len();
        model.pending = there;
        Ok(file)
    }

    async fn enqueue(&mut self, file: &QueueFile, model: &mut Model) -> Checked {
        let text = self.text("m");
        let q = file.queue("q").map_err(told)?;
        match q.enqueue(Payload::text(&*text)).await {
            Ok(_) => {
                model.pending.push(text);
                if self.fsync == Fsync::EachCommit {
                    model.durable = model.pending.len();
                }
            }
            Err(e) if e.kind() == Kind::Unknown => model.maybe = Some(text),
            Err(e) if self.power.is_dead() && e.kind() == Kind::Unavailable => {}
            Err(e) if e.kind() == Kind::Diverged => {}
            Err(e) => return Err(told(e)),
        }
        Ok(())
    }

    async fn sync(&mut self, file: &QueueFile, model: &mut Model) -> Checked {
        let (fates, blind) = self.fates();
        self.faulty.set(fates, blind);
        let pending = model.pending.len() as u64;
        if file.dirty().map_err(told)?.commits != pending {
            return Err(format!("{:?} unsynced where the model has {pending}", file.dirty()));
        }
        let outcome = file.sync().await;
        self.faulty.set(vec![], false);
        if self.power.is_dead() {
            // Its published changes count all the same; the next process has to find out.
            return Ok(());
        }
        match outcome {
            Ok(synced) => {
                if synced.commits != pending {
                    return Err(format!("{} commits published where {pending} were pending", synced.commits));
                }
                let all = model.local();
                let published = self.published().await?;
                let others = |t: &&String| t.starts_with('m') || model.base.contains(t);
                let ours: Vec<String> = published.iter().filter(others).cloned().collect();
                equal("what a sync published", &ours, &all)?;
                // Others may have committed after a body that had landed.
                model.foreign = published.len() > all.len();
                (model.base, model.pending, model.durable) = (all, vec![], 0);
            }
            Err(e) if e.kind() == Kind::Diverged && model.foreign => {}
            Err(e) if matches!(e.kind(), Kind::Unknown | Kind::Unavailable) => {}
            Err(e) => return Err(told(e)),
        }
        Ok(())
    }

    async fn snapshot(&mut self, file: &QueueFile, model: &mut Model, discard: bool) -> Checked {
        match file.snapshot(discard).await {
            Ok(_) => {
                let published = self.published().await?;
                if self.power.is_dead() {
                    // True, but perhaps not on the disk: the next process may have to find out again.
                    model.moved = Some(published);
                    return Ok(());
                }
                equal("a snapshot", &texts(file).await.map_err(told)?, &published)?;
                *model = Model { base: published, ..Model::default() };
            }
            Err(_) if self.power.is_dead() => model.moved = Some(self.published().await?),
            Err(e)
                if !discard
                    && matches!(e.kind(), Kind::Invalid | Kind::Diverged)
                    && !model.pending.is_empty() => {}
            Err(e) => return Err(format!("snapshot, discard {discard}: {e:?}")),
        }
        Ok(())
    }

    /// Checks that no job is published twice, and that earlier jobs stay.
    async fn check(&self, before: &mut Vec<String>) -> Checked {
        let published = self.published().await?;
        let mut unique = published.clone();
        unique.sort();
        unique.dedup();
        if unique.len() != published.len() {
            return Err(format!("published twice: {published:?}"));
        }
        if !published.starts_with(before) {
            return Err(format!("{published:?} no longer begins with {before:?}"));
        }
        *before = published;
        Ok(())
    }
}

async fn run(seed: u64, options: Options, harsh: bool) -> Checked {
    let mut w = World::new(seed, options, harsh).await.map_err(told)?;
    let mut model = Model::default();
    let mut before = vec![];
    let mut file = w.open().await.map_err(told)?;
    // A crash may come between the landing of a body and its note, and the disk may be gone while handles exist.
    for _ in 0..40 {
        if w.rng.one_in(6) {
            w.power.dies_after(w.rng.between(1, 8));
        }
        match w.rng.below(12) {
            0..=4 => w.enqueue(&file, &mut model).await?,
            5..=7 => w.sync(&file, &mut model).await?,
            8 => w.faulty.let_in(&w.rng).await,
            9 => {
                let discard = w.rng.one_in(2);
                // A body on its way may land during a read: the model cannot know before.
                w.snapshot(&file, &mut model, discard).await?;
            }
            10 if w.rng.one_in(2) => {
                let text = w.text("f");
                w.other.queue("q").map_err(told)?.enqueue(Payload::text(text)).await.map_err(told)?;
                model.foreign = true;
            }
            _ => file = w.reopen(file, &mut model).await?,
        }
        if w.power.is_dead() {
            file = w.reopen(file, &mut model).await?;
        }
        model = found_out(&w, &file, model).await?;
        equal("the local state", &texts(&file).await.map_err(told)?, &model.local())?;
        w.check(&mut before).await?;
    }
    file.close().await.map_err(told)?;
    drop(w.store);
    Ok(())
}

/// A sync that failed, or whose process died, may have settled an earlier body: what counts as published now must be
/// published.
async fn found_out(w: &World, file: &QueueFile, mut model: Model) -> std::result::Result<Model, String> {
    let left = file.dirty().map_err(told)?.commits as usize;
    let local = model.local();
    if left < model.pending.len() {
        let base = local.len() - left;
        let published = w.published().await?;
        if local[..base].iter().any(|t| !published.contains(t)) {
            return Err(format!("{:?} counts as published, and is not", &local[..base]));
        }
        (model.base, model.pending) = (local[..base].to_vec(), local[base..].to_vec());
        model.durable = left;
    }
    Ok(model)
}

fn seeds() -> u64 {
    std::env::var("LOCAL_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(200)
}

/// Returns the first seed that shows a violation.
fn violation(seeds: std::ops::Range<u64>, options: &Options, harsh: bool) -> Option<String> {
    seeds.into_iter().find_map(|seed| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a runtime can be made");
        let checked = runtime.block_on(run(seed, options.clone(), harsh));
        checked.err().map(|what| format!("seed {seed}: {what}"))
    })
}

#[test]
fn whatever_happens_nothing_is_lost_or_published_twice() {
    assert_eq!(violation(0..seeds(), &Options::default(), false), None);
}

/// Each rule of Local mode, left out, is noticed.
#[cfg(feature = "mutants")]
#[allow(non_snake_case, reason = "a test has the name of its variant")]
mod mutants {
    use bucketq::Options;
    use bucketq::broken::Broken;

    use super::violation;

    fn caught(rule: Broken, harsh: bool) {
        let options = Options { broken: Some(rule), ..Options::default() };
        let noticed = violation(0..2_000, &options, harsh);
        println!("caught {rule:?}: {noticed:?}");
        assert!(noticed.is_some(), "{rule:?}");
    }

    #[test]
    fn NoIntent() {
        caught(Broken::NoIntent, false);
    }

    #[test]
    fn LateIntent() {
        caught(Broken::LateIntent, false);
    }

    #[test]
    fn UnsyncedIntent() {
        caught(Broken::UnsyncedIntent, false);
    }

    #[test]
    fn NewestIntentOnly() {
        caught(Broken::NewestIntentOnly, true);
    }

    #[test]
    fn IntentWithoutPosition() {
        caught(Broken::IntentWithoutPosition, false);
    }
}
