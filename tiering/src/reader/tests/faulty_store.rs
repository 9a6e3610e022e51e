//! A store in memory that counts, delays and damages what is read.

use std::{
    collections::HashMap,
    fmt,
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::stream::BoxStream;
use object_store::{
    CopyOptions, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, memory::InMemory, path::Path,
};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::keys::Key;

/// What happens to a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// One bit of the reply is flipped, this many bytes into the object.
    FlipAt(u64),
    /// One bit of the reply is flipped, each time another.
    FlipAnywhere,
    Panic,
    Hang,
    Fail,
    Delay(Duration),
}

/// Reads what is in memory, with faults by key.
#[derive(Debug, Default)]
pub(super) struct FaultyStore {
    inner: InMemory,
    /// Fault, and how often it still strikes.
    faults: Mutex<HashMap<String, (Fault, usize)>>,
    gets: Mutex<Vec<(String, Range<u64>)>>,
    in_flight: AtomicUsize,
    in_flight_max: AtomicUsize,
    gate: Option<Semaphore>,
}

impl FaultyStore {
    /// Lets reads through one by one, as [`Self::let_through`] says.
    pub(super) fn gated() -> Self {
        Self {
            gate: Some(Semaphore::new(0)),
            ..Self::default()
        }
    }

    pub(super) fn strike(&self, key: Key, fault: Fault, times: usize) {
        self.faults.lock().insert(key.to_string(), (fault, times));
    }

    /// Reads so far, in order.
    pub(super) fn gets(&self) -> Vec<(String, Range<u64>)> {
        self.gets.lock().clone()
    }

    pub(super) fn forget_gets(&self) {
        self.gets.lock().clear();
    }

    pub(super) fn in_flight_max(&self) -> usize {
        self.in_flight_max.load(Ordering::SeqCst)
    }

    /// Lets this many more reads through a closed gate.
    pub(super) fn let_through(&self, reads: usize) {
        self.gate
            .as_ref()
            .expect("made with a gate")
            .add_permits(reads);
    }

    pub(super) async fn replace(&self, key: Key, bytes: Bytes) {
        self.inner
            .put(&Path::from(key.to_string()), bytes.into())
            .await
            .unwrap();
    }

    pub(super) async fn remove(&self, key: Key) {
        self.inner
            .delete(&Path::from(key.to_string()))
            .await
            .unwrap();
    }

    pub(super) async fn content(&self, key: Key) -> Bytes {
        let path = Path::from(key.to_string());
        self.inner.get(&path).await.unwrap().bytes().await.unwrap()
    }

    fn next_fault(&self, key: &str) -> Option<Fault> {
        let mut faults = self.faults.lock();
        let (fault, times) = faults.get_mut(key)?;
        *times = times.checked_sub(1)?;
        Some(match *fault {
            Fault::FlipAnywhere => Fault::FlipAt(100 + *times as u64),
            fault => fault,
        })
    }

    async fn read(&self, path: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        let fault = self.next_fault(path.as_ref());
        match fault {
            Some(Fault::Panic) => panic!("planted"),
            Some(Fault::Hang) => std::future::pending::<()>().await,
            Some(Fault::Fail) => {
                return Err(object_store::Error::Generic {
                    store: "faulty",
                    source: "planted".into(),
                });
            }
            Some(Fault::Delay(delay)) => tokio::time::sleep(delay).await,
            Some(Fault::FlipAt(_) | Fault::FlipAnywhere) | None => {}
        }
        let mut reply = self.inner.get_opts(path, options).await?;
        if let Some(Fault::FlipAt(position)) = fault {
            reply = flipped(reply, position).await?;
        }
        Ok(reply)
    }
}

async fn flipped(reply: GetResult, position: u64) -> object_store::Result<GetResult> {
    let (meta, range, attributes) = (
        reply.meta.clone(),
        reply.range.clone(),
        reply.attributes.clone(),
    );
    let extensions = reply.extensions.clone();
    let mut bytes = BytesMut::from(reply.bytes().await?);
    if range.contains(&position) {
        bytes[usize::try_from(position - range.start).unwrap()] ^= 0x10;
    }
    let bytes = bytes.freeze();
    let payload = GetResultPayload::Stream(Box::pin(futures::stream::iter([Ok(bytes)])));
    Ok(GetResult {
        payload,
        meta,
        range,
        attributes,
        extensions,
    })
}

#[async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        self.inner.put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        if options.head {
            return self.inner.get_opts(path, options).await;
        }
        let range = match &options.range {
            Some(GetRange::Bounded(range)) => range.clone(),
            _ => 0..0,
        };
        self.gets.lock().push((path.to_string(), range));
        if let Some(gate) = &self.gate {
            gate.acquire().await.unwrap().forget();
        }
        let in_flight = self.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        self.in_flight_max.fetch_max(in_flight, Ordering::SeqCst);
        let reply = self.read(path, options).await;
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
        reply
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(
        &self,
        from: &Path,
        to: &Path,
        options: CopyOptions,
    ) -> object_store::Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("faulty")
    }
}
