//! A seed's decisions before anything happens: how many nodes, how bad the store, how wrong the clocks.
//!
//! Called by the world. Calm and wild seeds both occur: a suite of wild ones only would hide what calm ones show.

use std::time::Duration;

use bucketq::config::{Host, Options};
use bucketq::policy::Changes;

use crate::archive;
use crate::bucket::Lie;
use crate::rng::Rng;
use crate::variants::Variant;

/// The fate of one request, in draws per million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Nothing.
    Fine,
    /// It never arrives; the caller waits for its timeout.
    LostRequest,
    /// It is carried out; the reply never arrives.
    LostAnswer,
    /// It is carried out long after the caller stopped waiting.
    Late,
    /// It is carried out twice, the second time later.
    Twice,
    /// 409: not carried out.
    Conflict409,
    /// 412 although the version is right: not carried out.
    False412,
    /// 429 or 503 with Retry-After: not carried out.
    Throttled,
    /// 500: may or may not be carried out.
    Failed,
    /// Carried out after up to two seconds, or its reply is that late.
    Slow,
    /// Carried out; the reply has no `ETag`.
    NoEtag,
    /// No connection.
    Refused,
    /// A body cut short.
    Torn,
    /// A body with one bit wrong.
    Flipped,
    /// A date some seconds old.
    StaleDate,
    /// A reply without a date.
    NoDate,
}

/// Fates a conditional put may meet, with their weights.
const PUT_IF: &[(Fate, u64)] = &[
    (Fate::LostRequest, 4),
    (Fate::LostAnswer, 6),
    (Fate::Late, 5),
    (Fate::Twice, 4),
    (Fate::Conflict409, 3),
    (Fate::False412, 2),
    (Fate::Throttled, 3),
    (Fate::Failed, 4),
    (Fate::Slow, 6),
    (Fate::NoEtag, 2),
    (Fate::Refused, 2),
    (Fate::StaleDate, 2),
    (Fate::NoDate, 2),
];
/// Fates of a get.
const GET: &[(Fate, u64)] = &[
    (Fate::LostRequest, 4),
    (Fate::Throttled, 2),
    (Fate::Failed, 3),
    (Fate::Slow, 5),
    (Fate::Refused, 2),
    (Fate::StaleDate, 2),
    (Fate::NoDate, 2),
];
/// Fates of a get in seeds whose store also delivers damaged bodies.
const GET_DAMAGED: &[(Fate, u64)] =
    &[(Fate::LostRequest, 4), (Fate::Failed, 3), (Fate::Slow, 5), (Fate::Torn, 4), (Fate::Flipped, 4)];
/// Fates of an unconditional put, a list or a delete.
const OTHER: &[(Fate, u64)] = &[
    (Fate::LostRequest, 3),
    (Fate::LostAnswer, 4),
    (Fate::Late, 3),
    (Fate::Throttled, 2),
    (Fate::Failed, 3),
    (Fate::Slow, 4),
    (Fate::Refused, 2),
];

/// The kind of a request to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// A conditional put.
    PutIf,
    /// A get.
    Get,
    /// A put under a fresh key.
    PutNew,
    /// A list.
    List,
    /// A delete.
    Delete,
}

/// A change that an operator makes without the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// Deletes HEAD.
    Deletes,
    /// Writes an older HEAD body over the current one.
    Restores,
}

/// The clock that is wrong beyond `max_skew`, if any: `ClockSkew` is then a correct reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// None.
    None,
    /// This node's: wrong from the start or later, and set again and again. The store's Date shows it; now and then the
    /// node's replies come without a Date for a while.
    Set(usize),
    /// This node's is behind the others', at times or always, and the store sends no Date: only HEAD can show it.
    Behind(usize),
    /// This node's is ahead of the others', and it creates the queue file: they find HEAD in their future.
    Ahead(usize),
    /// The store's own: for a while a node's replies carry a wrong Date.
    Store,
    /// Only the Date of the first reply that a process gets.
    FirstDate,
}

impl Wrong {
    fn draw(rng: &Rng, dates: bool, nodes: usize) -> Self {
        let node = rng.below(nodes as u64) as usize;
        match (rng.below(12), dates) {
            (0 | 1, true) => Self::Set(node),
            (2, true) => Self::Store,
            (3, true) => Self::FirstDate,
            (0, false) => Self::Behind(node),
            (1, false) if rng.one_in(2) => Self::Ahead(node),
            _ => Self::None,
        }
    }
}

/// Everything drawn at the start of a seed.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub struct Plan {
    /// Processes, at least two.
    pub nodes: usize,
    /// Tasks that enqueue, work and read in each process.
    pub clients: [usize; 3],
    /// Calls after which the clients stop.
    pub budget: u64,
    /// Probability of any fault of a request, per million.
    pub fault_rate: u64,
    /// Every request meets this fate; for tests of the store itself.
    pub only: Option<Fate>,
    /// Three of four faults of a conditional put are this one (broken variants).
    pub favour: Option<Fate>,
    /// Now and then an existing HEAD is reported missing.
    pub missing: bool,
    /// Some bodies arrive damaged: Corrupt is then a correct reply.
    pub damaged: bool,
    /// The store's replies carry a Date.
    pub dates: bool,
    /// The stored `max_skew`.
    pub max_skew_ms: u64,
    /// Skew and drift of each node's clock.
    pub clocks: Vec<(i64, i64)>,
    /// The clock that is beyond `max_skew`.
    pub wrong: Wrong,
    /// Leases lie between these, in milliseconds.
    pub lease_ms: (u64, u64),
    /// Probability per step of a store call that its process dies there, per million.
    pub crash_rate: u64,
    /// Mean time between stalls, outages and planned ends, in milliseconds; 0 for none.
    pub trouble_ms: u64,
    /// The operator's change, if any: such seeds have checks of their own.
    pub operator: Option<Operator>,
    /// Round trip without faults, in milliseconds.
    pub latency_ms: (u64, u64),
    /// The store is probed before a queue file is created on it.
    pub probe: bool,
    /// How the store breaks its promises.
    pub lie: Lie,
    /// The seed tests the refusal of a store that lies (G10): no queue file may be created.
    pub refusal: bool,
    /// The seed tests a store that turns bad under an existing queue file: no process may write any more (G10).
    pub turns: Option<Lie>,
    /// The seed tests writers that compete: nothing else goes wrong.
    pub crowd: bool,
    /// After this many commits the store lets a second winner in, once (P25).
    pub betrayal: Option<u64>,
    /// Every commit is replayed and every change explained.
    pub deep: bool,
    /// Collection as often as possible, with many bases and segments.
    pub frantic: bool,
    /// The schedule catches up on times it missed.
    pub catch_up: bool,
    /// Jobs expire, groups are claimed in batches, and callers ack late.
    pub expires: bool,
    /// Callers request collections.
    pub asks: bool,
    /// The seed tests a process in Local mode with a clock that is set again and again.
    pub local: bool,
    /// Machines sleep: for a while nothing of a node runs.
    pub sleeps: bool,
    /// The engine renews the workers' leases while they work, and they also extend them by hand.
    pub keeper: bool,
    /// Callers repeat ops that a caller sent long before, with the same ids.
    pub repeats: bool,
    /// One job in this many has a payload that fills a tail.
    pub large: u64,
    /// The retention, in seeds with an archive.
    pub keep: Option<Changes>,
    /// Options of every open.
    pub options: Options,
}

impl Plan {
    /// Draws the plan of this seed, changed so that `variant` shows its fault.
    pub fn draw(seed: u64, rng: &Rng, variant: Option<Variant>) -> Self {
        let nodes = rng.between(2, 4) as usize;
        let wild = if rng.one_in(8) { 0 } else { rng.spread(4, 60) };
        let dates = rng.one_in(2);
        let max_skew_ms: u64 = if dates { 5_000 } else { [0, 500, 2_000, 5_000][rng.below(4) as usize] };
        let half = (max_skew_ms / 2).saturating_sub(100).cast_signed();
        let clocks = (0..=nodes)
            .map(|_| {
                (
                    rng.below(2 * half.unsigned_abs() + 1).cast_signed() - half,
                    rng.below(81).cast_signed() - 40,
                )
            })
            .map(|(skew, drift)| if max_skew_ms == 0 { (0, 0) } else { (skew, drift) })
            .collect();
        let least_lease = 2 * max_skew_ms + 500;
        let latency = rng.between(2, 40);
        let options = Options {
            max_skew: Some(Duration::from_millis(max_skew_ms)),
            deadline: Duration::from_secs(rng.between(8, 30)),
            tail: [2 * 1024, 8 * 1024, 32 * 1024][rng.below(3) as usize],
            host: Host::CurrentRuntime,
            ..Options::default()
        };
        let mut plan = Self {
            nodes,
            clients: [rng.between(1, 3) as usize, rng.between(1, 3) as usize, 1],
            budget: rng.between(200, 340),
            fault_rate: wild * 2_000,
            only: None,
            favour: None,
            missing: false,
            damaged: wild > 0 && rng.one_in(5),
            dates,
            max_skew_ms,
            clocks,
            wrong: Wrong::draw(rng, dates, nodes),
            lease_ms: (least_lease, least_lease + rng.spread(500, 30_000)),
            crash_rate: if wild == 0 { 0 } else { rng.below(3) * 800 },
            trouble_ms: if wild == 0 { 0 } else { rng.spread(4_000, 60_000) },
            operator: (wild > 0 && rng.one_in(10))
                .then(|| if rng.one_in(2) { Operator::Deletes } else { Operator::Restores }),
            latency_ms: (latency, latency * 2),
            large: [8, 30, 100][rng.below(3) as usize],
            probe: rng.one_in(5),
            lie: Lie::None,
            refusal: false,
            turns: None,
            crowd: false,
            betrayal: rng.one_in(25).then(|| rng.between(5, 100)),
            deep: seed.is_multiple_of(10),
            frantic: false,
            asks: rng.one_in(4),
            local: false,
            sleeps: false,
            keeper: false,
            repeats: true,
            catch_up: seed.is_multiple_of(2),
            expires: false,
            keep: None,
            options,
        };
        if rng.one_in(3) {
            plan.hurry(rng);
        }
        if rng.one_in(40) {
            plan.refuse(rng);
        }
        if plan.operator.is_some() || plan.frantic || plan.asks {
            // No promise holds for a history that is gone and by which objects were deleted.
            plan.betrayal = None;
        }
        // Drawn separately, so that other seeds stay the same.
        let own = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x16);
        plan.missing = wild > 0 && !plan.frantic && Rng::new(seed ^ 0x404).one_in(3);
        if own.one_in(2) {
            plan.archive(&own);
            if own.one_in(3) {
                plan.expire_archives(&own);
            }
        }
        plan.sleeps = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x17).one_in(4);
        if !plan.refusal && Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x18).one_in(25) {
            plan.stay_local();
        }
        plan.keeper = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x4b).one_in(3)
            && !plan.deep
            && plan.betrayal.is_none()
            && plan.operator.is_none();
        let story = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x19).below(60);
        match (variant, story) {
            (Some(variant), _) => variant.bend(&mut plan),
            (None, 0) => Variant::Crowd.bend(&mut plan),
            (None, 1) => Variant::Turned.bend(&mut plan),
            (None, _) => {}
        }
        plan
    }

    /// Collect as often as possible.
    pub fn hurry(&mut self, rng: &Rng) {
        self.frantic = true;
        self.large = 8;
        self.options.deadline = Duration::from_secs(8);
        self.options.grace = Duration::from_millis(rng.between(8_000, 16_000));
        self.options.base_after = rng.spread(8 * 1024, 256 * 1024);
        self.options.tail = 2 * 1024;
    }

    /// Archive finished jobs soon.
    pub fn archive(&mut self, rng: &Rng) {
        self.keep = Some(archive::keep(rng));
        self.options.archive_every = Duration::from_millis(rng.spread(1, 10_000));
    }

    /// Expire archive objects soon.
    pub fn expire_archives(&mut self, rng: &Rng) {
        if let Some(keep) = &mut self.keep {
            let kept = keep.keep_ms.flatten().unwrap_or(0);
            keep.archive_ms = Some(Some(kept + rng.spread(500, 60_000).cast_signed()));
        }
    }

    /// The age at which archive objects expire, in seeds with expiry.
    pub fn archive_ms(&self) -> Option<i64> {
        self.keep.as_ref()?.archive_ms.flatten()
    }

    /// One process in Local mode whose clock is set again and again, and no other; the store's replies carry a Date.
    pub fn stay_local(&mut self) {
        self.local = true;
        self.dates = true;
        (self.wrong, self.operator, self.betrayal) = (Wrong::Set(0), None, None);
        (self.lie, self.probe, self.damaged) = (Lie::None, false, false);
        self.crash_rate = 0;
        self.max_skew_ms = 5_000;
        self.clocks.fill((0, 0));
        self.options.max_skew = Some(Duration::from_secs(5));
    }

    /// The store lies so often that the probe must find it.
    pub fn refuse(&mut self, rng: &Rng) {
        let lies = [Lie::TwoWinners, Lie::NoConditions, Lie::NoIfMatch, Lie::NoIfNoneMatch, Lie::StaleReads];
        self.lie = lies[rng.below(5) as usize];
        self.probe = true;
        self.refusal = true;
    }

    /// Writers that compete, and no other faults.
    pub fn crowd(&mut self) {
        self.crowd = true;
        (self.fault_rate, self.crash_rate, self.trouble_ms) = (0, 0, 0);
        self.clocks.fill((0, 0));
        self.latency_ms.1 = self.latency_ms.0 + self.latency_ms.0 / 8;
        self.keep = None;
        let usual = Options::default();
        self.options.deadline = Duration::from_secs(30);
        (self.options.tail, self.options.grace, self.options.base_after) =
            (usual.tail, usual.grace, usual.base_after);
    }

    /// Draws the fate of the next request.
    pub fn fate(&self, rng: &Rng, verb: Verb) -> Fate {
        if let Some(fate) = self.only {
            return fate;
        }
        if !rng.chance(self.fault_rate) {
            return Fate::Fine;
        }
        if let (Verb::PutIf, Some(fate)) = (verb, self.favour)
            && !rng.one_in(4)
        {
            return fate;
        }
        let table = match verb {
            Verb::PutIf => PUT_IF,
            Verb::Get if self.damaged => GET_DAMAGED,
            Verb::Get => GET,
            Verb::PutNew | Verb::List | Verb::Delete => OTHER,
        };
        let mut at = rng.below(table.iter().map(|(_, weight)| weight).sum());
        for &(fate, weight) in table {
            if at < weight {
                return fate;
            }
            at -= weight;
        }
        Fate::Fine
    }
}
