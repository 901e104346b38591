//! The archive: when finished jobs are written to an object, and how the object gets on the list (decision 16).
//!
//! Called by every turn. Rows are read from a settled image, encoded and uploaded beside the writer; then an ordinary
//! commit lists the object and takes its jobs out, or refuses, and the object is garbage. One object at a time.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::Writer;
use super::object::Reader;
use crate::broken::{self, Broken};
use crate::config::{Host, Options};
use crate::db::{Due, Moment};
use crate::door::{Done, Mail, Pass, Slot, Wait, Work};
use crate::error::{Code, Error, Result};
use crate::gc::{self, Kept};
use crate::keys;
use crate::life::Listing;
use crate::metrics::Counters;

/// Jobs that are worth an object of their own at once.
const ENOUGH: u64 = 4_096;
/// Objects read of one image. To freeze one costs a pointer a page, for jobs that are many a good part of an object's
/// time; to keep it costs the pages that change meanwhile.
const OBJECTS: u32 = 16;

/// How long the archive rests after something went wrong, so that not every commit reads and encodes for nothing.
const REST: Duration = Duration::from_secs(30);

/// What came of reading and uploading: an object to be listed, or no job to leave.
type Made = Result<Option<Arc<Listing>>>;
/// That, and who read it and can read the next.
type Ready = (Made, Option<Box<Reader>>);
/// An object in a commit that is under way, and the answer to come.
type Listed = (Option<Arc<Listing>>, oneshot::Receiver<Result<Done>>);
type Order = oneshot::Sender<Result<Pass>>;

/// The archive of one writer.
pub(super) struct Archiver {
    wake: mpsc::WeakUnboundedSender<Mail>,
    /// An object is being made.
    making: Option<oneshot::Receiver<Ready>>,
    /// A commit with it is under way: the object, and the answer.
    listing: Option<Listed>,
    /// Who waits for this pass.
    orders: Vec<Order>,
    /// Who came after it had begun: that it finds nothing tells them nothing.
    late: Vec<Order>,
    /// When it was last looked for what is due by time.
    looked: Option<Instant>,
    /// Commits of this writer when it was last looked at all.
    commits: u64,
    /// It went wrong: nothing begins by itself before this.
    rest: Option<Instant>,
    /// Broken on purpose: jobs have left, and this is to be listed.
    left: Option<Arc<Listing>>,
}

impl Archiver {
    pub fn new(wake: mpsc::WeakUnboundedSender<Mail>) -> Self {
        Self {
            wake,
            making: None,
            listing: None,
            orders: vec![],
            late: vec![],
            looked: None,
            commits: 0,
            rest: None,
            left: None,
        }
    }

    /// Broken on purpose: the jobs have left, and the object is listed by the next commit.
    fn comes_again(&mut self, options: &Options, listing: Option<&Arc<Listing>>) -> bool {
        if !broken::is(options, Broken::LeaveBeforeListed) || self.left.take().is_some() {
            return false;
        }
        self.left = listing.cloned();
        self.wake();
        self.left.is_some()
    }

    /// Have the writer look at what is ready.
    fn wake(&self) {
        if let Some(wake) = self.wake.upgrade() {
            let _ = wake.send(Mail::Wake);
        }
    }

    /// Answer who waits for this pass; and who came later, unless it is that there is nothing.
    fn tell(&mut self, told: &Result<Pass>) {
        let late = if matches!(told, Ok(Pass::Nothing)) { vec![] } else { std::mem::take(&mut self.late) };
        for order in self.orders.drain(..).chain(late) {
            let _ = order.send(told.clone());
        }
    }

    fn is_asked(&self) -> bool {
        !self.orders.is_empty() || !self.late.is_empty()
    }
}

impl Writer {
    /// The archive objects that must stay, as of the settled state. When the list cannot be read, none may go: then the
    /// state is damaged, and every op says so.
    pub(super) fn archives_kept(&mut self) -> Option<Kept> {
        let listed = self.chain.db.archives_kept(self.chain.head.gc_floor);
        listed.map(|all| gc::kept(&all, &self.chain.head.file_id)).ok()
    }

    /// The op that lists the object which is ready, if one is.
    pub(super) fn archive_made(&mut self) -> Option<Slot> {
        if self.archiver.listing.is_some() {
            // One that lost a race comes first: this one is of a state without its jobs.
            return None;
        }
        if let Some(listing) = self.archiver.left.clone() {
            return Some(self.archive_slot(Some(listing)));
        }
        let (made, reader) = match self.archiver.making.as_mut()?.try_recv() {
            Err(oneshot::error::TryRecvError::Empty) => return None,
            Err(oneshot::error::TryRecvError::Closed) => {
                (Err(Error::new(Code::Internal, "an archive object was not finished")), None)
            }
            Ok(ready) => ready,
        };
        self.archiver.making = None;
        let at_end = reader.as_ref().is_some_and(|r| r.made > 0);
        match made {
            Ok(Some(listing)) => {
                let more = listing.object.jobs >= ENOUGH || self.archiver.is_asked();
                if more && !broken::is(&self.options, Broken::LeaveBeforeListed) {
                    // The next object is made while this one is listed: of a state without these jobs.
                    self.start_archive(Some(&listing), reader);
                }
                Some(self.archive_slot(Some(listing)))
            }
            Ok(None) if at_end && !self.archiver.orders.is_empty() => {
                // No more in that state; other jobs may have finished since.
                let listed = self.archiver.listing.as_ref().and_then(|(listing, _)| listing.clone());
                self.start_archive(listed.as_deref(), None);
                None
            }
            // Who asks has what is too old given up as well.
            Ok(None) if !self.archiver.orders.is_empty() && self.archives_too_old() => {
                Some(self.archive_slot(None))
            }
            Ok(None) => {
                self.archiver.tell(&Ok(Pass::Nothing));
                None
            }
            Err(error) => {
                tracing::warn!(%error, "an archive object could not be written; it is tried again later");
                self.archiver.rest = Some(self.env.monotonic() + REST);
                self.archiver.tell(&Err(error));
                None
            }
        }
    }

    fn archive_slot(&mut self, listing: Option<Arc<Listing>>) -> Slot {
        let (tx, rx) = oneshot::channel();
        self.archiver.listing = Some((listing.clone(), rx));
        // Others may be at work while the archive is written by itself; who asks for it wants the pages back.
        let tidy = self.archiver.is_asked();
        Slot {
            work: Work::Archive { listing, tidy },
            wait: Wait::No,
            arrived: self.env.monotonic(),
            stage: Arc::default(),
            reply: Some(tx),
        }
    }

    /// Answer those who waited for the object of this turn, and begin the next if there is reason to.
    pub(super) async fn archive(&mut self, orders: Vec<Order>) {
        self.archive_listed();
        self.archiver.late.extend(orders);
        for waiting in [&mut self.archiver.orders, &mut self.archiver.late] {
            waiting.retain(|order| !order.is_closed());
        }
        if let Some(error) = self.halted.clone() {
            self.archiver.making = None;
            self.archiver.tell(&Err(error));
            return;
        }
        if self.archiver.making.is_some() || self.archiver.listing.is_some() {
            return;
        }
        if !self.archiver.late.is_empty() {
            self.archiver.orders.append(&mut self.archiver.late);
            // Of the newest state: jobs of others leave too.
            match self.refresh().await {
                Ok(_) => self.start_archive(None, None),
                Err(error) => self.archiver.tell(&Err(error)),
            }
            return;
        }
        match self.archive_due() {
            Due::Nothing => {}
            Due::Jobs => self.start_archive(None, None),
            Due::Objects => {
                let slot = self.archive_slot(None);
                self.carry.push(slot);
            }
        }
    }

    /// What became of the commit with an object in it.
    fn archive_listed(&mut self) {
        let Some((listing, mut answer)) = self.archiver.listing.take() else { return };
        let jobs = listing.as_ref().map_or(0, |l| l.object.jobs);
        let told = match answer.try_recv() {
            Ok(Ok(_)) if self.archiver.comes_again(&self.options, listing.as_ref()) => return,
            Ok(Ok(done)) => {
                tracing::debug!(jobs, commit_seq = done.commit_seq, "archived");
                Counters::add(&self.shared.counters.archived_jobs, jobs);
                Ok(Pass::Listed(jobs))
            }
            Ok(Err(error)) if error.code() == Code::Contended => Ok(Pass::Again),
            Ok(Err(error)) => Err(error),
            Err(oneshot::error::TryRecvError::Empty) => {
                // Carried over to another batch.
                self.archiver.listing = Some((listing, answer));
                return;
            }
            Err(oneshot::error::TryRecvError::Closed) => return,
        };
        if let Err(error) = &told {
            tracing::warn!(%error, "an archive object could not be listed; its jobs stay until the next");
            self.archiver.rest = Some(self.env.monotonic() + REST);
        }
        if !matches!(told, Ok(Pass::Listed(_))) {
            // What is being made counts on these jobs having left.
            self.archiver.making = None;
        }
        if self.archiver.making.is_some() {
            // It may have been ready for a while.
            self.archiver.wake();
        }
        self.archiver.tell(&told);
    }

    /// Whether there is something to do, asked after commits of this writer only: an idle queue file costs nothing (G9).
    fn archive_due(&mut self) -> Due {
        let commits = self.shared.counters.read().commits;
        if commits == std::mem::replace(&mut self.archiver.commits, commits) || self.check_writable().is_err()
        {
            return Due::Nothing;
        }
        let every = self.options.archive_every;
        let now = self.env.monotonic();
        if self.archiver.rest.is_some_and(|until| now < until) {
            return Due::Nothing;
        }
        let pause = (every / 4).min(Duration::from_mins(1));
        let thorough = self.archiver.looked.is_none_or(|at| now.saturating_duration_since(at) >= pause);
        if thorough {
            self.archiver.looked = Some(now);
        }
        let every_ms = i64::try_from(every.as_millis()).unwrap_or(i64::MAX);
        let at = self.settled_moment();
        self.chain.db.archive_due(&at, ENOUGH, every_ms, thorough).unwrap_or(Due::Nothing)
    }

    fn archives_too_old(&mut self) -> bool {
        let at = self.settled_moment();
        self.chain.db.archives_too_old(&at).unwrap_or(false)
    }

    fn settled_moment(&self) -> Moment {
        let head = &self.chain.head;
        Moment { now_ms: self.time.now_ms().max(head.commit_ms), commit_seq: head.commit_seq }
    }

    /// Read, encode and upload beside the writer, without the jobs that are being listed; [`Mail::Wake`] tells when it
    /// is done. A reader goes on where it was, unless its image is too old.
    fn start_archive(&mut self, listed: Option<&Listing>, reader: Option<Box<Reader>>) {
        let (tx, rx) = oneshot::channel();
        let head = &self.chain.head;
        let goes_on = |r: &Reader| r.made < OBJECTS && r.at.commit_seq >= head.gc_floor;
        let mut reader = reader.filter(|r| goes_on(r)).unwrap_or_else(|| {
            let (image, at) = (self.settled_image(), self.settled_moment());
            Box::new(Reader::new(image, at, head.file_id, self.source.max_pages, listed))
        });
        let rand = if broken::is(&self.options, Broken::FixedArchiveKey) { [0; 8] } else { self.env.bytes() };
        let seq = reader.at.commit_seq;
        let key = keys::archive(&self.source.name, &keys::file8(&head.file_id), seq, &rand);
        let (store, wake) = (Arc::clone(&self.store), self.archiver.wake.clone());
        let inline = self.options.host == Host::CurrentRuntime;
        let early = broken::is(&self.options, Broken::ListBeforeUpload);
        let done = move |ready: Ready| {
            let _ = tx.send(ready);
            if let Some(wake) = wake.upgrade() {
                let _ = wake.send(Mail::Wake);
            }
        };
        self.archiver.making = Some(rx);
        let read = move || reader.object(rand).map(|made| (made, reader));
        // At once and not when this thread has time for it: it is about to commit what was read before.
        let read = if inline { Err(read) } else { Ok(tokio::task::spawn_blocking(read)) };
        tokio::spawn(async move {
            let read = match read {
                Ok(beside) => beside
                    .await
                    .unwrap_or_else(|e| Err(Error::new(Code::Internal, "archiving ended early").because(e))),
                Err(inline) => inline(),
            };
            match read {
                Ok((Some((body, listing)), reader)) if early => {
                    done((Ok(Some(listing)), Some(reader)));
                    let _ = store.put_new(&key, body.into()).await;
                }
                Ok((Some((body, listing)), reader)) => {
                    let made = store.put_new(&key, body.into()).await.map(|()| Some(listing));
                    done((made, Some(reader)));
                }
                Ok((None, reader)) => done((Ok(None), Some(reader))),
                Err(error) => done((Err(error), None)),
            }
        });
    }

    /// List what is on its way, when the last handle has gone: a process that lives for a moment would else upload
    /// objects for nothing, each time.
    pub(super) async fn leave_archive(&mut self) {
        let Some(making) = self.archiver.making.take() else { return };
        if self.halted.is_some() {
            return;
        }
        let (env, limit) = (self.env.clone(), self.request_limit());
        let last = async {
            if let Ok((Ok(Some(listing)), _)) = making.await {
                let slot = self.archive_slot(Some(listing));
                self.carry.push(slot);
                while !self.carry.is_empty() {
                    let again = std::mem::take(&mut self.carry);
                    Box::pin(self.commit(again, &mut vec![])).await;
                }
            }
        };
        tokio::select! {
            biased;
            () = last => {}
            () = env.sleep(limit) => {}
        }
    }
}
