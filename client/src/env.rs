//! What the library takes from its surroundings: the wall clock and the runtime's tasks.
//!
//! Nothing else in the library reads the wall clock or spawns. Intervals are measured with tokio's
//! clock, which tests can pause.

#[cfg(not(target_os = "linux"))]
use std::time::{SystemTime, UNIX_EPOCH};

use esker_proto::types::TimestampMs;

/// Returns the wall-clock time as of the last timer tick, at most 10 ms ago, for the timestamps of
/// records: the exact time costs a busy producer several percent.
#[cfg(target_os = "linux")]
pub(crate) fn now() -> TimestampMs {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    TimestampMs::new(now.tv_sec * 1_000 + now.tv_nsec / 1_000_000)
}

/// Returns the wall-clock time, for the timestamps of records.
#[cfg(not(target_os = "linux"))]
#[expect(
    clippy::disallowed_methods,
    reason = "the one place that reads the wall clock"
)]
pub(crate) fn now() -> TimestampMs {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    TimestampMs::new(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
}

/// Starts a task on the caller's runtime. Each ends by itself: a connection's when the connection
/// does, a producer's when its last handle is gone and nothing is left to deliver.
#[expect(clippy::disallowed_methods, reason = "the one door")]
pub(crate) fn spawn<F>(future: F) -> tokio::task::JoinHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    tokio::spawn(future)
}
