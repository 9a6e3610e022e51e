//! What agents last said about a partition: the fetcher writes it, the consumer reads it.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use esker_proto::types::Offset;

/// A partition's high watermark. Cheap to clone: all clones see the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watermark(Arc<AtomicU64>);

impl Watermark {
    pub(crate) fn set(&self, high_watermark: u64) {
        self.0.store(high_watermark, Ordering::Relaxed);
    }

    pub(crate) fn offset(&self) -> Offset {
        Offset::new(self.0.load(Ordering::Relaxed))
    }
}
