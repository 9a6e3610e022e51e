//! Periodic looks at what changes without anybody saying so: the disk, and the metadata log.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use tokio::time::{MissedTickBehavior, interval};

use crate::{
    health::Phase, log::disk_space, partition::PartitionHandle, shared::Shared, spare::Spare,
};

/// How often the disk's free space is looked at.
const DISK_INTERVAL: Duration = Duration::from_secs(1);

/// How often it is written down how far the logs are flushed.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(1);

/// Starts them.
pub(crate) fn spawn(shared: &Arc<Shared>) {
    look_at_disk(shared);
    shared
        .tasks
        .spawn_vital("disk watcher", watch_disk(Arc::clone(shared)));
    shared
        .tasks
        .spawn_vital("offset checkpoint", watch_offsets(Arc::clone(shared)));
    shared
        .tasks
        .spawn_vital("metadata watcher", watch_metadata(Arc::clone(shared)));
    shared
        .tasks
        .spawn("grpc health", service_health(Arc::clone(shared)));
}

/// Keeps the offset checkpoint up to date. One that cannot be written claims less than it could.
async fn watch_offsets(shared: Arc<Shared>) {
    let mut ticks = interval(CHECKPOINT_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut was_written = true;
    loop {
        tokio::select! {
            () = shared.tasks.token().cancelled() => return,
            _ = ticks.tick() => {}
        }
        let here = Arc::clone(&shared);
        let write = move || here.write_checkpoint(false);
        let Ok(written) = shared.tasks.spawn_blocking(write).await else {
            return;
        };
        if let Err(error) = &written
            && was_written
        {
            tracing::warn!(%error, "cannot write the offset checkpoint, retrying every second");
        }
        was_written = written.is_ok();
    }
}

async fn watch_disk(shared: Arc<Shared>) {
    let mut ticks = interval(DISK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = shared.tasks.token().cancelled() => return,
            _ = ticks.tick() => {
                look_at_disk(&shared);
                relieve(&shared);
            }
        }
    }
}

fn look_at_disk(shared: &Shared) {
    let logs = shared.topics.opening.data_dir.logs();
    match disk_space(&logs) {
        Ok(space) => {
            let free_bytes = space.available_bytes;
            let wanted = shared.settings.disk_reserve.bytes_of(space.total_bytes);
            let reserve_bytes = match Spare::of(&logs).keep(space) {
                true => wanted,
                // Nothing is free until there is room for the next start.
                false => wanted.max(free_bytes.saturating_add(1)),
            };
            shared.limits.note_disk(free_bytes, reserve_bytes);
        }
        Err(error) => tracing::warn!(%error, "free disk space cannot be read"),
    }
}

/// Has every partition look at its segments while there is too much local data.
fn relieve(shared: &Shared) {
    if !shared.limits.is_pressed() {
        return;
    }
    for topic in shared.registry.topics() {
        for partition in topic.partitions() {
            partition.nudge();
        }
    }
}

/// Finds out, on an otherwise idle agent, that another one has taken over.
async fn watch_metadata(shared: Arc<Shared>) {
    let mut ticks = interval(shared.settings.metadata_poll.duration());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        tokio::select! {
            () = shared.tasks.token().cancelled() => return,
            _ = ticks.tick() => {}
        }
        match shared.controller.is_deposed().await {
            Ok(false) => {
                if let Err(error) = shared.topics.catch_up().await {
                    tracing::warn!(%error, "the metadata's topics cannot all be served");
                }
            }
            Ok(true) => return step_down(&shared).await,
            Err(error) => tracing::info!(%error, "metadata log cannot be looked at"),
        }
    }
}

/// Refuses everything from here on: what this agent would acknowledge, nobody would keep.
async fn step_down(shared: &Shared) {
    tracing::error!("another agent has taken over this cluster; this one stops serving");
    // The process ends on this, whatever a partition that hangs on its disk does.
    shared.health.enter(Phase::Fenced);
    let topics = shared.registry.topics();
    let partitions: Vec<_> = topics.iter().flat_map(|topic| topic.partitions()).collect();
    join_all(partitions.iter().map(PartitionHandle::fence)).await;
}

async fn service_health(shared: Arc<Shared>) {
    let mut phase = shared.health.watch();
    loop {
        let is_serving = *phase.borrow_and_update() == Phase::Serving;
        let status = match is_serving {
            true => tonic_health::ServingStatus::Serving,
            false => tonic_health::ServingStatus::NotServing,
        };
        for service in ["", "esker.v1.Log", "esker.v1.Admin"] {
            shared.grpc_health.set_service_status(service, status).await;
        }
        tokio::select! {
            () = shared.tasks.token().cancelled() => return,
            changed = phase.changed() => if changed.is_err() { return },
        }
    }
}
