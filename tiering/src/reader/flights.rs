//! Single flight: one load for each key at a time, however many wait for it.
//!
//! A load runs in a task of its own, so a waiter that goes away does not cancel it: what it brings
//! lands in the cache for whoever asks next. Whatever ends it, its waiters hear of it: a result, an
//! error, its deadline, or a panic.

use std::{collections::HashMap, fmt, future::Future, hash::Hash, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::env::TaskSet;

/// Why a load brought nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure<E> {
    /// The load itself failed.
    Failed(E),
    /// It did not end in time.
    TimedOut,
    /// It panicked, or the reader is shutting down.
    Gone,
}

type Outcome<V, E> = Option<Result<V, Failure<E>>>;
type Table<K, V, E> = Mutex<HashMap<K, watch::Receiver<Outcome<V, E>>>>;

/// The loads under way.
pub(super) struct Flights<K, V, E> {
    table: Arc<Table<K, V, E>>,
    tasks: TaskSet,
    deadline: Duration,
}

/// Either the value, or a load to wait for.
pub(super) enum Boarding<V, E> {
    Landed(V),
    Joined(Ticket<V, E>),
    Started(Ticket<V, E>),
}

/// A place among those who wait for one load. May be dropped at any time.
pub(super) struct Ticket<V, E>(watch::Receiver<Outcome<V, E>>);

impl<K, V, E> Flights<K, V, E>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Clone + Send + Sync + 'static,
{
    pub(super) fn new(tasks: TaskSet, deadline: Duration) -> Self {
        Self {
            table: Arc::default(),
            tasks,
            deadline,
        }
    }

    /// Joins the load of `key`, or starts one unless `cached` has the value by now. `cached` is asked
    /// under the lock that a load takes to leave, after it filled the cache: so nothing is loaded
    /// twice.
    pub(super) fn board<F>(
        &self,
        key: K,
        cached: impl FnOnce() -> Option<V>,
        load: impl FnOnce() -> F,
    ) -> Boarding<V, E>
    where
        F: Future<Output = Result<V, E>> + Send + 'static,
    {
        let mut table = self.table.lock();
        if let Some(flight) = table.get(&key) {
            return Boarding::Joined(Ticket(flight.clone()));
        }
        if let Some(value) = cached() {
            return Boarding::Landed(value);
        }
        let (sender, receiver) = watch::channel(None);
        table.insert(key.clone(), receiver.clone());
        drop(table);
        let flight = Flight {
            table: self.table.clone(),
            key,
            sender,
        };
        self.tasks.spawn(
            "reader_load",
            flight.fly(load(), self.deadline, self.tasks.clone()),
        );
        Boarding::Started(Ticket(receiver))
    }

    /// Whether anything is being loaded.
    #[cfg(test)]
    pub(super) fn is_busy(&self) -> bool {
        !self.table.lock().is_empty()
    }

    /// Whether `key` is being loaded.
    pub(super) fn contains(&self, key: &K) -> bool {
        self.table.lock().contains_key(key)
    }
}

impl<V: Clone, E: Clone> Ticket<V, E> {
    /// Waits for the load to end, however it ends.
    pub(super) async fn landed(mut self) -> Result<V, Failure<E>> {
        match self.0.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().unwrap_or(Err(Failure::Gone)),
            Err(_) => Err(Failure::Gone),
        }
    }
}

/// One load. However it ends, its key leaves the table, and its sender is dropped.
struct Flight<K: Eq + Hash, V, E> {
    table: Arc<Table<K, V, E>>,
    key: K,
    sender: watch::Sender<Outcome<V, E>>,
}

impl<K: Eq + Hash, V, E> Flight<K, V, E> {
    async fn fly<F>(self, load: F, deadline: Duration, tasks: TaskSet)
    where
        F: Future<Output = Result<V, E>>,
    {
        let outcome = tokio::select! {
            outcome = tokio::time::timeout(deadline, load) => match outcome {
                Ok(outcome) => outcome.map_err(Failure::Failed),
                Err(_) => Err(Failure::TimedOut),
            },
            () = tasks.token().cancelled() => Err(Failure::Gone),
        };
        // Out of the table before anybody wakes: who asks again after a failure gets a new load.
        self.table.lock().remove(&self.key);
        self.sender.send_replace(Some(outcome));
    }
}

impl<K: Eq + Hash, V, E> Drop for Flight<K, V, E> {
    fn drop(&mut self) {
        let mut table = self.table.lock();
        // By now the key may belong to the next load.
        if table
            .get(&self.key)
            .is_some_and(|next| next.same_channel(&self.sender.subscribe()))
        {
            table.remove(&self.key);
        }
    }
}

impl<K, V, E> fmt::Debug for Flights<K, V, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flights")
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::join_all;
    use tokio::sync::Notify;

    use super::*;

    type TestFlights = Flights<u32, u32, &'static str>;

    fn flights() -> TestFlights {
        Flights::new(TaskSet::new(), Duration::from_secs(30))
    }

    async fn wait(boarding: Boarding<u32, &'static str>) -> Result<u32, Failure<&'static str>> {
        match boarding {
            Boarding::Landed(value) => Ok(value),
            Boarding::Joined(ticket) | Boarding::Started(ticket) => ticket.landed().await,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_hundred_waiters_share_one_load() {
        let flights = flights();
        let loads = Arc::new(AtomicUsize::new(0));
        let go = Arc::new(Notify::new());

        let tickets: Vec<_> = (0..100)
            .map(|_| {
                let (loads, go) = (loads.clone(), go.clone());
                let load = || async move {
                    loads.fetch_add(1, Ordering::SeqCst);
                    go.notified().await;
                    Ok(7)
                };
                wait(flights.board(1, || None, load))
            })
            .collect();
        go.notify_one();

        assert!(
            join_all(tickets)
                .await
                .into_iter()
                .all(|outcome| outcome == Ok(7))
        );
        assert_eq!(loads.load(Ordering::SeqCst), 1);
        assert!(!flights.contains(&1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_reaches_every_waiter_and_the_next_request_works() {
        let flights = flights();
        let load = || async { panic!("planted") };
        let first = wait(flights.board(1, || None, load));
        let second = wait(flights.board(1, || None, || async { Ok(0) }));

        assert_eq!(first.await, Err(Failure::Gone));
        assert_eq!(second.await, Err(Failure::Gone));

        assert_eq!(
            wait(flights.board(1, || None, || async { Ok(9) })).await,
            Ok(9)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_and_a_hang_reach_every_waiter() {
        let flights = flights();
        let failing = wait(flights.board(1, || None, || async { Err("planted") }));
        let hanging = wait(flights.board(2, || None, std::future::pending));

        assert_eq!(failing.await, Err(Failure::Failed("planted")));
        assert_eq!(hanging.await, Err(Failure::TimedOut));
        assert!(!flights.contains(&1) && !flights.contains(&2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_load_outlives_its_waiters() {
        let flights = flights();
        let done = Arc::new(Notify::new());
        let signal = done.clone();
        let load = || async move {
            tokio::time::sleep(Duration::from_secs(5)).await;
            signal.notify_one();
            Ok(7)
        };

        drop(flights.board(1, || None, load));

        done.notified().await;
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_ends_loads_and_tells_their_waiters() {
        let flights = flights();
        let waiter = wait(flights.board(1, || None, std::future::pending));
        tokio::task::yield_now().await;

        assert!(flights.tasks.shutdown(Duration::from_secs(1)).await);

        assert_eq!(waiter.await, Err(Failure::Gone));
    }
}
