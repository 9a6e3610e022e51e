//! What becomes of the lines that were sent, batch by batch.

use std::collections::HashMap;

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};

use super::line_set::LineSet;
use crate::{Delivery, PartitionId, Result};

type BatchId = u64;

/// The batches that are not settled, with the lines in each. What it holds is bounded by the bytes
/// that the producer buffers.
#[derive(Debug, Default)]
pub(super) struct Fates {
    unsettled: FuturesUnordered<BoxFuture<'static, (BatchId, PartitionId, Result<()>)>>,
    /// The newest batch of each partition, which may take more lines.
    newest: Vec<Option<(BatchId, LineSet)>>,
    older: HashMap<BatchId, LineSet>,
    next_id: BatchId,
}

/// The fate of one batch.
#[derive(Debug)]
pub(super) struct Fate {
    pub(super) lines: LineSet,
    pub(super) outcome: Result<()>,
}

impl Fates {
    /// Adds a line that was sent; lines come in order.
    #[inline]
    pub(super) fn add(&mut self, line: u64, delivery: Delivery) {
        let partition = delivery.partition();
        let slot = partition.get() as usize;
        if let Some(Some((_, lines))) = self.newest.get_mut(slot)
            && !delivery.is_first_of_batch()
        {
            lines.push(line);
            return;
        }
        let mut lines = LineSet::default();
        lines.push(line);
        self.add_batch(slot, lines, delivery);
    }

    fn add_batch(&mut self, slot: usize, lines: LineSet, delivery: Delivery) {
        let (id, partition) = (self.next_id, delivery.partition());
        self.next_id += 1;
        if slot >= self.newest.len() {
            self.newest.resize(slot + 1, None);
        }
        if let Some((older, lines)) = self.newest[slot].replace((id, lines)) {
            self.older.insert(older, lines);
        }
        let fate = async move { (id, partition, delivery.await.map(drop)) };
        self.unsettled.push(fate.boxed());
    }

    /// Waits for the fate of some batch; `None`: all are settled. May be dropped before it returns.
    pub(super) async fn next(&mut self) -> Option<Fate> {
        let (id, partition, outcome) = self.unsettled.next().await?;
        let lines = self.take(id, partition);
        Some(Fate { lines, outcome })
    }

    fn take(&mut self, id: BatchId, partition: PartitionId) -> LineSet {
        let newest = &mut self.newest[partition.get() as usize];
        match newest.take_if(|(newest, _)| *newest == id) {
            Some((_, lines)) => lines,
            None => self.older.remove(&id).unwrap_or_default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unsettled.is_empty()
    }

    /// The lines whose fate is not known.
    pub(super) fn rest(self) -> impl Iterator<Item = LineSet> {
        let newest = self.newest.into_iter().flatten().map(|(_, lines)| lines);
        newest.chain(self.older.into_values())
    }
}
