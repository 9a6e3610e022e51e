//! The server as tests and benches hold it.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use bytes::Bytes;
use s3s::{dto, service::S3ServiceBuilder};
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    auth::Credentials,
    backend::{Backend, Content},
    counts::Counts,
    http,
    inject::Injector,
    permission::Permission,
    rule::{ArmedRule, Rule, Rules},
    service::Service,
};

/// The access key a server accepts unless told otherwise.
pub const ACCESS_KEY: &str = "test";
/// The secret key that belongs to [`ACCESS_KEY`].
pub const SECRET_KEY: &str = "test-secret";

/// What a server starts with.
#[derive(Debug)]
pub struct Builder {
    listen: SocketAddr,
    buckets: Vec<String>,
    credentials: Vec<(String, String)>,
    rules: Vec<Rule>,
    seed: u64,
    is_anonymous: bool,
}

impl Builder {
    fn new() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            buckets: Vec::new(),
            credentials: Vec::new(),
            rules: Vec::new(),
            seed: 0,
            is_anonymous: false,
        }
    }

    /// Listens here instead of on a free port of 127.0.0.1.
    #[must_use]
    pub const fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = address;
        self
    }

    /// Has this bucket; more calls make more buckets.
    #[must_use]
    pub fn bucket(mut self, name: impl Into<String>) -> Self {
        self.buckets.push(name.into());
        self
    }

    /// Accepts these credentials instead of [`ACCESS_KEY`] and [`SECRET_KEY`]; more calls add more.
    #[must_use]
    pub fn credentials(mut self, access: impl Into<String>, secret: impl Into<String>) -> Self {
        self.credentials.push((access.into(), secret.into()));
        self
    }

    /// Asks nobody for a signature.
    #[must_use]
    pub const fn anonymous(mut self) -> Self {
        self.is_anonymous = true;
        self
    }

    /// Has this rule in force from the start.
    #[must_use]
    pub fn fault(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Draws every probability from this seed.
    #[must_use]
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Listens, and serves in the background until [`S3Server::stop`] or drop.
    ///
    /// Fails if the address cannot be listened on.
    pub async fn start(mut self) -> io::Result<S3Server> {
        let listener = TcpListener::bind(self.listen).await?;
        let address = listener.local_addr()?;
        let backend = Arc::new(Backend::default());
        for bucket in &self.buckets {
            // Named twice is there once.
            let _ = backend.create_bucket(bucket);
        }
        let mut service = S3ServiceBuilder::new(Service {
            backend: Arc::clone(&backend),
        });
        if !self.is_anonymous {
            if self.credentials.is_empty() {
                self.credentials
                    .push((ACCESS_KEY.to_owned(), SECRET_KEY.to_owned()));
            }
            service.set_auth(Credentials(self.credentials.into_iter().collect()));
        }
        let mut rules = Rules::new(self.seed);
        for rule in self.rules {
            rules.add(rule);
        }
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let injector = Arc::new(Injector::new(
            service.build(),
            rules,
            tasks.clone(),
            stop.clone(),
        ));
        let answering = Arc::clone(&injector);
        let answer = move |request| Arc::clone(&answering).answer(request);
        tasks.spawn(http::accept(listener, tasks.clone(), stop.clone(), answer));
        Ok(S3Server {
            address,
            backend,
            injector,
            tasks,
            stop,
        })
    }
}

/// A running server. Dropping it closes every connection.
#[derive(Debug)]
pub struct S3Server {
    address: SocketAddr,
    backend: Arc<Backend>,
    injector: Arc<Injector>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl S3Server {
    /// Starts to describe a server.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Returns `http://host:port`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Puts a rule in force, behind those already there.
    pub fn add_fault(&self, rule: Rule) -> ArmedRule {
        self.injector.rules.lock().add(rule)
    }

    /// Takes every rule out of force. Requests already caught stay caught.
    pub fn clear_faults(&self) {
        self.injector.rules.lock().clear();
    }

    /// Answers 403 to whatever wants a permission that `grants` denies. It is asked for each
    /// permission of each request.
    pub fn set_policy(&self, grants: impl Fn(&Permission) -> bool + Send + Sync + 'static) {
        *self.injector.policy.lock() = Some(Arc::new(grants));
    }

    /// Grants everything again.
    pub fn clear_policy(&self) {
        *self.injector.policy.lock() = None;
    }

    /// Returns how many requests came in so far.
    pub fn counts(&self) -> Counts {
        self.injector.counters.snapshot(self.backend.rewrites())
    }

    /// Keeps what every bucket lists now, for [`Fault::StaleList`](super::Fault::StaleList).
    pub fn remember_listing(&self) {
        self.backend.remember_listing();
    }

    /// Applies the requests held by [`Release::OnCall`](super::Release::OnCall), in the order they
    /// came, and returns how many there were.
    pub async fn release_late(&self) -> usize {
        self.injector.release_late().await
    }

    /// Returns the keys of a bucket in order, past all faults.
    pub fn keys(&self, bucket: &str) -> Vec<String> {
        let everything = super::backend::Listing {
            keys_max: usize::MAX,
            ..Default::default()
        };
        let page = self.backend.list(bucket, &everything).unwrap_or_default();
        page.objects.into_iter().map(|(key, _)| key).collect()
    }

    /// Returns an object's bytes, past all faults.
    pub fn object(&self, bucket: &str, key: &str) -> Option<Bytes> {
        self.backend
            .get(bucket, key)
            .ok()
            .map(|object| object.content.bytes.clone())
    }

    /// Puts other bytes in an object's place, past all faults and counts: a damaged disk. Returns
    /// whether the bucket is there.
    pub fn plant(&self, bucket: &str, key: &str, bytes: impl Into<Bytes>) -> bool {
        let content = Content {
            bytes: bytes.into(),
            ..Default::default()
        };
        self.backend.plant(bucket, key, content).is_ok()
    }

    /// Removes an object, past all faults and counts. Returns whether it was there.
    pub fn remove(&self, bucket: &str, key: &str) -> bool {
        self.backend
            .delete(bucket, key)
            .is_ok_and(|object| object.is_some())
    }

    /// Sets what a bucket says of its versioning. Returns whether the bucket is there.
    ///
    /// Versions are not kept.
    pub fn set_versioning(&self, bucket: &str, is_enabled: bool) -> bool {
        let status = if is_enabled { "Enabled" } else { "Suspended" };
        let versioning = dto::VersioningConfiguration {
            status: Some(dto::BucketVersioningStatus::from(status.to_owned())),
            ..Default::default()
        };
        self.backend.set_versioning(bucket, versioning).is_ok()
    }

    /// Gives a bucket a lifecycle rule that expires keys below `prefix` after `days`. Returns
    /// whether the bucket is there.
    ///
    /// Nothing is expired.
    pub fn set_expiration(&self, bucket: &str, prefix: &str, days: i32) -> bool {
        let rule = dto::LifecycleRule {
            abort_incomplete_multipart_upload: None,
            expiration: Some(dto::LifecycleExpiration {
                days: Some(days),
                ..Default::default()
            }),
            filter: Some(dto::LifecycleRuleFilter {
                prefix: Some(prefix.to_owned()),
                ..Default::default()
            }),
            id: Some("expire".to_owned()),
            noncurrent_version_expiration: None,
            noncurrent_version_transitions: None,
            prefix: None,
            status: dto::ExpirationStatus::from("Enabled".to_owned()),
            transitions: None,
        };
        self.backend.set_lifecycle(bucket, Some(vec![rule])).is_ok()
    }

    /// Closes every connection and waits until nothing of the server runs.
    pub async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
