//! The actor that owns the connection: it takes mail, runs batches on the database and publishes them.
//!
//! One writer per process and queue file; nothing else touches its pages. It is an [`Actor`] in one of two modes,
//! `durable` or `local`, over parts that own their fields: `chain` is the known commit with its database, `remote` the
//! store, `identity` and `packer` make records, `waiting` has the callers, `turns` the other writers, `chores` what
//! happens beside commits. `follow`, `build`, `answer` and `events` are what both modes do with them. `open` opens or
//! creates the queue file.

mod answer;
mod build;
mod chain;
mod chores;
mod durable;
mod events;
mod follow;
mod identity;
mod local;
mod open;
mod packer;
mod remote;
mod turns;
mod waiting;

pub(crate) use open::Opening;
pub(crate) use remote::ProvenStores;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use chain::{Chain, NotRun, ReadHead, unseen};
use chores::Chores;
use durable::Durable;
use identity::Identity;
use local::Local;
use packer::Packer;
use remote::Remote;
use turns::Turns;
use waiting::WaitingRoom;

use crate::bucket::head::Head;
use crate::door::{Inbox, Info, Shared, Slot};
use crate::engine::local::Settled;
use crate::engine::time::Timekeeper;
use crate::noun::config::Options;
use crate::noun::env::Env;
use crate::noun::error::{Error, Result};
use crate::noun::op::Outcome;
use crate::state::db::Reported;
use crate::state::pages::{Image, PageChanges};

/// The writer of one queue file.
pub(crate) struct Writer(WriterInMode);

enum WriterInMode {
    Durable(Box<Actor<Durable>>),
    Local(Box<Actor<Local>>),
}

impl Writer {
    /// Serves until every handle is gone and everything they sent has a reply; or until another process is to write for
    /// this one: then returns the mailbox.
    pub async fn run(self, ended: watch::Sender<bool>) -> Option<Inbox> {
        match self.0 {
            WriterInMode::Durable(actor) => Box::pin(actor.run(ended)).await,
            WriterInMode::Local(actor) => {
                Box::pin(actor.run(ended)).await;
                None
            }
        }
    }

    pub fn info(&self) -> Info {
        let (head, directory) = match &self.0 {
            WriterInMode::Durable(actor) => (actor.chain.head(), actor.home.0.as_ref().map(Settled::dir)),
            WriterInMode::Local(actor) => (actor.chain.head(), Some(actor.home.log.path())),
        };
        Info { file_id: head.file_id, max_skew_ms: head.max_skew_ms, directory }
    }

    /// Updates the counts of unpublished changes that handles read.
    pub fn set_unsynced(&self) {
        if let WriterInMode::Local(actor) = &self.0 {
            actor.set_unsynced();
        }
    }
}

/// The state that a mode adds to the parts, and the few steps that each mode does in its own way.
trait Home: Sized + Send {
    /// Returns the pages as of the settled commit that this writer builds on.
    fn settled_image(&self, chain: &Chain) -> Image;

    /// Returns the time of the newest commit, in the store or in the log; reads are never before it.
    fn last_ms(&self, known: &Head, time: &Timekeeper, now_ms: i64) -> i64;

    /// Takes in an error after which nothing is published. Returns false if the writer must stop for good.
    fn sticks(&mut self, error: &Error) -> bool;

    /// Drops what waits for callers that have left, during an outage.
    fn drop_gone(waiting: &mut WaitingRoom);

    /// Waits for `work`, such as a request to the store.
    fn meanwhile<T: Send>(
        actor: &mut Actor<Self>,
        work: impl Future<Output = T> + Send,
    ) -> impl Future<Output = T> + Send;
}

/// A writer in the mode `H`, over parts that own their fields.
struct Actor<H> {
    home: H,
    chain: Chain,
    remote: Remote,
    identity: Identity,
    packer: Packer,
    waiting: WaitingRoom,
    turns: Turns,
    chores: Chores,
    /// Why the writer writes nothing more (P21, P22, P25).
    halted: Option<Error>,
    options: Arc<Options>,
    env: Env,
    shared: Arc<Shared>,
}

impl<H: Home> Actor<H> {
    /// Finishes what runs in the background, and signals the end.
    async fn end(mut self: Box<Self>, ended: watch::Sender<bool>) {
        self.chores.collector.finish(self.remote.request_limit()).await;
        self.remote.end_cas_check().await;
        self.shared.watchers.end();
        // Releases its directory before the end is signalled.
        drop(self);
        let _ = ended.send(true);
    }

    /// Waits for `work`; in Local mode, a sync serves local calls meanwhile.
    async fn meanwhile<T: Send>(&mut self, work: impl Future<Output = T> + Send) -> T {
        H::meanwhile(self, work).await
    }

    /// Undoes a batch that ran and was not committed.
    fn undo(&mut self, changes: PageChanges) {
        if let Err(error) = self.chain.undo(changes) {
            self.halt(error);
        }
    }

    /// Runs the batch in one transaction: see [`Chain::execute`].
    fn execute(&mut self, batch: &[Slot], commit_ms: i64) -> Result<(Outcomes, PageChanges)> {
        let now = self.env.monotonic();
        let ran = self.chain.execute(batch, commit_ms, self.shared.watchers.any(), now);
        ran.map_err(|not_run| match not_run {
            NotRun::Refused(error) => error,
            NotRun::Stuck(error) => self.halt(error),
        })
    }

    /// Stops writing; or only publishing, if local commits can continue.
    fn halt(&mut self, error: Error) -> Error {
        if self.home.sticks(&error) {
            return error;
        }
        tracing::error!(%error, "the writer stops writing");
        self.shared.die();
        self.chores.collector.stop();
        self.halted.get_or_insert(error).clone()
    }

    /// Returns when something is due for waiting callers. The store is polled for them if HEAD, last read at `fresh`,
    /// can show them something.
    fn callers_timer(&mut self, fresh: Option<Instant>) -> Option<Instant> {
        self.waiting.drop_gone_parked();
        if self.halted.is_some() {
            return self.waiting.is_waited_on().then(|| self.env.monotonic());
        }
        self.waiting.timer(fresh, &mut self.chain, &self.remote.time)
    }
}

/// A batch that ran and is not committed yet.
struct Executed {
    outcomes: Outcomes,
    changes: PageChanges,
    told: Reported,
    commit_ms: i64,
    /// Taken before the time of the commit (P26).
    began: Instant,
}

/// Full-jitter back-off: sleeps up to `first`, doubled with each further try, never over `most`.
async fn back_off(env: &Env, first: Duration, most: Duration, tries: u32) {
    let bound = first.saturating_mul(1 << tries.min(16)).min(most);
    let micros = env.below(u64::try_from(bound.as_micros()).unwrap_or(u64::MAX)) + 1;
    env.sleep(Duration::from_micros(micros)).await;
}

type Outcomes = Vec<Result<Outcome>>;

fn succeeded(outcomes: &Outcomes) -> u32 {
    outcomes.iter().filter(|o| o.is_ok()).count() as u32
}

/// Marks the batch as not sent: its body is surely not applied, and callers that give up learn so.
fn unsend(batch: &[Slot]) {
    for slot in batch {
        slot.stage.unsend();
    }
}
