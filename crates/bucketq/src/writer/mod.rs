//! The actor that owns the connection: it takes mail, runs batches on the local state and publishes them.
//!
//! One writer per process and queue file; nothing else touches its pages. `gather` decides when a batch is complete,
//! `turn` runs it and answers, `share` leaves gaps for other writers, `aside` starts what takes longer, `push` sends one
//! attempt and settles it, `look` reads HEAD and follows it, `open` brings a writer to life, `archive` and `object` have
//! finished jobs archived, `local` and `sync` are Local mode; `collect` raises the floor and
//! has garbage deleted; `wrong` breaks rules for the simulation. Nothing of an unsettled commit leaves this module (P11),
//! and nothing that is to be published executes during a put.

mod archive;
mod aside;
mod collect;
mod gather;
mod local;
mod look;
mod object;
mod open;
mod push;
mod share;
mod sync;
mod tell;
mod turn;
mod wrong;

pub(crate) use open::Opening;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use gather::Expected;
use share::Sharing;

use crate::catchup::Source;
use crate::config::Options;
use crate::db::{Db, Limits, Moment};
use crate::door::{Collection, Export, Info, Mail, Pass, Question, Shared, Slot, Task, Told};
use crate::env::Env;
use crate::error::{Code, Error, Result};
use crate::gc::Collector;
use crate::head::Head;
use crate::local::Settled;
use crate::pages::{Changes, PAGE, PageFile};
use crate::settle::Shown;
use crate::store::{Store, Version};
use crate::time::Timekeeper;
use crate::upload::Uploads;

/// The settled state a writer stands on.
struct Chain {
    head: Head,
    version: Version,
    /// When the request that showed it to be the newest was sent.
    fresh: Instant,
    pages: PageFile,
    db: Db,
}

/// What a turn works on.
#[derive(Default)]
struct Work {
    slots: Vec<Slot>,
    questions: Vec<Question>,
    collections: Vec<Collection>,
    exports: Vec<Export>,
    archives: Vec<oneshot::Sender<Result<Pass>>>,
    flushes: Vec<oneshot::Sender<()>>,
    tasks: Vec<(Task, oneshot::Sender<Result<Told>>)>,
    /// It is time to look at the store for those who wait.
    poll: bool,
    /// Something that was done beside is ready.
    wake: bool,
}

impl Work {
    fn is_empty(&self) -> bool {
        self.slots.is_empty()
            && self.questions.is_empty()
            && self.collections.is_empty()
            && self.exports.is_empty()
            && self.archives.is_empty()
            && self.flushes.is_empty()
            && self.tasks.is_empty()
            && !self.poll
            && !self.wake
    }
}

/// How a writer paces itself.
struct Pace {
    /// Moving average of a put that was answered.
    put: Duration,
    last_put: Option<Instant>,
    /// As many ops as the last batch released are likely to come back.
    expect: Option<Expected>,
    /// A gap for other writers: nothing is sent before this.
    gap_until: Option<Instant>,
    /// How long after the last look the store is asked again on behalf of waiting claims ...
    poll: Duration,
    /// ... and when that was tried last.
    polled: Instant,
    /// The commit time at which waiting claims last found nothing.
    looked_ms: i64,
    sharing: Sharing,
    /// Moving average of a record's size.
    record: usize,
    /// The largest record of late.
    largest: usize,
    /// Bytes of record for each byte of payload, where there was enough of it to tell.
    swell: f64,
}

/// Payload below which a record's size says nothing of how payloads compress.
const TELLING: usize = 16 * 1024;

impl Pace {
    /// Learn from a record of this size that carries this much payload.
    fn built(&mut self, record: usize, payload: usize) {
        self.record = (self.record * 7 + record) / 8;
        self.largest = record.max(self.largest / 16 * 15);
        if payload >= TELLING {
            self.swell = self.swell.mul_add(0.75, 0.25 * record as f64 / payload as f64);
        }
    }
}

pub(crate) struct Writer {
    source: Source,
    /// The HEAD that was read last.
    shown: Option<Shown>,
    store: Arc<dyn Store>,
    options: Arc<Options>,
    env: Env,
    shared: Arc<Shared>,
    rx: mpsc::UnboundedReceiver<Mail>,
    time: Timekeeper,
    chain: Chain,
    limits: Limits,
    /// Drawn at each open, and again when it turns out to be shared (P6).
    id: [u8; 8],
    attempt: u64,
    /// Commit ids drawn of late; the newest last.
    drawn: VecDeque<[u8; 16]>,
    /// This writer's newest stored commit (P25).
    mine: Option<(u64, [u8; 16])>,
    uploads: Uploads,
    collector: Collector,
    archiver: archive::Archiver,
    /// A collection is asked for: the grace of the commit that raises the floor for it.
    wish: Option<Duration>,
    zstd: zstd::bulk::Compressor<'static>,
    parked: VecDeque<Slot>,
    carry: Vec<Slot>,
    pace: Pace,
    /// Why nothing more is written (P21, P22, P25).
    halted: Option<Error>,
    /// What the last look saw, to be followed once the local changes are undone.
    seen: Option<look::Seen>,
    /// In Local mode: what is written down instead of sent.
    local: Option<local::Local>,
    /// In Durable mode with a cache: the copy that `sqlite3` opens.
    copy: Option<Settled>,
}

impl Writer {
    /// Serve until every handle is gone and everything they sent is answered.
    pub async fn run(mut self, ended: watch::Sender<bool>) {
        while let Some(work) = self.gather().await {
            self.turn(work).await;
        }
        self.leave_archive().await;
        self.leave_base().await;
        self.leave().await;
        self.collector.finish(self.request_limit()).await;
        self.shared.watchers.end();
        // Its directory is free before anybody hears of the end.
        drop(self);
        let _ = ended.send(true);
    }

    pub fn info(&self) -> Info {
        Info {
            file_id: self.chain.head.file_id,
            max_skew_ms: self.chain.head.max_skew_ms,
            directory: match (&self.local, &self.copy) {
                (Some(local), _) => Some(local.log.path()),
                (None, copy) => copy.as_ref().map(Settled::dir),
            },
        }
    }

    /// Undo what was committed locally and not stored.
    fn undo(&mut self, changes: Changes) {
        if let Err(error) = self.chain.pages.with(|p| p.undo(changes)) {
            self.halt(error);
        }
        self.pages_changed_beneath();
    }

    /// Pages were changed beneath `SQLite`: it must not believe anything it remembers. They are those of the commit
    /// that is known, or of a later one.
    fn pages_changed_beneath(&mut self) {
        self.chain.db.rewind(self.chain.head.commit_seq);
        if crate::broken::is(&self.options, crate::broken::Broken::NoResetCache) {
            return;
        }
        if let Err(error) = self.chain.pages.reset_cache(self.chain.db.connection()) {
            self.halt(error);
        }
    }

    fn halt(&mut self, error: Error) -> Error {
        if self.local.is_some() && error.code() != Code::Internal {
            return self.stick(error);
        }
        tracing::error!(%error, "the writer stops writing");
        self.shared.die();
        self.collector.stop();
        self.halted.get_or_insert(error).clone()
    }

    /// Whether this version may change the file as it is now; a newer one may have made it its own meanwhile.
    fn check_writable(&mut self) -> Result<()> {
        let key = crate::keys::head(&self.source.name);
        self.chain.head.check_writable(&key)?;
        self.chain.db.check_writable()
    }

    fn moment(&self, commit_ms: i64) -> Moment {
        Moment { now_ms: commit_ms, commit_seq: self.chain.head.commit_seq + 1 }
    }

    fn draw_commit_id(&mut self) -> [u8; 16] {
        let id = if crate::broken::is(&self.options, crate::broken::Broken::SameCommitId) {
            [7; 16]
        } else {
            self.env.bytes()
        };
        self.drawn.push_back(id);
        if self.drawn.len() > 64 {
            self.drawn.pop_front();
        }
        id
    }

    fn new_id(&mut self) {
        self.id = writer_id(&self.env, &self.options);
        self.attempt = 0;
        self.mine = None;
    }

    fn max_pages(options: &Options) -> u32 {
        u32::try_from(options.max_file / PAGE as u64).unwrap_or(u32::MAX - 1)
    }
}

fn writer_id(env: &Env, options: &Options) -> [u8; 8] {
    if crate::broken::is(options, crate::broken::Broken::SettleByAttempt) { [1; 8] } else { env.bytes() }
}

/// Full-jitter back-off: up to `first`, doubled with each further try, never over `most`.
async fn back_off(env: &Env, first: Duration, most: Duration, tries: u32) {
    let bound = first.saturating_mul(1 << tries.min(16)).min(most);
    let micros = env.below(u64::try_from(bound.as_micros()).unwrap_or(u64::MAX)) + 1;
    env.sleep(Duration::from_micros(micros)).await;
}

type Outcomes = Vec<Result<crate::op::Outcome>>;
