//! Where a consumer is in a partition, and what agents last said about it.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use esker_proto::types::{LeaderEpoch, Offset, PartitionId, TopicId};
use serde::{Deserialize, Serialize};

/// Where to read on in a partition, to be stored anywhere and given to
/// [`StartAt::Saved`](super::StartAt::Saved) later.
///
/// Names the topic by its id too, so that a topic deleted and created again is noticed, and the leader
/// epoch of the last record read, so that a log which lost that record is noticed
/// ([`ErrorKind::Truncated`](crate::ErrorKind::Truncated)).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SavedPosition {
    /// The topic's name.
    pub topic: String,
    /// The topic's id.
    pub topic_id: TopicId,
    /// The partition.
    pub partition: PartitionId,
    /// The first offset that was not read.
    pub next_offset: Offset,
    /// Epoch of the leader that appended the record before `next_offset`; absent: it was not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_epoch: Option<LeaderEpoch>,
}

/// A partition's high watermark: the fetcher writes it, the consumer reads it. Cheap to clone: all clones see the same.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_position_survives_its_text() {
        let saved = SavedPosition {
            topic: "t".to_owned(),
            topic_id: TopicId::from_bytes([7; 16]),
            partition: PartitionId::new(3),
            next_offset: Offset::new(1 << 40),
            leader_epoch: Some(LeaderEpoch::new(2)),
        };
        let text = serde_json::to_string(&saved).unwrap();
        assert_eq!(
            text,
            r#"{"topic":"t","topic_id":"07070707-0707-0707-0707-070707070707","partition":3,"next_offset":1099511627776,"leader_epoch":2}"#
        );
        assert_eq!(serde_json::from_str::<SavedPosition>(&text).unwrap(), saved);
    }
}
