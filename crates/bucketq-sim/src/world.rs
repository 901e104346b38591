//! The world of one seed: true time, the bucket, the nodes' clocks, troubles, and the trace of all events.
//!
//! All state is in one [`World`]; it runs on one current-thread runtime with paused time, so a seed can be repeated
//! exactly. Locks are never held across an await.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::bucket::{Bucket, Who};
use crate::clock::{NodeClock, now, pause_ms, since_ms};
use crate::history::{History, Hold};
use crate::plan::{Plan, Verb, Wrong};
use crate::rng::Rng;
use crate::variants::Variant;

/// A seed that sends more requests to the store than this is stopped and reported.
const MOST_REQUESTS: u64 = 60_000;

/// One simulated world.
pub struct World {
    /// Its seed.
    pub seed: u64,
    /// Its plan.
    pub plan: Plan,
    /// The rule broken on purpose, if any.
    pub variant: Option<Variant>,
    /// The source of all other random streams.
    pub rng: Rng,
    /// The clock of each node; the last one belongs to the node that cleans up.
    pub clocks: Vec<Arc<NodeClock>>,
    /// How far a wrong clock is off where no Date corrects it.
    pub off_ms: i64,
    origin: Instant,
    bucket: Mutex<Bucket>,
    history: Mutex<History>,
    trace: Mutex<Trace>,
    troubles: Vec<Trouble>,
    healed: AtomicBool,
    faults: AtomicU64,
    requests: AtomicU64,
    calls: AtomicU64,
    travelling: AtomicI64,
    over: AtomicBool,
    /// Wakes waiters in order; a watch channel wakes them in a random order.
    ended: Notify,
}

#[derive(Default)]
struct Trouble {
    stalled_until: AtomicU64,
    cut_off_until: AtomicU64,
    odd_dates_until: AtomicU64,
    /// How far off the Date is meanwhile; 0 for no Date.
    date_off_ms: AtomicI64,
}

struct Trace {
    hash: u64,
    events: u64,
    print: bool,
}

impl World {
    /// Creates the world of this seed; `print` prints the trace as it grows.
    pub fn new(seed: u64, variant: Option<Variant>, print: bool) -> Arc<Self> {
        let rng = Rng::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let plan = Plan::draw(seed, &rng, variant);
        Self::with(seed, plan, rng, variant, print)
    }

    /// Creates a world with this plan.
    pub fn with(seed: u64, plan: Plan, rng: Rng, variant: Option<Variant>, print: bool) -> Arc<Self> {
        let origin = now();
        let wild_ms = rng.spread(2 * plan.max_skew_ms + 1_000, 3_600_000).cast_signed();
        let off_ms = rng.between(300_000, 900_000).cast_signed();
        let coins = (rng.one_in(2), rng.one_in(2));
        let clocks = plan.clocks.iter().enumerate().map(|(i, &(skew, drift))| {
            let wrong = match plan.wrong {
                Wrong::Set(node) if node == i && coins.0 => wild_ms * if coins.1 { 1 } else { -1 },
                Wrong::Behind(node) if node == i && coins.0 => -off_ms,
                Wrong::Ahead(node) if node == i => off_ms,
                _ => 0,
            };
            Arc::new(NodeClock::new(origin, skew + wrong, drift))
        });
        let clocks = clocks.collect::<Vec<_>>();
        let mut bucket = Bucket::new(plan.lie, plan.max_skew_ms);
        bucket.betray_after = plan.betrayal;
        bucket.grace_ms = Some(plan.options.grace.as_millis() as i64);
        bucket.time_free = matches!(plan.wrong, Wrong::Ahead(_));
        bucket.stale_one_in = if plan.refusal { 2 } else { 12 };
        Arc::new(Self {
            seed,
            variant,
            clocks,
            origin,
            bucket: Mutex::new(bucket),
            off_ms,
            history: Mutex::default(),
            trace: Mutex::new(Trace { hash: 0xcbf2_9ce4_8422_2325, events: 0, print }),
            troubles: (0..=plan.nodes).map(|_| Trouble::default()).collect(),
            healed: AtomicBool::new(false),
            faults: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            travelling: AtomicI64::new(0),
            over: AtomicBool::new(false),
            ended: Notify::new(),
            plan,
            rng,
        })
    }

    /// True time since the beginning.
    pub fn now_ms(&self) -> u64 {
        since_ms(self.origin)
    }

    /// `at` in true time since the beginning.
    pub fn ms_of(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.origin).as_millis() as u64
    }

    /// The bucket.
    pub fn bucket(&self) -> MutexGuard<'_, Bucket> {
        lock(&self.bucket)
    }

    /// The calls and replies so far.
    pub fn history(&self) -> MutexGuard<'_, History> {
        lock(&self.history)
    }

    /// Adds an event to the trace.
    pub fn note(&self, what: impl FnOnce() -> String) {
        let line = format!("{:>9} {}", self.now_ms(), what());
        let mut trace = lock(&self.trace);
        for byte in line.bytes() {
            trace.hash = (trace.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        trace.events += 1;
        if trace.print {
            eprintln!("{line}");
        }
    }

    /// Records a fault.
    pub fn fault(&self, what: impl FnOnce() -> String) {
        self.faults.fetch_add(1, Ordering::Relaxed);
        self.note(|| format!("fault: {}", what()));
    }

    /// Hash of the trace and number of its events.
    pub fn trace(&self) -> (u64, u64) {
        let trace = lock(&self.trace);
        (trace.hash, trace.events)
    }

    /// Faults so far.
    pub fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }

    /// Calls so far.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Counts a call of a client; at the end of the budget the clients stop.
    pub fn count_call(&self) {
        if self.calls.fetch_add(1, Ordering::Relaxed) + 1 >= self.plan.budget {
            self.end();
        }
    }

    /// Whether the clients stop.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Wait until the clients stop.
    pub async fn wait_over(&self) {
        let ended = self.ended.notified();
        if !self.is_over() {
            ended.await;
        }
    }

    /// Stops the clients now, whatever is left of the budget.
    pub fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
        self.ended.notify_waiters();
    }

    /// No more faults from now on.
    pub fn heal(&self) {
        self.healed.store(true, Ordering::Relaxed);
        self.note(|| "healed".into());
    }

    /// Faults are over.
    pub fn healed(&self) -> bool {
        self.healed.load(Ordering::Relaxed)
    }

    /// A node hangs for this long: its store calls wait, and so do its clients.
    pub fn stall(&self, node: usize, ms: u64) {
        self.fault(|| format!("n{node} stalls for {ms} ms"));
        self.troubles[node].stalled_until.fetch_max(self.now_ms() + ms, Ordering::Relaxed);
    }

    /// Puts a node's machine to sleep for this long: nothing on it runs. Its steady clock continues, except in the
    /// variant where it stops.
    pub fn sleep(&self, node: usize, ms: u64) {
        self.stall(node, ms);
        if self.variant == Some(Variant::SteadyClockStops) {
            let (clock, now) = (&self.clocks[node], self.now_ms());
            clock.stand_still(ms);
            // A worker there relies on its lease for longer.
            let mut history = self.history();
            let held = |h: &&mut Hold| h.who.node == node && h.stopped_ms.is_none() && h.until_ms > now;
            history.holds.iter_mut().filter(held).for_each(|h| h.until_ms += ms);
        }
    }

    /// Milliseconds this node still hangs.
    pub fn stalled_for(&self, node: usize) -> u64 {
        self.stalled_until(node).saturating_sub(self.now_ms())
    }

    /// When the last stall of this node ends, or ended.
    pub fn stalled_until(&self, node: usize) -> u64 {
        self.troubles[node].stalled_until.load(Ordering::Relaxed)
    }

    /// This node gets no reply for this long.
    pub fn cut(&self, node: usize, ms: u64) {
        self.fault(|| format!("n{node} is cut off for {ms} ms"));
        self.troubles[node].cut_off_until.store(self.now_ms() + ms, Ordering::Relaxed);
    }

    /// Whether the node is cut off from the bucket.
    pub fn cut_off(&self, node: usize) -> bool {
        self.troubles[node].cut_off_until.load(Ordering::Relaxed) > self.now_ms()
    }

    /// For this long a node's replies carry a Date that is off by `by_ms`, or no Date for 0.
    pub fn odd_dates(&self, node: usize, ms: u64, by_ms: i64) {
        self.fault(|| format!("for {ms} ms the Date is off by {by_ms} ms (0: is missing) for n{node}"));
        self.troubles[node].date_off_ms.store(by_ms, Ordering::Relaxed);
        self.troubles[node].odd_dates_until.store(self.now_ms() + ms, Ordering::Relaxed);
    }

    /// How far off the Date is for this node now, 0 for missing; `None` when it is right.
    pub fn date_off(&self, node: usize) -> Option<i64> {
        let odd = self.troubles[node].odd_dates_until.load(Ordering::Relaxed) > self.now_ms();
        (odd && !self.healed()).then(|| self.troubles[node].date_off_ms.load(Ordering::Relaxed))
    }

    /// A request begins (`+1`) or ends (`-1`) its journey.
    pub fn travelling(&self, by: i64) {
        self.travelling.fetch_add(by, Ordering::Relaxed);
    }

    /// Wait until no request is under way.
    pub async fn wait_arrived(&self) {
        while self.travelling.load(Ordering::Relaxed) > 0 {
            pause_ms(1_000).await;
        }
    }

    /// Counts and traces a request of a life to the store.
    pub async fn request(&self, who: Who, verb: Verb, key: &str) {
        let n = self.requests.fetch_add(1, Ordering::Relaxed);
        self.note(|| format!("{who} {verb:?} {key}"));
        if n == MOST_REQUESTS {
            self.history().odd.push(format!("more than {MOST_REQUESTS} requests"));
            self.end();
        }
        if n >= MOST_REQUESTS {
            std::future::pending::<()>().await;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic under the lock ends the seed; other seeds have their own locks.
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
