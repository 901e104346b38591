//! What a handle does about the state as a whole: publish, follow, save what cannot be published. Mostly about Local
//! mode; in Durable mode everything acknowledged is published already.

use std::path::{Path, PathBuf};

use crate::door::{Synced, Task, Told, Unsynced};
use crate::error::{Code, Error, Result};
use crate::file::QueueFile;

impl QueueFile {
    /// Publish what was changed locally, in one commit; costs nothing when nothing was. When another writer has
    /// committed since the last sync or snapshot the answer is Diverged: nothing is lost, and the caller chooses between
    /// [`export_pending`](Self::export_pending) and [`snapshot`](Self::snapshot) with discard. An unknown outcome is
    /// settled by the next sync. In Durable mode there is nothing to do.
    pub async fn sync(&self) -> Result<Synced> {
        match self.door()?.task(Task::Sync).await? {
            Told::Synced(synced) => Ok(synced),
            other => Err(unexpected(&other)),
        }
    }

    /// Bring what others published. Refused with `unsynced` while anything is not published, unless `discard` drops it.
    /// Answers the number of the newest commit. In Durable mode this is a look at the store.
    pub async fn snapshot(&self, discard: bool) -> Result<u64> {
        match self.door()?.task(Task::Snapshot { discard }).await? {
            Told::At(seq) => Ok(seq),
            other => Err(unexpected(&other)),
        }
    }

    /// What is not published. Always nothing in Durable mode.
    pub fn dirty(&self) -> Result<Unsynced> {
        Ok(self.door()?.shared.unsynced())
    }

    /// Write the local state, with what is not published, to a new file that `sqlite3` opens, and to `path` with
    /// `.jsonl` added a line of JSON for each job that differs from what is published.
    pub async fn export_pending(&self, path: &Path) -> Result<()> {
        let path = std::path::absolute(path).map_err(|e| Error::invalid("no path to write to").because(e))?;
        self.door()?.task(Task::Export { path }).await.map(|_| ())
    }

    /// Where the local state lies: in Local mode, or in Durable mode with a `cache`.
    pub fn directory(&self) -> Result<Option<PathBuf>> {
        Ok(self.door()?.info.directory.clone())
    }
}

fn unexpected(told: &Told) -> Error {
    Error::new(Code::Internal, format!("another answer than asked for: {told:?}"))
}
