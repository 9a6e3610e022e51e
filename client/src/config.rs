//! Settings of a client.

use std::time::Duration;

use crate::retry::RetryPolicy;

/// Settings of a [`Client`](crate::Client).
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// How long opening a connection may take. Default: 5 s.
    pub connect_timeout: Duration,
    /// How long an agent may leave a request unanswered before the connection is given up.
    /// Default: 30 s.
    pub request_timeout: Duration,
    /// How calls are tried again that surely changed nothing. A producer tries until
    /// [`ProducerConfig::delivery_timeout`](crate::ProducerConfig::delivery_timeout).
    pub retry: RetryPolicy,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(30),
            retry: RetryPolicy::default(),
        }
    }
}
