//! Every question to a queue file as data: a [`Query`] goes in, an [`Answer`] comes out. No I/O.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::job::{Attempt, Job, JobId, Payload, State};
use crate::life::{Archived, Life};
use crate::policy::Policy;
use crate::schedule::Schedule;

/// One question. Questions are answered from settled state only (P11).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Query {
    /// One job with its bytes.
    Get(JobId),
    /// Jobs in the order of their enqueues.
    List {
        /// Which.
        filter: Filter,
        /// Where the page before ended.
        after: Option<Cursor>,
        /// Jobs a page, 1 to 1,000.
        limit: u32,
    },
    /// Every queue with its counts.
    Queues,
    /// The queue file as a whole.
    Stats,
    /// The commits that the log still has, newest first.
    History {
        /// At most so many.
        limit: u32,
    },
    /// The policy of a queue; every default for one that does not exist.
    Policy(String),
    /// The schedules of a queue, or of all.
    Schedules(Option<String>),
    /// The archive objects, oldest listing first.
    Archives {
        /// Only of this queue.
        queue: Option<String>,
        /// Only those with lives that finished after this place in the order of finishes.
        after: u64,
    },
    /// Lives that ended and are not archived, in the order in which they finished.
    Finished {
        /// Only of this queue.
        queue: Option<String>,
        /// After this place in the order of finishes ...
        after: u64,
        /// ... up to this one.
        until: u64,
        /// At most so many, 1 to 1,000.
        limit: u32,
    },
}

/// Which jobs a list shows; an empty filter shows all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    /// Only this queue.
    pub queue: Option<String>,
    /// Only these states; empty for all.
    pub states: Vec<State>,
    /// Only this group.
    pub group: Option<String>,
    /// Only leased jobs whose lease has run out.
    pub expired: bool,
    /// Only jobs whose last error contains this text.
    #[serde(default)]
    pub error: Option<String>,
}

/// Where a page ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor(pub u64);

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Page {
    /// The jobs, without their bytes.
    pub jobs: Vec<Job>,
    /// Pass it on to get the next page; none at the end.
    pub next: Option<Cursor>,
}

/// One job with its bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Detail {
    /// What is known of it.
    pub job: Job,
    /// What to work on.
    pub payload: Payload,
    /// What came of it.
    pub result: Option<Payload>,
    /// What went wrong so far, and how earlier lives ended, oldest first; the newest hundred.
    #[serde(default)]
    pub attempts: Vec<Attempt>,
}

/// One queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueInfo {
    /// Its name.
    pub name: String,
    /// Claims get nothing from it.
    pub paused: bool,
    /// Nothing goes in or out until it is resumed.
    #[serde(default)]
    pub draining: bool,
    /// Jobs cancelled to make room for newer ones, ever.
    #[serde(default)]
    pub dropped: u64,
    /// Jobs by state; every state is there.
    pub counts: BTreeMap<State, u64>,
    /// Leased jobs whose lease has run out; they are also in the count of leased ones.
    pub expired: u64,
    /// Scheduled jobs whose time has come; they are also in the count of scheduled ones.
    pub due: u64,
    /// How long the job that has been claimable longest has waited; none when nothing is claimable.
    pub oldest_ready_ms: Option<i64>,
}

/// The queue file as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Every queue, by name.
    pub queues: Vec<QueueInfo>,
    /// The commit this was read from.
    pub commit_seq: u64,
    /// Its id, in hexadecimal digits.
    pub commit_id: String,
    /// Its time.
    pub commit_ms: i64,
    /// Pages of the database, 4,096 bytes each.
    pub pages: u64,
    /// Of those, pages that hold nothing.
    pub free_pages: u64,
}

/// One schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScheduleInfo {
    /// Its queue.
    pub queue: String,
    /// Its name there.
    pub name: String,
    /// When and what.
    pub schedule: Schedule,
    /// When it enqueues next.
    pub next_ms: i64,
    /// The newest time it enqueued for.
    pub last_ms: Option<i64>,
    /// Jobs it has enqueued.
    pub fired: u64,
}

/// What a collection did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collected {
    /// Objects deleted.
    pub objects: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Objects that HEAD does not refer to and that are still there: too young, on their way into HEAD, or not deleted
    /// because the store refused.
    pub left: u64,
    /// Bytes of those.
    pub left_bytes: u64,
    /// What belongs to commits before this one could be deleted.
    pub floor: u64,
}

/// One commit of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    /// Its number.
    pub commit_seq: u64,
    /// Its id, in hexadecimal digits.
    pub commit_id: String,
    /// Its time.
    pub commit_ms: i64,
    /// Who wrote it: the writer's id, in hexadecimal digits.
    pub writer: String,
    /// Ops in it.
    pub ops: u32,
    /// Bytes it takes in the log.
    pub bytes: u64,
    /// Pages it changed.
    pub pages_changed: u64,
    /// Pages of the database after it.
    pub pages: u64,
}

/// An image written to a file of this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exported {
    /// The commit it shows.
    pub commit_seq: u64,
    /// Its id, in hexadecimal digits.
    pub commit_id: String,
    /// Its time.
    pub commit_ms: i64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// What a query found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Answer {
    /// Answer to [`Query::Get`].
    Job(Option<Box<Detail>>),
    /// Answer to [`Query::List`].
    Page(Page),
    /// Answer to [`Query::Queues`].
    Queues(Vec<QueueInfo>),
    /// Answer to [`Query::Stats`].
    Stats(Stats),
    /// Answer to [`Query::History`].
    History(Vec<Commit>),
    /// Answer to [`Query::Policy`].
    Policy(Box<Policy>),
    /// Answer to [`Query::Schedules`], by queue and name.
    Schedules(Vec<ScheduleInfo>),
    /// Answer to [`Query::Archives`].
    Archives(Archives),
    /// Answer to [`Query::Finished`].
    Finished(Finished),
}

/// The archive at one commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Archives {
    /// The commit. What finished up to it is in these objects or among the finished lives of that commit, never in both.
    pub commit_seq: u64,
    /// The objects.
    pub objects: Vec<Archived>,
}

/// Finished lives at one commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// The commit.
    pub commit_seq: u64,
    /// The lives.
    pub lives: Vec<Life>,
}
