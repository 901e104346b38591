//! Objects in a bucket of S3 or of a server that speaks its language.
//!
//! Every answer is read to the letter (`answer.rs`); how requests are sent stands in `client.rs`. A conditional put
//! is sent exactly once. Connections belong to the runtime that made them: one that ended costs a reconnect.

use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::Builder;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::ChecksumAlgorithm;
use bytes::Bytes;

use super::{Expect, Got, Listed, Put, Store, Version};
use crate::config::{S3Checksum, S3Options};
use crate::error::{Code, Error, Result};
use answer::{Failure, Heard};

mod answer;
mod client;

/// A body that comes or goes slower than this is taken for hanging.
const SLOWEST_BYTES_PER_SECOND: u64 = 128 * 1024;
/// A get whose body broke off is asked again this often altogether.
const BODY_TRIES: u32 = 3;

/// One path in one bucket. Clones share their connections.
#[derive(Clone, Debug)]
pub struct S3Store {
    client: Client,
    bucket: String,
    prefix: String,
    /// The server as people know it, without credentials.
    server: String,
    checksum: Option<ChecksumAlgorithm>,
    request_timeout: Duration,
}

impl S3Store {
    /// The store, not yet spoken to: only credentials are looked for, and Denied says that there are none.
    pub async fn open(bucket: &str, prefix: &str, options: &S3Options) -> Result<Self> {
        let (config, server) = client::configure(options).await?;
        Ok(Self {
            client: Client::from_conf(config),
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
            server,
            checksum: match options.checksum {
                S3Checksum::Crc32 => Some(ChecksumAlgorithm::Crc32),
                S3Checksum::Sha256 => Some(ChecksumAlgorithm::Sha256),
                S3Checksum::None => None,
            },
            request_timeout: client::request_timeout(options),
        })
    }

    /// The same store over connections of its own.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self { client: Client::from_conf(self.client.config().clone()), ..self.clone() }
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    fn place(&self, verb: &str, key: &str) -> String {
        format!("{verb} s3://{}/{}{key}", self.bucket, self.prefix)
    }

    /// How long a request with a body of this size may take.
    fn time_for(&self, bytes: u64) -> Duration {
        self.request_timeout + Duration::from_millis(bytes * 1000 / SLOWEST_BYTES_PER_SECOND)
    }

    /// Settings of a request that is sent once and never again.
    fn once(&self) -> Builder {
        let timeouts = TimeoutConfig::builder().operation_timeout(self.request_timeout).build();
        Builder::new().retry_config(RetryConfig::disabled()).timeout_config(timeouts)
    }

    async fn get_once(&self, key: &str, unless: Option<&Version>) -> std::result::Result<Got, Tried> {
        let heard = Heard::default();
        let request = self.client.get_object().bucket(&self.bucket).key(self.key(key));
        let request = request.set_if_none_match(unless.map(|v| v.as_str().to_owned()));
        let place = self.place("GET", key);
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
            return Err(Tried::Answered(broken("the answer has no ETag".to_owned())));
        };
        let time = self.time_for(object.content_length.unwrap_or(0).max(0) as u64);
        let bytes = match tokio::time::timeout(time, object.body.collect()).await {
            Ok(Ok(body)) => body.into_bytes(),
            Ok(Err(e)) => {
                return Err(Tried::BrokeOff(broken(format!("the body broke off: {}", answer::chain(&e)))));
            }
            Err(_) => return Err(Tried::BrokeOff(broken(format!("the body did not come within {time:?}")))),
        };
        // Some servers know no If-None-Match on a get and send everything again.
        if unless == Some(&version) {
            return Ok(Got::Unchanged { date_ms: heard.date_ms() });
        }
        Ok(Got::Object { bytes, version, date_ms: heard.date_ms() })
    }
}

/// Why one get gave nothing.
enum Tried {
    /// The SDK has retried what deserves it.
    Answered(Error),
    /// The SDK does not look after bodies: worth another go.
    BrokeOff(Error),
}

#[async_trait]
impl Store for S3Store {
    async fn get(&self, key: &str, unless: Option<&Version>) -> Result<Got> {
        let mut tries = 1;
        loop {
            match self.get_once(key, unless).await {
                Ok(got) => return Ok(got),
                Err(Tried::BrokeOff(_)) if tries < BODY_TRIES => tries += 1,
                Err(Tried::BrokeOff(e) | Tried::Answered(e)) => return Err(e),
            }
        }
    }

    async fn put_if(&self, key: &str, body: Bytes, expect: &Expect) -> Put {
        let heard = Heard::default();
        let request = self.client.put_object().bucket(&self.bucket).key(self.key(key));
        let request = match expect {
            Expect::Absent => request.if_none_match("*"),
            Expect::Is(version) => request.if_match(version.as_str()),
        };
        // Bytes in memory, not a stream: the checksum becomes a header, and the body is not cut into signed chunks.
        let request = request.set_checksum_algorithm(self.checksum.clone()).body(ByteStream::from(body));
        let answer = request.customize().config_override(self.once()).interceptor(heard.clone()).send().await;
        let place = self.place("PUT", key);
        match answer {
            Ok(done) => match done.e_tag {
                Some(etag) => Put::Stored { version: Version::new(etag), date_ms: heard.date_ms() },
                None => Put::Unknown {
                    error: Error::new(Code::Unreachable, format!("{place}: the answer has no ETag")),
                    sent: true,
                    retry_after: None,
                },
            },
            Err(e) => Failure::of(&e, &heard).into_put(&place, expect),
        }
    }

    async fn put_new(&self, key: &str, body: Bytes) -> Result<()> {
        let heard = Heard::default();
        let time = self.time_for(body.len() as u64);
        let timeouts = TimeoutConfig::builder().operation_attempt_timeout(time).operation_timeout(2 * time);
        let request = self.client.put_object().bucket(&self.bucket).key(self.key(key));
        let request = request.set_checksum_algorithm(self.checksum.clone()).body(ByteStream::from(body));
        let timely = Builder::new().timeout_config(timeouts.build());
        match request.customize().config_override(timely).interceptor(heard.clone()).send().await {
            Ok(_) => Ok(()),
            Err(e) => Err(Failure::of(&e, &heard).into_error(&self.place("PUT", key))),
        }
    }

    async fn delete(&self, key: &str) -> Result<()> {
        let heard = Heard::default();
        let request = self.client.delete_object().bucket(&self.bucket).key(self.key(key));
        match request.customize().interceptor(heard.clone()).send().await {
            Ok(_) => Ok(()),
            Err(e) => {
                let failure = Failure::of(&e, &heard);
                if failure.code.as_deref() == Some("NoSuchKey") {
                    return Ok(());
                }
                Err(failure.into_error(&self.place("DELETE", key)))
            }
        }
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Listed>> {
        let mut found = Vec::new();
        let mut from = None;
        loop {
            let heard = Heard::default();
            let request = self.client.list_objects_v2().bucket(&self.bucket).prefix(self.key(prefix));
            let request = request.set_continuation_token(from);
            let page = match request.customize().interceptor(heard.clone()).send().await {
                Ok(page) => page,
                Err(e) => return Err(Failure::of(&e, &heard).into_error(&self.place("LIST", prefix))),
            };
            found.extend(page.contents.unwrap_or_default().into_iter().filter_map(|object| {
                let key = object.key?.strip_prefix(&self.prefix)?.to_owned();
                Some(Listed { key, size: object.size.unwrap_or(0).max(0) as u64 })
            }));
            from = page.next_continuation_token;
            if from.is_none() {
                // Directory buckets answer in no order.
                found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
                return Ok(found);
            }
        }
    }

    fn describe(&self) -> String {
        format!("s3://{}/{} at {}", self.bucket, self.prefix, self.server)
    }

    fn default_max_skew(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn needs_probe(&self) -> bool {
        true
    }
}
