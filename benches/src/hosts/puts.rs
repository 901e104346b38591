//! The time of a PUT while a measurement runs, by which its times are judged.

use std::sync::Arc;
use std::time::Duration;

use bucketq::error::{Code, Error, Result};
use bucketq::store::S3Store;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::Ground;
use crate::raw::RawPut;
use crate::servers::BUCKET;
use crate::stats::{median, now};

/// About the size of a HEAD under load.
const SIZE: usize = 32 * 1024;
const EVERY: Duration = Duration::from_millis(100);

/// Conditional PUTs beside a measurement, ten a second.
#[derive(Debug)]
pub struct Puts {
    task: JoinHandle<Result<Vec<Duration>>>,
    stop: oneshot::Sender<()>,
}

impl Puts {
    /// Begins. No two measurements may use the same name.
    pub async fn start(ground: &Ground, name: &str) -> Result<Self> {
        let store = S3Store::open(BUCKET, &format!("hosts/{name}/"), &ground.s3).await?;
        let mut raw = RawPut::new(Arc::new(store), "raw");
        // The first PUT opens a connection.
        raw.put(SIZE).await?;
        let (stop, mut stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let mut times = vec![];
            loop {
                let began = now();
                times.push(raw.put(SIZE).await?);
                tokio::select! {
                    biased;
                    _ = &mut stopped => return Ok(times),
                    () = tokio::time::sleep_until(began + EVERY) => {}
                }
            }
        });
        Ok(Self { task, stop })
    }

    /// Ends, and returns the median.
    pub async fn end(self) -> Result<Duration> {
        drop(self.stop);
        let times = self.task.await;
        Ok(median(&times.map_err(|e| Error::new(Code::Internal, "the PUTs beside").because(e))??))
    }
}
