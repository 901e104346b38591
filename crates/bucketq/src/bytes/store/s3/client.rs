//! Configuration of an S3 client: credentials, region, server, time limits, retries, checksums.
//!
//! Called by `S3Store::find` and the registry of open queue files.

use std::path::PathBuf;
use std::time::Duration;

use aws_config::environment::EnvironmentVariableRegionProvider;
use aws_config::meta::region::RegionProviderChain;
use aws_config::profile::ProfileFileRegionProvider;
use aws_config::{ConfigLoader, SdkConfig};
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{
    BehaviorVersion, Builder, Config, Credentials, ProvideCredentials, Region, RequestChecksumCalculation,
    ResponseChecksumValidation, StalledStreamProtectionConfig,
};
use aws_types::service_config::ServiceConfigKey;

use super::response;
use crate::noun::config::{S3Checksum, S3Options};
use crate::noun::error::{Code, Error, Result};

const DEFAULT_REGION: &str = "us-east-1";
const CONNECT_TIMEOUT: Duration = Duration::from_millis(3100);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// For requests that may be retried; the conditional PUT overrides it.
const ATTEMPTS: u32 = 3;
const FIRST_BACKOFF: Duration = Duration::from_millis(100);

pub(super) fn request_timeout(options: &S3Options) -> Duration {
    options.request_timeout.unwrap_or(REQUEST_TIMEOUT)
}

/// The configuration of a client, with the facts about it that others need.
pub(super) struct Configured {
    pub config: Config,
    /// The server's name for people.
    pub server: String,
    /// The key that signs requests: its id and its secret.
    pub key: (String, String),
}

/// Returns the configuration of a client with these options. Sends nothing to the store.
pub(super) async fn configure(options: &S3Options) -> Result<Configured> {
    if let Some(endpoint) = &options.endpoint {
        check_endpoint(endpoint)?;
    }
    let shared = loader(options).load().await;
    let key = credentials(&shared).await?;
    let key = (key.access_key_id().to_owned(), key.secret_access_key().to_owned());

    let endpoint = options
        .endpoint
        .clone()
        .or_else(|| endpoint_for_s3(&shared))
        .or_else(|| shared.endpoint_url().map(str::to_owned));
    let path_style = options.path_style.unwrap_or(endpoint.is_some());
    let server =
        endpoint.unwrap_or_else(|| format!("AWS {}", shared.region().map_or(DEFAULT_REGION, Region::as_ref)));
    let config = Builder::from(&shared).force_path_style(path_style).build();
    Ok(Configured { config, server: response::redacted(&server), key })
}

/// Returns the endpoint that the environment or the profile names for S3 alone, as the client finds it.
fn endpoint_for_s3(shared: &SdkConfig) -> Option<String> {
    let key =
        ServiceConfigKey::builder().service_id("S3").env("AWS_ENDPOINT_URL").profile("endpoint_url").build();
    shared.service_config()?.load_config(key.ok()?)
}

/// Returns the configuration of these options and of the environment, not loaded yet.
fn loader(options: &S3Options) -> ConfigLoader {
    let request_timeout = request_timeout(options);
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(options.connect_timeout.unwrap_or(CONNECT_TIMEOUT))
        .operation_attempt_timeout(request_timeout)
        .operation_timeout(2 * request_timeout)
        .build();
    let retries = RetryConfig::standard().with_max_attempts(ATTEMPTS).with_initial_backoff(FIRST_BACKOFF);
    // A fixed version: an update of the SDK must not change how requests are retried or signed.
    let mut loader = aws_config::defaults(BehaviorVersion::v2026_01_12())
        .region(region(options))
        .timeout_config(timeouts)
        .retry_config(retries)
        // Bodies have their own time limits, which count bytes and not pauses.
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        // Our own hashes verify everything that is read.
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
        .request_checksum_calculation(match options.checksum {
            S3Checksum::None => RequestChecksumCalculation::WhenRequired,
            S3Checksum::Crc32 | S3Checksum::Sha256 => RequestChecksumCalculation::WhenSupported,
        });
    if let Some(endpoint) = &options.endpoint {
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
    loader
}

/// Returns everything outside the options that decides which server is reached and with which identity. Two openings
/// with the same options reach the same place if this is equal. It stays in this process: it names a key.
pub(crate) fn surroundings(options: &S3Options) -> String {
    const SERVER: [&str; 5] = [
        "AWS_ENDPOINT_URL_S3",
        "AWS_ENDPOINT_URL",
        "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
        "AWS_USE_FIPS_ENDPOINT",
        "AWS_USE_DUALSTACK_ENDPOINT",
    ];
    const REGION: [&str; 2] = ["AWS_REGION", "AWS_DEFAULT_REGION"];
    const IDENTITY: [&str; 5] = [
        "AWS_ACCESS_KEY_ID",
        "AWS_ROLE_ARN",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    ];
    const FILES: [(&str, &str); 2] =
        [("AWS_CONFIG_FILE", "config"), ("AWS_SHARED_CREDENTIALS_FILE", "credentials")];
    let mut names: Vec<&str> = vec![];
    names.extend(options.endpoint.is_none().then_some(SERVER).iter().flatten());
    names.extend(options.region.is_none().then_some(REGION).iter().flatten());
    names.extend(options.credentials.is_none().then_some(IDENTITY).iter().flatten());
    if names.is_empty() {
        return String::new();
    }
    names.extend(["AWS_PROFILE", "AWS_DEFAULT_PROFILE", "HOME"]);
    let mut all: Vec<String> =
        names.iter().map(|name| format!("{name}={:?}", std::env::var_os(name))).collect();
    for (name, usual) in FILES {
        let path = std::env::var_os(name).map(PathBuf::from);
        let path = path.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".aws").join(usual)));
        let meta = path.as_ref().and_then(|path| path.metadata().ok());
        all.push(format!("{path:?} {:?}", meta.map(|m| (m.len(), m.modified().ok()))));
    }
    all.join(" ")
}

/// Returns the region from the option, the environment, the profile, or the metadata of AWS machines.
fn region(options: &S3Options) -> RegionProviderChain {
    let given = RegionProviderChain::first_try(options.region.clone().map(Region::new));
    let known = if options.endpoint.is_some() {
        // On other servers the region is just a word: asking the machine's metadata would cost seconds where there is
        // none.
        given.or_else(EnvironmentVariableRegionProvider::new()).or_else(ProfileFileRegionProvider::new())
    } else {
        given.or_default_provider()
    };
    known.or_else(Region::from_static(DEFAULT_REGION))
}

fn check_endpoint(endpoint: &str) -> Result<()> {
    let wrong = |what: &str| {
        let what =
            format!("the endpoint {what}; write it like https://s3.example.org or http://127.0.0.1:9000");
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

/// Returns the credentials. Reports missing ones at once, with the places searched, and not later as a failed request.
async fn credentials(shared: &SdkConfig) -> Result<Credentials> {
    let none = || Error::new(Code::Denied, "there are no credentials for S3");
    let provider = shared.credentials_provider().ok_or_else(none)?;
    provider.provide_credentials().await.map_err(|e| {
        Error::new(Code::Denied, format!("there are no credentials for S3: {}", response::chain(&e)))
    })
}
