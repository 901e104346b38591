//! How an S3 client is set up: credentials, region, server, time limits, repetition, checksums.
//!
//! Called by `S3Store::open` only.

use std::time::Duration;

use aws_config::environment::EnvironmentVariableRegionProvider;
use aws_config::meta::region::RegionProviderChain;
use aws_config::profile::ProfileFileRegionProvider;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{
    BehaviorVersion, Builder, Config, Credentials, ProvideCredentials, Region, RequestChecksumCalculation,
    ResponseChecksumValidation, StalledStreamProtectionConfig,
};

use super::answer;
use crate::config::{S3Checksum, S3Options};
use crate::error::{Code, Error, Result};

const DEFAULT_REGION: &str = "us-east-1";
const CONNECT_TIMEOUT: Duration = Duration::from_millis(3100);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// For requests that may be repeated; the conditional put overrides it.
const ATTEMPTS: u32 = 3;
const FIRST_BACKOFF: Duration = Duration::from_millis(100);

pub(super) fn request_timeout(options: &S3Options) -> Duration {
    options.request_timeout.unwrap_or(REQUEST_TIMEOUT)
}

/// The client's configuration, and the server as people know it.
pub(super) async fn configure(options: &S3Options) -> Result<(Config, String)> {
    let endpoint = options.endpoint.clone();
    if let Some(endpoint) = &endpoint {
        check_endpoint(endpoint)?;
    }
    let request_timeout = request_timeout(options);
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(options.connect_timeout.unwrap_or(CONNECT_TIMEOUT))
        .operation_attempt_timeout(request_timeout)
        .operation_timeout(2 * request_timeout)
        .build();
    let retries = RetryConfig::standard().with_max_attempts(ATTEMPTS).with_initial_backoff(FIRST_BACKOFF);
    // A fixed version: an update of the SDK must not change how requests are repeated or signed.
    let mut loader = aws_config::defaults(BehaviorVersion::v2026_01_12())
        .region(region(options))
        .timeout_config(timeouts)
        .retry_config(retries)
        // Bodies have time limits of their own, which count bytes and not pauses.
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        // Everything read is checked against hashes of our own.
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
        .request_checksum_calculation(match options.checksum {
            S3Checksum::None => RequestChecksumCalculation::WhenRequired,
            S3Checksum::Crc32 | S3Checksum::Sha256 => RequestChecksumCalculation::WhenSupported,
        });
    if let Some(endpoint) = &endpoint {
        loader = loader.endpoint_url(endpoint);
    }
    if let Some(given) = &options.credentials {
        let (key, secret) = (given.access_key.clone(), given.secret_key.clone());
        loader = loader.credentials_provider(Credentials::new(
            key,
            secret,
            given.session_token.clone(),
            None,
            "options",
        ));
    }
    let shared = loader.load().await;
    check_credentials(&shared).await?;

    let endpoint = endpoint
        .or_else(|| std::env::var("AWS_ENDPOINT_URL_S3").ok().filter(|url| !url.is_empty()))
        .or_else(|| shared.endpoint_url().map(str::to_owned));
    let path_style = options.path_style.unwrap_or(endpoint.is_some());
    let server =
        endpoint.unwrap_or_else(|| format!("AWS {}", shared.region().map_or(DEFAULT_REGION, Region::as_ref)));
    Ok((Builder::from(&shared).force_path_style(path_style).build(), server))
}

/// The option, the environment, the profile, and on AWS's own machines what they say about themselves.
fn region(options: &S3Options) -> RegionProviderChain {
    let given = RegionProviderChain::first_try(options.region.clone().map(Region::new));
    let known = if options.endpoint.is_some() {
        // Another server's region is a mere word: asking the machine for it would cost seconds where there is none.
        given.or_else(EnvironmentVariableRegionProvider::new()).or_else(ProfileFileRegionProvider::new())
    } else {
        given.or_default_provider()
    };
    known.or_else(Region::from_static(DEFAULT_REGION))
}

fn check_endpoint(endpoint: &str) -> Result<()> {
    let wrong = |what: &str| {
        let what = format!("the endpoint {what}; right is https://s3.example.org or http://127.0.0.1:9000");
        Err(Error::new(Code::Option, what))
    };
    let Some(host) = endpoint.strip_prefix("https://").or_else(|| endpoint.strip_prefix("http://")) else {
        return wrong("begins with neither https:// nor http://");
    };
    if host.contains('@') {
        return wrong("holds credentials, which have an option of their own");
    }
    if host.is_empty() || host.starts_with(['/', ':']) {
        return wrong("has no host");
    }
    if host.contains(['?', '#']) || host.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return wrong("has a query, a fragment or white space in it");
    }
    Ok(())
}

/// Missing credentials show now, with what was looked through, and not as a broken request later.
async fn check_credentials(shared: &aws_config::SdkConfig) -> Result<()> {
    let none = || Error::new(Code::Denied, "there are no credentials for S3");
    let provider = shared.credentials_provider().ok_or_else(none)?;
    match provider.provide_credentials().await {
        Ok(_) => Ok(()),
        Err(e) => {
            Err(Error::new(Code::Denied, format!("there are no credentials for S3: {}", answer::chain(&e))))
        }
    }
}
