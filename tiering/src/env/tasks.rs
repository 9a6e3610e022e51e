//! The one door through which background tasks are spawned.

use std::{future::Future, panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt;
use tokio::task::JoinHandle;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument;

/// Tasks that end together: cancelled by one token, joined at shutdown. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct TaskSet {
    tracker: TaskTracker,
    cancelled: CancellationToken,
}

impl TaskSet {
    /// Starts an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Spawns a task under `name`. It must end soon after [`TaskSet::token`] is cancelled.
    #[expect(clippy::disallowed_methods, reason = "the one door")]
    pub fn spawn<F>(&self, name: &'static str, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        let span = tracing::debug_span!("task", task = name);
        tokio::spawn(self.tracker.track_future(future.instrument(span)))
    }

    /// Spawns a task without which the process must not go on: if it panics, the process aborts,
    /// and the next one recovers. Otherwise whatever the task owned would be gone, with nobody to
    /// notice.
    pub fn spawn_vital<F>(&self, name: &'static str, future: F) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.spawn(name, async move {
            if AssertUnwindSafe(future).catch_unwind().await.is_err() {
                tracing::error!(
                    task = name,
                    "a task that owns state panicked; the process aborts"
                );
                std::process::abort();
            }
        })
    }

    /// Runs blocking work (file I/O, compression) on the runtime's pool for it.
    pub fn spawn_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        self.tracker.spawn_blocking(work)
    }

    /// Returns the token whose cancellation asks every task of the set to end.
    pub const fn token(&self) -> &CancellationToken {
        &self.cancelled
    }

    /// Returns a set that ends with this one, and can end before it.
    #[must_use]
    pub fn child(&self) -> Self {
        Self {
            tracker: self.tracker.clone(),
            cancelled: self.cancelled.child_token(),
        }
    }

    /// Cancels every task and waits at most `deadline` for them. Returns whether all ended.
    pub async fn shutdown(&self, deadline: Duration) -> bool {
        self.cancelled.cancel();
        self.tracker.close();
        tokio::time::timeout(deadline, self.tracker.wait())
            .await
            .is_ok()
    }
}
