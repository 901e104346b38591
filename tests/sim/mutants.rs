//! The checks notice each broken rule, and those with texts by what the rule guards: some show first by a minor sign.
//!
//! Only in the scratch copy of `make mutants`. Each test has the name of its variant.

use bucketq_sim::variants::Variant;

/// A variant whose fault shows in none of this number of seeds counts as not caught.
const SEEDS: u64 = 300;

/// Finds a seed in which the checks notice the variant, for each of these texts.
fn caught(variant: Variant, harm: &[&str]) {
    for what in if harm.is_empty() { &[""] } else { harm } {
        let report = variant.caught_as(what, 1, SEEDS);
        let report = report.unwrap_or_else(|| panic!("{variant:?} is not noticed by {what:?}"));
        let found = report.violations.iter().find(|violation| violation.contains(what));
        println!("caught {variant:?} in seed {}: {}", report.seed, found.map_or("", String::as_str));
    }
}

/// Broken in the store, the entropy or the worker.
mod outside {
    use bucketq_sim::variants::Variant;

    macro_rules! variants {
        ($($name:ident: $harm:expr,)*) => {
            $(#[test]
            #[allow(non_snake_case, reason = "a test has the name of its variant")]
            fn $name() {
                super::caught(Variant::$name, &$harm);
            })*
        };
    }

    variants! {
        SameVersion: [],
        FixedKey: [],
        LeaseFromAnswer: [],
        NoSkewMargin: [],
        TwoWinners: [],
        NoConditions: [],
        StaleReads: [],
        NoProbe: [],
        DateAgrees: [],
        ClockUnseen: [],
        SteadyClockStops: [],
        LossUnnoticed: ["P25"],
    }
}

/// Broken inside the engine.
mod inside {
    use bucketq::broken::Broken;
    use bucketq_sim::variants::Variant;

    macro_rules! variants {
        ($($name:ident: $harm:expr,)*) => {
            $(#[test]
            #[allow(non_snake_case, reason = "a test has the name of its variant")]
            fn $name() {
                super::caught(Variant::Engine(Broken::$name), &$harm);
            })*
        };
    }

    variants! {
        TimeoutIsFailure: [],
        ConflictIsFailure: [],
        NewIdOnResend: [],
        SameCommitId: [],
        NewestOnly: [],
        SettleByAttempt: [],
        PruneWithoutForgotten: [],
        GuessForgotten: [],
        DirtyRead: [],
        BaseFromUnsettled: ["checksum"],
        OlderBaseReplaces: [],
        FixedSegmentKey: [],
        MergeUnaligned: [],
        SegmentOfLostCommit: [],
        CollectWithoutFloor: ["which is not there"],
        ReferBelowFloor: ["which is not there"],
        FloorBeforeStored: ["P14"],
        FloorNewerThanReferences: ["although HEAD refers to it"],
        WaiterForgotten: ["a caller who waits for"],
        PollForgotten: ["a waiting claim"],
        ClaimKept: ["is not handed back"],
        TokenNotCompared: [],
        LeaseFromAnswer: [],
        NoSkewMargin: [],
        KeeperShortens: ["G4"],
        RollbackBySeqOnly: [],
        RecreateHead: [],
        CapForEachClaim: ["caps: "],
        PendingForEachEnqueue: ["are pending"],
        GroupNotHeld: ["before its turn"],
        BatchNotAwaited: ["beside the batch"],
        ExpiresWhenClaimed: ["has expired after"],
        RateForgotten: ["rate: "],
        ScheduleNotMoved: ["fired twice"],
        WindowTooLong: ["is kept out"],
        WindowTooShort: ["is let in"],
        IdsForgotten: ["and stands in commit"],
        CollectWithoutList: ["parquet is listed by commit"],
        ListBelowFloor: ["parquet is listed by commit"],
        ListBeforeUpload: ["parquet is listed by commit"],
        ListTwice: ["archived twice"],
        LeaveBeforeListed: ["is gone"],
        FixedArchiveKey: ["parquet is overwritten"],
        EarlierRunStays: ["archived twice"],
        EarlierRunForgotten: ["is forgotten"],
        ExpiredGoesAtOnce: ["P15"],
        ExpiredStays: ["are left although nothing refers"],
        ExpiresTooSoon: ["too soon"],
        DateTrusted: ["ahead of true time", "G4"],
        LocalTimePublished: ["ahead of true time"],
        LocalTimesKept: ["G5"],
        UnprovenFirstWrite: ["is gone"],
        KnockUnheard: ["sits through"],
        GapIgnored: ["1200 jobs"],
        NoResetCache: [],
    }
}
