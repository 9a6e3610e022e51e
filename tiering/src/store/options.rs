//! How a store is opened, apart from where it is.

use std::{fmt, sync::Arc, time::Duration};

use crate::env::{Clock, SystemClock};

/// Timeouts, retries and handles of a [`Store`](super::Store).
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// How long a connection may take. Default 5 s.
    pub connect_timeout: Duration,
    /// How long a request may take without a byte moved in either direction; a conditional write, in
    /// all. Default 30 s.
    pub request_timeout: Duration,
    /// How often a plain read or a put under a fresh key is tried again. Default 5.
    pub retries: usize,
    /// How long all tries of one call may take, besides the time that its bytes need. Default 90 s.
    pub call_timeout: Duration,
    /// Most requests in flight over HTTP; of these, reads and writes each have at most three
    /// quarters. Default 128.
    pub requests_max: usize,
    /// Keys for S3, in place of what the AWS credential chain finds.
    pub s3_credentials: Option<S3Credentials>,
    /// Wall clock: expiry of credentials, skew against the store.
    pub clock: Arc<dyn Clock>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(30),
            retries: 5,
            call_timeout: Duration::from_secs(90),
            requests_max: 128,
            s3_credentials: None,
            clock: Arc::new(SystemClock),
        }
    }
}

/// Static keys for S3.
#[derive(Clone)]
pub struct S3Credentials {
    /// Access key id.
    pub access_key_id: String,
    /// Secret access key.
    pub secret_access_key: String,
    /// Session token, of temporary keys.
    pub session_token: Option<String>,
}

impl fmt::Debug for S3Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Credentials")
            .field("access_key_id", &self.access_key_id)
            .finish_non_exhaustive()
    }
}
