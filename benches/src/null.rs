//! The null loop: the same callers, mailbox, group commit and gather as the engine, and a PUT of the same size,
//! but no database and no encoding. The engine is slower than this loop by its own work, and by nothing else.
//!
//! Used for `efficiency`. It gathers by the engine's rule: after a PUT it waits until as many ops have arrived as the
//! last batch released, at most the smaller of 15 % of the average PUT and 10 ms.

use std::sync::Arc;
use std::time::Duration;

use bucketq::error::{Code, Error, Result};
use bucketq::store::Store;
use tokio::sync::{mpsc, oneshot};

use crate::raw::RawPut;
use crate::stats::now;

/// Share of the average PUT for which a batch waits for more ops; the engine's default.
const GATHER_SHARE: f64 = 0.15;
/// The longest wait of a batch; the engine's default.
const GATHER_MAX: Duration = Duration::from_millis(10);
/// Weight of the newest PUT in the average.
const NEWEST: f64 = 0.2;

type Reply = oneshot::Sender<()>;

/// A mailbox with a thread behind it, as an open queue file has. Dropping the last clone ends the thread.
#[derive(Clone, Debug)]
pub struct NullLoop {
    mailbox: mpsc::Sender<Reply>,
}

impl NullLoop {
    /// Starts the thread; every commit PUTs `size` bytes under `key`.
    pub fn start(store: Arc<dyn Store>, key: &str, size: usize) -> Result<Self> {
        let (mailbox, ops) = mpsc::channel(10_000);
        let raw = RawPut::new(store, key);
        std::thread::Builder::new()
            .name("null-loop".into())
            .spawn(move || match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime.block_on(run(ops, raw, size)),
                Err(e) => eprintln!("the null loop has no runtime: {e}"),
            })
            .map_err(|e| Error::new(Code::Internal, "the null loop has no thread").because(e))?;
        Ok(Self { mailbox })
    }

    /// Does one op: returns when the PUT that carries it is stored.
    pub async fn op(&self) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        let gone = || Error::new(Code::Closed, "the null loop has ended");
        self.mailbox.send(reply).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())
    }
}

async fn run(mut ops: mpsc::Receiver<Reply>, mut raw: RawPut, size: usize) {
    let mut batch: Vec<Reply> = Vec::new();
    let mut released = 0;
    let mut average = 0.0;
    while let Some(first) = ops.recv().await {
        batch.push(first);
        take_waiting(&mut ops, &mut batch);
        gather(&mut ops, &mut batch, released, average).await;
        match raw.put(size).await {
            Ok(took) => average += NEWEST * (took.as_secs_f64() - average),
            Err(e) => {
                // Dropped replies fail the callers.
                eprintln!("the null loop ends: {e}");
                return;
            }
        }
        released = batch.len();
        for reply in batch.drain(..) {
            // A caller that has gone needs no reply.
            let _ = reply.send(());
        }
    }
}

fn take_waiting(ops: &mut mpsc::Receiver<Reply>, batch: &mut Vec<Reply>) {
    while let Ok(reply) = ops.try_recv() {
        batch.push(reply);
    }
}

async fn gather(ops: &mut mpsc::Receiver<Reply>, batch: &mut Vec<Reply>, released: usize, average: f64) {
    let until = now() + Duration::from_secs_f64(average * GATHER_SHARE).min(GATHER_MAX);
    while batch.len() < released {
        match tokio::time::timeout_at(until, ops.recv()).await {
            Ok(Some(reply)) => {
                batch.push(reply);
                take_waiting(ops, batch);
            }
            Ok(None) | Err(_) => return,
        }
    }
}
