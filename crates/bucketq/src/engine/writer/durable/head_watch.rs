//! Reads HEAD again and again while the writer waits for its turn, several reads at once: it must see the commit before
//! its own as soon as that commit's writer does. Decides nothing.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::super::remote::Remote;
use super::super::turns::Reads;
use crate::bytes::store::{Got, Version};
use crate::noun::env::Env;
use crate::noun::error::{Code, Error, Result};

/// Reads under way at once: more only pile up behind a slow store.
const AT_ONCE: usize = 4;

/// The reply to a read of HEAD.
pub(super) struct Shown {
    /// When it was requested.
    pub asked: Instant,
    pub got: Result<Got>,
}

/// Reads of HEAD under way. Dropping it cancels them.
#[derive(Default)]
pub(super) struct HeadWatch {
    under_way: JoinSet<Shown>,
    planned: Option<Reads>,
    next: Option<Instant>,
}

impl HeadWatch {
    /// Reads at these times from now on. The same plan again changes nothing.
    pub fn plan(&mut self, reads: Reads) {
        let same = self.planned.is_some_and(|planned| planned.every == reads.every);
        if !same || self.next.is_none() {
            self.next = Some(reads.first);
        }
        self.planned = Some(reads);
    }

    /// Cancels the reads under way. The next plan begins anew.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// Returns the next reply; never, without a plan. It may be dropped and called again.
    pub async fn next(&mut self, remote: &Remote, known: &Version, env: &Env) -> Shown {
        loop {
            let due = self.next.zip(self.planned).filter(|_| self.under_way.len() < AT_ONCE);
            let wait = due.map_or(Duration::MAX, |(at, _)| at.saturating_duration_since(env.monotonic()));
            tokio::select! {
                biased;
                Some(shown) = self.under_way.join_next() => return shown.unwrap_or_else(|ended| Shown {
                    asked: env.monotonic(),
                    got: Err(Error::new(Code::Unreachable, format!("a read of HEAD ended: {ended}"))),
                }),
                () = env.sleep(wait), if due.is_some() => {}
                else => std::future::pending().await,
            }
            if let Some((_, reads)) = due {
                let (asked, get) = (env.monotonic(), remote.get_head(known));
                self.under_way.spawn(async move { Shown { asked, got: get.await } });
                self.next = Some(asked + reads.every);
            }
        }
    }
}
