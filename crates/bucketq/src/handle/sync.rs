//! Operations on the state as a whole: publish, follow, export unpublished changes. Mostly for Local mode; in Durable mode
//! everything acknowledged is published already.

use std::path::{Path, PathBuf};

use crate::door::{Synced, Task, TaskResult, Unsynced};
use crate::handle::file::QueueFile;
use crate::noun::error::{Error, Result, only};

impl QueueFile {
    /// Publishes the unpublished changes in one commit; without unpublished changes it costs nothing. Fails with `diverged`
    /// when another writer has committed since the last sync or snapshot. Then nothing is lost, and the caller chooses
    /// between [`export_pending`](Self::export_pending) and [`snapshot`](Self::snapshot) with discard. The next sync
    /// settles an unknown outcome. In Durable mode there is nothing to do.
    pub async fn sync(&self) -> Result<Synced> {
        only!(self.door()?.task(Task::Sync).await?, TaskResult::Synced(synced) => synced)
    }

    /// Fetches what other writers published. Fails with `unsynced` while changes are unpublished, unless `discard` drops
    /// them. Returns the number of the newest commit. In Durable mode this only asks the store for new commits.
    pub async fn snapshot(&self, discard: bool) -> Result<u64> {
        only!(self.door()?.task(Task::Snapshot { discard }).await?, TaskResult::At(seq) => seq)
    }

    /// Returns the unpublished changes; none in Durable mode.
    pub fn dirty(&self) -> Result<Unsynced> {
        Ok(self.door()?.shared.unsynced())
    }

    /// Writes the local state, including unpublished changes, to a new file that `sqlite3` opens. Also writes a line of
    /// JSON for each job that differs from the published state, to `path` with `.jsonl` appended.
    pub async fn export_pending(&self, path: &Path) -> Result<()> {
        let path = std::path::absolute(path).map_err(|e| Error::invalid("no path to write to").because(e))?;
        self.door()?.task(Task::Export { path }).await.map(|_| ())
    }

    /// Returns the directory of the local state: in Local mode, or in Durable mode with a `cache`.
    pub fn directory(&self) -> Result<Option<PathBuf>> {
        Ok(self.door()?.info.directory.clone())
    }
}
