//! What is written beside HEAD, off the writer's path: segments of the tail, merged with small ones before them, and
//! bases. Called by the writer, which refers to what is ready in its next commit (P12, P13, P17, decision 7).

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::broken::{self, Broken};
use crate::config::{Host, Options};
use crate::env::Env;
use crate::error::{Code, Error, Result};
use crate::head::{BaseRef, Head, MAX_SEGMENTS, SegmentRef};
use crate::pages::{Image, PAGE};
use crate::record::Record;
use crate::store::Store;
use crate::wire::hash;
use crate::{base, keys, segment};

/// Records of the newest commits kept in memory for merging, in bytes.
const KEEP: usize = 16 * 1024 * 1024;
/// No merged segment is larger: it bounds memory and what one reader has to fetch at once.
const MERGED_MAX: u64 = 4 * 1024 * 1024;
/// A base so many times larger than the database gives way to a new one: the queue file was drained.
const SHRUNK: u64 = 2;
/// A log so many times as long as it may be before a base is wanted has nobody who lives until its base is written.
const OVERDUE: u64 = 2;
/// Bytes of pages that take some milliseconds to compress.
const SMALL: u64 = 4 * 1024 * 1024;
/// Segments of one size from which on they are merged although somebody waits.
const HURRIED: usize = 8;
/// Segments at which a base is made although the log is short.
const SEGMENTS_HIGH: usize = 48;

/// A segment on its way.
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
    /// The commit of the base under way.
    base: Option<(u64, JoinHandle<Result<BaseRef>>)>,
    ready_base: Option<BaseRef>,
    /// True while a base is under way.
    under_way: watch::Sender<bool>,
}

/// Said by a base under way: that it is, and however it ends, that it is no more.
struct UnderWay(watch::Sender<bool>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.send_replace(false);
    }
}

impl Uploads {
    /// No uploads yet.
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

    /// A settled commit, in order. A hole empties the memory of those before it.
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

    /// The body with this commit id is surely not in the chain, or nobody knows: what holds it is garbage (P5, P12).
    pub fn lost(&mut self, commit_id: &[u8; 16]) {
        if broken::is(&self.options, Broken::SegmentOfLostCommit) {
            return;
        }
        if self.segment.as_ref().is_some_and(|s| s.newest == *commit_id) {
            // The upload goes on by itself and ends as an orphan.
            self.segment = None;
        }
        if self.ready.is_some_and(|(_, newest)| newest == *commit_id) {
            self.ready = None;
        }
    }

    /// Note what has arrived meanwhile; with `wait`, wait for the segment on its way.
    pub async fn poll(&mut self, wait: bool) -> Result<()> {
        let mut result = Ok(());
        if let Some(s) = self.segment.take_if(|s| wait || s.task.is_finished()) {
            match joined(s.task.await) {
                Ok(()) => self.ready = Some((s.made, s.newest)),
                Err(error) => result = Err(error),
            }
        }
        if self.base.as_ref().is_some_and(|(_, task)| task.is_finished()) {
            // Tried again by a later commit; this one can do without.
            let _ = self.wait_for_base().await;
        }
        result
    }

    /// Wait for the base on its way, if there is one.
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

    /// The segment that can be referred to, if it fits the HEAD it would go into.
    pub fn ready_segment(&mut self, fits: impl Fn(&SegmentRef) -> bool) -> Option<SegmentRef> {
        let (made, _) = self.ready?;
        if fits(&made) {
            return Some(made);
        }
        self.ready = None;
        None
    }

    /// The base that can be referred to, if it fits the HEAD it would go into.
    pub fn ready_base(&mut self, fits: impl Fn(&BaseRef) -> bool) -> Option<BaseRef> {
        let made = self.ready_base?;
        if fits(&made) {
            return Some(made);
        }
        self.ready_base = None;
        None
    }

    /// HEAD refers to these now.
    pub fn adopted(&mut self, head: &Head) {
        if self.ready.is_some_and(|(made, _)| head.segments.contains(&made)) {
            self.ready = None;
        }
        if self.ready_base.is_some_and(|made| head.base == made) {
            self.ready_base = None;
        }
    }

    /// Whether the tail of `head` may be moved out now: nothing is under way, and what was ready is in `head`.
    pub fn may_start_segment(&self, head: &Head) -> bool {
        self.segment.is_none() && self.ready.is_none_or(|(made, _)| head.segments.contains(&made))
    }

    /// True while a segment is under way or waits to be referred to.
    pub fn has_segment(&self) -> bool {
        self.segment.is_some() || self.ready.is_some()
    }

    /// Drop the segment that is ready: it was never referred to, and ends as an orphan.
    pub fn forget_segment(&mut self) {
        self.ready = None;
    }

    /// Start moving the tail of `head` out, with the small segments before it whose records are at hand. Its newest
    /// commit may be unsettled: if it loses, [`Uploads::lost`] drops the segment. In a `hurry` somebody waits for it, and
    /// it is merged only with many of its own size.
    pub fn start_segment(&mut self, head: &Head, hurry: bool) {
        let Some(last) = head.tail.last() else { return };
        let mut records: Vec<Record> = head.tail.clone();
        let mut bytes: u64 = records.iter().map(|r| r.encoded_len() as u64).sum();
        let mut left = head.segments.as_slice();
        // Four of one size become one of the next: the references stay few and each record is written a few times.
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

    /// The commit whose base is under way: a floor beyond it would waste the upload.
    pub fn base_under_way(&self) -> Option<u64> {
        self.base.as_ref().map(|(seq, _)| *seq)
    }

    /// Whether it is time for a base: the log has grown as long as the base, or has too many parts, or the base is much
    /// larger than what it is a base of.
    pub fn wants_base(&self, head: &Head) -> bool {
        self.base.is_none()
            && self.ready_base.is_none()
            && (head.log_len() > self.options.base_after.max(head.base.len)
                || head.segments.len() >= SEGMENTS_HIGH
                || head.base.len
                    > self.options.base_after.max(SHRUNK * u64::from(head.page_count) * PAGE as u64))
    }

    /// Whether a base is written here that somebody should have written long ago.
    pub fn is_overdue(&self, head: &Head) -> bool {
        (self.base.is_some() || self.ready_base.is_some())
            && head.log_len() > OVERDUE * self.options.base_after.max(head.base.len)
    }

    /// Whether only a base can make room for another segment, and none is coming. Those who live for few commits have
    /// none on its way, and not the records at hand to merge the segments of others.
    pub fn needs_base(&self, head: &Head) -> bool {
        self.base.is_none() && self.ready_base.is_none() && head.segments.len() >= MAX_SEGMENTS
    }

    /// Whether a base of this settled image is certain to leave clearly less in the bucket than there is, for who asks for
    /// little. One that waits to be referred to is dropped then: it was made of what is no more.
    pub fn worth_a_base(&mut self, head: &Head, image: &Image) -> bool {
        let base = self.ready_base.map_or(head.base.len, |ready| ready.len);
        let saves = |len: u64| base + head.log_len() > len + self.options.base_after / 8;
        if self.base.is_some() || head.base.seq >= head.commit_seq || !saves(0) {
            return false;
        }
        // A small one is made to know; no base is larger than its pages.
        let whole = image.bytes();
        let known = whole <= SMALL && !saves(whole);
        let coded = known.then(|| base::coded(image, self.options.base_codec).ok()).flatten();
        let worth = saves(coded.map_or(whole, |(body, _)| body.len() as u64));
        if worth {
            self.ready_base = None;
        }
        worth
    }

    /// Start writing a base of this settled image.
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
            // A simulation must not depend on when a thread gets its turn.
            let (made, body) =
                if inline { encode()? } else { joined(tokio::task::spawn_blocking(encode).await)? };
            store.put_new(&key, body.into()).await?;
            Ok(made)
        });
        self.base = Some((seq, task));
    }

    fn rand(&self) -> [u8; 8] {
        if broken::is(&self.options, Broken::FixedSegmentKey) { [0; 8] } else { self.env.bytes() }
    }
}

fn joined<T>(result: std::result::Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    result.unwrap_or_else(|e| Err(Error::new(Code::Internal, "an upload ended early").because(e)))
}

/// Sizes that count as alike: powers of four from 16 KiB.
fn tier(bytes: u64) -> u32 {
    (bytes >> 14).max(1).ilog2() / 2
}
