//! Questions that only S3 answers: is the bucket versioned, and does a lifecycle rule delete from
//! it.

use std::fmt;

use aws_credential_types::{
    Credentials,
    provider::{ProvideCredentials, error::CredentialsError, future},
};
use aws_sdk_s3::{
    Client,
    config::{BehaviorVersion, Region, retry::RetryConfig, timeout::TimeoutConfig},
    error::{DisplayErrorContext, ProvideErrorMetadata},
    types::{ExpirationStatus, LifecycleRule},
};
use object_store::aws::AwsCredentialProvider;

use super::{StoreOptions, open::FoundS3, url::S3Place};

/// The SDK's client for one bucket.
#[derive(Clone, Debug)]
pub(crate) struct S3Api {
    client: Client,
    bucket: String,
}

impl S3Api {
    pub(crate) fn new(place: &S3Place, found: &FoundS3, options: &StoreOptions) -> Self {
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(options.connect_timeout)
            .operation_timeout(options.request_timeout)
            .build();
        let mut config = aws_sdk_s3::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new(found.region.clone()))
            .credentials_provider(SameCredentials(found.credentials.clone()))
            .force_path_style(place.is_path_style())
            .retry_config(RetryConfig::standard().with_max_attempts(2))
            .timeout_config(timeouts);
        config.set_endpoint_url(found.endpoint.clone());
        Self {
            client: Client::from_conf(config.build()),
            bucket: place.bucket.clone(),
        }
    }

    /// Whether deleted objects live on as old versions, and are billed.
    pub(crate) async fn is_versioned(&self) -> Result<bool, S3ApiError> {
        let reply = self
            .client
            .get_bucket_versioning()
            .bucket(&self.bucket)
            .send()
            .await;
        let reply = reply.map_err(|error| S3ApiError::of(&error))?;
        Ok(reply.status().is_some())
    }

    /// Rules that would delete or move what lies under `prefix`, each in words.
    pub(crate) async fn harmful_rules(&self, prefix: &str) -> Result<Vec<String>, S3ApiError> {
        let request = self
            .client
            .get_bucket_lifecycle_configuration()
            .bucket(&self.bucket);
        match request.send().await {
            Ok(reply) => Ok(harmful(reply.rules(), prefix)),
            Err(error) if error.code() == Some("NoSuchLifecycleConfiguration") => Ok(Vec::new()),
            Err(error) => Err(S3ApiError::of(&error)),
        }
    }
}

/// The store gave no answer to one of these questions: it may not know it, or not allow it.
#[derive(Debug)]
pub(crate) struct S3ApiError(String);

impl S3ApiError {
    fn of<E: ProvideErrorMetadata + std::error::Error>(error: &E) -> Self {
        let code = error.code().map(str::to_owned);
        Self(code.unwrap_or_else(|| DisplayErrorContext(error).to_string()))
    }
}

impl fmt::Display for S3ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn harmful(rules: &[LifecycleRule], prefix: &str) -> Vec<String> {
    let enabled = rules
        .iter()
        .filter(|rule| *rule.status() == ExpirationStatus::Enabled);
    let touching = enabled.filter(|rule| touches(rule_prefix(rule), prefix) && !wants_tag(rule));
    touching.filter_map(harm_of).collect()
}

fn rule_prefix(rule: &LifecycleRule) -> &str {
    let filter = rule.filter();
    let in_filter = filter.and_then(|filter| {
        filter
            .prefix()
            .or_else(|| filter.and().and_then(|and| and.prefix()))
    });
    #[expect(
        deprecated,
        reason = "buckets configured long ago still hold the old form"
    )]
    in_filter.or_else(|| rule.prefix()).unwrap_or("")
}

/// Whether a rule is only for objects with some tag: ours have none.
fn wants_tag(rule: &LifecycleRule) -> bool {
    rule.filter().is_some_and(|filter| {
        filter.tag().is_some() || filter.and().is_some_and(|and| !and.tags().is_empty())
    })
}

/// Whether a key of ours can begin with a rule's prefix.
fn touches(rule: &str, ours: &str) -> bool {
    let ours = match ours {
        "" => String::new(),
        ours => format!("{ours}/"),
    };
    rule.starts_with(&ours) || ours.starts_with(rule)
}

fn harm_of(rule: &LifecycleRule) -> Option<String> {
    let name = rule.id().unwrap_or("without id");
    let expires = rule
        .expiration()
        .is_some_and(|expiration| expiration.days().is_some() || expiration.date().is_some());
    if expires {
        return Some(format!("rule `{name}` deletes objects by age"));
    }
    // Other classes than the archive ones stay readable at once.
    let archive = rule
        .transitions()
        .iter()
        .filter_map(|transition| transition.storage_class());
    let archive = archive
        .map(|class| class.as_str())
        .find(|class| matches!(*class, "GLACIER" | "DEEP_ARCHIVE"))?;
    Some(format!(
        "rule `{name}` moves objects to {archive}, from where they cannot be read"
    ))
}

/// The credentials of the store's other client.
#[derive(Debug)]
struct SameCredentials(AwsCredentialProvider);

impl ProvideCredentials for SameCredentials {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(async {
            let found = self.0.get_credential().await;
            let found = found.map_err(CredentialsError::provider_error)?;
            let token = found.token.clone();
            Ok(Credentials::new(
                &found.key_id,
                &found.secret_key,
                token,
                None,
                "esker",
            ))
        })
    }
}

#[cfg(test)]
mod tests;
