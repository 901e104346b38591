//! Every query of a queue file as data: a [`Query`] goes in, an [`Answer`] comes out. No I/O.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::noun::job::{Attempt, Job, JobId, Payload, State};
use crate::noun::life::{Archived, Life};
use crate::noun::policy::Policy;
use crate::noun::schedule::Schedule;

/// One query. Queries read settled state only (P11).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Query {
    /// One job with its bytes.
    Get(JobId),
    /// Several jobs with their bytes, at most 1,000. The result may end before the last of them: ask for the rest.
    GetMany(Vec<JobId>),
    /// Jobs in the order of their enqueues.
    List {
        /// Which jobs.
        filter: Filter,
        /// Where the previous page ended.
        after: Option<Cursor>,
        /// Jobs per page, 1 to 1,000.
        limit: u32,
    },
    /// Jobs with their bytes in the order of their enqueues. A page may have fewer jobs than its limit and yet not be the
    /// last one, because its bytes are limited too.
    ListWhole {
        /// Which jobs.
        filter: Filter,
        /// Where the previous page ended.
        after: Option<Cursor>,
        /// Jobs per page, 1 to 1,000.
        limit: u32,
    },
    /// Every queue with its counts.
    Queues,
    /// The queue file as a whole.
    Stats,
    /// The commits that the log still has, newest first.
    History {
        /// At most this number.
        limit: u32,
    },
    /// The policy of a queue; every default if the queue does not exist.
    Policy(String),
    /// The schedules of a queue, or of all.
    Schedules(Option<String>),
    /// The archive objects, oldest listing first.
    Archives {
        /// Only of this queue.
        queue: Option<String>,
        /// Only those with runs that finished after this `finish_seq`.
        after: u64,
    },
    /// Finished runs that are not archived, in the order in which they finished.
    Finished {
        /// Only of this queue.
        queue: Option<String>,
        /// After this `finish_seq` ...
        after: u64,
        /// ... up to this one.
        until: u64,
        /// At most this number, 1 to 1,000.
        limit: u32,
    },
}

/// Which jobs a list returns; an empty filter returns all.
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
    /// Pass it to get the next page; none at the end.
    pub next: Option<Cursor>,
    /// Where this page ends. Pass it later to get the jobs that were enqueued since.
    #[serde(default)]
    pub last: Option<Cursor>,
}

/// One page of a list of jobs with their bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DetailPage {
    /// The jobs.
    pub jobs: Vec<Detail>,
    /// Pass it to get the next page; none at the end.
    pub next: Option<Cursor>,
    /// Where this page ends. Pass it later to get the jobs that were enqueued since.
    pub last: Option<Cursor>,
}

/// One job with its bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Detail {
    /// The job, without its bytes.
    pub job: Job,
    /// The bytes to work on.
    pub payload: Payload,
    /// Its result.
    pub result: Option<Payload>,
    /// Failed attempts and the ends of earlier runs, oldest first; the newest hundred.
    #[serde(default)]
    pub attempts: Vec<Attempt>,
}

/// One queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueInfo {
    /// Its name.
    pub name: String,
    /// The queue is paused: claims get no jobs from it.
    pub paused: bool,
    /// The queue is drained: it accepts and hands out no jobs until it is resumed.
    #[serde(default)]
    pub draining: bool,
    /// Jobs ever cancelled to make room for newer ones.
    #[serde(default)]
    pub dropped: u64,
    /// Jobs by state; every state has an entry.
    pub counts: BTreeMap<State, u64>,
    /// Leased jobs whose lease has run out; the leased ones include them.
    pub expired: u64,
    /// Scheduled jobs whose time has come; the scheduled ones include them.
    pub due: u64,
    /// How long the oldest claimable job has waited; none when no job is claimable.
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
    /// Unused pages among them.
    pub free_pages: u64,
    /// Queues are created by name only, not by their first job.
    #[serde(default)]
    pub strict_queues: bool,
}

/// One schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScheduleInfo {
    /// Its queue.
    pub queue: String,
    /// Its name there.
    pub name: String,
    /// Its times and its job.
    pub schedule: Schedule,
    /// When it enqueues next.
    pub next_ms: i64,
    /// The last time that it enqueued a job for.
    pub last_ms: Option<i64>,
    /// Jobs it has enqueued.
    pub fired: u64,
    /// Why this library cannot run the schedule, if so: claims of this version skip it.
    #[serde(default)]
    pub paused: Option<String>,
}

/// The result of a collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collected {
    /// Objects deleted.
    pub objects: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Objects that HEAD does not refer to and that still exist: too young, on their way into HEAD, or not deleted
    /// because the store refused.
    pub left: u64,
    /// Bytes of those.
    pub left_bytes: u64,
    /// Objects of commits before this one could be deleted.
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
    /// The id of the writer that made it, in hexadecimal digits.
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
    /// The commit it has.
    pub commit_seq: u64,
    /// Its id, in hexadecimal digits.
    pub commit_id: String,
    /// Its time.
    pub commit_ms: i64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// The result of a query.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Answer {
    /// For [`Query::Get`].
    Job(Option<Box<Detail>>),
    /// For [`Query::GetMany`]: the first of them, at least one.
    Jobs(Vec<Option<Detail>>),
    /// For [`Query::List`].
    Page(Page),
    /// For [`Query::ListWhole`].
    Details(DetailPage),
    /// For [`Query::Queues`].
    Queues(Vec<QueueInfo>),
    /// For [`Query::Stats`].
    Stats(Stats),
    /// For [`Query::History`].
    History(Vec<Commit>),
    /// For [`Query::Policy`].
    Policy(Box<Policy>),
    /// For [`Query::Schedules`], by queue and name.
    Schedules(Vec<ScheduleInfo>),
    /// For [`Query::Archives`].
    Archives(Archives),
    /// For [`Query::Finished`].
    Finished(Finished),
}

/// The archive at one commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Archives {
    /// The commit. A run that finished up to it is in these objects or among the finished runs of that commit, never in
    /// both.
    pub commit_seq: u64,
    /// The objects.
    pub objects: Vec<Archived>,
}

/// Finished runs at one commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// The commit.
    pub commit_seq: u64,
    /// The runs.
    pub lives: Vec<Life>,
}
