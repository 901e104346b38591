//! Knocking: how a writer without a place in the line asks for a turn (decisions 29 and 32).
//!
//! Losers never appear in HEAD, so writers that never rest cannot know of them. A loser writes a small object under one
//! fixed key. A writer that commits without a pause reads it with every second PUT, and one that waits for its turn
//! before that; the first that finds a new knock lets the loser commit before it. Correctness does not depend on it: a
//! knock may be lost, late, repeated or forged, and costs a pause at most.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{TIMERS, Turns};
use crate::bucket::head::Head;
use crate::bucket::keys;
use crate::bucket::wire;
use crate::bytes::store::{Got, Version};
use crate::engine::writer::remote::Remote;

/// The first bytes of a knock.
const MAGIC: &[u8; 8] = b"BQKNOCK\n";
/// Puts between two knocks of a writer: by then it has been heard, or no writer listens.
const APART: u32 = 3;
/// The longest pause for a knock, even if it asks for more.
const LONGEST: Duration = Duration::from_secs(1);
/// A knock that was written this many commits ago no longer counts.
const OLD: u64 = 64;
/// How often a writer gives way for one knock: another loser may be faster than the one that has knocked.
const TIMES: u32 = 2;
/// A writer that commits without a pause reads the knock with every second put.
const LISTEN: u32 = 2;

/// One writer's state of knocks.
#[derive(Debug, Default)]
pub(super) struct Knocks {
    /// The version of the newest one that was heard.
    heard: Option<Version>,
    /// A look for a knock, under way.
    listening: Option<oneshot::Receiver<Got>>,
    /// The commit at which this writer last looked while it waited for its turn.
    listened: u64,
    /// A knock that was heard, and how often this writer gave way for it.
    owed: Option<(Knock, u32)>,
    /// This writer's own knock, under way.
    knocking: Option<oneshot::Receiver<()>>,
    /// No other knock is sent before this.
    next: Option<Instant>,
    /// After this commit of theirs the others had stopped when this writer last looked before a put.
    pub rests_since: Option<u64>,
    /// How many commits this writer has made without a pause.
    streak: u32,
    /// When the newest of them was stored.
    stored: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Knock {
    writer: [u8; 8],
    /// The newest commit that its writer knew.
    seq: u64,
    /// How long its writer needs.
    wants: Duration,
}

impl Knock {
    fn encode(self, file_id: &[u8; 16]) -> Bytes {
        let mut body = wire::ByteWriter(Vec::with_capacity(44));
        body.raw(MAGIC);
        body.raw(file_id);
        body.raw(&self.writer);
        body.u64(self.seq);
        body.u32(u32::try_from(self.wants.as_millis()).unwrap_or(u32::MAX));
        Bytes::from(body.0)
    }

    /// Returns `None` for other bytes, and for the knock of another queue file.
    fn decode(bytes: &Bytes, file_id: &[u8; 16]) -> Option<Self> {
        let mut r = wire::ByteReader::new("a knock", bytes);
        let ours = r.raw(8, "magic").ok()? == MAGIC && r.array::<16>("file").ok()? == *file_id;
        let (writer, seq) = (r.array("writer").ok()?, r.u64("commit").ok()?);
        let wants = Duration::from_millis(r.u32("time").ok()?.into()).min(LONGEST);
        ours.then_some(Self { writer, seq, wants })
    }

    /// Returns whether its writer still waits, as far as this HEAD shows.
    fn counts(&self, head: &Head) -> bool {
        let served = head.writers.iter().any(|entry| entry.id == self.writer && entry.seq > self.seq);
        !served && self.seq <= head.commit_seq && head.commit_seq - self.seq < OLD
    }
}

impl Turns {
    /// Returns the time of a read and a put: at least that of this try, because the average may not know the store yet.
    pub fn trip_of_this_try(&self) -> Duration {
        (self.put * 2).max(self.since_last_put().min(LONGEST))
    }

    /// Writes a knock while the next try runs: the writer `id` has lost to one that leaves no room for a `trip`.
    pub fn knock(&mut self, remote: &Remote, head: &Head, id: [u8; 8], trip: Duration) {
        let wants = trip * 3 / 2 + TIMERS;
        let under_way =
            |rx: &mut oneshot::Receiver<()>| rx.try_recv() == Err(oneshot::error::TryRecvError::Empty);
        let now = self.env.monotonic();
        let soon = self.knocks.next.is_some_and(|next| now < next);
        if soon || self.knocks.knocking.as_mut().is_some_and(under_way) {
            return;
        }
        self.knocks.next = Some(now + self.put * APART);
        let body = Knock { writer: id, seq: head.commit_seq, wants }.encode(&head.file_id);
        let (tx, rx) = oneshot::channel();
        let (store, key, limit) = (remote.store(), keys::knock(&remote.source.name), remote.request_limit());
        let env = self.env.clone();
        tokio::spawn(async move {
            tokio::select! {
                biased;
                put = store.put_new(&key, body) => if let Err(error) = put {
                    tracing::debug!(%error, "a knock could not be written");
                },
                () = env.sleep(limit) => {}
            }
            let _ = tx.send(());
        });
        self.knocks.knocking = Some(rx);
    }

    /// Looks for a knock in parallel with the next put, if it is time.
    pub fn listen_with_put(&mut self, remote: &Remote) {
        if self.knocks.streak % LISTEN == LISTEN - 1 {
            self.listen(remote);
        }
    }

    /// Looks for a knock while this writer waits for its turn: once for each HEAD, when it is next.
    pub fn listen_in_line(&mut self, remote: &Remote, head: &Head, id: [u8; 8]) {
        let next = self.line.ahead_of(id).is_some_and(|ahead| ahead <= 1);
        if next && self.knocks.listened != head.commit_seq {
            self.knocks.listened = head.commit_seq;
            self.listen(remote);
        }
    }

    /// Returns whether a look for a knock is under way.
    pub fn is_listening(&self) -> bool {
        self.knocks.listening.is_some()
    }

    fn listen(&mut self, remote: &Remote) {
        if self.knocks.listening.is_some() {
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

    /// Takes in the reply to a look for a knock, if it is there.
    fn hear(&mut self, head: &Head, id: [u8; 8]) {
        let got = match self.knocks.listening.as_mut().map(oneshot::Receiver::try_recv) {
            None | Some(Err(oneshot::error::TryRecvError::Empty)) => return,
            Some(got) => got,
        };
        self.knocks.listening = None;
        let Ok(Got::Object { bytes, version, .. }) = got else { return };
        self.knocks.heard = Some(version);
        let knock = Knock::decode(&bytes, &head.file_id);
        if let Some(knock) = knock.filter(|knock| knock.writer != id) {
            self.knocks.owed = Some((knock, 0));
        }
    }

    /// If it is this writer's turn and another one has knocked, lets that one commit first: nothing is sent on top of
    /// this HEAD for as long as it needs.
    pub fn give_way(&mut self, head: &Head, id: [u8; 8]) {
        self.hear(head, id);
        self.knocks.owed = self.knocks.owed.filter(|(knock, times)| *times < TIMES && knock.counts(head));
        let my_turn = self.line.ahead_of(id).is_none_or(|ahead| ahead == 0);
        let given = self.gives_way.is_some_and(|(seq, _)| seq == head.commit_seq);
        if let Some((knock, times)) = self.knocks.owed.as_mut().filter(|_| my_turn && !given) {
            *times += 1;
            let until = self.env.monotonic() + knock.wants.max(self.put * 3);
            self.gives_way = Some((head.commit_seq, until));
        }
    }

    /// Counts a commit that was just stored: a writer without pauses has to look for knocks.
    pub(super) fn count_streak(&mut self) {
        let Some(sent) = self.last_put else { return };
        let now = self.env.monotonic();
        // A pause is long enough for a loser: its read, its back-off and its put.
        let pause = self.put * 9 / 4;
        let before = self.knocks.stored.replace(now);
        let paused = before.is_none_or(|before| sent.saturating_duration_since(before) >= pause);
        self.knocks.streak = if paused { 0 } else { self.knocks.streak.wrapping_add(1) };
    }
}
