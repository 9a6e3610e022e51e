//! The object store, as the rest of the system sees it.
//!
//! [`Store`] knows keys relative to its prefix, counts what it asks for, bounds every wait and says
//! in its errors what to mend. It promises nothing about conditional writes beyond one attempt and
//! its answer: [`crate::chain`] makes commits of them.

#[cfg(feature = "aws")]
mod aws;
mod client;
mod fault;
mod http;
mod leftovers;
mod listing;
mod open;
mod options;
mod parts;
mod requests;
#[cfg(feature = "aws")]
mod s3;
mod url;

use std::{collections::BTreeSet, future::Future, ops::Range, sync::Arc, time::Duration};

use bytes::Bytes;
use esker_proto::types::TimestampMs;
use futures::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use object_store::{
    GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, path::Path,
};
use prometheus::Registry;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use fault::Fault;
pub use object_store::PutPayload;
pub use options::{S3Credentials, StoreOptions};
pub(crate) use parts::PARTS_IN_FLIGHT;
pub use requests::{Outcome, Requests, Verb};
pub use url::{StoreUrl, StoreUrlError};

use crate::error::Error;
use http::{SeenRegion, Skew};
use open::Clients;
use requests::Meter;

/// Above this, the digests of a put are computed off the runtime's threads.
const LARGE_PUT_BYTES: usize = 1024 * 1024;
/// A put that is slower than this, on average, is given up.
const SLOWEST_PUT_BYTES_PER_SECOND: u64 = 64 << 10;
/// Objects in one reply of a listing, for counting where there are no replies.
const LIST_PAGE: u64 = 1000;
/// Before a read whose connection broke is tried again.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(400)];

/// One object store and a prefix in it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    clients: Clients,
    name: Arc<str>,
    prefix: String,
    meter: Meter,
    skew: Skew,
    region: SeenRegion,
    request_timeout: Duration,
    call_timeout: Duration,
}

/// One object of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Relative to the store's prefix.
    pub key: String,
    /// Bytes.
    pub size_bytes: u64,
    /// By the store's clock.
    pub last_modified: TimestampMs,
}

/// What one attempt to create an object came to, as far as its reply tells.
#[derive(Debug)]
#[must_use]
pub enum CreateOutcome {
    /// It was created by this attempt.
    Created,
    /// The store says there is one, or that another request was in the way: it may be this very
    /// body, put by an earlier attempt, or there may be none at all.
    Exists,
    /// Surely nothing was written, and why.
    Refused(Error),
    /// It may have been written, now or yet to come.
    Unknown(Error),
}

impl Store {
    /// Opens the store at `url`, and counts its requests in `registry`. Sends no request to the
    /// store itself; credentials may be looked for.
    ///
    /// # Errors
    ///
    /// When settings or credentials are missing, or a directory cannot be used.
    pub async fn open(
        url: &StoreUrl,
        options: StoreOptions,
        registry: &Registry,
    ) -> Result<Self, Error> {
        let (meter, skew) = (Meter::register(registry)?, Skew::unseen());
        let region = SeenRegion::default();
        let clients = open::open(url, &options, &meter, &skew, &region).await?;
        Ok(Self(Arc::new(Inner {
            clients,
            name: url.to_string().into(),
            prefix: url.prefix.clone(),
            meter,
            skew,
            region,
            request_timeout: options.request_timeout,
            call_timeout: options.call_timeout,
        })))
    }

    /// Wraps any object store, for tests.
    ///
    /// # Errors
    ///
    /// When `registry` counts another store already.
    pub fn from_object_store(
        objects: Arc<dyn ObjectStore>,
        prefix: &str,
        registry: &Registry,
    ) -> Result<Self, Error> {
        let options = StoreOptions::default();
        Ok(Self(Arc::new(Inner {
            name: objects.to_string().into(),
            clients: Clients::plain(objects),
            prefix: prefix.trim_matches('/').to_owned(),
            meter: Meter::register(registry)?,
            skew: Skew::unseen(),
            region: SeenRegion::default(),
            request_timeout: options.request_timeout,
            call_timeout: options.call_timeout,
        })))
    }

    /// A store in memory of its own, for tests.
    pub fn in_memory() -> Self {
        let objects = Arc::new(object_store::memory::InMemory::new());
        Self::from_object_store(objects, "", &Registry::new())
            .expect("a fresh registry counts no other store")
    }

    /// Names the store, without secrets.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The prefix of all keys in the bucket, without slashes at its ends.
    pub fn prefix(&self) -> &str {
        &self.0.prefix
    }

    /// Requests made so far through this store and its clones.
    pub fn requests(&self) -> Requests {
        self.0.meter.snapshot()
    }

    /// What the store's clock says, as far as its last reply tells: the `Date` it carried and the
    /// time since then. Does not follow jumps of our own clock. `None` for a store without dates,
    /// such as a directory.
    pub fn time(&self) -> Option<TimestampMs> {
        self.0.skew.time()
    }

    /// By how many milliseconds the store's clock is ahead of ours, if a reply has told.
    pub fn clock_skew_ms(&self) -> Option<i64> {
        self.0.skew.millis()
    }

    /// Reads a whole object.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is none.
    pub async fn get(&self, key: &str) -> Result<Bytes, Error> {
        self.read(key, GetOptions::default()).await
    }

    /// Reads `range` of an object: all of it, or an error.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no such object, `Corrupt` if it ends before the range does.
    pub async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, Error> {
        let expected = range.end.saturating_sub(range.start);
        let bytes = self
            .read(key, GetOptions::new().with_range(Some(range.clone())))
            .await?;
        if bytes.len() as u64 == expected {
            return Ok(bytes);
        }
        let reason = format!("{} bytes came for range {range:?}", bytes.len());
        Err(Error::corrupt(key, reason))
    }

    /// Reads, and reads again where the connection broke during the reply: the store's client tries
    /// again only what failed before it.
    async fn read(&self, key: &str, options: GetOptions) -> Result<Bytes, Error> {
        for pause in PAUSES {
            match self.read_once(key, options.clone()).await {
                Err(error) if error.is_interrupted() => tokio::time::sleep(pause).await,
                read => return read,
            }
        }
        self.read_once(key, options).await
    }

    async fn read_once(&self, key: &str, options: GetOptions) -> Result<Bytes, Error> {
        let path = self.path(key)?;
        let objects = &self.0.clients.objects;
        let reading = async {
            let reply = objects.get_opts(&path, options).await?;
            let expected = reply.range.end - reply.range.start;
            Ok((expected, reply.bytes().await?))
        };
        let (expected, bytes) = self.call(Verb::Get, key, reading).await?;
        self.count_bytes(0, bytes.len());
        if bytes.len() as u64 == expected {
            return Ok(bytes);
        }
        let cut = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
        let source = object_store::Error::Generic {
            store: "short read",
            source: cut.into(),
        };
        Err(self.error(key, source))
    }

    /// Looks an object up without reading it.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is none; many stores say so too if there is no bucket.
    pub async fn head(&self, key: &str) -> Result<ObjectInfo, Error> {
        let path = self.path(key)?;
        let looking = self.0.clients.objects.head(&path);
        let meta = self.call(Verb::Head, key, looking).await?;
        Ok(self.info(&meta))
    }

    /// Puts an object under a key that nobody else ever writes. May be called again with the same
    /// bytes after an error; the object may be there although an error came back.
    ///
    /// # Errors
    ///
    /// When the store does not confirm the put.
    pub async fn put_object(&self, key: &str, payload: impl Into<PutPayload>) -> Result<(), Error> {
        let (path, payload) = (self.path(key)?, payload.into());
        let length = payload.content_length();
        let timeout = self.0.call_timeout + time_to_move(length);
        let putting = self.put_off_thread(path, payload);
        self.call_within(timeout, Verb::Put, key, putting).await?;
        self.count_bytes(length, 0);
        Ok(())
    }

    /// The store's client digests the payload before its first await. For a segment that is tens of
    /// milliseconds, which acknowledgements must not wait for.
    async fn put_off_thread(&self, path: Path, payload: PutPayload) -> object_store::Result<()> {
        let (objects, length) = (
            Arc::clone(&self.0.clients.objects),
            payload.content_length(),
        );
        let put = async move { objects.put(&path, payload).await.map(drop) };
        if !self.0.clients.digests_puts || length < LARGE_PUT_BYTES {
            return put.await;
        }
        let (runtime, cancelled) = (tokio::runtime::Handle::current(), CancellationToken::new());
        let _guard = cancelled.clone().drop_guard();
        tokio::task::spawn_blocking(move || {
            runtime.block_on(async { cancelled.run_until_cancelled(put).await })
        })
        .await?
        .unwrap_or(Ok(()))
    }

    /// Tries once to put an object where there is none. Never retried, here or below.
    ///
    /// No outcome but `Created` says who won: `put_definite` of [`crate::chain`] finds out.
    pub async fn create(&self, key: &str, body: Bytes) -> CreateOutcome {
        let path = match self.path(key) {
            Ok(path) => path,
            Err(error) => return CreateOutcome::Refused(error),
        };
        let length = body.len();
        let options = PutOptions {
            mode: PutMode::Create,
            ..PutOptions::default()
        };
        let creating = self.0.clients.creator.put_opts(&path, body.into(), options);
        let bounded = tokio::time::timeout(self.0.request_timeout, creating);
        let start = Instant::now();
        let reply = bounded.await;
        let outcome = reply.as_ref().map_or(Outcome::Unreachable, outcome_of);
        self.count(Verb::Create, outcome, start);
        self.count_bytes(length, 0);
        match reply {
            Ok(Ok(_)) => CreateOutcome::Created,
            Ok(Err(
                object_store::Error::AlreadyExists { .. }
                | object_store::Error::Precondition { .. },
            )) => CreateOutcome::Exists,
            Ok(Err(error)) => self.create_failed(key, error),
            Err(_) => CreateOutcome::Unknown(Error::Timeout {
                operation: Verb::Create.name(),
                key: key.to_owned(),
                waited: self.0.request_timeout,
            }),
        }
    }

    fn create_failed(&self, key: &str, error: object_store::Error) -> CreateOutcome {
        match self.error(key, error) {
            Error::Store {
                fault: Fault::Exists,
                ..
            } => CreateOutcome::Exists,
            error if error.has_no_side_effects() => CreateOutcome::Refused(error),
            error => CreateOutcome::Unknown(error),
        }
    }

    /// Lists the folders in `prefix`, a folder, without what they hold: a request for a thousand.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn folders(&self, prefix: &str) -> Result<BTreeSet<String>, Error> {
        let path = self.path(prefix)?;
        let objects = &self.0.clients.objects;
        let listing = objects.list_with_delimiter(Some(&path));
        let listed = self.call(Verb::List, prefix, listing).await?;
        let folders = listed.common_prefixes.iter().map(|path| self.key(path));
        Ok(folders.collect())
    }

    /// Deletes objects, many at a time where the store can. One that is not there counts as
    /// deleted. After an error some may be gone; calling again is harmless.
    ///
    /// # Errors
    ///
    /// The first refusal; the other keys were still tried.
    pub async fn delete(
        &self,
        keys: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<(), Error> {
        let paths = keys.into_iter().map(|key| self.path(key.as_ref()));
        let paths = paths.collect::<Result<Vec<_>, _>>()?;
        if paths.is_empty() {
            return Ok(());
        }
        let first = paths.first().map(ToString::to_string).unwrap_or_default();
        let start = Instant::now();
        let objects = &self.0.clients.objects;
        let mut replies = objects.delete_stream(stream::iter(paths).map(Ok).boxed());
        let mut result = Ok(());
        loop {
            // The bound holds per step, since there may be any number of keys.
            let step = tokio::time::timeout(self.0.call_timeout, replies.next()).await;
            let Ok(step) = step else {
                return Err(self.timed_out(Verb::Delete, &first));
            };
            let Some(reply) = step else { return result };
            self.count(Verb::Delete, outcome_of(&reply), start);
            match reply {
                Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => result = result.and(Err(self.error(&first, error))),
            }
        }
    }

    async fn call<T>(
        &self,
        verb: Verb,
        key: &str,
        call: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, Error> {
        self.call_within(self.0.call_timeout, verb, key, call).await
    }

    async fn call_within<T>(
        &self,
        waited: Duration,
        verb: Verb,
        key: &str,
        call: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, Error> {
        let start = Instant::now();
        let Ok(reply) = tokio::time::timeout(waited, call).await else {
            self.count(verb, Outcome::Unreachable, start);
            return Err(Error::Timeout {
                operation: verb.name(),
                key: key.to_owned(),
                waited,
            });
        };
        self.count(verb, outcome_of(&reply), start);
        reply.map_err(|error| self.error(key, error))
    }

    fn timed_out(&self, verb: Verb, key: &str) -> Error {
        let waited = self.0.call_timeout;
        Error::Timeout {
            operation: verb.name(),
            key: key.to_owned(),
            waited,
        }
    }

    fn count(&self, verb: Verb, outcome: Outcome, start: Instant) {
        if !self.0.clients.is_http {
            self.0.meter.observe(verb, outcome, start.elapsed());
        }
    }

    fn count_bytes(&self, sent: usize, received: usize) {
        if !self.0.clients.is_http {
            self.0.meter.add_bytes(sent as u64, received as u64);
        }
    }

    fn path(&self, key: &str) -> Result<Path, Error> {
        let prefix = self.0.prefix.as_str();
        let full = match (prefix, key) {
            ("", key) => Path::parse(key),
            (prefix, "") => Path::parse(prefix),
            (prefix, key) => Path::parse(format!("{prefix}/{key}")),
        };
        full.map_err(|error| self.error(key, error.into()))
    }

    /// Returns a path without the store's prefix.
    fn key(&self, path: &Path) -> String {
        let full = path.as_ref();
        let key = full.strip_prefix(self.0.prefix.as_str()).unwrap_or(full);
        key.trim_start_matches('/').to_owned()
    }

    fn info(&self, meta: &ObjectMeta) -> ObjectInfo {
        ObjectInfo {
            key: self.key(&meta.location),
            size_bytes: meta.size,
            last_modified: TimestampMs::new(meta.last_modified.timestamp_millis()),
        }
    }

    fn error(&self, key: &str, source: object_store::Error) -> Error {
        let fault = match Fault::of(&source) {
            Fault::WrongRegion(None) => Fault::WrongRegion(self.0.region.get().map(str::to_owned)),
            fault => fault,
        };
        // A missing bucket answers 404 too, and must not pass for a missing object.
        if matches!(source, object_store::Error::NotFound { .. }) && fault == Fault::Other {
            return Error::NotFound {
                key: key.to_owned(),
            };
        }
        let (store, key) = (Arc::clone(&self.0.name), key.to_owned());
        Error::Store {
            fault,
            store,
            key,
            source: Arc::new(source),
        }
    }

    /// The SDK's client, where the store is S3.
    #[cfg(feature = "aws")]
    pub(crate) fn s3(&self) -> Option<&s3::S3Api> {
        self.0.clients.s3.as_ref()
    }
}

/// How long a put may take for its length, as long as it moves.
fn time_to_move(length: usize) -> Duration {
    Duration::from_secs(length as u64 / SLOWEST_PUT_BYTES_PER_SECOND)
}

fn outcome_of<T>(reply: &object_store::Result<T>) -> Outcome {
    reply
        .as_ref()
        .map_or_else(Outcome::of_error, |_| Outcome::Ok)
}

#[cfg(test)]
mod tests;
