//! The meaning of a server's reply, or of its silence.
//!
//! Called by the S3 store. Reports only what is certain: in doubt, a PUT counts as sent with an unknown outcome.

use std::error::Error as StdError;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::config::interceptors::{
    BeforeDeserializationInterceptorContextRef, BeforeTransmitInterceptorContextRef,
};
use aws_sdk_s3::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_s3::error::{BoxError, ProvideErrorMetadata, SdkError};
use aws_sdk_s3::primitives::SdkBody;
use aws_smithy_runtime_api::client::interceptors::context::BeforeDeserializationInterceptorContextMut;
use http_body_util::Limited;

use crate::bytes::store::{Expect, Put};
use crate::noun::error::{Code, Error};

/// No reply is longer, except the body of an object: a page of a LIST is about a megabyte.
const MAX_REPLY: usize = 8 * 1024 * 1024;

/// Facts noted while a request is sent, beside the SDK's own result. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestNotes {
    notes: Arc<Mutex<Notes>>,
    /// The caller reads the body of a successful reply, and bounds it.
    is_object: bool,
}

#[derive(Clone, Debug, Default)]
struct Notes {
    /// The request was passed to the HTTP client: before that, nothing can have been sent.
    handed_over: bool,
    date: Option<SystemTime>,
    retry_after: Option<Duration>,
    region: Option<String>,
}

impl RequestNotes {
    /// Returns the notes of a request for an object, whose body the caller bounds.
    pub(super) fn of_object() -> Self {
        Self { is_object: true, ..Self::default() }
    }

    /// Returns the server's clock at its last reply.
    pub(super) fn date_ms(&self) -> Option<i64> {
        let since = self.notes().date?.duration_since(UNIX_EPOCH).ok()?;
        i64::try_from(since.as_millis()).ok()
    }

    fn notes(&self) -> Notes {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, change: impl FnOnce(&mut Notes)) {
        change(&mut self.notes.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Intercept for RequestNotes {
    fn name(&self) -> &'static str {
        "bucketq"
    }

    fn read_before_transmit(
        &self,
        _: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        self.note(|notes| notes.handed_over = true);
        Ok(())
    }

    fn modify_before_deserialization(
        &self,
        context: &mut BeforeDeserializationInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let response = context.response_mut();
        // The SDK reads every other body into memory.
        if !self.is_object || !response.status().is_success() {
            let body = std::mem::replace(response.body_mut(), SdkBody::taken());
            *response.body_mut() = SdkBody::from_body_1_x(Limited::new(body, MAX_REPLY));
        }
        Ok(())
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let headers = context.response().headers();
        let date = headers.get("date").and_then(|d| httpdate::parse_http_date(d).ok());
        self.note(|notes| {
            notes.date = date;
            notes.retry_after = headers.get("retry-after").and_then(|r| retry_after(r, date));
            notes.region = headers.get("x-amz-bucket-region").map(str::to_owned);
        });
        Ok(())
    }
}

/// Parses seconds, or a time relative to the server's own clock.
fn retry_after(text: &str, now: Option<SystemTime>) -> Option<Duration> {
    if let Ok(seconds) = text.trim().parse::<u32>() {
        return Some(Duration::from_secs(seconds.into()));
    }
    httpdate::parse_http_date(text).ok()?.duration_since(now?).ok()
}

/// A request that failed.
#[derive(Debug)]
pub(super) struct Failure {
    /// The HTTP status, if there was a reply.
    pub(super) status: Option<u16>,
    /// S3's error code, if the reply had one.
    pub(super) code: Option<String>,
    what: String,
    /// False only if certainly no byte of the request reached a server.
    sent: bool,
    timed_out: bool,
    retry_after: Option<Duration>,
}

impl Failure {
    pub(super) fn of<E>(error: &SdkError<E, HttpResponse>, heard: &RequestNotes) -> Self
    where
        E: ProvideErrorMetadata + StdError + 'static,
    {
        let notes = heard.notes();
        let status = error.raw_response().map(|r| r.status().as_u16());
        let code = error.code().map(str::to_owned);
        let what = match status {
            Some(status) => {
                let region = notes.region.filter(|_| matches!(status, 301 | 307 | 400));
                let mut words = vec![format!("the server replied {status}")];
                words.extend(code.clone());
                words.extend(error.message().map(|m| format!("({m})")));
                words.extend(region.map(|r| format!("(the bucket is in {r})")));
                words.join(" ")
            }
            None => chain(error),
        };
        Self {
            status,
            code,
            what,
            sent: notes.handed_over && !never_connected(error),
            timed_out: matches!(error, SdkError::TimeoutError(_)),
            retry_after: notes.retry_after,
        }
    }

    fn cause(&self) -> Code {
        match (self.status, self.code.as_deref()) {
            (_, Some("NoSuchBucket")) => Code::NoSuchBucket,
            (_, Some("RequestTimeTooSkewed")) => Code::ClockSkew,
            (Some(429 | 503), _) | (_, Some("SlowDown")) => Code::Throttled,
            // versitygw replies 404 for an unknown key id.
            (Some(401 | 403), _) | (_, Some("XAdminUserNotFound")) => Code::Denied,
            (None, _) if self.timed_out => Code::Timeout,
            _ => Code::Unreachable,
        }
    }

    /// Returns the error of a request that may be retried or changes nothing.
    pub(super) fn into_error(self, place: &str) -> Error {
        let code = if self.cause() == Code::Timeout { Code::Unreachable } else { self.cause() };
        Error::new(code, format!("{place}: {}", self.what))
    }

    /// Returns the result of a failed conditional PUT.
    pub(super) fn into_put(self, place: &str, expect: &Expect) -> Put {
        let cause = self.cause();
        match (self.status, expect) {
            (Some(409 | 412), _) => return Put::Conflict,
            (Some(404), Expect::Is(_)) if self.code.as_deref() == Some("NoSuchKey") => return Put::Conflict,
            (Some(501), _) => {
                let what = format!("{place}: the server knows no conditional writes: {}", self.what);
                let error = Error::new(Code::NoCompareAndSwap, what);
                return Put::Unknown { error, sent: false, retry_after: None };
            }
            _ => {}
        }
        let refused = matches!(cause, Code::NoSuchBucket | Code::Denied | Code::ClockSkew);
        let (sent, retry_after) = (self.sent && !refused, self.retry_after);
        Put::Unknown { error: self.into_error(place), sent, retry_after }
    }
}

/// Returns whether the HTTP client got no connection. Its error type cannot be named here, so its text is compared; if
/// the text changes, the request counts as sent, which is always safe. A test checks the text.
fn never_connected(error: &(dyn StdError + 'static)) -> bool {
    causes(error).any(|e| e.to_string() == "client error (Connect)")
}

fn causes<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&e| e.source())
}

/// Returns the text without the user names and passwords of its URLs.
pub(super) fn redacted(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, url) = rest.split_at(at + 3);
        let end = url.find(|c: char| c.is_whitespace() || "\"'`<>(),".contains(c)).unwrap_or(url.len());
        shown.push_str(before);
        // By the URL standard a password cannot contain a slash, but it is still a secret.
        shown.push_str(url[..end].rsplit_once('@').map_or(&url[..end], |(_, host)| host));
        rest = &url[end..];
    }
    shown.push_str(rest);
    shown
}

/// Returns an error and its causes on one line, without repetition and without passwords.
pub(super) fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut parts: Vec<String> = Vec::new();
    for text in causes(error).map(ToString::to_string) {
        if parts.last().is_none_or(|last| !last.ends_with(&text)) {
            parts.push(text);
        }
    }
    redacted(&parts.join(": "))
}
