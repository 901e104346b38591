//! Checks the store's compare-and-swap before a process first replaces HEAD of an existing queue file (G10): its
//! objects may have been copied there from a better store, or the store may have changed since the file was created.
//!
//! Called by publish, while the first commit is built, and before any HEAD is sent. Costs three small PUTs per process and
//! store, and none for readers and idle processes.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::{Remote, unseen};
use crate::bytes::store::probe::{ask_conditions, remove};
use crate::bytes::store::{Store, Version};
use crate::noun::error::{Code, Error, Result};

/// The stores whose compare-and-swap has passed the check in this process.
#[derive(Debug, Default)]
pub(crate) struct ProvenStores(Mutex<HashSet<String>>);

impl ProvenStores {
    /// Adds a store that passed.
    pub fn note(&self, store: &dyn Store) {
        self.places().insert(store.place());
    }

    fn holds(&self, store: &dyn Store) -> bool {
        !store.needs_probe() || self.places().contains(&store.place())
    }

    fn places(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state of one writer's check.
#[derive(Debug)]
pub(super) struct CasCheck {
    places: Arc<ProvenStores>,
    /// The store has passed.
    seen: bool,
    /// The verdict of the check under way.
    asking: Option<oneshot::Receiver<Result<()>>>,
    /// Ends when the objects of the check are deleted.
    task: Option<JoinHandle<()>>,
    /// The store failed: nothing is ever sent.
    refused: Option<Error>,
}

impl CasCheck {
    pub fn new(places: Arc<ProvenStores>) -> Self {
        Self { places, seen: false, asking: None, task: None, refused: None }
    }
}

impl Remote {
    /// Starts the check if it is needed; the verdict comes while a commit is built. `known` is the version of HEAD.
    pub fn begin_cas_check(&mut self, known: &Version) {
        let check = &mut self.cas_check;
        if check.seen || check.asking.is_some() || check.refused.is_some() {
            return;
        }
        check.seen = check.places.holds(self.source.store.as_ref());
        if check.seen {
            return;
        }
        let (store, name) = (Arc::clone(&self.source.store), self.source.name.clone());
        let env = self.env.clone();
        let other = Some(known.clone()).filter(|v| *v != unseen());
        // A version that no object of the probe has.
        let stale = other.unwrap_or_else(|| Version::new("\"00000000000000000000000000000000\""));
        let (tell, told) = oneshot::channel();
        check.asking = Some(told);
        // The commit does not wait for the deletes.
        check.task = Some(tokio::spawn(async move {
            let (verdict, keys) = ask_conditions(&store, &name, &stale, &env).await;
            let _ = tell.send(verdict);
            remove(&store, keys).await;
        }));
    }

    /// Waits until the objects of the check are deleted, but only for a while if the store does not reply.
    pub async fn end_cas_check(&mut self) {
        let Some(task) = self.cas_check.task.take() else { return };
        let limit = self.request_limit();
        tokio::select! {
            biased;
            _ = task => {}
            () = self.env.sleep(limit) => {}
        }
    }

    /// Returns a future with the verdict of the check under way, or `None` if the store has passed. An error means that
    /// nothing may be sent.
    pub fn cas_verdict(&mut self) -> Result<Option<impl Future<Output = Result<()>> + Send + use<>>> {
        if let Some(error) = &self.cas_check.refused {
            return Err(error.clone());
        }
        let Some(asking) = self.cas_check.asking.take() else { return Ok(None) };
        let (env, limit) = (self.env.clone(), self.request_limit());
        Ok(Some(async move {
            tokio::select! {
                biased;
                verdict = asking => verdict.unwrap_or_else(|e| {
                    Err(Error::bug("the probe of the store ended early").because(e))
                }),
                () = env.sleep(limit) => {
                    let what = format!("the store did not reply to the probe before the first write within {limit:?}");
                    Err(Error::new(Code::Unreachable, what))
                }
            }
        }))
    }

    /// Takes in the verdict of the check.
    pub fn note_cas_verdict(&mut self, verdict: &Result<()>) {
        match verdict {
            Ok(()) => {
                self.cas_check.seen = true;
                self.cas_check.places.note(self.source.store.as_ref());
            }
            Err(error) if error.code() == Code::NoCompareAndSwap => {
                tracing::error!(%error, "nothing is written to this store");
                self.cas_check.refused = Some(error.clone());
            }
            Err(_) => {}
        }
    }
}
