//! Opens the client of each kind of store.
//!
//! Each is built twice: `objects` retries, for reads and for puts under keys nobody else writes;
//! `creator` never does, because a retried create cannot tell its own first try from a rival.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use object_store::{
    BackoffConfig, ClientOptions, ObjectStore, RetryConfig,
    aws::{AmazonS3Builder, AwsCredential, AwsCredentialProvider, Checksum as S3Checksum},
    azure::MicrosoftAzureBuilder,
    gcp::GoogleCloudStorageBuilder,
    local::LocalFileSystem,
    memory::InMemory,
};

use super::{
    StoreOptions, StoreUrl,
    client::Places,
    http::{MeteredConnector, SeenRegion, Skew},
    requests::Meter,
    url::{Checksum, Place, S3Place},
};
use crate::error::Error;

/// The clients of one store.
#[derive(Debug)]
pub(crate) struct Clients {
    pub objects: Arc<dyn ObjectStore>,
    pub creator: Arc<dyn ObjectStore>,
    /// Whether requests are counted where they leave, so that calls must not be.
    pub is_http: bool,
    /// Whether a listing comes in the order of keys.
    pub lists_in_order: bool,
    /// Where the objects are, if they are files.
    pub directory: Option<PathBuf>,
    /// Whether a large put keeps its thread busy with digests before the first byte leaves.
    pub digests_puts: bool,
    /// What the S3-only checks of the probe need.
    #[cfg(feature = "aws")]
    pub s3: Option<super::s3::S3Api>,
}

impl Clients {
    pub(crate) fn plain(objects: Arc<dyn ObjectStore>) -> Self {
        Self {
            creator: Arc::clone(&objects),
            objects,
            is_http: false,
            lists_in_order: false,
            directory: None,
            digests_puts: false,
            #[cfg(feature = "aws")]
            s3: None,
        }
    }

    fn http(objects: Arc<dyn ObjectStore>, creator: Arc<dyn ObjectStore>) -> Self {
        Self {
            creator,
            is_http: true,
            lists_in_order: true,
            ..Self::plain(objects)
        }
    }
}

pub(crate) async fn open(
    url: &StoreUrl,
    options: &StoreOptions,
    meter: &Meter,
    skew: &Skew,
    region: &SeenRegion,
) -> Result<Clients, Error> {
    let http = Http {
        url,
        options,
        connector: MeteredConnector {
            meter: meter.clone(),
            clock: Arc::clone(&options.clock),
            skew: skew.clone(),
            region: region.clone(),
            places: Places::new(options.requests_max),
            connect_timeout: options.connect_timeout,
            stall_timeout: options.request_timeout,
        },
    };
    match &url.place {
        Place::S3(place) => http.s3(place).await,
        Place::Gcs { bucket, endpoint } => http.gcs(bucket, endpoint.as_deref()),
        Place::Azure {
            container,
            account,
            endpoint,
        } => http.azure(container, account.as_deref(), endpoint.clone()),
        Place::Directory(path) => directory(url, path),
        Place::Memory => Ok(Clients::plain(Arc::new(InMemory::new()))),
    }
}

/// What was put must outlive a power cut, because the local copy goes after the commit: hence fsync
/// of files and of the directories that name them.
fn directory(url: &StoreUrl, path: &Path) -> Result<Clients, Error> {
    let refused = |error: &dyn std::fmt::Display| Error::Settings {
        store: url.to_string(),
        reason: format!("the directory cannot be used: {error}"),
    };
    std::fs::create_dir_all(path).map_err(|error| refused(&error))?;
    let store = LocalFileSystem::new_with_prefix(path).map_err(|error| refused(&error))?;
    Ok(Clients {
        directory: Some(path.to_owned()),
        ..Clients::plain(Arc::new(store.with_fsync(true)))
    })
}

struct Http<'a> {
    url: &'a StoreUrl,
    options: &'a StoreOptions,
    connector: MeteredConnector,
}

impl Http<'_> {
    async fn s3(&self, place: &S3Place) -> Result<Clients, Error> {
        let found = self.find_s3(place).await?;
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(&place.bucket)
            .with_region(&found.region)
            .with_credentials(Arc::clone(&found.credentials))
            .with_virtual_hosted_style_request(!place.is_path_style())
            .with_disable_bulk_delete(!place.bulk_delete)
            .with_client_options(self.client_options(found.endpoint.as_deref()))
            .with_http_connector(self.connector.clone());
        if let Some(endpoint) = &found.endpoint {
            builder = builder.with_endpoint(s3_endpoint(place, endpoint));
        }
        if place.request_payer {
            builder = builder.with_request_payer(true);
        }
        if let Some(key) = &place.kms_key {
            builder = builder.with_sse_kms_encryption(key);
        }
        let is_aws = found.endpoint.is_none();
        let usual = if is_aws {
            Checksum::Crc64Nvme
        } else {
            Checksum::Sha256
        };
        builder = match place.checksum.unwrap_or(usual) {
            Checksum::Sha256 => builder.with_checksum_algorithm(S3Checksum::SHA256),
            Checksum::Crc64Nvme => builder
                .with_checksum_algorithm(S3Checksum::CRC64NVME)
                .with_unsigned_payload(true),
            Checksum::None => builder,
        };
        let objects = self.built(builder.clone().with_retry(self.retry()).build())?;
        let creator = self.built(builder.with_retry(no_retry()).build())?;
        Ok(Clients {
            digests_puts: true,
            #[cfg(feature = "aws")]
            s3: Some(super::s3::S3Api::new(place, &found, self.options)),
            ..Clients::http(objects, creator)
        })
    }

    fn gcs(&self, bucket: &str, endpoint: Option<&str>) -> Result<Clients, Error> {
        let mut builder = GoogleCloudStorageBuilder::from_env()
            .with_bucket_name(bucket)
            .with_client_options(self.client_options(endpoint))
            .with_http_connector(self.connector.clone());
        if let Some(endpoint) = endpoint {
            builder = builder.with_base_url(endpoint);
        }
        let objects = self.built(builder.clone().with_retry(self.retry()).build())?;
        let creator = self.built(builder.with_retry(no_retry()).build())?;
        Ok(Clients::http(objects, creator))
    }

    fn azure(
        &self,
        container: &str,
        account: Option<&str>,
        endpoint: Option<String>,
    ) -> Result<Clients, Error> {
        let mut builder = MicrosoftAzureBuilder::from_env()
            .with_container_name(container)
            .with_client_options(self.client_options(endpoint.as_deref()))
            .with_http_connector(self.connector.clone());
        if let Some(account) = account {
            builder = builder.with_account(account);
        }
        if let Some(endpoint) = endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        let objects = self.built(builder.clone().with_retry(self.retry()).build())?;
        let creator = self.built(builder.with_retry(no_retry()).build())?;
        Ok(Clients::http(objects, creator))
    }

    fn client_options(&self, endpoint: Option<&str>) -> ClientOptions {
        ClientOptions::new()
            .with_allow_http(endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")))
    }

    fn retry(&self) -> RetryConfig {
        RetryConfig {
            backoff: BackoffConfig {
                init_backoff: Duration::from_millis(100),
                max_backoff: Duration::from_secs(5),
                base: 2.0,
            },
            max_retries: self.options.retries,
            retry_timeout: self.options.call_timeout,
        }
    }

    fn built<S: ObjectStore>(
        &self,
        store: object_store::Result<S>,
    ) -> Result<Arc<dyn ObjectStore>, Error> {
        store
            .map(|store| Arc::new(store) as _)
            .map_err(|error| self.refused(error.to_string()))
    }

    fn refused(&self, reason: String) -> Error {
        Error::Settings {
            store: self.url.to_string(),
            reason,
        }
    }
}

fn no_retry() -> RetryConfig {
    RetryConfig {
        max_retries: 0,
        ..RetryConfig::default()
    }
}

/// With the bucket in the host name, the client wants it in the endpoint too.
fn s3_endpoint(place: &S3Place, endpoint: &str) -> String {
    match endpoint.split_once("://") {
        Some((scheme, host)) if !place.is_path_style() => {
            format!("{scheme}://{}.{host}", place.bucket)
        }
        _ => endpoint.to_owned(),
    }
}

/// What is needed to reach one S3 bucket.
pub(crate) struct FoundS3 {
    pub region: String,
    pub endpoint: Option<String>,
    pub credentials: AwsCredentialProvider,
}

/// Stores that are not AWS seldom care, but the signature wants one.
const DEFAULT_REGION: &str = "us-east-1";

impl Http<'_> {
    fn static_credentials(&self) -> Option<AwsCredentialProvider> {
        let keys = self.options.s3_credentials.as_ref()?;
        Some(Arc::new(object_store::StaticCredentialProvider::new(
            AwsCredential {
                key_id: keys.access_key_id.clone(),
                secret_key: keys.secret_access_key.clone(),
                token: keys.session_token.clone(),
            },
        )))
    }

    #[cfg(feature = "aws")]
    async fn find_s3(&self, place: &S3Place) -> Result<FoundS3, Error> {
        let default_region = place.endpoint.as_ref().map(|_| DEFAULT_REGION.to_owned());
        let region = place.region.clone();
        if let Some(credentials) = self.static_credentials()
            && let Some(region) = region.clone().or_else(|| default_region.clone())
        {
            return Ok(FoundS3 {
                region,
                endpoint: place.endpoint.clone(),
                credentials,
            });
        }
        let config = super::aws::load(region).await;
        let endpoint = place.endpoint.clone().or_else(|| endpoint_of(&config));
        let region = config.region().map(ToString::to_string).or(default_region);
        let region = region.ok_or_else(|| {
            self.refused("the region is missing: set region= in the url, or AWS_REGION".to_owned())
        })?;
        if let Some(credentials) = self.static_credentials() {
            return Ok(FoundS3 {
                region,
                endpoint,
                credentials,
            });
        }
        let chain = config.credentials_provider().ok_or_else(|| {
            self.refused("no AWS credentials: set AWS_PROFILE or AWS_ACCESS_KEY_ID".to_owned())
        })?;
        let clock = Arc::clone(&self.options.clock);
        let credentials = Arc::new(super::aws::ChainCredentials::new(chain, clock));
        Ok(FoundS3 {
            region,
            endpoint,
            credentials,
        })
    }

    /// Without the SDK's chain: static keys, or those in the environment.
    #[cfg(not(feature = "aws"))]
    async fn find_s3(&self, place: &S3Place) -> Result<FoundS3, Error> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let from_environment = || {
            let credential = AwsCredential {
                key_id: variable("AWS_ACCESS_KEY_ID")?,
                secret_key: variable("AWS_SECRET_ACCESS_KEY")?,
                token: variable("AWS_SESSION_TOKEN"),
            };
            Some(Arc::new(object_store::StaticCredentialProvider::new(credential)) as _)
        };
        let credentials = self
            .static_credentials()
            .or_else(from_environment)
            .ok_or_else(|| {
                self.refused("no AWS credentials: set AWS_ACCESS_KEY_ID and its secret".to_owned())
            })?;
        let region = place.region.clone().or_else(|| variable("AWS_REGION"));
        let region = region.unwrap_or_else(|| DEFAULT_REGION.to_owned());
        Ok(FoundS3 {
            region,
            endpoint: place.endpoint.clone(),
            credentials,
        })
    }
}

#[cfg(feature = "aws")]
fn endpoint_of(config: &aws_config::SdkConfig) -> Option<String> {
    let variable = std::env::var("AWS_ENDPOINT_URL_S3")
        .ok()
        .filter(|value| !value.is_empty());
    variable.or_else(|| config.endpoint_url().map(str::to_owned))
}
