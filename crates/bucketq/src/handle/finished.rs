//! [`QueueFile::finished`]: wait until a job is finished. Called by code that needs the result of a job.

use std::time::Duration;

use crate::door::gone;
use crate::handle::file::QueueFile;
use crate::noun::error::{Code, Error, Result, only};
use crate::noun::job::JobId;
use crate::noun::query::{Answer, Detail, Query};

impl QueueFile {
    /// Returns the job once it is done, dead or cancelled; none when it is not within `wait`. Without `wait` there is
    /// no time limit. A job that this process finishes is noticed at once. One that another process finishes is noticed
    /// with the next poll, which all these calls share with waiting claims: every `poll_min` at first, every `poll_max`
    /// later.
    pub async fn finished(&self, id: JobId, wait: Option<Duration>) -> Result<Option<Detail>> {
        let (env, longest) = {
            let door = self.door()?;
            (door.env.clone(), door.options.poll_max)
        };
        // A wait too long for the clock never ends.
        let end = wait.and_then(|wait| env.monotonic().checked_add(wait));
        let mut closing = self.closing();
        let now = self.finished_by_now(id, Duration::ZERO).await?;
        if now.is_some() || end.is_some_and(|end| end <= env.monotonic()) {
            return Ok(now);
        }
        // The door is not borrowed meanwhile, so that the handle can be closed.
        let told = self.door()?.await_finish(id)?;
        let ends = async {
            match end {
                Some(end) => env.sleep(end.saturating_duration_since(env.monotonic())).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            told = told => return told.unwrap_or_else(|_| Err(gone())).map(Some),
            _ = closing.wait_for(|closing| *closing) => {
                return Err(Error::new(Code::Closed, "the handle was closed while it waited for a job"));
            }
            () = ends => {}
        }
        self.finished_by_now(id, longest).await
    }

    /// Returns the job if it is finished in a state at most this old.
    async fn finished_by_now(&self, id: JobId, max_age: Duration) -> Result<Option<Detail>> {
        match only!(self.ask(Query::Get(id), Some(max_age)).await?, Answer::Job(found) => found)? {
            Some(detail) => Ok(detail.job.state.is_finished().then_some(*detail)),
            None => Err(Error::new(Code::NoSuchJob, format!("there is no job {id}"))),
        }
    }
}
