//! [`QueueFile::workload`]: reads what the file knows of its own past, for the fit model.

use crate::error::Result;
use crate::file::QueueFile;
use crate::fit::{Workload, observe};
use crate::query::Filter;

/// Jobs a page.
const PAGE: u32 = 1_000;
/// Beyond so many jobs the rest is not read; what needs all of them is then left open.
const MOST_JOBS: usize = 200_000;
/// Commits that are looked at, newest first.
const MOST_COMMITS: u32 = 100_000;

impl QueueFile {
    /// The workload of this queue file as far as the file still knows it: finished jobs that are kept, jobs that are
    /// not finished, and the commits that the log has. Reads all of them.
    pub async fn workload(&self) -> Result<Workload> {
        let (mut jobs, mut after) = (vec![], None);
        let complete = loop {
            let page = self.list(Filter::default(), after, PAGE).await?;
            jobs.extend(page.jobs);
            after = page.next;
            if after.is_none() {
                break true;
            }
            if jobs.len() >= MOST_JOBS {
                break false;
            }
        };
        let commits = self.history(MOST_COMMITS).await?;
        let stats = self.stats(None).await?;
        Ok(observe(&jobs, &commits, &stats, complete))
    }
}
