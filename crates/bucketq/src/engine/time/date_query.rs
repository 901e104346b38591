//! Asks the store for its time when this machine's clock is in doubt.
//!
//! Called by the Timekeeper. Each request uses the next connection and the key of an object that was never requested
//! before, so that no cache on the way can reply.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::bucket::keys;
use crate::bytes::store::{Got, Store};
use crate::bytes::wrap::limited::within;
use crate::noun::env::Env;
use crate::noun::error::{Code, Result};

/// Time between two requests: replies of the same moment could share one fault.
const APART: Duration = Duration::from_millis(100);

/// The connections to ask, and for how long.
#[derive(Clone)]
pub struct Witnesses {
    stores: Vec<Arc<dyn Store>>,
    name: String,
    limit: Duration,
}

impl fmt::Debug for Witnesses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Witnesses({} connections)", self.stores.len())
    }
}

/// The outcome of one request.
#[derive(Debug)]
pub struct DateReply {
    /// When it was sent.
    pub sent: Instant,
    /// The Date of the reply, if it had one.
    pub date_ms: Result<Option<i64>>,
}

impl Witnesses {
    /// Asks the store of the queue file `name`, over one connection or more. A round takes `limit` at most.
    pub fn new(stores: Vec<Arc<dyn Store>>, name: &str, limit: Duration) -> Self {
        Self { stores, name: name.to_owned(), limit }
    }

    /// Returns the longest time for a round of requests.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Asks the next connection.
    pub fn ask(
        &self,
        number: usize,
        env: &Env,
        limit: Duration,
    ) -> impl Future<Output = DateReply> + Send + use<> {
        let store = self.stores.get(number % self.stores.len().max(1)).cloned();
        let (fresh, head) = (keys::never(&self.name, &env.bytes()), keys::head(&self.name));
        let env = env.clone();
        async move {
            let mut sent = env.monotonic();
            let Some(store) = store else { return DateReply { sent, date_ms: Ok(None) } };
            if number > 0 {
                env.sleep(APART.min(limit)).await;
                sent = env.monotonic();
            }
            let reply = async {
                match store.get(&fresh, None).await {
                    // Without permission to see that an object is absent, read HEAD.
                    Err(error) if error.code() == Code::Denied => {
                        sent = env.monotonic();
                        store.get(&head, None).await
                    }
                    got => got,
                }
            };
            let date_ms = within(&env, limit, reply).await.map(|got| match got {
                Got::Object { date_ms, .. } | Got::Unchanged { date_ms } | Got::Absent { date_ms } => date_ms,
            });
            DateReply { sent, date_ms }
        }
    }
}
