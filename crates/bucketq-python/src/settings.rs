//! Options of the engine by name. Which values make sense is the engine's to say.

use std::time::Duration;

use bucketq::config::{Credentials, S3Checksum};
use bucketq::{Code, Error, Options, Result};
use pyo3::prelude::*;
use pyo3::types::PyDict;

const NAMES: &[&str] = &[
    "create",
    "max_payload",
    "max_file",
    "max_skew",
    "deadline",
    "commit_interval",
    "gather_percent",
    "gather_max",
    "mailbox",
    "tail",
    "max_head",
    "poll_min",
    "poll_max",
    "endpoint",
    "region",
    "path_style",
    "access_key",
    "secret_key",
    "session_token",
    "checksum",
    "connect_timeout",
    "request_timeout",
];

fn refused(message: String) -> Error {
    Error::new(Code::Option, message)
}

fn span(value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    Ok(Duration::from_millis(value.extract()?))
}

/// The options with these settings; durations are milliseconds. Python's errors are about types, the engine's about
/// values.
pub fn options(settings: &Bound<'_, PyDict>) -> PyResult<Result<Options>> {
    let mut options = Options::default();
    let (mut access, mut secret, mut token) = (None::<String>, None::<String>, None::<String>);
    for (name, value) in settings {
        let name: String = name.extract()?;
        match name.as_str() {
            "create" => options.create = value.extract()?,
            "max_payload" => options.max_payload = value.extract()?,
            "max_file" => options.max_file = value.extract()?,
            "max_skew" => options.max_skew = Some(span(&value)?),
            "deadline" => options.deadline = span(&value)?,
            "commit_interval" => options.commit_interval = span(&value)?,
            "gather_percent" => options.gather_percent = value.extract()?,
            "gather_max" => options.gather_max = span(&value)?,
            "mailbox" => options.mailbox = value.extract()?,
            "tail" => options.tail = value.extract()?,
            "max_head" => options.max_head = value.extract()?,
            "poll_min" => options.poll_min = span(&value)?,
            "poll_max" => options.poll_max = span(&value)?,
            "endpoint" => options.s3.endpoint = Some(value.extract()?),
            "region" => options.s3.region = Some(value.extract()?),
            "path_style" => options.s3.path_style = Some(value.extract()?),
            "access_key" => access = Some(value.extract()?),
            "secret_key" => secret = Some(value.extract()?),
            "session_token" => token = Some(value.extract()?),
            "checksum" => match checksum(&value.extract::<String>()?) {
                Ok(checksum) => options.s3.checksum = checksum,
                Err(error) => return Ok(Err(error)),
            },
            "connect_timeout" => options.s3.connect_timeout = Some(span(&value)?),
            "request_timeout" => options.s3.request_timeout = Some(span(&value)?),
            other => {
                let known = NAMES.join(", ");
                return Ok(Err(refused(format!("there is no setting {other:?}; there are {known}"))));
            }
        }
    }
    options.s3.credentials = match (access, secret) {
        (Some(access_key), Some(secret_key)) => {
            Some(Credentials { access_key, secret_key, session_token: token })
        }
        (None, None) => None,
        _ => {
            return Ok(Err(refused(
                "access_key and secret_key go together: give both or neither".to_owned(),
            )));
        }
    };
    Ok(Ok(options))
}

fn checksum(name: &str) -> Result<S3Checksum> {
    match name {
        "crc32" => Ok(S3Checksum::Crc32),
        "sha256" => Ok(S3Checksum::Sha256),
        "none" => Ok(S3Checksum::None),
        other => Err(refused(format!("there is no checksum {other:?}: use crc32, sha256 or none"))),
    }
}
