//! What handles ask of the writer that is neither an op nor a question: collections, the archive, images, tasks.
//!
//! Called by file and sync.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::{Begun, Collection, Door, Export, Mail, Pass, Place, Stage, Task, Told, gone};
use crate::error::{Code, Error, Result};
use crate::query::{Collected, Exported};

impl Door {
    /// Carry out something about the state as a whole. It ends by itself, and goes on when nobody waits.
    pub async fn task(&self, task: Task) -> Result<Told> {
        let (tx, rx) = oneshot::channel();
        self.tx.send(Mail::Task(task, tx)).map_err(|_| gone())?;
        rx.await.map_err(|_| gone())?
    }

    /// Have what nothing refers to deleted. The deadline is for the floor; the deletes take as long as they take, and
    /// go on if the caller leaves.
    pub async fn collect(self: &Arc<Self>, grace: Duration) -> Result<Collected> {
        self.refuse_if_read_only()?;
        let arrived = self.env.monotonic();
        let _place = Place::take(self)?;
        let stage = Arc::new(Stage::default());
        let deadline = self.env.sleep(self.options.deadline);
        let mut under_way = self.shared.base_under_way.subscribe();
        let begin = async {
            let mut tidy = grace.is_zero();
            loop {
                // A base on its way into HEAD is what makes the old one garbage.
                let _ = under_way.wait_for(|under_way| !under_way).await;
                let ((begun, told), (reply, done)) = (oneshot::channel(), oneshot::channel());
                let order = Collection { grace, tidy, stage: Arc::clone(&stage), arrived, begun, reply };
                self.tx.send(Mail::Collect(order)).map_err(|_| gone())?;
                if told.await.map_err(|_| gone())?? == Begun::Deleting {
                    return Ok(done);
                }
                tidy = false;
            }
        };
        let done = tokio::select! {
            biased;
            done = begin => done?,
            () = deadline => return Err(self.gave_up(&stage)),
        };
        done.await.map_err(|_| gone())?
    }

    /// Archive every job that may leave its queue. Answers how many were archived; others may have archived more. Ends
    /// with an error when no object gets on the list within the deadline.
    pub async fn archive(self: &Arc<Self>) -> Result<u64> {
        self.refuse_if_read_only()?;
        let _place = Place::take(self)?;
        let mut jobs = 0;
        let mut since = self.env.monotonic();
        loop {
            let (tx, rx) = oneshot::channel();
            self.tx.send(Mail::Archive(tx)).map_err(|_| gone())?;
            let limit = self.options.deadline.saturating_sub(self.env.monotonic() - since);
            let pass = tokio::select! {
                biased;
                pass = rx => pass.map_err(|_| gone())??,
                () = self.env.sleep(limit) => return Err(self.gave_up(&Stage::default())),
            };
            match pass {
                Pass::Nothing => return Ok(jobs),
                Pass::Again => {}
                Pass::Listed(n) => {
                    jobs += n;
                    since = self.env.monotonic();
                }
            }
        }
    }

    /// Write the newest settled state to a file.
    pub async fn export(self: &Arc<Self>, path: PathBuf, replace: bool) -> Result<Exported> {
        let _place = Place::take(self)?;
        let (tx, rx) = oneshot::channel();
        let arrived = self.env.monotonic();
        self.tx.send(Mail::Export(Export { path, replace, arrived, reply: tx })).map_err(|_| gone())?;
        let taken = tokio::select! {
            biased;
            taken = rx => taken.map_err(|_| gone())??,
            () = self.env.sleep(self.options.deadline) => return Err(self.gave_up(&Stage::default())),
        };
        taken.await.unwrap_or_else(|e| Err(Error::new(Code::Internal, "an export ended early").because(e)))
    }

    /// Wait until everything sent before is answered.
    pub async fn flush(&self) {
        let (tx, rx) = oneshot::channel();
        if self.tx.send(Mail::Flush(tx)).is_ok() {
            let _ = rx.await;
        }
    }
}
