//! AWS credentials and region: the chain of the AWS SDK (environment, profiles, SSO, web identity,
//! ECS, IMDSv2), handed to the store's client.

use std::{sync::Arc, time::UNIX_EPOCH};

use async_trait::async_trait;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::provider::{
    ProvideCredentials, SharedCredentialsProvider, error::CredentialsError,
};
use esker_proto::types::TimestampMs;
use object_store::{CredentialProvider, aws::AwsCredential};
use tokio::sync::Mutex;

use super::fault::NoCredentials;
use crate::env::Clock;

/// Credentials are renewed this long before they expire.
const RENEW_BEFORE_MS: i64 = 5 * 60 * 1000;
/// How long credentials without an expiry are kept: the environment and static profiles.
const KEEP_MS: i64 = 60 * 60 * 1000;

/// Runs the SDK's chain for region and credentials.
pub(crate) async fn load(region: Option<String>) -> SdkConfig {
    let loader = aws_config::defaults(BehaviorVersion::latest());
    match region {
        Some(region) => loader.region(Region::new(region)).load().await,
        None => loader.load().await,
    }
}

/// Gives the store's client what the SDK's chain finds, and renews it in time.
#[derive(Debug)]
pub(crate) struct ChainCredentials {
    chain: SharedCredentialsProvider,
    clock: Arc<dyn Clock>,
    /// Held while renewing, so that one renewal serves all who wait.
    current: Mutex<Option<Current>>,
}

#[derive(Debug)]
struct Current {
    credential: Arc<AwsCredential>,
    renew_at: TimestampMs,
}

impl ChainCredentials {
    pub(crate) fn new(chain: SharedCredentialsProvider, clock: Arc<dyn Clock>) -> Self {
        Self {
            chain,
            clock,
            current: Mutex::new(None),
        }
    }

    async fn renew(&self) -> object_store::Result<Current> {
        let found = self.chain.provide_credentials().await.map_err(missing)?;
        let expiry = found
            .expiry()
            .and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let expiry_ms = expiry.and_then(|at| i64::try_from(at.as_millis()).ok());
        let now = self.clock.now().get();
        let renew_at = expiry_ms.map_or(now + KEEP_MS, |expiry| expiry - RENEW_BEFORE_MS);
        let credential = AwsCredential {
            key_id: found.access_key_id().to_owned(),
            secret_key: found.secret_access_key().to_owned(),
            token: found.session_token().map(str::to_owned),
        };
        let renew_at = TimestampMs::new(renew_at);
        Ok(Current {
            credential: Arc::new(credential),
            renew_at,
        })
    }
}

fn missing(error: CredentialsError) -> object_store::Error {
    let is_lasting = matches!(
        error,
        CredentialsError::CredentialsNotLoaded(_) | CredentialsError::InvalidConfiguration(_)
    );
    let source = NoCredentials {
        is_lasting,
        source: error.into(),
    };
    object_store::Error::Generic {
        store: "S3",
        source: source.into(),
    }
}

#[async_trait]
impl CredentialProvider for ChainCredentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let mut current = self.current.lock().await;
        if let Some(current) = current
            .as_ref()
            .filter(|current| self.clock.now() < current.renew_at)
        {
            return Ok(Arc::clone(&current.credential));
        }
        let fresh = self.renew().await?;
        let credential = Arc::clone(&fresh.credential);
        *current = Some(fresh);
        Ok(credential)
    }
}
