//! Reads archive objects one after another from one settled state, and encodes them (decision 16).
//!
//! Called by archive, in a background task: it has its own image and connection, and sends nothing.

use std::sync::Arc;

use crate::bucket::wire::hash;
use crate::fork;
#[cfg(not(feature = "archive"))]
use crate::noun::error::Error;
use crate::noun::error::Result;
use crate::noun::life::{Archived, Listing};
use crate::state::db::{ArchiveBatch, Db, Gone, Moment};
use crate::state::pages::{Image, PageFile, Pages};

/// Most jobs in one object: one commit removes them, and others wait for it.
const MOST: u32 = 10_000;
/// About the most bytes of jobs in one object.
const BYTES: usize = 8 * 1024 * 1024;

/// A settled state to read objects from, each without the jobs of those before.
pub(super) struct ObjectReader {
    /// The commit of the state.
    pub at: Moment,
    /// Objects read from it so far.
    pub made: u32,
    image: Option<Image>,
    db: Option<Db>,
    file_id: [u8; 16],
    max_pages: u32,
    gone: Gone,
}

impl ObjectReader {
    /// Returns a reader of this image that skips the jobs of an object that is being listed.
    pub fn new(
        image: Image,
        at: Moment,
        file_id: [u8; 16],
        max_pages: u32,
        listed: Option<&Listing>,
    ) -> Self {
        let mut gone = Gone::default();
        if let Some(listing) = listed {
            gone.add(listing.queue, &listing.parts);
        }
        Self { at, made: 0, image: Some(image), db: None, file_id, max_pages, gone }
    }

    /// Returns the body of an object of the oldest due jobs, and its listing. `rand` is in its key.
    pub fn object(&mut self, rand: [u8; 8]) -> Result<Option<(Vec<u8>, Arc<Listing>)>> {
        // This is not the writer's thread.
        let _inside = fork::inside();
        if let Some(image) = self.image.take() {
            let file = PageFile::new(Pages::thaw(&image));
            self.db = Some(Db::open(file.connect(self.max_pages)?)?);
        }
        let Some(db) = &mut self.db else { return Ok(None) };
        let Some(leaving) = db.leaving(&self.at, MOST, BYTES, &self.gone)? else { return Ok(None) };
        self.gone.add(leaving.queue, &leaving.parts);
        self.made += 1;
        let body = self.encode(&leaving)?;
        let listing = self.listing(leaving, rand, &body);
        Ok(Some((body, Arc::new(listing))))
    }

    #[cfg(feature = "archive")]
    fn encode(&self, leaving: &ArchiveBatch) -> Result<Vec<u8>> {
        crate::bucket::archive::encode(&leaving.lives, &self.file_id, self.at.commit_seq)
    }

    #[cfg(not(feature = "archive"))]
    #[expect(clippy::unused_self, reason = "the same call with and without the feature")]
    fn encode(&self, _: &ArchiveBatch) -> Result<Vec<u8>> {
        Err(Error::invalid(
            "this library was built without the feature `archive`: archive with one that has it",
        ))
    }

    fn listing(&self, leaving: ArchiveBatch, rand: [u8; 8], body: &[u8]) -> Listing {
        let lives = &leaving.lives;
        let (first, last) = (lives.first(), lives.last());
        let mut file = [0; 4];
        file.copy_from_slice(&self.file_id[..4]);
        Listing {
            queue: leaving.queue,
            object: Archived {
                key: String::new(),
                queue: first.map_or_else(|| Arc::from(""), |l| l.queue.clone()),
                file,
                seq: self.at.commit_seq,
                rand,
                bytes: body.len() as u64,
                hash: hash(body),
                jobs: lives.len() as u64,
                first_seq: first.map_or(0, |l| l.finish_seq),
                last_seq: last.map_or(0, |l| l.finish_seq),
                first_ms: first.map_or(0, |l| l.finished_ms),
                last_ms: last.map_or(0, |l| l.finished_ms),
                listed_seq: 0,
                listed_ms: 0,
            },
            parts: leaving.parts,
        }
    }
}
