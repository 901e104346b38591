//! Rules broken on purpose, so that the simulation can show that it notices. Only with the feature `broken`,
//! which nothing but the simulation enables: without it `is` is constantly false and every point vanishes.

/// One broken rule of the commit protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Broken {
    /// P3: a time-out is told as "surely not applied".
    TimeoutIsFailure,
    /// P3: a conflict is told as "surely not applied" without a look.
    ConflictIsFailure,
    /// P1: a resend draws a new attempt number and commit id.
    NewIdOnResend,
    /// P1: every body carries the same commit id.
    SameCommitId,
    /// P2: settling looks at the newest commit only.
    NewestOnly,
    /// P2, P6: settling believes the attempt number, with a writer id shared by all.
    SettleByAttempt,
    /// P4: the map is pruned without `forgotten_seq`.
    PruneWithoutForgotten,
    /// P11: reads are answered from a commit that is not settled.
    DirtyRead,
    /// P17: a base is made of a commit that is not settled.
    BaseFromUnsettled,
    /// P17: an older base replaces a newer one.
    OlderBaseReplaces,
    /// P12: keys carry no random part.
    FixedSegmentKey,
    /// P17: a merged segment is referred to although it does not line up with the segments there.
    MergeUnaligned,
    /// P17: a segment of a commit that lost is referred to all the same.
    SegmentOfLostCommit,
    /// P14: whatever HEAD does not refer to is deleted, floor or not.
    CollectWithoutFloor,
    /// P13: an upload is referred to although it lies below the floor.
    ReferBelowFloor,
    /// P14: the floor counts before its commit is stored.
    FloorBeforeStored,
    /// P14: the floor is the newest, the references are those of an earlier HEAD.
    FloorNewerThanReferences,
    /// P27: the lease token is not compared.
    TokenNotCompared,
    /// P26: the lease is counted from the answer.
    LeaseFromAnswer,
    /// P26: no margin for clock skew.
    NoSkewMargin,
    /// P21: a rollback is noticed by the commit number only.
    RollbackBySeqOnly,
    /// P22: a HEAD that was known is created again when it is gone.
    RecreateHead,
    /// P19: no intent is recorded before a put.
    NoIntent,
    /// P19: the intent is recorded after the put.
    LateIntent,
    /// P19: the intent is recorded and not synced to the disk.
    UnsyncedIntent,
    /// P19: only the newest intent is kept.
    NewestIntentOnly,
    /// P20: settling drops all of the log, whatever the intent's position is.
    IntentWithoutPosition,
    /// A claim takes as many jobs as the queue may have leased, whoever has leased some already.
    CapForEachClaim,
    /// An enqueue is held against the cap without what is pending already.
    PendingForEachEnqueue,
    /// A member of a group does not wait for those before it.
    GroupNotHeld,
    /// The claims so far do not count against the rate.
    RateForgotten,
    /// A schedule that has fired is still due.
    ScheduleNotMoved,
    /// A dedup window counts for a millisecond too long.
    WindowTooLong,
    /// A dedup window counts for a millisecond too short.
    WindowTooShort,
    /// P14: archive objects are collected by HEAD alone, without the list in the database.
    CollectWithoutList,
    /// P13: an archive object is listed although it lies below the floor.
    ListBelowFloor,
    /// An archive object is listed before its upload was answered.
    ListBeforeUpload,
    /// An archive object is listed although its jobs have left meanwhile.
    ListTwice,
    /// The jobs leave in one commit, and their archive object is listed in the next.
    LeaveBeforeListed,
    /// P12: archive keys carry no random part.
    FixedArchiveKey,
    /// A life whose job went on is archived, and now and then kept aside still.
    PastStays,
    /// A life whose job went on is not kept aside for the archive.
    PastForgotten,
    /// P15: an archive object that was given up is collected before the floor has passed the commit which did so.
    GivenUpGoesAtOnce,
    /// P15: an archive object that was given up is never collected.
    GivenUpStays,
    /// An archive object is given up before it is too old.
    GivenUpTooSoon,
    /// SQLite keeps its page cache over pages changed beneath it.
    NoResetCache,
}

/// Whether `rule` is the one broken in this engine.
#[cfg(feature = "broken")]
pub(crate) fn is(options: &crate::config::Options, rule: Broken) -> bool {
    options.broken == Some(rule)
}

/// Never, in what ships.
#[cfg(not(feature = "broken"))]
pub(crate) const fn is(_: &crate::config::Options, _: Broken) -> bool {
    false
}
