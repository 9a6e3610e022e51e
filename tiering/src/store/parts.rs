//! Puts of large objects, in parts: what is in memory is a part or two, whatever the object's size.

use std::time::Duration;

use futures::{Stream, StreamExt, stream::FuturesUnordered};
use object_store::{MultipartUpload, ObjectStoreExt, PutPayload};
use tokio_util::sync::CancellationToken;

use super::{Store, requests::Verb, time_to_move};
use crate::error::Error;

/// Parts on their way at a time: the second hides the latency of the first.
pub(crate) const PARTS_IN_FLIGHT: usize = 2;
/// How long giving up an upload may take. What is then left of it is for the bucket's rules.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);

impl Store {
    /// Puts an object made of `parts` under a key that nobody else ever writes. All parts but the last
    /// MUST have the same size, 5 MiB or more where the store is S3. As with [`Store::put_object`] the
    /// object may be there although an error came back; before all parts were put it never is.
    ///
    /// # Errors
    ///
    /// The first of `parts`, `Unavailable` when cancelled, and when the store does not confirm. Parts
    /// that were put are then taken back, if the store answers.
    pub async fn put_parts(
        &self,
        key: &str,
        parts: impl Stream<Item = Result<PutPayload, Error>> + Send + Unpin,
        cancel: &CancellationToken,
    ) -> Result<(), Error> {
        let path = self.path(key)?;
        let opening = self.0.clients.objects.put_multipart(&path);
        let mut upload = self.call(Verb::Put, key, opening).await?;
        let putting = self.put_each(key, &mut *upload, parts);
        let put = cancel.run_until_cancelled(putting).await;
        let cancelled = Error::Cancelled {
            operation: "upload",
        };
        if let Err(error) = put.unwrap_or(Err(cancelled)) {
            self.give_up(key, &mut *upload).await;
            return Err(error);
        }
        // An error may come after the fact: nothing is taken back from here on.
        self.call(Verb::Put, key, upload.complete()).await.map(drop)
    }

    async fn put_each(
        &self,
        key: &str,
        upload: &mut dyn MultipartUpload,
        mut parts: impl Stream<Item = Result<PutPayload, Error>> + Send + Unpin,
    ) -> Result<(), Error> {
        let mut in_flight = FuturesUnordered::new();
        let mut has_more = true;
        while has_more || !in_flight.is_empty() {
            if has_more && in_flight.len() < PARTS_IN_FLIGHT {
                match parts.next().await.transpose()? {
                    Some(part) => in_flight.push(self.put_part(key, upload, part)),
                    None => has_more = false,
                }
            } else {
                in_flight.next().await.transpose()?;
            }
        }
        Ok(())
    }

    fn put_part<'a>(
        &'a self,
        key: &'a str,
        upload: &mut dyn MultipartUpload,
        part: PutPayload,
    ) -> impl Future<Output = Result<(), Error>> + Send + use<'a> {
        let length = part.content_length();
        let putting = upload.put_part(part);
        async move {
            let timeout = self.0.call_timeout + time_to_move(length);
            self.call_within(timeout, Verb::Put, key, putting).await?;
            self.count_bytes(length, 0);
            Ok(())
        }
    }

    async fn give_up(&self, key: &str, upload: &mut dyn MultipartUpload) {
        let abort = tokio::time::timeout(ABORT_TIMEOUT, upload.abort()).await;
        if let Ok(Err(error)) = abort {
            tracing::warn!(key, %error, "cannot take back the parts of an upload; the bucket's rule for incomplete uploads will");
        }
    }
}
