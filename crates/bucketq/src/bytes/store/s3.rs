//! Objects in a bucket of S3 or of an S3-compatible server.
//!
//! Every reply is interpreted strictly (`response.rs`); `client.rs` configures how requests are sent. A conditional PUT
//! is sent exactly once. Connections belong to the runtime that opened them: when it ends, the next request reconnects.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::Builder;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::primitives::{ByteStream, ByteStreamError};
use aws_sdk_s3::types::ChecksumAlgorithm;
use bytes::{Bytes, BytesMut};

use super::{Expect, Got, Listed, MAX_OBJECT, Put, Store, Version, too_large};
use crate::bytes::wrap::limited;
use crate::noun::config::{S3Checksum, S3Options};
use crate::noun::error::{Code, Error, Result};
use response::{Failure, RequestNotes};

mod client;
mod response;

pub(crate) use client::surroundings;

/// A body transferred more slowly than this counts as hanging.
const SLOWEST_BYTES_PER_SECOND: u64 = 128 * 1024;
/// Most tries of a GET whose body broke off.
const BODY_TRIES: u32 = 3;
/// Most pages of a list, of up to a thousand keys each: beyond that the server is assumed to repeat itself forever.
const MOST_PAGES: u32 = 20_000;

/// One path in one bucket. Clones share their connections.
#[derive(Clone)]
pub struct S3Store {
    client: Client,
    bucket: String,
    prefix: String,
    /// The server's name for people, without credentials.
    server: String,
    checksum: Option<ChecksumAlgorithm>,
    request_timeout: Duration,
}

impl fmt::Debug for S3Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "S3Store({})", self.describe())
    }
}

impl S3Store {
    /// Opens the store without contacting it: only looks for credentials, and fails with Denied if there are none.
    pub async fn open(bucket: &str, prefix: &str, options: &S3Options) -> Result<Self> {
        Self::find(bucket, prefix, options).await.map(|(store, _)| store)
    }

    /// Returns the store, not contacted yet, and the key that signs its requests: its id and its secret.
    pub(super) async fn find(
        bucket: &str,
        prefix: &str,
        options: &S3Options,
    ) -> Result<(Self, (String, String))> {
        let found = client::configure(options).await?;
        let store = Self {
            client: Client::from_conf(found.config),
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
            server: found.server,
            checksum: match options.checksum {
                S3Checksum::Crc32 => Some(ChecksumAlgorithm::Crc32),
                S3Checksum::Sha256 => Some(ChecksumAlgorithm::Sha256),
                S3Checksum::None => None,
            },
            request_timeout: client::request_timeout(options),
        };
        Ok((store, found.key))
    }

    /// Returns the server's name, without credentials.
    pub(super) fn server(&self) -> &str {
        &self.server
    }

    /// Returns the same store over its own connections.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self { client: Client::from_conf(self.client.config().clone()), ..self.clone() }
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    fn request(&self, verb: &str, key: &str) -> String {
        format!("{verb} s3://{}/{}{key}", self.bucket, self.prefix)
    }

    /// Returns how long a request with a body of this size may take.
    fn time_for(&self, bytes: u64) -> Duration {
        self.request_timeout + Duration::from_millis(bytes * 1000 / SLOWEST_BYTES_PER_SECOND)
    }

    /// Returns the settings of a request that is never retried.
    fn once(&self) -> Builder {
        let timeouts = TimeoutConfig::builder().operation_timeout(self.request_timeout).build();
        Builder::new().retry_config(RetryConfig::disabled()).timeout_config(timeouts)
    }

    async fn get_once(
        &self,
        key: &str,
        unless: Option<&Version>,
        most: u64,
    ) -> std::result::Result<Got, Tried> {
        let heard = RequestNotes::of_object();
        let request = self.client.get_object().bucket(&self.bucket).key(self.key(key));
        let request = request.set_if_none_match(unless.map(|v| v.as_str().to_owned()));
        let place = self.request("GET", key);
        let object = match request.customize().interceptor(heard.clone()).send().await {
            Ok(object) => object,
            Err(e) => {
                let failure = Failure::of(&e, &heard);
                return match (failure.status, failure.code.as_deref()) {
                    (Some(304), _) if unless.is_some() => Ok(Got::Unchanged { date_ms: heard.date_ms() }),
                    (Some(404), Some("NoSuchKey")) => Ok(Got::Absent { date_ms: heard.date_ms() }),
                    _ => Err(Tried::Answered(failure.into_error(&place))),
                };
            }
        };
        let broken = |what: String| Error::new(Code::Unreachable, format!("{place}: {what}"));
        let Some(version) = object.e_tag.as_deref().map(Version::new) else {
            return Err(Tried::Answered(broken("the reply has no ETag".to_owned())));
        };
        let stated = object.content_length.and_then(|len| u64::try_from(len).ok());
        if let Some(len) = stated.filter(|len| *len > most) {
            return Err(Tried::Answered(too_large(key, Some(len), most).during(place)));
        }
        let time = self.time_for(stated.unwrap_or(0));
        let bytes = match tokio::time::timeout(time, read(object.body, stated, most)).await {
            Ok(Ok(Some(bytes))) => bytes,
            Ok(Ok(None)) => return Err(Tried::Answered(too_large(key, None, most).during(place))),
            Ok(Err(e)) => {
                return Err(Tried::BrokeOff(broken(format!("the body broke off: {}", response::chain(&e)))));
            }
            Err(_) => return Err(Tried::BrokeOff(broken(format!("the body did not come within {time:?}")))),
        };
        // Some servers ignore If-None-Match on a GET and send the whole object.
        if unless == Some(&version) {
            return Ok(Got::Unchanged { date_ms: heard.date_ms() });
        }
        Ok(Got::Object { bytes, version, date_ms: heard.date_ms() })
    }
}

/// Reads the whole body; none when it has more than `most` bytes, which are never all in memory.
async fn read(
    mut body: ByteStream,
    stated: Option<u64>,
    most: u64,
) -> std::result::Result<Option<Bytes>, ByteStreamError> {
    let expected = usize::try_from(stated.unwrap_or(0)).unwrap_or(0);
    let mut bytes = BytesMut::with_capacity(expected);
    while let Some(chunk) = body.try_next().await? {
        if (bytes.len() + chunk.len()) as u64 > most {
            return Ok(None);
        }
        limited::moved();
        bytes.extend_from_slice(&chunk);
    }
    Ok(Some(bytes.freeze()))
}

/// Why one GET failed.
enum Tried {
    /// The server replied; the SDK has retried where that makes sense.
    Answered(Error),
    /// The body broke off: the SDK does not retry bodies, so we do.
    BrokeOff(Error),
}

#[async_trait]
impl Store for S3Store {
    async fn get(&self, key: &str, unless: Option<&Version>) -> Result<Got> {
        self.get_at_most(key, unless, MAX_OBJECT).await
    }

    async fn get_at_most(&self, key: &str, unless: Option<&Version>, most: u64) -> Result<Got> {
        let mut tries = 1;
        loop {
            match self.get_once(key, unless, most).await {
                Ok(got) => return Ok(got),
                Err(Tried::BrokeOff(_)) if tries < BODY_TRIES => tries += 1,
                Err(Tried::BrokeOff(e) | Tried::Answered(e)) => return Err(e),
            }
        }
    }

    async fn put_if(&self, key: &str, body: Bytes, expect: &Expect) -> Put {
        let heard = RequestNotes::default();
        let request = self.client.put_object().bucket(&self.bucket).key(self.key(key));
        let request = match expect {
            Expect::Absent => request.if_none_match("*"),
            Expect::Is(version) => request.if_match(version.as_str()),
        };
        // Bytes in memory, not a stream: the checksum becomes a header, and the body is not split into signed chunks.
        let request = request.set_checksum_algorithm(self.checksum.clone()).body(ByteStream::from(body));
        let answer = request.customize().config_override(self.once()).interceptor(heard.clone()).send().await;
        let place = self.request("PUT", key);
        match answer {
            Ok(done) => match done.e_tag {
                Some(etag) => Put::Stored { version: Version::new(etag), date_ms: heard.date_ms() },
                None => Put::Unknown {
                    error: Error::new(Code::Unreachable, format!("{place}: the reply has no ETag")),
                    sent: true,
                    retry_after: None,
                },
            },
            Err(e) => Failure::of(&e, &heard).into_put(&place, expect),
        }
    }

    async fn put_new(&self, key: &str, body: Bytes) -> Result<()> {
        let heard = RequestNotes::default();
        let time = self.time_for(body.len() as u64);
        let timeouts = TimeoutConfig::builder().operation_attempt_timeout(time).operation_timeout(2 * time);
        let request = self.client.put_object().bucket(&self.bucket).key(self.key(key));
        let request = request.set_checksum_algorithm(self.checksum.clone()).body(ByteStream::from(body));
        let timely = Builder::new().timeout_config(timeouts.build());
        match request.customize().config_override(timely).interceptor(heard.clone()).send().await {
            Ok(_) => Ok(()),
            Err(e) => Err(Failure::of(&e, &heard).into_error(&self.request("PUT", key))),
        }
    }

    async fn delete(&self, key: &str) -> Result<()> {
        let heard = RequestNotes::default();
        let request = self.client.delete_object().bucket(&self.bucket).key(self.key(key));
        match request.customize().interceptor(heard.clone()).send().await {
            Ok(_) => Ok(()),
            Err(e) => {
                let failure = Failure::of(&e, &heard);
                if failure.code.as_deref() == Some("NoSuchKey") {
                    return Ok(());
                }
                Err(failure.into_error(&self.request("DELETE", key)))
            }
        }
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Listed>> {
        let mut found = Vec::new();
        let mut from: Option<String> = None;
        let endless = |what: &str| {
            let place = self.request("LIST", prefix);
            Error::new(Code::Unreachable, format!("{place}: {what}: the list would never end"))
        };
        for _ in 0..MOST_PAGES {
            let heard = RequestNotes::default();
            let request = self.client.list_objects_v2().bucket(&self.bucket).prefix(self.key(prefix));
            let request = request.set_continuation_token(from.clone());
            let page = match request.customize().interceptor(heard.clone()).send().await {
                Ok(page) => page,
                Err(e) => return Err(Failure::of(&e, &heard).into_error(&self.request("LIST", prefix))),
            };
            found.extend(page.contents.unwrap_or_default().into_iter().filter_map(|object| {
                let key = object.key?.strip_prefix(&self.prefix)?.to_owned();
                Some(Listed { key, size: object.size.unwrap_or(0).max(0) as u64 })
            }));
            let next = page.next_continuation_token.filter(|token| !token.is_empty());
            // Some servers leave out the flag and send only the token.
            match (page.is_truncated, next) {
                (Some(true), None) => return Err(endless("the server has more keys and does not say where")),
                (Some(false), _) | (None, None) => {
                    // Directory buckets list in no order.
                    found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
                    return Ok(found);
                }
                (_, next) if next == from => return Err(endless("the server names the same page again")),
                (_, next) => from = next,
            }
        }
        Err(endless(&format!("the server has more than {MOST_PAGES} pages of keys")))
    }

    fn describe(&self) -> String {
        format!("s3://{}/{} at {}", self.bucket, self.prefix, self.server)
    }

    fn place(&self) -> String {
        format!("s3://{} at {}", self.bucket, self.server)
    }

    fn default_max_skew(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn needs_probe(&self) -> bool {
        true
    }
}
