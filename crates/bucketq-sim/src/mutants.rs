//! Plans in which a rule broken inside the engine shows.
//!
//! Called by variants.rs. Only in the scratch copy of `make mutants`, where the engine has `bucketq::broken`.

use bucketq::broken::Broken;

use crate::plan::{Fate, Operator, Plan};
use crate::rng::Rng;
use crate::variants::{Variant, archives, far_clocks, first_date, frantic, slow_answers, turn};

/// Returns every variant inside the engine.
pub fn inside() -> impl Iterator<Item = Variant> {
    [Variant::LossUnnoticed].into_iter().chain(Broken::ALL.iter().copied().map(Variant::Engine))
}

/// Changes the plan so that the broken rule shows.
pub fn bend(variant: Variant, plan: &mut Plan) {
    match variant {
        Variant::LossUnnoticed => {
            plan.betrayal = Some(5);
            plan.options.broken = Some(Broken::RollbackBySeqOnly);
        }
        Variant::Engine(broken) => {
            plan.keep = None;
            plan.options.broken = Some(broken);
            engine(broken, plan);
        }
        _ => {}
    }
}

fn engine(broken: Broken, plan: &mut Plan) {
    plan.deep = true;
    plan.repeats = broken == Broken::IdsForgotten;
    match broken {
        Broken::RollbackBySeqOnly => plan.operator = Some(Operator::Restores),
        Broken::DateTrusted => first_date(plan),
        Broken::BatchNotAwaited | Broken::ExpiresWhenClaimed => plan.expires = true,
        Broken::LocalTimePublished | Broken::LocalTimesKept => plan.stay_local(),
        Broken::LeaseFromAnswer => slow_answers(plan),
        Broken::NoSkewMargin => far_clocks(plan),
        Broken::KeeperShortens => {
            slow_answers(plan);
            plan.keeper = true;
            // The keeper's ops are not in the history by which a replay explains commits.
            plan.deep = false;
            plan.fault_rate = 0;
            plan.clients[1] = 3;
        }
        Broken::BaseFromUnsettled
        | Broken::OlderBaseReplaces
        | Broken::MergeUnaligned
        | Broken::SegmentOfLostCommit
        | Broken::FixedSegmentKey => {
            plan.large = 2;
            plan.options.tail = 2 * 1024;
        }
        // Others collect all the time, so that a collection falls between an upload and the commit that refers to it.
        Broken::ReferBelowFloor => {
            frantic(plan);
            plan.clients[2] = 16;
            plan.budget *= 3;
        }
        Broken::CollectWithoutFloor | Broken::FloorBeforeStored | Broken::FloorNewerThanReferences => {
            frantic(plan);
        }
        // The same for an archive object between its upload and its listing.
        Broken::ListBelowFloor => {
            archives(plan);
            plan.clients[2] = 16;
            plan.budget *= 2;
        }
        Broken::CollectWithoutList
        | Broken::ListBeforeUpload
        | Broken::ListTwice
        | Broken::LeaveBeforeListed
        | Broken::FixedArchiveKey
        | Broken::EarlierRunStays
        | Broken::IdsForgotten
        | Broken::EarlierRunForgotten => archives(plan),
        Broken::ExpiredGoesAtOnce | Broken::ExpiredStays | Broken::ExpiresTooSoon => {
            archives(plan);
            plan.expire_archives(&Rng::new(plan.budget));
        }
        // The first copy must land between the read and the resend.
        Broken::ConflictIsFailure => {
            plan.favour = Some(Fate::Late);
            plan.fault_rate = 200_000;
        }
        Broken::UnprovenFirstWrite => turn(plan),
        Broken::KnockUnheard | Broken::GapIgnored => plan.crowd(),
        Broken::RecreateHead => plan.operator = Some(Operator::Deletes),
        _ => {}
    }
}
