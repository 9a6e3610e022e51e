//! Decoded index pages: bounded in bytes, each fetched and decoded once however many need it.

use std::{sync::Arc, time::Duration};

use esker_index::{PageId, PageRef, Rows};
use esker_proto::types::TopicPartition;
use foyer::{Cache, EvictionConfig, LruConfig};
use prometheus::IntCounter;

use super::flights::{Boarding, Flights, Ticket};
use crate::{
    env::TaskSet,
    error::{Error, ErrorKind},
    keys::{Key, PageName},
    page_load::{DamagedPages, LOADS},
    store::Store,
};

/// A page that was found damaged is not fetched again for so long.
const DAMAGED_FOR: Duration = Duration::from_secs(300);

/// The pages of one agent.
#[derive(Debug)]
pub(super) struct Pages {
    store: Store,
    cache: Cache<PageId, Rows>,
    flights: Flights<PageId, Rows, Error>,
    damaged: DamagedPages,
    misses: IntCounter,
    tasks: TaskSet,
    deadline: Duration,
}

impl Pages {
    pub(super) fn new(
        store: Store,
        capacity_bytes: u64,
        deadline: Duration,
        misses: IntCounter,
        tasks: TaskSet,
    ) -> Self {
        let cache = Cache::builder(usize::try_from(capacity_bytes).unwrap_or(usize::MAX))
            .with_name("esker_pages")
            .with_shards(1)
            .with_eviction_config(EvictionConfig::from(LruConfig::default()))
            .with_weighter(|_: &PageId, rows: &Rows| rows.memory_bytes())
            .build();
        let flights = Flights::new(tasks.clone(), deadline);
        Self {
            store,
            cache,
            flights,
            damaged: DamagedPages::new(DAMAGED_FOR),
            misses,
            tasks,
            deadline,
        }
    }

    /// Returns a page's rows.
    pub(super) async fn rows(
        self: &Arc<Self>,
        tp: TopicPartition,
        page: &PageRef,
    ) -> Result<Rows, Error> {
        match self.board(tp, page) {
            Boarding::Landed(rows) => Ok(rows),
            Boarding::Joined(ticket) | Boarding::Started(ticket) => {
                self.landed(tp, page, ticket).await
            }
        }
    }

    /// Returns a page's rows if they are here; else has them fetched, for later.
    pub(super) fn rows_or_prefetch(
        self: &Arc<Self>,
        tp: TopicPartition,
        page: &PageRef,
    ) -> Option<Rows> {
        match self.board(tp, page) {
            Boarding::Landed(rows) => Some(rows),
            Boarding::Joined(_) | Boarding::Started(_) => None,
        }
    }

    fn board(self: &Arc<Self>, tp: TopicPartition, page: &PageRef) -> Boarding<Rows, Error> {
        let cached = || self.cache.get(&page.id).map(|entry| entry.value().clone());
        if let Some(rows) = cached() {
            return Boarding::Landed(rows);
        }
        self.flights
            .board(page.id, cached, || self.clone().load(tp, *page))
    }

    async fn landed(
        &self,
        tp: TopicPartition,
        page: &PageRef,
        ticket: Ticket<Rows, Error>,
    ) -> Result<Rows, Error> {
        let outcome = ticket.landed().await;
        outcome.map_err(|failure| {
            failure.into_error("read index page", key_of(tp, page), self.deadline)
        })
    }

    async fn load(self: Arc<Self>, tp: TopicPartition, page: PageRef) -> Result<Rows, Error> {
        if let Some(error) = self.damaged.known(page.id) {
            return Err(error);
        }
        self.misses.inc();
        let key = key_of(tp, &page).to_string();
        let loaded = LOADS.load(&self.store, &self.tasks, &key, &page).await;
        if let Err(error) = &loaded
            && error.kind() == ErrorKind::Corrupt
        {
            self.damaged.note(page.id, error);
        }
        let rows = loaded?;
        self.cache.insert(page.id, rows.clone());
        Ok(rows)
    }
}

fn key_of(tp: TopicPartition, page: &PageRef) -> Key {
    Key::Page(tp, PageName::from(page))
}
