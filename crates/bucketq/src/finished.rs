//! [`QueueFile::finished`]: wait until a job is finished. Called by whoever wants the result of a job.

use std::time::Duration;

use crate::error::{Code, Error, Result};
use crate::file::QueueFile;
use crate::job::JobId;
use crate::query::{Answer, Detail, Query};

/// How soon what this process itself commits is noticed; costs no request.
const LOOK: Duration = Duration::from_millis(20);

impl QueueFile {
    /// The job once it is done, dead or cancelled; none when it is not within `wait`. No `wait` waits as long as it
    /// takes. The store is asked as often as by a claim that waits: every `poll_min` at first, every `poll_max` later.
    pub async fn finished(&self, id: JobId, wait: Option<Duration>) -> Result<Option<Detail>> {
        let (env, mut poll, longest) = {
            let door = self.door()?;
            (door.env.clone(), door.options.poll_min, door.options.poll_max)
        };
        let began = env.monotonic();
        let mut max_age = Duration::ZERO;
        loop {
            // Not held while sleeping: the handle may be closed meanwhile.
            let Answer::Job(found) = self.ask(Query::Get(id), Some(max_age)).await? else {
                return Err(Error::new(Code::Internal, "another answer than asked for"));
            };
            match found {
                None => return Err(Error::new(Code::NoSuchJob, format!("there is no job {id}"))),
                Some(detail) if detail.job.state.is_finished() => return Ok(Some(*detail)),
                Some(_) => {}
            }
            let waited = env.monotonic() - began;
            let left = wait.map(|w| w.saturating_sub(waited));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            if waited >= poll {
                poll = (poll * 2).min(longest);
            }
            max_age = poll;
            env.sleep(left.map_or(LOOK, |l| l.min(LOOK))).await;
        }
    }
}
