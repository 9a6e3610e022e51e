//! Deletes all a partition has in the bucket, after the tombstone of its topic.

use esker_proto::types::TopicPartition;
use futures::TryStreamExt;
use tokio_util::sync::CancellationToken;

use crate::{
    error::Error,
    keys::{Key, Keys},
    store::Store,
};

const KEYS_PER_DELETE: usize = 1000;

/// Deletes every object of a partition whose topic was deleted, and returns how many.
///
/// MUST be called only with the tombstone of the topic id at hand: nothing here looks for one. May
/// be called again, after an error, a cancellation or a crash. A deposed leader may still be
/// uploading, so whoever keeps the tombstone calls again until nothing is found.
///
/// Segments go first and the manifest last, so that what is left always says what it is.
///
/// # Errors
///
/// Those of the store, and `Unavailable` when cancelled; some objects may be gone.
pub async fn delete_everything(
    store: &Store,
    topic_partition: TopicPartition,
    cancel: &CancellationToken,
) -> Result<u64, Error> {
    let keys = Keys::new(topic_partition);
    let mut deleted = 0;
    for folder in [
        keys.segments(),
        keys.pages(),
        keys.manifests(),
        keys.boundaries(),
    ] {
        deleted += delete_folder(store, topic_partition, &folder, cancel).await?;
    }
    Ok(deleted)
}

async fn delete_folder(
    store: &Store,
    topic_partition: TopicPartition,
    folder: &str,
    cancel: &CancellationToken,
) -> Result<u64, Error> {
    let mut listing = store.list(folder, None).try_chunks(KEYS_PER_DELETE);
    let mut deleted = 0;
    while let Some(chunk) = listing.try_next().await.map_err(|error| error.1)? {
        if cancel.is_cancelled() {
            return Err(Error::Cancelled {
                operation: "delete partition",
            });
        }
        let is_ours = |key: &&str| match Key::parse(key) {
            Some(
                Key::Segment(tp, _)
                | Key::Page(tp, _)
                | Key::Manifest(tp, _)
                | Key::ManifestBoundary(tp, _),
            ) => tp == topic_partition,
            _ => false,
        };
        let keys: Vec<&str> = chunk
            .iter()
            .map(|object| object.key.as_str())
            .filter(is_ours)
            .collect();
        deleted += keys.len() as u64;
        store.delete(keys).await?;
    }
    Ok(deleted)
}
