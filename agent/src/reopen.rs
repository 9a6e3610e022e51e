//! Tries partitions again that could not be opened because of what the bucket answered.
//!
//! Bytes that are damaged on their way, or a repair that somebody is about to do, are reasons that
//! may pass. A partition whose manifest was opened and whose local log is damaged is not tried again:
//! each try would add a manifest, and the log does not change by itself.

use std::{sync::Arc, time::Duration};

use crate::{backoff::Backoff, partition::PartitionHandle, shared::Shared};

const WAIT_MIN: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_secs(300);

/// Opens a partition again, with back-off, if its part in the bucket could not be opened.
pub(crate) fn watch(shared: &Arc<Shared>, partition: &PartitionHandle) {
    if !partition.is_closed_by_bucket() {
        return;
    }
    let (shared, at) = (Arc::clone(shared), partition.topic_partition());
    let stopped = shared.tasks.token().clone();
    shared.tasks.clone().spawn("reopen partition", async move {
        let mut backoff = Backoff::new(WAIT_MIN, WAIT_MAX);
        loop {
            tokio::select! {
                () = stopped.cancelled() => return,
                () = tokio::time::sleep(backoff.next()) => {}
            }
            if shared.topics.reopen(at).await {
                return;
            }
        }
    });
}
