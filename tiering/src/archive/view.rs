//! Looks at a partition's manifest without owning it.

use std::sync::Arc;

use esker_index::Manifest;
use esker_proto::types::TopicPartition;

use crate::{
    chain::{ChainName, ChainReader, Entry},
    error::Error,
    keys::Keys,
    store::Store,
};

/// Returns the latest manifest; `None` if the partition never had one.
///
/// # Errors
///
/// When the store does not answer, or the chain is damaged.
pub async fn view(
    store: &Store,
    topic_partition: TopicPartition,
) -> Result<Option<Arc<Manifest>>, Error> {
    Viewer::new(store.clone(), topic_partition).refresh().await
}

/// Whether no version follows `manifest`, as one request tells.
///
/// # Errors
///
/// When the store does not answer.
pub async fn is_newest(store: &Store, manifest: &Manifest) -> Result<bool, Error> {
    let header = manifest.header();
    let chain = ChainName::Manifest(Keys::new(header.topic_partition));
    match store.get(&chain.slot(header.version.get() + 1)).await {
        Err(error) if error.is_not_found() => Ok(true),
        Err(error) => Err(error),
        Ok(_) => Ok(false),
    }
}

/// Follows a partition's manifest. Fences nobody.
#[derive(Debug)]
pub struct Viewer {
    chain: ChainReader,
    latest: Option<Entry<Manifest>>,
}

impl Viewer {
    /// Starts to follow the manifest of a partition. Asks the store nothing.
    pub fn new(store: Store, topic_partition: TopicPartition) -> Self {
        let chain = ChainName::Manifest(Keys::new(topic_partition));
        Self {
            chain: ChainReader::new(store, chain),
            latest: None,
        }
    }

    /// Reads on to the latest manifest. Never returns one older than before.
    ///
    /// # Errors
    ///
    /// When the store does not answer, or the chain is damaged.
    pub async fn refresh(&mut self) -> Result<Option<Arc<Manifest>>, Error> {
        if let Some(newest) = self.chain.latest(self.latest.as_ref()).await? {
            self.latest = Some(newest);
        }
        Ok(self
            .latest
            .as_ref()
            .map(|entry| Arc::new(entry.body.clone())))
    }
}
