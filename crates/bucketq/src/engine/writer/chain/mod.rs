//! The known commit: its HEAD with its version in the store, and the database with its pages at that commit.
//!
//! Only this part changes the pages: `execute` runs ops on them, the functions here undo, follow and replace them. An
//! error of [`Chain::undo`] or [`Chain::reset_cache`] means that the pages may be those of no commit: the writer must
//! stop. Sends nothing itself.

mod execute;

use tokio::time::Instant;

pub(super) use execute::NotRun;

use crate::bucket::head::Head;
use crate::bucket::keys;
use crate::bucket::record::Record;
use crate::bucket::wire::corrupt;
use crate::bytes::store::Version;
use crate::engine::catchup::{FetchError, Source};
use crate::engine::gc::{self, LiveArchives};
use crate::noun::config::Options;
use crate::noun::error::{Kind, Result};
use crate::noun::query::{Answer, Query};
use crate::state::db::{BroughtBack, Db, Limits, Moment};
use crate::state::pages::{Image, PageChanges, PageFile, Pages};

/// Tries to read a damaged object: a torn reply passes, a damaged object stays.
const DAMAGED: u32 = 4;

/// HEAD as it was read.
pub(super) struct ReadHead {
    pub head: Head,
    pub version: Version,
    pub asked: Instant,
}

/// Returns the version of a HEAD that this process has not read; no request is made with it.
pub(super) fn unseen() -> Version {
    Version::new("")
}

pub(super) struct Chain {
    head: Head,
    version: Version,
    /// When the request was sent that last showed it to be the newest.
    fresh: Instant,
    pages: PageFile,
    /// For reads; ops run by [`Chain::execute`].
    pub db: Db,
    limits: Limits,
    name: String,
}

impl Chain {
    /// Returns the chain with this HEAD and its pages.
    pub fn new(seen: ReadHead, pages: Pages, options: &Options, source: &Source) -> Result<Self> {
        let pages = PageFile::new(pages);
        let db = Db::open(pages.connect(source.max_pages)?)?;
        let limits = Limits { max_payload: options.max_payload, max_pages: source.max_pages };
        let ReadHead { head, version, asked: fresh } = seen;
        Ok(Self { head, version, fresh, pages, db, limits, name: source.name.clone() })
    }

    pub fn head(&self) -> &Head {
        &self.head
    }

    pub fn version(&self) -> &Version {
        &self.version
    }

    pub fn fresh(&self) -> Instant {
        self.fresh
    }

    /// Returns the number and the time of the known commit.
    pub fn newest(&self) -> (u64, i64) {
        (self.head.commit_seq, self.head.commit_ms)
    }

    /// Returns the pages as they are now.
    pub fn image(&self) -> Image {
        self.pages.with(|p| p.image())
    }

    /// Notes that a request sent at `asked` has shown HEAD unchanged.
    pub fn confirm(&mut self, asked: Instant) {
        self.fresh = self.fresh.max(asked);
    }

    /// Notes the version under which this HEAD, which is the known one, was read.
    pub fn found_under(&mut self, version: Version, asked: Instant) {
        self.version = version;
        self.fresh = asked;
    }

    /// Forgets the version: the next read of HEAD returns it even if it has not changed.
    pub fn forget_version(&mut self) {
        self.version = unseen();
    }

    /// Makes this the known HEAD; the pages are at its commit. Returns the one before.
    pub fn stand_on(&mut self, seen: ReadHead) -> Head {
        self.version = seen.version;
        self.fresh = seen.asked;
        std::mem::replace(&mut self.head, seen.head)
    }

    /// Checks that this version may change the queue file as it is now; a newer version may have upgraded it meanwhile.
    pub fn check_writable(&mut self) -> Result<()> {
        self.head.check_writable(&keys::head(&self.name))?;
        self.db.check_writable()
    }

    /// Undoes a batch that ran and was not committed.
    pub fn undo(&mut self, changes: PageChanges) -> Result<()> {
        let undone = self.pages.with(|p| p.undo(changes));
        let reset = self.reset_cache();
        undone.and(reset)
    }

    /// Resets what `SQLite` remembers, after its pages changed beneath it. The pages are those of the known commit, or
    /// of a later one.
    fn reset_cache(&mut self) -> Result<()> {
        self.db.rewind(self.head.commit_seq);
        self.pages.reset_cache(self.db.connection())
    }

    /// Brings the pages to HEAD: applies the missing records, or loads everything again. Returns the records it used.
    /// An inner error means that the pages may be those of no commit.
    pub async fn advance(&mut self, source: &Source, head: &Head) -> Result<Result<Vec<Record>>, FetchError> {
        let from = self.head.commit_seq + 1;
        let mut damaged = None;
        for _ in 0..DAMAGED {
            let applied = match source.records(head, from).await {
                Ok(Some(records)) => match source.apply(&self.pages, &records, head) {
                    Ok(()) => return Ok(self.reset_cache().map(|()| records)),
                    Err(error) => Err(FetchError::Error(error)),
                },
                Ok(None) => Ok(()),
                Err(trouble) => Err(trouble),
            };
            let loaded = match applied {
                Err(FetchError::Error(error)) if error.kind() != Kind::Corrupt => return Err(error.into()),
                Err(FetchError::Missing(key)) => return Err(FetchError::Missing(key)),
                // The log does not reach back, or does not fit these pages: load everything.
                _ => source.load(head).await,
            };
            match loaded {
                Ok((pages, records)) => {
                    self.replace(pages)?;
                    return Ok(Ok(records));
                }
                Err(FetchError::Error(error)) if error.kind() == Kind::Corrupt => damaged = Some(error),
                Err(trouble) => return Err(trouble),
            }
        }
        Err(damaged.unwrap_or_else(|| corrupt(&keys::head(&self.name), "it cannot be followed")).into())
    }

    /// Replaces all pages, and the connection to them.
    pub fn replace(&mut self, pages: Pages) -> Result<()> {
        let file = PageFile::new(pages);
        self.db = Db::open(file.connect(self.limits.max_pages)?)?;
        self.pages = file;
        Ok(())
    }

    /// Brings the pages to an image of them. An inner error means that they may be those of no commit.
    pub fn go_to(&mut self, image: &Image) -> Result<Result<()>> {
        self.pages.with(|p| p.go_to(image))?;
        self.db.forget();
        Ok(self.reset_cache())
    }

    /// Takes `ahead_ms` off the times that are later than `now_ms`, in an uncommitted batch.
    pub fn bring_back(&mut self, now_ms: i64, ahead_ms: i64) -> (Result<BroughtBack>, PageChanges) {
        let brought = self.db.bring_back(now_ms, ahead_ms, &self.limits);
        (brought, self.pages.with(Pages::take_changes))
    }

    /// Returns what the known state says about `query` at this time.
    pub fn look_up(&mut self, query: &Query, now_ms: i64) -> Result<Answer> {
        let at = Moment { now_ms, commit_seq: self.head.commit_seq };
        let mut answer = self.db.query(query, &at)?;
        if let Answer::Stats(stats) = &mut answer {
            stats.commit_ms = self.head.commit_ms;
            stats.commit_id = keys::hex(&self.head.commit_id);
        }
        for a in answer.archived_mut() {
            a.key = keys::archive(&self.name, &keys::hex(&a.file), a.seq, &a.rand);
        }
        Ok(answer)
    }

    /// Returns the known commit as a moment, with this time unless that is earlier than the commit's.
    pub fn settled_moment(&self, now_ms: i64) -> Moment {
        Moment { now_ms: now_ms.max(self.head.commit_ms), commit_seq: self.head.commit_seq }
    }

    /// Returns the archive objects that must stay, as of the known commit; `None` if the list cannot be read: then
    /// none may go, the state is damaged, and every op reports it.
    pub fn live_archives(&mut self) -> Option<LiveArchives> {
        let listed = self.db.live_archives(self.head.gc_floor);
        listed.map(|all| gc::live(&all, &self.head.file_id)).ok()
    }
}
