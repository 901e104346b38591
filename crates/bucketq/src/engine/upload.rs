//! Uploads objects while the writer works: segments of the tail, merged with small ones before them, and bases. Called
//! by the writer, whose next commit refers to finished uploads (P12, P13, P17, decision 7).

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::bucket::head::{BaseRef, Head, MAX_SEGMENTS, SegmentRef};
use crate::bucket::record::Record;
use crate::bucket::wire::hash;
use crate::bucket::{base, keys, segment};
use crate::bytes::store::Store;
use crate::engine::duty;
use crate::noun::config::{Host, Options};
use crate::noun::env::Env;
use crate::noun::error::{Error, Result};
use crate::state::pages::Image;

/// Bytes of records of the newest commits that are kept in memory for merging.
const KEEP: usize = 16 * 1024 * 1024;
/// The largest merged segment: limits memory, and what a reader has to fetch at once.
const MERGED_MAX: u64 = 4 * 1024 * 1024;
/// A log this many times longer than the limit for a base is overdue: no process has lived until its base was written.
const OVERDUE: u64 = 2;
/// Bytes of pages that can be compressed within some milliseconds.
const SMALL: u64 = 4 * 1024 * 1024;
/// From this number of segments of one size, they are merged even while a commit waits.
const HURRIED: usize = 8;

/// A segment that is being uploaded.
#[derive(Debug)]
struct SegmentTask {
    made: SegmentRef,
    newest: [u8; 16],
    task: JoinHandle<Result<()>>,
}

/// Uploads of one writer.
#[derive(Debug)]
pub struct Uploads {
    store: Arc<dyn Store>,
    name: String,
    options: Arc<Options>,
    env: Env,
    recent: VecDeque<Record>,
    recent_bytes: usize,
    segment: Option<SegmentTask>,
    ready: Option<(SegmentRef, [u8; 16])>,
    /// The base under way: its commit and its task.
    base: Option<(u64, JoinHandle<Result<BaseRef>>)>,
    ready_base: Option<BaseRef>,
    /// True while a base is under way.
    under_way: watch::Sender<bool>,
}

/// Belongs to a base under way. Dropping it sends that no base is, however the task ended.
struct UnderWay(watch::Sender<bool>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.send_replace(false);
    }
}

impl Uploads {
    /// Returns the uploads of a writer: none yet.
    pub fn new(
        store: Arc<dyn Store>,
        name: &str,
        options: Arc<Options>,
        env: Env,
        under_way: watch::Sender<bool>,
    ) -> Self {
        Self {
            store,
            name: name.to_owned(),
            options,
            env,
            recent: VecDeque::new(),
            recent_bytes: 0,
            segment: None,
            ready: None,
            base: None,
            ready_base: None,
            under_way,
        }
    }

    /// Adds a settled commit to the records in memory, in order. If one is missing, those before it are dropped.
    pub fn settled(&mut self, record: &Record) {
        if self.recent.back().is_some_and(|r| r.seq + 1 != record.seq) {
            self.recent.clear();
            self.recent_bytes = 0;
        }
        self.recent_bytes += record.encoded_len();
        self.recent.push_back(record.clone());
        while self.recent_bytes > KEEP
            && let Some(gone) = self.recent.pop_front()
        {
            self.recent_bytes -= gone.encoded_len();
        }
    }

    /// Drops the segment that holds this commit, which surely lost or cannot be settled: it is garbage (P5, P12).
    pub fn lost(&mut self, commit_id: &[u8; 16]) {
        if self.segment.as_ref().is_some_and(|s| s.newest == *commit_id) {
            // The upload continues by itself and ends as an orphan.
            self.segment = None;
        }
        if self.ready.is_some_and(|(_, newest)| newest == *commit_id) {
            self.ready = None;
        }
    }

    /// Takes finished uploads. With `wait`, waits for the segment under way.
    pub async fn poll(&mut self, wait: bool) -> Result<()> {
        let mut result = Ok(());
        if let Some(s) = self.segment.take_if(|s| wait || s.task.is_finished()) {
            match joined(s.task.await) {
                Ok(()) => self.ready = Some((s.made, s.newest)),
                Err(error) => result = Err(error),
            }
        }
        if self.base.as_ref().is_some_and(|(_, task)| task.is_finished()) {
            // If it failed, a later commit tries again; this one does not need it.
            let _ = self.wait_for_base().await;
        }
        result
    }

    /// Waits for the base under way, if there is one.
    pub async fn wait_for_base(&mut self) -> Result<()> {
        if let Some((_, task)) = self.base.take() {
            match joined(task.await) {
                Ok(made) => self.ready_base = Some(made),
                Err(error) => {
                    tracing::warn!(%error, "a base could not be written; it is tried again later");
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Returns the finished segment if it fits into the next HEAD; otherwise drops it.
    pub fn ready_segment(&mut self, fits: impl Fn(&SegmentRef) -> bool) -> Option<SegmentRef> {
        let (made, _) = self.ready?;
        if fits(&made) {
            return Some(made);
        }
        self.ready = None;
        None
    }

    /// Returns the finished base if it fits into the next HEAD; otherwise drops it.
    pub fn ready_base(&mut self, fits: impl Fn(&BaseRef) -> bool) -> Option<BaseRef> {
        let made = self.ready_base?;
        if fits(&made) {
            return Some(made);
        }
        self.ready_base = None;
        None
    }

    /// Forgets the finished uploads that this HEAD refers to.
    pub fn adopted(&mut self, head: &Head) {
        if self.ready.is_some_and(|(made, _)| head.segments.contains(&made)) {
            self.ready = None;
        }
        if self.ready_base.is_some_and(|made| head.base == made) {
            self.ready_base = None;
        }
    }

    /// Returns whether a segment of `head`'s tail may be started: none is under way, and `head` refers to the last one.
    pub fn may_start_segment(&self, head: &Head) -> bool {
        self.segment.is_none() && self.ready.is_none_or(|(made, _)| head.segments.contains(&made))
    }

    /// Returns whether a segment is under way, or finished and not yet in HEAD.
    pub fn has_segment(&self) -> bool {
        self.segment.is_some() || self.ready.is_some()
    }

    /// Drops the finished segment: no HEAD has referred to it, so it ends as an orphan.
    pub fn forget_segment(&mut self) {
        self.ready = None;
    }

    /// Starts a segment of the tail of `head`, merged with the small segments before it whose records are in memory.
    /// Its newest commit may be unsettled: if it loses, [`Uploads::lost`] drops the segment. In a `hurry` a commit
    /// waits for it, and it is merged only with many of its own size.
    pub fn start_segment(&mut self, head: &Head, hurry: bool) {
        let Some(last) = head.tail.last() else { return };
        let mut records: Vec<Record> = head.tail.clone();
        let mut bytes: u64 = records.iter().map(|r| r.encoded_len() as u64).sum();
        let mut left = head.segments.as_slice();
        // Four of one size become one of the next: references stay few, and each record is written a few times.
        loop {
            let of = |s: &SegmentRef| tier(u64::from(s.len));
            let run = left.iter().rev().take_while(|s| of(s) <= tier(bytes));
            if hurry && run.clone().filter(|s| of(s) == tier(bytes)).count() < HURRIED {
                break;
            }
            let (mut alike, mut merged) = (0, 0);
            for s in run {
                if bytes + merged + u64::from(s.len) > MERGED_MAX {
                    break;
                }
                alike += 1;
                merged += u64::from(s.len);
            }
            if alike < 3 {
                break;
            }
            let from = left[left.len() - alike].from;
            let Some(older) = self.recent_range(from, records[0].seq) else { break };
            records.splice(0..0, older);
            bytes += merged;
            left = &left[..left.len() - alike];
        }
        let (from, to) = (records[0].seq, last.seq);
        let rand = self.rand();
        let key = keys::segment(&self.name, &head.file_id, from, to, &rand);
        let body = segment::encode(&head.file_id, &head.lineage_id, &records);
        let made = SegmentRef { from, to, rand, codec: 0, len: body.len() as u32, hash: hash(&body) };
        let store = Arc::clone(&self.store);
        let task = tokio::spawn(async move { store.put_new(&key, body.into()).await });
        self.segment = Some(SegmentTask { made, newest: last.commit_id, task });
    }

    fn recent_range(&self, from: u64, to: u64) -> Option<Vec<Record>> {
        let first = self.recent.front()?.seq;
        let skip = usize::try_from(from.checked_sub(first)?).ok()?;
        let n = usize::try_from(to - from).ok()?;
        (skip + n <= self.recent.len()).then(|| self.recent.range(skip..skip + n).cloned().collect())
    }

    /// Returns the commit whose base is under way: a floor above it would waste the upload.
    pub fn base_under_way(&self) -> Option<u64> {
        self.base.as_ref().map(|(seq, _)| *seq)
    }

    /// Returns whether a base is under way, or finished and not yet in HEAD.
    pub fn has_base(&self) -> bool {
        self.base.is_some() || self.ready_base.is_some()
    }

    /// Returns whether a base should have been made long ago.
    pub fn is_overdue(&self, head: &Head) -> bool {
        head.log_len() > OVERDUE * duty::log_most(head, &self.options)
    }

    /// Returns whether only a base can make room for another segment, and none is under way. This happens with
    /// short-lived processes: they have no base under way, and not the records to merge the segments of others.
    pub fn needs_base(&self, head: &Head) -> bool {
        !self.has_base() && head.segments.len() >= MAX_SEGMENTS
    }

    /// Returns whether a collection without grace should make a base of this settled image first: one is due, and would
    /// leave garbage soon after the collection, or it surely leaves clearly less in the bucket. In the second case, drops
    /// a finished base that HEAD does not refer to: its state is outdated.
    pub fn worth_a_base(&mut self, head: &Head, image: &Image) -> bool {
        if self.base.is_some() || head.base.seq >= head.commit_seq {
            return false;
        }
        if self.ready_base.is_none() && duty::base_is_due(head, &self.options) {
            return true;
        }
        let base = self.ready_base.map_or(head.base.len, |ready| ready.len);
        let saves = |len: u64| base + head.log_len() > len + self.options.base_after / 8;
        if !saves(0) {
            return false;
        }
        // A small image is encoded to find out. For others its pages are the limit: no base is larger.
        let whole = image.bytes();
        let known = whole <= SMALL && !saves(whole);
        let coded = known.then(|| base::coded(image, self.options.base_codec).ok()).flatten();
        let worth = saves(coded.map_or(whole, |(body, _)| body.len() as u64));
        if worth {
            self.ready_base = None;
        }
        worth
    }

    /// Starts writing a base of this settled image.
    pub fn start_base(&mut self, image: Image, seq: u64, file_id: [u8; 16]) {
        let rand = self.rand();
        let key = keys::base(&self.name, &file_id, seq, &rand);
        let store = Arc::clone(&self.store);
        let inline = self.options.host == Host::CurrentRuntime;
        let codec = self.options.base_codec;
        let encode = move || {
            let (body, codec) = base::coded(&image, codec)?;
            let made = BaseRef { seq, rand, codec, len: body.len() as u64, hash: hash(&body) };
            Ok((made, body))
        };
        self.under_way.send_replace(true);
        let under_way = UnderWay(self.under_way.clone());
        let task = tokio::spawn(async move {
            let _until_the_end = under_way;
            // A simulation must not depend on when a thread runs.
            let (made, body) =
                if inline { encode()? } else { joined(tokio::task::spawn_blocking(encode).await)? };
            store.put_new(&key, body.into()).await?;
            Ok(made)
        });
        self.base = Some((seq, task));
    }

    fn rand(&self) -> [u8; 8] {
        self.env.bytes()
    }
}

fn joined<T>(result: std::result::Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    result.unwrap_or_else(|e| Err(Error::bug("an upload ended early").because(e)))
}

/// Returns the size class: powers of four from 16 KiB.
fn tier(bytes: u64) -> u32 {
    (bytes >> 14).max(1).ilog2() / 2
}
