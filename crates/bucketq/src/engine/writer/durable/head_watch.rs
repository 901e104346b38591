//! Reads HEAD again and again while the writer waits for its turn, several reads at once: it must see the commit before
//! its own as soon as that commit's writer does. Decides nothing.

use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use super::super::remote::Remote;
use super::super::turns::Reads;
use crate::bytes::store::{Got, Version};
use crate::noun::env::Env;
use crate::noun::error::Result;

/// Reads under way at once: more only pile up behind a slow store.
const AT_ONCE: usize = 4;

/// The reply to a read of HEAD.
pub(super) struct SeenHead {
    /// When it was requested.
    pub asked: Instant,
    /// The version that it was compared with. The writer may know a newer one by now.
    pub known: Version,
    pub got: Result<Got>,
}

/// Reads of HEAD under way. Dropping it cancels them.
#[derive(Default)]
pub(super) struct HeadWatch {
    under_way: JoinSet<SeenHead>,
    /// The version that these reads compare with.
    known: Option<Version>,
    planned: Option<Reads>,
    next: Option<Instant>,
}

impl HeadWatch {
    /// Reads at these times from now on. The same plan again changes nothing. Reads that began before the writer knew
    /// this version are cancelled.
    pub fn plan(&mut self, reads: Reads, known: &Version) {
        if self.known.as_ref() != Some(known) {
            self.under_way.abort_all();
            (self.known, self.planned, self.next) = (Some(known.clone()), None, None);
        }
        let same = self.planned.is_some_and(|planned| planned.every == reads.every);
        if !same || self.next.is_none() {
            self.next = Some(reads.first);
        }
        self.planned = Some(reads);
    }

    /// Returns a reply that is there already. Take all of them before a put: they may show a newer HEAD.
    pub fn arrived(&mut self) -> Option<SeenHead> {
        while let Some(ended) = self.under_way.try_join_next() {
            if let Some(seen) = seen(ended) {
                return Some(seen);
            }
        }
        None
    }

    /// Returns the next reply; never, without a plan. It may be dropped and called again.
    pub async fn next(&mut self, remote: &Remote, env: &Env) -> SeenHead {
        loop {
            let due = self.next.zip(self.planned).filter(|_| self.under_way.len() < AT_ONCE);
            let wait = due.map_or(Duration::MAX, |(at, _)| at.saturating_duration_since(env.monotonic()));
            tokio::select! {
                biased;
                Some(ended) = self.under_way.join_next() => match seen(ended) {
                    Some(seen) => return seen,
                    None => continue,
                },
                () = env.sleep(wait), if due.is_some() => {}
                else => std::future::pending().await,
            }
            if let Some(((_, reads), known)) = due.zip(self.known.clone()) {
                let (asked, get) = (env.monotonic(), remote.get_head(&known));
                self.under_way.spawn(async move { SeenHead { asked, known, got: get.await } });
                self.next = Some(asked + reads.every);
            }
        }
    }
}

/// Returns the reply, unless its read was cancelled.
fn seen(ended: std::result::Result<SeenHead, JoinError>) -> Option<SeenHead> {
    match ended {
        Ok(seen) => Some(seen),
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => None,
    }
}
