//! Work that is done to its end, also if the client that asked for it goes away.

use std::sync::Arc;

use esker_tiering::env::TaskSet;
use futures::future::BoxFuture;
use tokio::{sync::Semaphore, task::JoinError};

/// Tasks of one service at a time. Clients that ask and go away, again and again, leave no more.
const TASKS_MAX: usize = 64;

/// Gives out turns for such work.
#[derive(Debug)]
pub(super) struct Turns(Arc<Semaphore>);

impl Default for Turns {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(TASKS_MAX)))
    }
}

impl Turns {
    /// Does the work in a task of its own, once there is a turn.
    ///
    /// # Errors
    ///
    /// If the runtime is shutting down.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        tasks: &TaskSet,
        name: &'static str,
        work: BoxFuture<'static, T>,
    ) -> Result<T, JoinError> {
        let turn = Arc::clone(&self.0).acquire_owned().await;
        let turn = turn.expect("the semaphore is never closed");
        let done = tasks.spawn(name, async move {
            let _turn = turn;
            work.await
        });
        done.await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::FutureExt;
    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn clients_that_ask_and_go_away_leave_so_many_tasks_and_no_more() {
        let (turns, tasks) = (Turns::default(), TaskSet::new());
        let (begun, go_on) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        for _ in 0..10 * TASKS_MAX {
            let (begun, go_on) = (Arc::clone(&begun), Arc::clone(&go_on));
            let work = async move {
                begun.fetch_add(1, Ordering::Relaxed);
                go_on.notified().await;
            };
            let asked = turns.run(&tasks, "work", work.boxed());
            assert!(asked.now_or_never().is_none(), "nothing is done yet");
            tokio::task::yield_now().await;
        }
        assert_eq!(begun.load(Ordering::Relaxed), TASKS_MAX);

        go_on.notify_waiters();
        let done = turns.run(&tasks, "work", async { 7 }.boxed()).await;
        assert_eq!(done.expect("there is a turn again"), 7);
    }
}
