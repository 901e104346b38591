//! Knocking: how a writer that loses races asks one that wins them all for a gap (decision 29).
//!
//! Losers never appear in HEAD, so a writer that never rests cannot know of them. A loser writes a small object under
//! one fixed key; a writer that commits without a pause reads it with every second PUT, and leaves a gap when it has
//! changed. Correctness does not depend on it: a knock may be lost, late, repeated or forged, and costs a gap at most.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{TIMERS, Turns};
use crate::bucket::keys;
use crate::bucket::wire;
use crate::bytes::store::{Got, Version};
use crate::engine::writer::remote::Remote;

/// The first bytes of a knock.
const MAGIC: &[u8; 8] = b"BQKNOCK\n";
/// Puts between two knocks of a writer: by then it has been heard, or no writer listens.
const APART: u32 = 5;
/// The longest gap for a knock, even if it asks for more.
const LONGEST: Duration = Duration::from_secs(1);

/// One writer's state of knocks.
#[derive(Debug, Default)]
pub(super) struct Knocks {
    /// The version of the newest one that was heard.
    heard: Option<Version>,
    /// A look for a knock, under way.
    listening: Option<oneshot::Receiver<Got>>,
    /// This writer's own knock, under way.
    knocking: Option<oneshot::Receiver<()>>,
    /// No other knock is sent before this.
    next: Option<Instant>,
    /// After this commit of theirs the others had stopped when this writer last looked before a put.
    pub rests_since: Option<u64>,
    /// This writer's own newest knock, for which it does not leave a gap.
    own: Option<Bytes>,
}

impl Turns {
    /// Returns the time of a read and a put: at least that of this try, because the average may not know the store yet.
    pub fn trip_of_this_try(&self) -> Duration {
        (self.put * 2).max(self.since_last_put().min(LONGEST))
    }

    /// Writes a knock while the next try runs: the writer `id` has lost to one that leaves no room for a `trip`.
    pub fn knock(&mut self, remote: &Remote, file_id: &[u8; 16], id: [u8; 8], trip: Duration) {
        let gap = trip * 3 / 2 + TIMERS;
        let under_way =
            |rx: &mut oneshot::Receiver<()>| rx.try_recv() == Err(oneshot::error::TryRecvError::Empty);
        let now = self.env.monotonic();
        let soon = self.knocks.next.is_some_and(|next| now < next);
        if soon || self.knocks.knocking.as_mut().is_some_and(under_way) {
            return;
        }
        self.knocks.next = Some(now + self.put * APART);
        let mut body = wire::ByteWriter(Vec::with_capacity(44));
        body.raw(MAGIC);
        body.raw(file_id);
        body.raw(&id);
        body.raw(&self.env.bytes::<8>());
        body.u32(u32::try_from(gap.as_millis()).unwrap_or(u32::MAX));
        let body = Bytes::from(body.0);
        let (tx, rx) = oneshot::channel();
        let (store, key, limit) = (remote.store(), keys::knock(&remote.source.name), remote.request_limit());
        let (env, sent) = (self.env.clone(), body.clone());
        tokio::spawn(async move {
            tokio::select! {
                biased;
                put = store.put_new(&key, sent) => if let Err(error) = put {
                    tracing::debug!(%error, "a knock could not be written");
                },
                () = env.sleep(limit) => {}
            }
            let _ = tx.send(());
        });
        self.knocks.own = Some(body);
        self.knocks.knocking = Some(rx);
    }

    /// Looks for a knock in parallel with the next put, if it is time.
    pub fn listen(&mut self, remote: &Remote) {
        if self.knocks.listening.is_some() || !self.sharing.listens(self.put) {
            return;
        }
        let (tx, rx) = oneshot::channel();
        let (store, key, limit) = (remote.store(), keys::knock(&remote.source.name), remote.request_limit());
        let (env, heard) = (self.env.clone(), self.knocks.heard.clone());
        tokio::spawn(async move {
            tokio::select! {
                biased;
                // Without a reply, or without permission, there is no knock.
                got = store.get(&key, heard.as_ref()) => if let Ok(got) = got {
                    let _ = tx.send(got);
                },
                () = env.sleep(limit) => {}
            }
        });
        self.knocks.listening = Some(rx);
    }

    /// Returns the length of the gap that a new knock asks for.
    pub(super) fn heard(&mut self, file_id: &[u8; 16]) -> Option<Duration> {
        let got = match self.knocks.listening.as_mut()?.try_recv() {
            Err(oneshot::error::TryRecvError::Empty) => return None,
            got => got,
        };
        self.knocks.listening = None;
        let Ok(Got::Object { bytes, version, .. }) = got else { return None };
        self.knocks.heard = Some(version);
        if self.knocks.own.as_ref() == Some(&bytes) {
            return None;
        }
        let mut r = wire::ByteReader::new("a knock", &bytes);
        let ours = r.raw(8, "magic").ok()? == MAGIC && r.array::<16>("file").ok()? == *file_id;
        r.raw(16, "writer").ok()?;
        let wanted = Duration::from_millis(r.u32("gap").ok()?.into());
        ours.then(|| wanted.min(LONGEST))
    }
}
