//! The identity of a writer: its id, the commit ids that it has drawn, and its newest stored commit (P1, P2, P6, P25).
//!
//! Called when a body is built, settled or stored. Decides with `settle`, and knows no store and no database.

use std::collections::VecDeque;

use crate::bucket::head::Head;
use crate::bucket::record::Record;
use crate::engine::commit::CommitAttempt;
use crate::engine::settle::{self, Settlement, UnsettledBody};
use crate::noun::env::Env;
use crate::noun::error::Result;

/// How many drawn commit ids are remembered.
const DRAWN: usize = 64;

pub(super) struct Identity {
    env: Env,
    id: [u8; 8],
    attempt: u64,
    /// Recently drawn commit ids; the newest last.
    drawn: VecDeque<[u8; 16]>,
    /// This writer's newest stored commit (P25).
    mine: Option<(u64, [u8; 16])>,
}

impl Identity {
    pub fn new(env: &Env) -> Self {
        Self { env: env.clone(), id: env.bytes(), attempt: 0, drawn: VecDeque::new(), mine: None }
    }

    pub fn id(&self) -> [u8; 8] {
        self.id
    }

    /// Draws another writer id, because this one is shared or its commits cannot be settled (P5, P6).
    pub fn renew(&mut self) {
        self.id = self.env.bytes();
        self.attempt = 0;
        self.mine = None;
    }

    /// Returns the next attempt, with a new commit id (P1).
    pub fn next_attempt(&mut self, commit_ms: i64) -> CommitAttempt {
        self.attempt += 1;
        let commit_id = self.env.bytes();
        self.drawn.push_back(commit_id);
        if self.drawn.len() > DRAWN {
            self.drawn.pop_front();
        }
        CommitAttempt { writer: self.id, number: self.attempt, commit_id, commit_ms }
    }

    /// Returns the commit id of the newest attempt.
    pub fn newest(&self) -> Option<[u8; 16]> {
        self.drawn.back().copied()
    }

    /// Notes that this commit of the writer is stored.
    pub fn stored(&mut self, record: &Record) {
        self.mine = Some((record.seq, record.commit_id));
    }

    /// Returns whether this writer has stored a commit.
    pub fn has_stored(&self) -> bool {
        self.mine.is_some()
    }

    /// Refuses a HEAD that does not continue the known one, or lacks this writer's newest commit (P21, P25).
    pub fn check_continues(&self, known: &Head, now: &Head, logged: Option<[u8; 16]>) -> Result<()> {
        settle::continues(known, now, logged, self.mine, self.id)
    }

    /// Decides the outcome of this body of the writer, by a HEAD read after the store's reply.
    pub fn judge(&self, body: &Head, now: &Head, logged: Option<[u8; 16]>) -> Settlement {
        // Usually this writer's entry in HEAD is its newest stored commit, which may have left the drawn ids.
        let mine = self.mine.map(|(_, id)| id);
        let drawn: Vec<[u8; 16]> = self.drawn.iter().copied().chain(mine).collect();
        settle::judge(UnsettledBody { body, writer: self.id, drawn: &drawn }, now, logged)
    }
}
