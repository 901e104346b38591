//! Broken on purpose: each rule of the commit protocol, left out, must be caught by the checks.
//!
//! Called by run.rs (a variant bends plan, store, entropy or worker) and by the binary and tests/sim (through
//! [`Variant::all`]). These rules are broken in the store, the entropy or the worker. The others are broken inside the
//! engine, in the scratch copy of `make mutants`: see mutants.rs.

use crate::bucket::Lie;
use crate::plan::{Fate, Plan, Wrong};
use crate::rng::Rng;
use crate::run::{Report, run};

/// One broken rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Nothing is broken, in plans as harsh as those of the variants: the control, which must pass.
    Harsh,
    /// Only one node's clock is broken: it is set again and again. A control as well (P28).
    WrongClock,
    /// Only a clock is broken: it is behind, where no Date shows it (P28).
    ClockBehind,
    /// Only the clock of the node that creates the queue file is broken: it is ahead, where no Date shows it (P28).
    ClockAhead,
    /// Only the Date of the store is wrong, at times (P28).
    StoreClock,
    /// Only the first Date that each process gets is wrong (P28).
    FirstDate,
    /// Only the clock of a process in Local mode is broken (P28).
    LocalClock,
    /// Nothing is broken; machines sleep, for longer than leases last (P26).
    Sleeps,
    /// Only the store is broken: it loses one acknowledged commit (P25).
    Betrayed,
    /// Nothing is broken; the store is probed first (G10).
    Probed,
    /// Only the store is broken, and it is probed first (G10).
    Refused,
    /// Only the store is broken: it turns bad under an existing queue file (G10).
    Turned,
    /// Nothing is broken; collection as often as possible.
    Frantic,
    /// Nothing is broken; jobs leave as soon as they can, and collection as often as possible.
    Archives,
    /// Nothing is broken; one writer never rests, one comes now and then, and one has large commits.
    Crowd,
    /// Nothing is broken; jobs expire, groups are claimed in batches, and callers ack late.
    Expires,
    /// Two states of HEAD share a version, as without a fresh commit id in the body (P1).
    SameVersion,
    /// Keys of segments and bases are not random (P12).
    FixedKey,
    /// The worker counts its lease from the reply (P26).
    LeaseFromAnswer,
    /// The worker leaves out the margin for skew (P26).
    NoSkewMargin,
    /// The store has two winners (P24, P25).
    TwoWinners,
    /// The store ignores conditions (P24).
    NoConditions,
    /// Gets return the previous state (P21, P24).
    StaleReads,
    /// A store that lies is not probed (P24).
    NoProbe,
    /// The store's Date agrees with each process's clock, so that a clock that is set goes unnoticed (P28).
    DateAgrees,
    /// A clock behind HEAD is not checked (P28).
    ClockUnseen,
    /// The steady clock of a machine stands still while the machine sleeps (P26).
    SteadyClockStops,
    /// A store loses an acknowledged commit, and its writer does not look for it (P25).
    #[cfg(feature = "mutants")]
    LossUnnoticed,
    /// Broken inside the engine.
    #[cfg(feature = "mutants")]
    Engine(bucketq::broken::Broken),
}

impl Variant {
    /// Every variant that can be produced outside the engine.
    pub const OUTSIDE: [Self; 11] = [
        Self::SameVersion,
        Self::FixedKey,
        Self::LeaseFromAnswer,
        Self::NoSkewMargin,
        Self::TwoWinners,
        Self::NoConditions,
        Self::StaleReads,
        Self::NoProbe,
        Self::DateAgrees,
        Self::ClockUnseen,
        Self::SteadyClockStops,
    ];

    /// The engine is not broken: these must pass.
    pub const CONTROLS: [Self; 16] = [
        Self::Harsh,
        Self::WrongClock,
        Self::ClockBehind,
        Self::ClockAhead,
        Self::StoreClock,
        Self::FirstDate,
        Self::LocalClock,
        Self::Sleeps,
        Self::Betrayed,
        Self::Probed,
        Self::Refused,
        Self::Turned,
        Self::Frantic,
        Self::Archives,
        Self::Crowd,
        Self::Expires,
    ];

    /// Every variant and every control.
    pub fn all() -> Vec<Self> {
        let all = Self::OUTSIDE.into_iter().chain(Self::CONTROLS);
        #[cfg(feature = "mutants")]
        let all = all.chain(crate::mutants::inside());
        all.collect()
    }

    /// Draws of this many bytes are constant.
    pub fn fixed_entropy(self) -> usize {
        if self == Self::FixedKey { 8 } else { 0 }
    }

    /// Changes the plan to what this variant needs to show its fault, without anything that could hide it.
    pub fn bend(self, plan: &mut Plan) {
        plan.operator = None;
        plan.damaged = false;
        plan.missing = false;
        plan.wrong = Wrong::None;
        (plan.lie, plan.refusal, plan.probe, plan.betrayal) = (Lie::None, false, false, None);
        (plan.asks, plan.sleeps, plan.local, plan.keeper) = (false, false, false, false);
        plan.repeats = matches!(self, Self::Harsh | Self::Frantic | Self::Archives | Self::Betrayed);
        plan.turns = None;
        plan.deep = false;
        plan.nodes = plan.nodes.max(3);
        plan.clocks.resize(plan.nodes + 1, (0, 0));
        plan.fault_rate = plan.fault_rate.max(30_000);
        match self {
            Self::TwoWinners | Self::NoConditions | Self::StaleReads => {
                plan.lie = match self {
                    Self::TwoWinners => Lie::TwoWinners,
                    Self::NoConditions => Lie::NoConditions,
                    _ => Lie::StaleReads,
                };
                plan.fault_rate = 0;
                plan.crash_rate = 0;
                plan.trouble_ms = 0;
            }
            Self::Harsh => {
                plan.deep = true;
                plan.large = 2;
                plan.options.tail = 2 * 1024;
                plan.favour = Some(Fate::Late);
                plan.fault_rate = 120_000;
                if plan.nodes == 3 { slow_answers(plan) } else { far_clocks(plan) }
            }
            Self::WrongClock => {
                plan.dates = true;
                plan.max_skew_ms = 5_000;
                plan.wrong = Wrong::Set(0);
                plan.trouble_ms = 4_000;
                plan.lease_ms = (10_500, 14_000);
            }
            Self::DateAgrees => {
                Self::WrongClock.bend(plan);
                plan.fault_rate = 0;
            }
            Self::StoreClock => {
                Self::WrongClock.bend(plan);
                plan.wrong = Wrong::Store;
            }
            Self::FirstDate => first_date(plan),
            Self::LocalClock => plan.stay_local(),
            Self::Sleeps | Self::SteadyClockStops => {
                plan.sleeps = true;
                plan.trouble_ms = 3_000;
                plan.fault_rate = 0;
                plan.crash_rate = 0;
            }
            Self::ClockBehind | Self::ClockUnseen | Self::ClockAhead => {
                plan.dates = false;
                plan.trouble_ms = 6_000;
                plan.wrong = if self == Self::ClockAhead { Wrong::Ahead(0) } else { Wrong::Behind(0) };
            }
            Self::Betrayed => plan.betrayal = Some(5),
            Self::Probed => plan.probe = true,
            Self::Turned => turn(plan),
            Self::Frantic => frantic(plan),
            Self::Crowd => plan.crowd(),
            Self::Expires => plan.expires = true,
            Self::Archives => {
                plan.deep = true;
                archives(plan);
                if plan.budget.is_multiple_of(2) {
                    plan.expire_archives(&Rng::new(plan.budget));
                }
            }
            Self::Refused | Self::NoProbe => {
                plan.lie =
                    [Lie::TwoWinners, Lie::NoConditions, Lie::NoIfMatch, Lie::NoIfNoneMatch, Lie::StaleReads]
                        [plan.budget as usize % 5];
                plan.refusal = true;
                plan.probe = self == Self::Refused;
            }
            Self::SameVersion => plan.lie = Lie::SameVersion,
            Self::LeaseFromAnswer => slow_answers(plan),
            Self::NoSkewMargin => far_clocks(plan),
            #[cfg(feature = "mutants")]
            Self::LossUnnoticed | Self::Engine(_) => crate::mutants::bend(self, plan),
            _ => {}
        }
        plan.options.max_skew = Some(std::time::Duration::from_millis(plan.max_skew_ms));
    }

    /// The first seed from `from` on, of at most `most`, whose checks find the fault.
    pub fn caught(self, from: u64, most: u64) -> Option<Report> {
        self.caught_as("", from, most)
    }

    /// The same, if the finding contains this text.
    pub fn caught_as(self, what: &str, from: u64, most: u64) -> Option<Report> {
        (from..from + most)
            .map(|seed| run(seed, Some(self), false))
            .find(|report| report.violations.iter().any(|v| v.contains(what)))
    }
}

/// Processes that come and go, and get a wrong Date first.
pub(crate) fn first_date(plan: &mut Plan) {
    plan.dates = true;
    plan.max_skew_ms = 5_000;
    plan.wrong = Wrong::FirstDate;
    plan.trouble_ms = 4_000;
    plan.lease_ms = (10_500, 14_000);
}

/// Short leases, equal clocks, and slow replies.
pub(crate) fn slow_answers(plan: &mut Plan) {
    plan.max_skew_ms = 0;
    plan.clocks.fill((0, 0));
    plan.lease_ms = (1_000, 4_000);
    plan.fault_rate = 60_000;
}

/// Many segments and bases, and a caller that collects all the time.
pub(crate) fn frantic(plan: &mut Plan) {
    plan.hurry(&Rng::new(plan.budget));
    plan.large = 3;
    plan.asks = true;
}

/// Jobs leave all the time, and processes die in between.
pub(crate) fn archives(plan: &mut Plan) {
    frantic(plan);
    plan.archive(&Rng::new(plan.budget));
    plan.options.archive_every = std::time::Duration::from_millis(1);
    plan.crash_rate = plan.crash_rate.max(2_000);
}

/// A store that keeps its promises until the queue file is created.
pub(crate) fn turn(plan: &mut Plan) {
    plan.probe = true;
    plan.keep = None;
    // A fault may look like a refusal: no faults, so that nothing hides the lie.
    plan.fault_rate = 0;
    plan.crash_rate = 0;
    plan.trouble_ms = 0;
    plan.turns = Some([Lie::NoConditions, Lie::NoIfMatch][plan.budget as usize % 2]);
}

/// Clocks as far apart as they may be, and nothing that corrects them.
pub(crate) fn far_clocks(plan: &mut Plan) {
    plan.dates = false;
    plan.max_skew_ms = 5_000;
    for (n, clock) in plan.clocks.iter_mut().enumerate() {
        *clock = (if n % 2 == 0 { 2_400 } else { -2_400 }, 0);
    }
    plan.lease_ms = (10_500, 11_000);
}
