//! [`QueueFile::workload`]: derives the workload from the jobs and commits of a queue file, for the fit model.

use crate::fit::{Workload, observe};
use crate::handle::file::QueueFile;
use crate::noun::error::Result;
use crate::noun::query::Filter;

/// Jobs per page.
const PAGE: u32 = 1_000;
/// Stop reading after this many jobs; results that need all jobs are then left open.
const MOST_JOBS: usize = 200_000;
/// Commits to read, newest first.
const MOST_COMMITS: u32 = 100_000;

impl QueueFile {
    /// Returns the workload of this queue file as far as the file still knows it. Reads all jobs, including the
    /// finished ones that are kept, and the commits in the log.
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
