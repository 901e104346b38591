//! Archiving: when finished jobs are written to an object, and how the object gets on the list (decision 16).
//!
//! Called by every round. A background task reads rows from a settled image, encodes and uploads them. Then an ordinary
//! commit lists the object and removes its jobs; if it fails, the object is garbage. One object at a time.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::Chain;
use super::archive_object::ObjectReader;
use crate::bucket::keys;
use crate::bytes::metrics::Counters;
use crate::door::{ArchiveStep, Done, Load, Mail, ReplyTo, Shared, Slot, Wait, Work};
use crate::engine::writer::remote::Remote;
use crate::noun::config::{Host, Options};
use crate::noun::env::Env;
use crate::noun::error::{Code, Error, Result};
use crate::noun::life::Listing;
use crate::state::db::ArchiveDue;

/// Jobs that are worth an object of their own without waiting for more.
const ENOUGH: u64 = 4_096;
/// Objects read from one image. Freezing an image costs a pointer per page, which for many jobs is a good part of an
/// object's time; keeping it costs the pages that change meanwhile.
const OBJECTS: u32 = 16;

/// Pause after an error, so that not every commit reads and encodes without success.
const REST: Duration = Duration::from_secs(30);

/// The outcome of reading and uploading: an object to be listed, or `None` when no job is due.
type Made = Result<Option<Arc<Listing>>>;
/// That, and the reader, which can read the next object.
type Ready = (Made, Option<Box<ObjectReader>>);
/// An object whose commit is under way, and the channel for the reply.
type ListingCommit = (Option<Arc<Listing>>, oneshot::Receiver<Result<Done>>);
pub(in crate::engine::writer) type ArchiveReply = oneshot::Sender<Result<ArchiveStep>>;

/// The archive of one writer.
pub(in crate::engine::writer) struct Archiver {
    wake: mpsc::WeakUnboundedSender<Mail>,
    options: Arc<Options>,
    env: Env,
    shared: Arc<Shared>,
    /// An object is being made.
    making: Option<oneshot::Receiver<Ready>>,
    /// The commit that lists an object is under way.
    listing: Option<ListingCommit>,
    /// Callers of this pass.
    orders: Vec<ArchiveReply>,
    /// Callers that came after it had begun: if it finds nothing, there may still be jobs for them.
    late: Vec<ArchiveReply>,
    /// When jobs due by time were last looked for.
    looked: Option<Instant>,
    /// Commits of this writer at the last look.
    commits: u64,
    /// After an error: nothing begins by itself before this.
    rest: Option<Instant>,
}

impl Archiver {
    pub fn new(
        wake: mpsc::WeakUnboundedSender<Mail>,
        options: &Arc<Options>,
        env: &Env,
        shared: &Arc<Shared>,
    ) -> Self {
        Self {
            wake,
            options: Arc::clone(options),
            env: env.clone(),
            shared: Arc::clone(shared),
            making: None,
            listing: None,
            orders: vec![],
            late: vec![],
            looked: None,
            commits: 0,
            rest: None,
        }
    }

    /// Wakes the writer, which then looks for finished objects.
    fn wake(&self) {
        if let Some(wake) = self.wake.upgrade() {
            let _ = wake.send(Mail::Wake);
        }
    }

    /// Replies to callers of this pass, and to later callers unless it found nothing.
    pub fn reply(&mut self, told: &Result<ArchiveStep>) {
        let late =
            if matches!(told, Ok(ArchiveStep::Nothing)) { vec![] } else { std::mem::take(&mut self.late) };
        for order in self.orders.drain(..).chain(late) {
            let _ = order.send(told.clone());
        }
    }

    fn is_asked(&self) -> bool {
        !self.orders.is_empty() || !self.late.is_empty()
    }

    /// Takes in callers that want a pass, and drops those that no longer wait.
    pub fn ask(&mut self, orders: Vec<ArchiveReply>) {
        self.late.extend(orders);
        for waiting in [&mut self.orders, &mut self.late] {
            waiting.retain(|order| !order.is_closed());
        }
    }

    /// Fails all callers, and drops the object under way.
    pub fn fail(&mut self, error: Error) {
        self.making = None;
        self.reply(&Err(error));
    }

    /// Returns whether an object is being made or listed.
    pub fn is_busy(&self) -> bool {
        self.making.is_some() || self.listing.is_some()
    }

    /// Returns whether callers wait for a pass that has not begun.
    pub fn is_late(&self) -> bool {
        !self.late.is_empty()
    }

    /// Begins the pass of these callers.
    pub fn begin_pass(&mut self) {
        self.orders.append(&mut self.late);
    }

    /// Returns whether an object is being made.
    pub fn is_making(&self) -> bool {
        self.making.is_some()
    }

    /// Waits for the object under way, and returns the op that lists it.
    pub async fn last(&mut self) -> Option<Slot> {
        match self.making.take()?.await {
            Ok((Ok(Some(listing)), _)) => Some(self.slot(Some(listing))),
            _ => None,
        }
    }

    /// Begins to make an object from the known state.
    pub fn begin(&mut self, chain: &Chain, remote: &Remote) {
        self.start(None, None, chain, remote);
    }
}

impl Archiver {
    /// Returns the op that lists the finished object, if there is one.
    pub fn made(&mut self, chain: &mut Chain, remote: &Remote) -> Option<Slot> {
        if self.listing.is_some() {
            // An object that lost a race comes first: this one was made without its jobs.
            return None;
        }
        let (made, reader) = match self.making.as_mut()?.try_recv() {
            Err(oneshot::error::TryRecvError::Empty) => return None,
            Err(oneshot::error::TryRecvError::Closed) => {
                (Err(Error::bug("an archive object was not finished")), None)
            }
            Ok(ready) => ready,
        };
        self.making = None;
        let at_end = reader.as_ref().is_some_and(|r| r.made > 0);
        match made {
            Ok(Some(listing)) => {
                let more = listing.object.jobs >= ENOUGH || self.is_asked();
                if more {
                    // The next object is made while this one is listed, from a state without these jobs.
                    self.start(Some(&listing), reader, chain, remote);
                }
                Some(self.slot(Some(listing)))
            }
            Ok(None) if at_end && !self.orders.is_empty() => {
                // That state has no more jobs; others may have finished since.
                let listed = self.listing.as_ref().and_then(|(listing, _)| listing.clone());
                self.start(listed.as_deref(), None, chain, remote);
                None
            }
            // A requested pass also expires archive objects that are too old.
            Ok(None) if !self.orders.is_empty() && too_old(chain, remote) => Some(self.slot(None)),
            Ok(None) => {
                self.reply(&Ok(ArchiveStep::Nothing));
                None
            }
            Err(error) => {
                tracing::warn!(%error, "an archive object could not be written; it is tried again later");
                self.rest = Some(self.env.monotonic() + REST);
                self.reply(&Err(error));
                None
            }
        }
    }

    /// Returns the op that lists this object; without one, it only expires objects that are too old.
    pub fn slot(&mut self, listing: Option<Arc<Listing>>) -> Slot {
        let (tx, rx) = oneshot::channel();
        self.listing = Some((listing.clone(), rx));
        // An automatic commit must not slow others down; a caller that requested it wants the pages back.
        let tidy = self.is_asked();
        Slot {
            load: Load::new(Work::Archive { listing, tidy }, None),
            wait: Wait::No,
            arrived: self.env.monotonic(),
            stage: Arc::default(),
            session: None,
            reply: ReplyTo::Caller(tx),
        }
    }

    /// Takes in the outcome of the commit that lists an object.
    pub fn listed(&mut self) {
        let Some((listing, mut answer)) = self.listing.take() else { return };
        let jobs = listing.as_ref().map_or(0, |l| l.object.jobs);
        let told = match answer.try_recv() {
            Ok(Ok(done)) => {
                tracing::debug!(jobs, commit_seq = done.commit_seq, "archived");
                Counters::add(&self.shared.counters.archived_jobs, jobs);
                Ok(ArchiveStep::Listed(jobs))
            }
            Ok(Err(error)) if error.code() == Code::Contended => Ok(ArchiveStep::Again),
            Ok(Err(error)) => Err(error),
            Err(oneshot::error::TryRecvError::Empty) => {
                // Carried over to another batch.
                self.listing = Some((listing, answer));
                return;
            }
            Err(oneshot::error::TryRecvError::Closed) => return,
        };
        if let Err(error) = &told {
            tracing::warn!(%error, "an archive object could not be listed; its jobs stay until the next");
            self.rest = Some(self.env.monotonic() + REST);
        }
        if !matches!(told, Ok(ArchiveStep::Listed(_))) {
            // Drop the next object: it was made as if these jobs had left.
            self.making = None;
        }
        if self.making.is_some() {
            // It may have been finished for a while.
            self.wake();
        }
        self.reply(&told);
    }

    /// Returns what is due; checks only after commits of this writer, so that an idle queue file costs nothing (G9).
    pub fn due(&mut self, chain: &mut Chain, remote: &Remote) -> ArchiveDue {
        let commits = self.shared.counters.read().commits;
        if commits == std::mem::replace(&mut self.commits, commits) || chain.check_writable().is_err() {
            return ArchiveDue::Nothing;
        }
        let every = self.options.archive_every;
        let now = self.env.monotonic();
        if self.rest.is_some_and(|until| now < until) {
            return ArchiveDue::Nothing;
        }
        let pause = (every / 4).min(Duration::from_mins(1));
        let thorough = self.looked.is_none_or(|at| now.saturating_duration_since(at) >= pause);
        if thorough {
            self.looked = Some(now);
        }
        let every_ms = i64::try_from(every.as_millis()).unwrap_or(i64::MAX);
        let at = chain.settled_moment(remote.time.now_ms());
        chain.db.archive_due(&at, ENOUGH, every_ms, thorough).unwrap_or(ArchiveDue::Nothing)
    }

    /// Starts to read, encode and upload in the background, without the jobs that are being listed; [`Mail::Wake`]
    /// signals the end. A reader continues where it was, unless its image is too old.
    fn start(
        &mut self,
        listed: Option<&Listing>,
        reader: Option<Box<ObjectReader>>,
        chain: &Chain,
        remote: &Remote,
    ) {
        let (tx, rx) = oneshot::channel();
        let head = chain.head();
        let goes_on = |r: &ObjectReader| r.made < OBJECTS && r.at.commit_seq >= head.gc_floor;
        let mut reader = reader.filter(|r| goes_on(r)).unwrap_or_else(|| {
            let (image, at) = (chain.image(), chain.settled_moment(remote.time.now_ms()));
            Box::new(ObjectReader::new(image, at, head.file_id, remote.source.max_pages, listed))
        });
        let rand = self.env.bytes();
        let seq = reader.at.commit_seq;
        let key = keys::archive(&remote.source.name, &keys::file8(&head.file_id), seq, &rand);
        let (store, wake) = (remote.store(), self.wake.clone());
        let inline = self.options.host == Host::CurrentRuntime;
        let done = move |ready: Ready| {
            let _ = tx.send(ready);
            if let Some(wake) = wake.upgrade() {
                let _ = wake.send(Mail::Wake);
            }
        };
        self.making = Some(rx);
        let read = move || reader.object(rand).map(|made| (made, reader));
        // Start now, not when this thread has time: it is about to commit the object before.
        let read = if inline { Err(read) } else { Ok(tokio::task::spawn_blocking(read)) };
        tokio::spawn(async move {
            let read = match read {
                Ok(beside) => {
                    beside.await.unwrap_or_else(|e| Err(Error::bug("archiving ended early").because(e)))
                }
                Err(inline) => inline(),
            };
            match read {
                Ok((Some((body, listing)), reader)) => {
                    let made = store.put_new(&key, body.into()).await.map(|()| Some(listing));
                    done((made, Some(reader)));
                }
                Ok((None, reader)) => done((Ok(None), Some(reader))),
                Err(error) => done((Err(error), None)),
            }
        });
    }
}

fn too_old(chain: &mut Chain, remote: &Remote) -> bool {
    let at = chain.settled_moment(remote.time.now_ms());
    chain.db.archives_too_old(&at).unwrap_or(false)
}
