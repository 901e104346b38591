//! Limits how long a call that uses a store takes: it ends at its deadline, whatever the store does.
//!
//! Called by opening, checks, restores, the probe and measurements; the writer itself keeps its callers' deadlines. A
//! call of many requests, or of many bytes, continues past its deadline while the store keeps replying. A single request
//! has its own limit: [`within`], [`put_within`].

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::Instant;

use crate::bytes::store::{Expect, Got, Listed, MAX_OBJECT, Put, Store, Version};
use crate::noun::env::Env;
use crate::noun::error::{Code, Error, Kind, Result};

tokio::task_local! {
    /// The limit of the call that this task carries out, for code that transfers bodies.
    static CURRENT: Arc<CallLimit>;
}

/// An upload slower than this counts as hanging.
const SLOWEST_BYTES_PER_SECOND: u64 = 128 * 1024;
/// Uploads up to this size get no extra time.
const SMALL: u64 = 1024 * 1024;

/// The time limit of one call.
pub struct CallLimit {
    env: Env,
    deadline: Duration,
    state: Mutex<LimitState>,
}

struct LimitState {
    until: Instant,
    /// A request was sent that may take effect, and its outcome is unknown.
    in_doubt: Option<&'static str>,
    trouble: Option<Error>,
}

impl fmt::Debug for CallLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CallLimit({:?})", self.deadline)
    }
}

impl CallLimit {
    /// Returns a limit that begins now and ends at the deadline.
    pub fn new(env: &Env, deadline: Duration) -> Arc<Self> {
        let state = LimitState { until: env.monotonic() + deadline, in_doubt: None, trouble: None };
        Arc::new(Self { env: env.clone(), deadline, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, LimitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the call. Drops its future when the limit is reached.
    pub async fn run<T>(self: &Arc<Self>, what: &str, call: impl Future<Output = Result<T>>) -> Result<T> {
        let mut call = pin!(CURRENT.scope(Arc::clone(self), call));
        loop {
            let left = self.state().until.saturating_duration_since(self.env.monotonic());
            if left.is_zero() {
                return Err(self.over(what));
            }
            tokio::select! {
                biased;
                done = &mut call => return done,
                () = self.env.sleep(left) => {}
            }
        }
    }

    /// Sets the advice for an unknown outcome at the limit; `None`: the outcome is known again.
    pub fn doubt(&self, advice: Option<&'static str>) {
        self.state().in_doubt = advice;
    }

    /// Notes the last error, which is reported when the limit is reached.
    pub fn trouble(&self, error: &Error) {
        self.state().trouble = Some(error.clone());
    }

    /// Lets the call continue for at least this long from now.
    fn extend(&self, time: Duration) {
        let until = self.env.monotonic() + time;
        let mut state = self.state();
        state.until = state.until.max(until);
    }

    fn over(&self, what: &str) -> Error {
        let LimitState { in_doubt, trouble, .. } = &*self.state();
        let seconds = self.deadline.as_secs_f32();
        let because = trouble.as_ref().map(|e| format!("; last error: {e}")).unwrap_or_default();
        if let Some(advice) = in_doubt {
            let told = format!("{what} did not end within {seconds} s: {advice}{because}");
            return Error::new(Code::OutcomeUnknown, told);
        }
        let known = trouble.as_ref().map(Error::code).filter(|code| code.kind() == Kind::Unavailable);
        let advice = "nothing was changed; raise the option deadline if the store is only slow";
        Error::new(
            known.unwrap_or(Code::Timeout),
            format!("{what} did not end within {seconds} s: {advice}{because}"),
        )
    }

    /// Returns the store for a call of many requests: while it replies, the call continues past its deadline.
    pub fn over_store(self: &Arc<Self>, inner: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(LimitedStore { inner, call_limit: Arc::clone(self) })
    }
}

/// Returns the result of one request, or an error if there is none within `limit`.
pub async fn within<T>(env: &Env, limit: Duration, request: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::select! {
        biased;
        done = request => done,
        () = env.sleep(limit) => Err(silent(limit)),
    }
}

/// Returns the result of a conditional PUT. Without one within `limit` the outcome is unknown.
pub async fn put_within(env: &Env, limit: Duration, put: impl Future<Output = Put>) -> Put {
    tokio::select! {
        biased;
        put = put => put,
        () = env.sleep(limit) => Put::Unknown { error: silent(limit), sent: true, retry_after: None },
    }
}

fn silent(limit: Duration) -> Error {
    Error::new(Code::Unreachable, format!("the store did not reply within {limit:?}"))
}

/// Notes that bytes of a body arrived: the call may continue a little longer.
#[cfg(feature = "s3")]
pub(crate) fn moved() {
    let _ = CURRENT.try_with(|call_limit| call_limit.extend(call_limit.deadline / 10));
}

/// A store whose replies extend the limit.
#[derive(Debug)]
struct LimitedStore {
    inner: Arc<dyn Store>,
    call_limit: Arc<CallLimit>,
}

impl LimitedStore {
    fn note<T>(&self, answer: Result<T>) -> Result<T> {
        match &answer {
            Ok(_) => self.call_limit.extend(self.call_limit.deadline / 3),
            Err(error) => self.call_limit.trouble(error),
        }
        answer
    }

    /// Gives a large body the time that it takes on a slow connection.
    fn moving(&self, bytes: usize) {
        let large = (bytes as u64).saturating_sub(SMALL);
        if large > 0 {
            let time = Duration::from_millis(large * 1000 / SLOWEST_BYTES_PER_SECOND);
            self.call_limit.extend(self.call_limit.deadline / 3 + time);
        }
    }
}

#[async_trait]
impl Store for LimitedStore {
    async fn get(&self, key: &str, unless: Option<&Version>) -> Result<Got> {
        self.get_at_most(key, unless, MAX_OBJECT).await
    }

    async fn get_at_most(&self, key: &str, unless: Option<&Version>, most: u64) -> Result<Got> {
        self.note(self.inner.get_at_most(key, unless, most).await)
    }

    async fn put_if(&self, key: &str, body: Bytes, expect: &Expect) -> Put {
        self.moving(body.len());
        let put = self.inner.put_if(key, body, expect).await;
        match &put {
            Put::Unknown { error, .. } => self.call_limit.trouble(error),
            _ => self.call_limit.extend(self.call_limit.deadline / 3),
        }
        put
    }

    async fn put_new(&self, key: &str, body: Bytes) -> Result<()> {
        self.moving(body.len());
        self.note(self.inner.put_new(key, body).await)
    }

    async fn delete(&self, key: &str) -> Result<()> {
        self.note(self.inner.delete(key).await)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Listed>> {
        self.note(self.inner.list(prefix).await)
    }

    crate::forward_to_inner!(describe place default_max_skew needs_probe);
}
