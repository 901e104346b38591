//! Rules broken on purpose, so that the simulation can show that it notices. Only in the scratch copy of `make mutants`.

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// One broken rule.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Broken {
            $($(#[$doc])* $name,)*
        }

        impl Broken {
            /// Every rule.
            pub const ALL: &[Self] = &[$(Self::$name),*];
        }
    };
}

rules! {
    /// P3: a time-out is reported as "certainly not applied".
    TimeoutIsFailure,
    /// P3: a conflict is reported as "certainly not applied" without a read.
    ConflictIsFailure,
    /// P1: a resend draws a new attempt number and commit id.
    NewIdOnResend,
    /// P1: every body carries the same commit id.
    SameCommitId,
    /// P2: settling reads the newest commit only.
    NewestOnly,
    /// P2, P6: settling trusts the attempt number, with a writer id shared by all.
    SettleByAttempt,
    /// P6: a writer forgets its newest stored commit once it has lost many races since.
    NewestForgotten,
    /// P4: the map is pruned without `forgotten_seq`.
    PruneWithoutForgotten,
    /// P5: settling takes a commit whose entry was dropped for one that lost.
    GuessForgotten,
    /// P8: a body that was sent is forgotten after a read that failed, and its ops run again.
    ForgetSent,
    /// P9: `settle()` reads HEAD and makes no commit.
    SettleOnlyReads,
    /// P10: `settle()` makes no commit in a process that has stored none.
    OpeningSettles,
    /// P11: reads see a commit that is not settled.
    DirtyRead,
    /// P17: a base is made from a commit that is not settled.
    BaseFromUnsettled,
    /// P17: an older base replaces a newer one.
    OlderBaseReplaces,
    /// P12: keys have no random part.
    FixedSegmentKey,
    /// P17: HEAD refers to a merged segment that does not line up with the other segments.
    MergeUnaligned,
    /// P17: HEAD refers to a segment of a commit that lost.
    SegmentOfLostCommit,
    /// P14: objects that HEAD does not refer to are deleted without regard to the floor.
    CollectWithoutFloor,
    /// P13: HEAD refers to an upload that is below the floor.
    ReferBelowFloor,
    /// P14: the floor counts before its commit is stored.
    FloorBeforeStored,
    /// P14: the floor is the newest, but the references are those of an earlier HEAD.
    FloorNewerThanReferences,
    /// P16: every commit starts a collection.
    EveryCommitCollects,
    /// P18: a missing object is damage, without another read of HEAD.
    MissingIsDamage,
    /// Callers that wait for a job do not hear of jobs that other processes finish.
    WaiterForgotten,
    /// The store is not polled for waiting claims.
    PollForgotten,
    /// Jobs claimed for a caller that is gone are not handed back.
    ClaimKept,
    /// P27: the lease token is not compared.
    TokenNotCompared,
    /// P26: the lease is counted from the reply.
    LeaseFromAnswer,
    /// P26: no margin for clock skew.
    NoSkewMargin,
    /// P26: an extend of the keeper shortens a lease that was extended by hand meanwhile.
    KeeperShortens,
    /// P21: a rollback is detected by the commit number only.
    RollbackBySeqOnly,
    /// P22: a known HEAD is created again when it is gone.
    RecreateHead,
    /// P23: a restore keeps the lineage.
    RestoreKeepsLineage,
    /// P19: no intent is recorded before a put.
    NoIntent,
    /// P19: the intent is recorded after the put.
    LateIntent,
    /// P19: the intent is recorded but not synced to disk.
    UnsyncedIntent,
    /// P19: only the newest intent is kept.
    NewestIntentOnly,
    /// P20: settling drops all of the log, whatever the intent's position.
    IntentWithoutPosition,
    /// A claim takes as many jobs as the queue may have leased, even if others are leased already.
    CapForEachClaim,
    /// An enqueue is compared with `max_pending` without the jobs that are pending already.
    PendingForEachEnqueue,
    /// A member of a group is not blocked by those before it.
    GroupNotHeld,
    /// A group is handed out again while jobs of its last batch are leased.
    BatchNotAwaited,
    /// A job expires although a worker has claimed it in time.
    ExpiresWhenClaimed,
    /// The claims so far do not count against the rate.
    RateForgotten,
    /// A schedule that has fired stays due.
    ScheduleNotMoved,
    /// A dedup window lasts a millisecond too long.
    WindowTooLong,
    /// A dedup window lasts a millisecond too short.
    WindowTooShort,
    /// The ids of jobs that have left are not remembered.
    IdsForgotten,
    /// P14: archive objects are collected by HEAD alone, without the list in the database.
    CollectWithoutList,
    /// P13: an archive object below the floor is listed.
    ListBelowFloor,
    /// An archive object is listed before the store has replied to its upload.
    ListBeforeUpload,
    /// An archive object is listed although its jobs have left meanwhile.
    ListTwice,
    /// The jobs leave in one commit, and their archive object is listed in the next.
    LeaveBeforeListed,
    /// P12: archive keys have no random part.
    FixedArchiveKey,
    /// An earlier run is archived, and sometimes stays stored as well.
    EarlierRunStays,
    /// An earlier run is not stored for the archive.
    EarlierRunForgotten,
    /// P15: an expired archive object is collected before the floor has passed the commit that expired it.
    ExpiredGoesAtOnce,
    /// P15: an expired archive object is never collected.
    ExpiredStays,
    /// An archive object expires before it is too old.
    ExpiresTooSoon,
    /// P28: the first Date is trusted whatever this machine's clock shows.
    DateTrusted,
    /// P28: a sync gets the time of the newest local commit.
    LocalTimePublished,
    /// A sync keeps the times of local commits that a fast clock has made.
    LocalTimesKept,
    /// Every writer uploads segments and bases as if it were alone (decision 22).
    EverybodyUploads,
    /// G10: the store is not tested before the HEAD of an existing queue file is replaced.
    UnprovenFirstWrite,
    /// No writer checks for knocks (decision 32).
    KnockUnheard,
    /// A writer does not wait for its turn (decision 32).
    TurnIgnored,
    /// A writer does not leave the gap that another asks for (decision 29).
    GapIgnored,
    /// P34: the stamp of a claim is the newest one when its result is sent.
    StampAtReply,
    /// P35: a read with an age limit ignores the commit that its process has seen.
    SeenIgnored,
    /// P40: jobs claimed for a connection that has ended are handed back.
    LostConnectionHandsBack,
    /// SQLite keeps its page cache although the pages have changed.
    NoResetCache,
}

/// Returns whether `rule` is the one broken in this engine.
pub(crate) fn is(options: &crate::noun::config::Options, rule: Broken) -> bool {
    options.broken == Some(rule)
}
