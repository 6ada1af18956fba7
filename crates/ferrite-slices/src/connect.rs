//! The client of S3: endpoint, region, credentials, time limits, repetition.
//!
//! The environment counts as with the tools of AWS (`AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, `AWS_REGION`,
//! `AWS_ACCESS_KEY_ID`, `AWS_PROFILE`, `AWS_CA_BUNDLE` and others); options given explicitly come first. Keys come from
//! the environment, else from the files of the tools, else from the machine's role (a container, a web identity, EC2).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::{BackoffConfig, Certificate, ClientOptions, RetryConfig};

use crate::credentials;
use crate::error::{Error, Result};

/// The region of services that have none.
const REGION: &str = "us-east-1";
/// One attempt of a request. Sixteen slices of 4 MiB that are sent at once need it at 6 Mbit/s.
const ATTEMPT_MAX: Duration = Duration::from_secs(100);
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// After this no repetition begins. With the last attempt, a request stays within [`crate::REQUEST_MAX`].
const REPEATED_FOR: Duration = Duration::from_secs(60);
const REPETITIONS_MAX: usize = 12;

/// Options for S3. The environment gives the others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConnectOptions {
    /// The service, such as `https://s3.example.org`; by default that of AWS in the region.
    pub endpoint: Option<String>,
    /// The region.
    pub region: Option<String>,
    /// The profile in the files of the tools of AWS.
    pub profile: Option<String>,
    /// A file with keys, in the form of `~/.aws/credentials`.
    pub credentials: Option<PathBuf>,
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// A client for a bucket. Sends nothing.
pub(crate) fn client(place: &str, bucket: &str, options: &ConnectOptions) -> Result<AmazonS3> {
    let refused = |text: String| Error::Refused(format!("{place}: {text}"));
    // A program that embeds this library may have chosen another one before, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let profile = options.profile.clone().or_else(|| variable("AWS_PROFILE"));
    let files = credentials::Files::of(options.credentials.as_deref(), profile.as_deref());
    let endpoint = options
        .endpoint
        .clone()
        .or_else(|| variable("AWS_ENDPOINT_URL_S3"))
        .or_else(|| variable("AWS_ENDPOINT_URL"))
        .or_else(|| files.setting("endpoint_url"));
    let region = options
        .region
        .clone()
        .or_else(|| variable("AWS_REGION"))
        .or_else(|| variable("AWS_DEFAULT_REGION"))
        .or_else(|| files.setting("region"));
    let mut client = ClientOptions::new()
        .with_timeout(ATTEMPT_MAX)
        .with_connect_timeout(CONNECT_MAX)
        .with_allow_http(
            endpoint
                .as_ref()
                .is_some_and(|endpoint| endpoint.starts_with("http://")),
        );
    if let Some(path) = variable("AWS_CA_BUNDLE") {
        let pem = std::fs::read(&path).map_err(|error| refused(format!("AWS_CA_BUNDLE, {path}: {error}")))?;
        let certificates =
            Certificate::from_pem_bundle(&pem).map_err(|error| refused(format!("AWS_CA_BUNDLE, {path}: {error}")))?;
        client = certificates
            .into_iter()
            .fold(client, ClientOptions::with_root_certificate);
    }
    let mut builder = AmazonS3Builder::from_env()
        .with_bucket_name(bucket)
        .with_region(region.unwrap_or_else(|| REGION.into()))
        .with_client_options(client)
        .with_disable_tagging(true)
        .with_retry(RetryConfig {
            backoff: BackoffConfig {
                init_backoff: Duration::from_millis(100),
                max_backoff: Duration::from_secs(8),
                base: 2.,
            },
            max_retries: REPETITIONS_MAX,
            retry_timeout: REPEATED_FOR,
        });
    if let Some(endpoint) = endpoint {
        let is_url = endpoint.starts_with("http://") || endpoint.starts_with("https://");
        if !is_url {
            return Err(refused(format!(
                "the endpoint `{endpoint}` is no URL; write https://HOST or http://HOST:PORT"
            )));
        }
        builder = builder.with_endpoint(endpoint.trim_end_matches('/'));
    }
    let is_named = options.profile.is_some() || options.credentials.is_some();
    let has_keys = variable("AWS_ACCESS_KEY_ID").is_some() && !is_named;
    if !has_keys && files.has_keys() {
        builder = builder.with_credentials(Arc::new(files));
    } else if is_named {
        return Err(refused(format!(
            "{} has no keys of the profile `{}`",
            files.path().display(),
            profile.as_deref().unwrap_or("default"),
        )));
    }
    builder.build().map_err(|error| refused(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_url() {
        let options = ConnectOptions {
            endpoint: Some("s3.example.org".into()),
            ..ConnectOptions::default()
        };
        let error = client("s3://b", "bbb", &options).unwrap_err();
        assert!(error.to_string().contains("is no URL"), "{error}");
    }

    #[test]
    fn a_profile_without_keys_is_named() {
        let options = ConnectOptions {
            profile: Some("no such profile".into()),
            ..ConnectOptions::default()
        };
        let error = client("s3://b", "bbb", &options).unwrap_err();
        assert!(error.to_string().contains("no such profile"), "{error}");
    }
}
