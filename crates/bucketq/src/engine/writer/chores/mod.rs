//! Chores beside the commits: uploads of segments and bases, collection, archiving.
//!
//! Called before a body is built, which refers to finished uploads, and after a commit is stored. Commits nothing.

mod archive;
mod archive_object;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};

pub(super) use archive::{ArchiveReply, Archiver};

use super::chain::Chain;
use crate::bucket::head::{Head, MAX_SEGMENTS};
use crate::bucket::record::Record;
use crate::engine::catchup::Source;
use crate::engine::commit::{self, Care, CommitAttempt, Fresh};
use crate::engine::duty::{self, tail_len};
use crate::engine::gc::{CollectOrder, Collector};
use crate::engine::upload::Uploads;
use crate::noun::config::Options;
use crate::noun::env::Env;
use crate::noun::error::Result;
use crate::noun::query::Collected;
use crate::state::pages::Image;

pub(super) struct Chores {
    pub uploads: Uploads,
    pub collector: Collector,
    pub archiver: Archiver,
    /// The grace of a requested collection, for the commits that raise the floor for it.
    wish: Option<Duration>,
    options: Arc<Options>,
}

impl Chores {
    /// `under_way` shows handles whether a base is being written.
    pub fn new(
        source: &Source,
        archiver: Archiver,
        options: &Arc<Options>,
        env: &Env,
        under_way: watch::Sender<bool>,
    ) -> Self {
        let (store, name, options) = (&source.store, &source.name, Arc::clone(options));
        let uploads = Uploads::new(Arc::clone(store), name, Arc::clone(&options), env.clone(), under_way);
        let collector = Collector::new(Arc::clone(store), name, Arc::clone(&options), env.clone());
        Self { uploads, collector, archiver, wish: None, options }
    }

    /// Lets the next commits raise the floor after this grace, or after the usual one.
    pub fn wish(&mut self, grace: Option<Duration>) {
        self.wish = grace;
    }

    /// Returns the body of this attempt, with the finished uploads that fit.
    pub fn next_head(&mut self, known: &Head, attempt: &CommitAttempt, record: &Record) -> Head {
        let options = &self.options;
        let newest = known.commit_seq + 1;
        let fresh = Fresh {
            segment: self.uploads.ready_segment(|s| commit::segment_fits(known, s, newest)),
            base: self.uploads.ready_base(|b| commit::base_fits(known, b)),
        };
        let care = Care {
            grace: self.wish.unwrap_or(options.grace),
            below: self.uploads.base_under_way().unwrap_or(u64::MAX),
            gone: self.collector.gone(),
        };
        commit::next(known, attempt, record, fresh, &care)
    }

    /// Returns whether a body cannot be sent as it is: part of its tail has to move to a segment first.
    pub fn too_large(&self, head: &Head) -> bool {
        head.fixed_len() + tail_len(head) > self.options.max_head || head.segments.len() > MAX_SEGMENTS
    }

    /// Returns whether a segment of the tail of `head`, a body on top of `known`, may start while the body is sent.
    pub fn may_move_out(&self, known: &Head, head: &Head, id: [u8; 8]) -> bool {
        // While others write, the segment would be garbage whenever this body loses: see `after_commit`.
        self.wish.is_none() && duty::is_alone(known, id) && self.uploads.may_start_segment(head)
    }

    /// Does what is due after a commit replaced `before`. `image` returns the settled pages.
    pub fn after_commit(
        &mut self,
        before: &Head,
        chain: &mut Chain,
        id: [u8; 8],
        image: impl FnOnce(&Chain) -> Image,
    ) {
        // A requested collection orders its own pass, and no upload begins whose object that pass could not delete.
        if self.wish.is_some() {
            return;
        }
        if chain.head().gc_floor > before.gc_floor {
            self.order_pass(chain, None);
        }
        let (head, options, alone) = (chain.head(), &self.options, duty::is_alone(chain.head(), id));
        let base =
            if alone { duty::base_is_due(head, options) } else { duty::of_base(before, head, options) };
        if !alone && duty::of_segment(before, head, options) && self.uploads.may_start_segment(head) {
            self.uploads.start_segment(head, false);
        }
        if base && !self.uploads.has_base() {
            self.start_base(image(chain), head);
        }
    }

    /// Returns whether a base should start now because a commit may have to wait for it.
    pub fn needs_room(&self, known: &Head) -> bool {
        self.wish.is_none() && self.uploads.needs_base(known)
    }

    /// Starts a base of this settled image.
    pub fn start_base(&mut self, image: Image, known: &Head) {
        self.uploads.start_base(image, known.commit_seq, known.file_id);
    }

    /// Orders a pass of the collection, with the newest settled commit.
    pub fn order_pass(&mut self, chain: &mut Chain, reply: Option<oneshot::Sender<Result<Collected>>>) {
        let (known, archives) = (chain.head().clone(), chain.live_archives());
        self.collector.order(CollectOrder { known, archives, reply });
    }
}
