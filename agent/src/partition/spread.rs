//! Spreads over time what partitions would otherwise do together.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use esker_proto::types::TopicPartition;

/// Returns the partition's place in `0.0..1.0`: always the same, and even over many partitions.
pub(super) fn spread(at: TopicPartition) -> f64 {
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(at);
    let high = u32::try_from(hash >> 32).unwrap_or(u32::MAX);
    f64::from(high) / (f64::from(u32::MAX) + 1.0)
}

#[cfg(test)]
mod tests {
    use esker_proto::types::{PartitionId, TopicId};
    use uuid::Uuid;

    use super::*;

    #[test]
    fn partitions_are_spread_evenly() {
        let at = |number| TopicPartition {
            topic_id: TopicId::new(Uuid::from_u128(7)),
            partition: PartitionId::new(number),
        };
        let mut counts = [0; 10];
        for number in 0..1000 {
            let share = spread(at(number));
            assert_eq!(share, spread(at(number)));
            let tenth = (1..10).position(|tenth| share < f64::from(tenth) / 10.0);
            counts[tenth.unwrap_or(9)] += 1;
        }
        assert!(
            counts.iter().all(|count| (60..140).contains(count)),
            "{counts:?}"
        );
    }
}
