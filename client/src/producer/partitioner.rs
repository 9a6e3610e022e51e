//! Which partition a record goes to.

use std::{
    num::NonZeroU32,
    sync::atomic::{AtomicU32, Ordering},
};

use esker_proto::{partitioner::partition_for_key, types::PartitionId};

/// Which partition a record goes to that names none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Partitioner {
    /// By the murmur2 hash of its key, as Kafka's clients do; without a key the partition changes
    /// with each batch.
    #[default]
    Key,
    /// The partition changes with each batch, key or not. Gives up the order per key.
    Sticky,
}

/// The partition for records without a key: one at a time, so that batches fill, and another for
/// each batch, so that they are spread.
#[derive(Debug)]
pub(crate) struct Chooser {
    partitioner: Partitioner,
    partitions: NonZeroU32,
    sticky: AtomicU32,
}

/// Where a record goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) partition: PartitionId,
    /// Another partition would do as well.
    pub(crate) is_free: bool,
}

impl Chooser {
    /// `start` is where to begin with records without a key.
    pub(crate) const fn new(partitioner: Partitioner, partitions: NonZeroU32, start: u32) -> Self {
        let sticky = AtomicU32::new(start % partitions.get());
        Self {
            partitioner,
            partitions,
            sticky,
        }
    }

    #[inline]
    pub(crate) fn choose(&self, key: Option<&[u8]>) -> Choice {
        match (self.partitioner, key) {
            (Partitioner::Key, Some(key)) => {
                let partition = partition_for_key(key, self.partitions);
                Choice {
                    partition,
                    is_free: false,
                }
            }
            _ => {
                let partition = PartitionId::new(self.sticky.load(Ordering::Relaxed));
                Choice {
                    partition,
                    is_free: true,
                }
            }
        }
    }

    /// Leaves `partition`, unless somebody else did so first.
    pub(crate) fn move_on(&self, partition: PartitionId) {
        let next = (partition.get() + 1) % self.partitions;
        let (from, order) = (partition.get(), Ordering::Relaxed);
        // Losing the race means the partition was left, which is all that was wanted.
        _ = self.sticky.compare_exchange(from, next, order, order);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTITIONS: NonZeroU32 = NonZeroU32::new(7).unwrap();

    #[test]
    fn keys_go_where_kafka_puts_them() {
        let chooser = Chooser::new(Partitioner::Key, PARTITIONS, 3);
        // murmur2("foobar") is -790332482 with Kafka's seed.
        let expected = PartitionId::new((-790_332_482_i32 & 0x7fff_ffff).cast_unsigned() % 7);
        let choice = chooser.choose(Some(b"foobar"));
        assert_eq!(
            choice,
            Choice {
                partition: expected,
                is_free: false
            }
        );
    }

    #[test]
    fn records_without_a_key_stay_until_told_to_move_on() {
        let chooser = Chooser::new(Partitioner::Key, PARTITIONS, 6);
        let first = chooser.choose(None);
        assert_eq!(first, chooser.choose(None));
        assert_eq!(first.partition.get(), 6);
        chooser.move_on(first.partition);
        chooser.move_on(first.partition);
        assert_eq!(chooser.choose(None).partition.get(), 0);
    }
}
