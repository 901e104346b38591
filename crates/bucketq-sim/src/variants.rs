//! Broken on purpose: each rule of the commit protocol, left out, must be caught by the checks.
//!
//! Called by the run (a variant bends plan, store, entropy or worker) and by the binary and tests/sim (which go
//! through [`Variant::all`]). What can be broken from outside is broken in the store, the entropy or the worker; the
//! rest needs `bucketq::broken`, which exists only under the feature `broken` and is in nothing that ships.

use crate::bucket::Lie;
use crate::plan::{Fate, Plan, Wrong};
use crate::rng::Rng;
use crate::run::{Report, run};

/// One broken rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Nothing is broken, in plans as harsh as those of the variants: the control, which must hold.
    Harsh,
    /// Nothing is broken but one node's clock, which is set again and again: a control as well (P28).
    WrongClock,
    /// Nothing is broken but a clock that is behind where no Date tells (P28).
    ClockBehind,
    /// Nothing is broken but a clock that is ahead where no Date tells, of whoever made the queue file (P28).
    ClockAhead,
    /// Nothing is broken but the Date of the store at times (P28).
    StoreClock,
    /// Nothing is broken but the store, which loses one acknowledged commit (P25).
    Betrayed,
    /// Nothing is broken; the store is probed first (G10).
    Probed,
    /// Nothing is broken but the store, and it is probed first (G10).
    Refused,
    /// Nothing is broken; collection as often as can be.
    Frantic,
    /// Nothing is broken; jobs leave as soon as they can, and collection as often as can be.
    Archives,
    /// Two states of HEAD share a version, as without a fresh commit id in the body (P1).
    SameVersion,
    /// Keys of segments and bases are not random (P12).
    FixedKey,
    /// The worker counts its lease from the answer (P26).
    LeaseFromAnswer,
    /// The worker leaves out the margin for skew (P26).
    NoSkewMargin,
    /// The store has two winners (P24, P25).
    TwoWinners,
    /// The store ignores conditions (P24).
    NoConditions,
    /// The store answers gets with the state before (P21, P24).
    StaleReads,
    /// A store that lies is not probed (P24).
    NoProbe,
    /// The store's Date agrees with whoever asks, so that a clock that is set goes unnoticed (P28).
    DateAgrees,
    /// A clock that is behind HEAD is not looked at (P28).
    ClockUnseen,
    /// A store loses an acknowledged commit, and its writer does not look for it (P25).
    #[cfg(feature = "broken")]
    LossUnnoticed,
    /// Broken inside the engine.
    #[cfg(feature = "broken")]
    Engine(bucketq::broken::Broken),
}

impl Variant {
    /// Every variant that can be produced from outside.
    pub const OUTSIDE: [Self; 10] = [
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
    ];

    /// Nothing of the engine is broken: these must hold.
    pub const CONTROLS: [Self; 10] = [
        Self::Harsh,
        Self::WrongClock,
        Self::ClockBehind,
        Self::ClockAhead,
        Self::StoreClock,
        Self::Betrayed,
        Self::Probed,
        Self::Refused,
        Self::Frantic,
        Self::Archives,
    ];

    /// Every variant there is.
    pub fn all() -> Vec<Self> {
        #[cfg(feature = "broken")]
        return Self::OUTSIDE
            .into_iter()
            .chain([Self::LossUnnoticed])
            .chain(ENGINE.into_iter().map(Self::Engine))
            .collect();
        #[cfg(not(feature = "broken"))]
        Self::OUTSIDE.to_vec()
    }

    /// Draws of this many bytes are constant.
    pub fn fixed_entropy(self) -> usize {
        if self == Self::FixedKey { 8 } else { 0 }
    }

    /// What this variant needs to show itself, and nothing that could hide it.
    pub fn bend(self, plan: &mut Plan) {
        plan.operator = None;
        plan.damaged = false;
        plan.wrong = Wrong::None;
        (plan.lie, plan.refusal, plan.probe, plan.betrayal) = (Lie::None, false, false, None);
        plan.asks = false;
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
            Self::ClockBehind | Self::ClockUnseen | Self::ClockAhead => {
                plan.dates = false;
                plan.trouble_ms = 6_000;
                plan.wrong = if self == Self::ClockAhead { Wrong::Ahead(0) } else { Wrong::Behind(0) };
            }
            Self::Betrayed => plan.betrayal = Some(5),
            Self::Probed => plan.probe = true,
            Self::Frantic => frantic(plan),
            Self::Archives => {
                plan.deep = true;
                archives(plan);
                if plan.budget.is_multiple_of(2) {
                    plan.give_up(&Rng::new(plan.budget));
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
            #[cfg(feature = "broken")]
            Self::LossUnnoticed => {
                plan.betrayal = Some(5);
                plan.options.broken = Some(bucketq::broken::Broken::RollbackBySeqOnly);
            }
            Self::LeaseFromAnswer => slow_answers(plan),
            Self::NoSkewMargin => far_clocks(plan),
            #[cfg(feature = "broken")]
            Self::Engine(broken) => {
                plan.keep = None;
                plan.options.broken = Some(broken);
                engine(broken, plan);
            }
            _ => {}
        }
        plan.options.max_skew = Some(std::time::Duration::from_millis(plan.max_skew_ms));
    }

    /// The first seed from `from` on, of at most `most`, whose checks notice.
    pub fn caught(self, from: u64, most: u64) -> Option<Report> {
        self.caught_as("", from, most)
    }

    /// The same, if they notice in these words.
    pub fn caught_as(self, what: &str, from: u64, most: u64) -> Option<Report> {
        (from..from + most)
            .map(|seed| run(seed, Some(self), false))
            .find(|report| report.violations.iter().any(|v| v.contains(what)))
    }
}

/// Short leases, equal clocks, and answers that take long.
fn slow_answers(plan: &mut Plan) {
    plan.max_skew_ms = 0;
    plan.clocks.fill((0, 0));
    plan.lease_ms = (1_000, 4_000);
    plan.fault_rate = 60_000;
}

/// Many segments and bases, and somebody who collects all the time.
fn frantic(plan: &mut Plan) {
    plan.hurry(&Rng::new(plan.budget));
    plan.large = 3;
    plan.asks = true;
}

/// Jobs leave all the time, and processes die in between.
fn archives(plan: &mut Plan) {
    frantic(plan);
    plan.archive(&Rng::new(plan.budget));
    plan.options.archive_every = std::time::Duration::from_millis(1);
    plan.crash_rate = plan.crash_rate.max(2_000);
}

/// Clocks as far apart as they may be, and nothing that corrects them.
fn far_clocks(plan: &mut Plan) {
    plan.dates = false;
    plan.max_skew_ms = 5_000;
    for (n, clock) in plan.clocks.iter_mut().enumerate() {
        *clock = (if n % 2 == 0 { 2_400 } else { -2_400 }, 0);
    }
    plan.lease_ms = (10_500, 11_000);
}

/// Every rule the engine can break.
#[cfg(feature = "broken")]
const ENGINE: [bucketq::broken::Broken; 41] = {
    use bucketq::broken::Broken as B;
    [
        B::TimeoutIsFailure,
        B::ConflictIsFailure,
        B::NewIdOnResend,
        B::SameCommitId,
        B::NewestOnly,
        B::SettleByAttempt,
        B::PruneWithoutForgotten,
        B::DirtyRead,
        B::BaseFromUnsettled,
        B::OlderBaseReplaces,
        B::FixedSegmentKey,
        B::MergeUnaligned,
        B::SegmentOfLostCommit,
        B::CollectWithoutFloor,
        B::ReferBelowFloor,
        B::FloorBeforeStored,
        B::FloorNewerThanReferences,
        B::TokenNotCompared,
        B::LeaseFromAnswer,
        B::NoSkewMargin,
        B::RollbackBySeqOnly,
        B::RecreateHead,
        B::NoResetCache,
        B::CapForEachClaim,
        B::PendingForEachEnqueue,
        B::GroupNotHeld,
        B::RateForgotten,
        B::ScheduleNotMoved,
        B::WindowTooLong,
        B::WindowTooShort,
        B::CollectWithoutList,
        B::ListBelowFloor,
        B::ListBeforeUpload,
        B::ListTwice,
        B::LeaveBeforeListed,
        B::FixedArchiveKey,
        B::PastStays,
        B::PastForgotten,
        B::GivenUpGoesAtOnce,
        B::GivenUpStays,
        B::GivenUpTooSoon,
    ]
};

/// What each broken rule of the engine needs.
#[cfg(feature = "broken")]
fn engine(broken: bucketq::broken::Broken, plan: &mut Plan) {
    use crate::plan::Operator;
    use bucketq::broken::Broken;
    plan.deep = true;
    match broken {
        Broken::RollbackBySeqOnly => plan.operator = Some(Operator::Restores),
        Broken::LeaseFromAnswer => slow_answers(plan),
        Broken::NoSkewMargin => far_clocks(plan),
        Broken::BaseFromUnsettled
        | Broken::OlderBaseReplaces
        | Broken::MergeUnaligned
        | Broken::SegmentOfLostCommit
        | Broken::FixedSegmentKey => {
            plan.large = 2;
            plan.options.tail = 2 * 1024;
        }
        // Who refers to an object must stand still between its upload and its commit while others collect.
        Broken::ReferBelowFloor => {
            frantic(plan);
            plan.trouble_ms = 4_000;
            plan.options.grace = std::time::Duration::from_secs(8);
        }
        Broken::CollectWithoutFloor | Broken::FloorBeforeStored | Broken::FloorNewerThanReferences => {
            frantic(plan);
        }
        Broken::CollectWithoutList
        | Broken::ListBelowFloor
        | Broken::ListBeforeUpload
        | Broken::ListTwice
        | Broken::LeaveBeforeListed
        | Broken::FixedArchiveKey
        | Broken::PastStays
        | Broken::PastForgotten => archives(plan),
        Broken::GivenUpGoesAtOnce | Broken::GivenUpStays | Broken::GivenUpTooSoon => {
            archives(plan);
            plan.give_up(&Rng::new(plan.budget));
        }
        // The first copy must land between the look and the resend.
        Broken::ConflictIsFailure => {
            plan.favour = Some(Fate::Late);
            plan.fault_rate = 200_000;
        }
        Broken::RecreateHead => plan.operator = Some(Operator::Deletes),
        _ => {}
    }
}
