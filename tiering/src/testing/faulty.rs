//! An object store that fails on purpose.

use std::{fmt, future, io, ops::Range, sync::Arc};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::{
    FutureExt, StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, RenameOptions, Result, path::Path,
};

use super::faults::{Faults, Op, Trouble};

/// Passes every call on, unless one of its [`Faults`] befalls it.
#[derive(Clone, Debug)]
pub struct FaultyStore {
    objects: Arc<dyn ObjectStore>,
    faults: Faults,
}

impl FaultyStore {
    /// Wraps `objects`. Random choices follow from `seed`.
    pub fn new(objects: Arc<dyn ObjectStore>, seed: u64) -> (Self, Faults) {
        let faults = Faults::seeded(seed);
        (
            Self {
                objects,
                faults: faults.clone(),
            },
            faults,
        )
    }

    /// Troubles that come before the call, and those that replace it.
    async fn before(&self, op: Op, key: &Path) -> Result<Option<Trouble>> {
        let trouble = self.faults.befalling(op, key.as_ref());
        match trouble {
            Some(Trouble::FailBefore) => Err(failure("500 Internal Server Error")),
            Some(Trouble::SlowDown) => Err(failure("503 Service Unavailable")),
            Some(Trouble::Forbid) => Err(failure("403 Forbidden")),
            Some(Trouble::Skew) => Err(failure(
                "403 Forbidden: <Error><Code>RequestTimeTooSkewed</Code></Error>",
            )),
            Some(Trouble::BreakOff) if op != Op::List => Err(broken()),
            Some(Trouble::Hang) => future::pending().await,
            Some(Trouble::Delay(delay)) => {
                tokio::time::sleep(delay).await;
                Ok(None)
            }
            Some(Trouble::StaleNotFound) if matches!(op, Op::Get | Op::Head) => {
                Err(Error::NotFound {
                    path: key.to_string(),
                    source: "stale".into(),
                })
            }
            Some(Trouble::ConflictWithoutEffect) if op == Op::Create => Err(Error::AlreadyExists {
                path: key.to_string(),
                source: "conflict".into(),
            }),
            trouble => Ok(trouble),
        }
    }
}

/// Troubles that come after the call.
async fn after<T>(trouble: Option<Trouble>, done: T) -> Result<T> {
    match trouble {
        Some(Trouble::FailAfter) => Err(failure("500 Internal Server Error")),
        Some(Trouble::HangAfter) => future::pending().await,
        _ => Ok(done),
    }
}

fn failure(status: &str) -> Error {
    let source = format!("Server returned non-2xx status code: {status}: injected").into();
    Error::Generic {
        store: "faulty",
        source,
    }
}

fn broken() -> Error {
    Error::Generic {
        store: "faulty",
        source: io::Error::from(io::ErrorKind::ConnectionReset).into(),
    }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "faulty {}", self.objects)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ObjectStore for FaultyStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        mut opts: PutOptions,
    ) -> Result<PutResult> {
        let op = if opts.mode == PutMode::Create {
            Op::Create
        } else {
            Op::Put
        };
        let trouble = self.before(op, location).await?;
        if trouble == Some(Trouble::IgnoreCondition) {
            opts.mode = PutMode::Overwrite;
        }
        if matches!(trouble, Some(Trouble::FailThenLand | Trouble::LandTwice)) {
            let (objects, location) = (Arc::clone(&self.objects), location.clone());
            let (payload, opts) = (payload.clone(), opts.clone());
            // Whether it finds its place taken is nobody's business any more.
            let write = async move { drop(objects.put_opts(&location, payload, opts).await) };
            self.faults.hold(write.boxed());
        }
        if trouble == Some(Trouble::FailThenLand) {
            return Err(failure("500 Internal Server Error"));
        }
        after(
            trouble,
            self.objects.put_opts(location, payload, opts).await?,
        )
        .await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let trouble = self.before(Op::Other, location).await?;
        after(
            trouble,
            self.objects.put_multipart_opts(location, opts).await?,
        )
        .await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let op = if options.head { Op::Head } else { Op::Get };
        let trouble = self.before(op, location).await?;
        let found = after(trouble, self.objects.get_opts(location, options).await?).await?;
        if !matches!(trouble, Some(Trouble::ShortRead | Trouble::FlipBit)) {
            return Ok(found);
        }
        let (meta, range) = (found.meta.clone(), found.range.clone());
        let (attributes, extensions) = (found.attributes.clone(), found.extensions.clone());
        let bytes = self.damage(trouble, found.bytes().await?);
        let payload = GetResultPayload::Stream(stream::once(async { Ok(bytes) }).boxed());
        Ok(GetResult {
            payload,
            meta,
            range,
            attributes,
            extensions,
        })
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let trouble = self.before(Op::Get, location).await?;
        let found = after(trouble, self.objects.get_ranges(location, ranges).await?).await?;
        Ok(found
            .into_iter()
            .map(|bytes| self.damage(trouble, bytes))
            .collect())
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        let deleted = locations.then(move |location| {
            let store = store.clone();
            async move {
                let location = location?;
                let trouble = store.before(Op::Delete, &location).await?;
                store.objects.delete(&location).await?;
                after(trouble, location).await
            }
        });
        deleted.boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listed(prefix, self.objects.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listed(prefix, self.objects.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let trouble = self
            .before(Op::List, &prefix.cloned().unwrap_or_default())
            .await?;
        after(trouble, self.objects.list_with_delimiter(prefix).await?).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let trouble = self.before(Op::Other, to).await?;
        self.objects.copy_opts(from, to, options).await?;
        after(trouble, ()).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let trouble = self.before(Op::Other, to).await?;
        self.objects.rename_opts(from, to, options).await?;
        after(trouble, ()).await
    }
}

impl FaultyStore {
    fn damage(&self, trouble: Option<Trouble>, bytes: Bytes) -> Bytes {
        match trouble {
            Some(Trouble::ShortRead) => bytes.slice(..bytes.len() / 2),
            Some(Trouble::FlipBit) if !bytes.is_empty() => {
                let at = self.faults.random_below(bytes.len());
                let mut damaged = BytesMut::from(&bytes[..]);
                damaged[at] ^= 1 << self.faults.random_below(8);
                damaged.freeze()
            }
            _ => bytes,
        }
    }

    fn listed(
        &self,
        prefix: Option<&Path>,
        listed: BoxStream<'static, Result<ObjectMeta>>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let (store, prefix) = (self.clone(), prefix.cloned().unwrap_or_default());
        let listing = async move {
            let trouble = store.before(Op::List, &prefix).await?;
            if trouble == Some(Trouble::BreakOff) {
                let listed = listed.take(1);
                return Ok(listed.chain(stream::once(async { Err(broken()) })).boxed());
            }
            let Some(Trouble::StaleList(missing)) = trouble else {
                return after(trouble, listed).await;
            };
            let mut objects: Vec<_> = listed.try_collect().await?;
            objects.sort_by(|a, b| a.location.cmp(&b.location));
            objects.truncate(objects.len().saturating_sub(missing));
            Ok(stream::iter(objects.into_iter().map(Ok)).boxed())
        };
        stream::once(listing).try_flatten().boxed()
    }
}
