//! Who may ask. Refuses a stranger with the code AWS has for it.

use std::collections::HashMap;

use s3s::{
    S3Result,
    auth::{S3Auth, SecretKey},
    s3_error,
};

/// Secret keys by access key.
#[derive(Debug)]
pub(super) struct Credentials(pub(super) HashMap<String, String>);

#[async_trait::async_trait]
impl S3Auth for Credentials {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        let secret_key = self.0.get(access_key).cloned().map(SecretKey::from);
        secret_key.ok_or_else(|| {
            s3_error!(
                InvalidAccessKeyId,
                "The access key id does not exist in our records."
            )
        })
    }
}
