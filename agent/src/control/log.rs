//! The metadata log: reading it from the start, opening it, appending to it.

use std::sync::Arc;

use esker_proto::types::{AgentId, ClusterId, ControllerEpoch};
use esker_tiering::{
    Error,
    chain::{
        Chain, ChainName, ChainReader, FIRST_SLOT, RetryPolicy, Tail, next_nonce, opening_nonce,
    },
    env::IdGenerator,
    store::Store,
};

use super::{body::MetaBody, error::ControlError, record::MetaRecord, state::ClusterState};

/// Slots read before they are applied.
const SLOTS_PER_READ: usize = 256;
/// How often an opening is tried again because somebody else wrote meanwhile.
const OPEN_TRIES_MAX: u32 = 8;

/// Who writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Author {
    pub(super) cluster_id: ClusterId,
    pub(super) agent_id: AgentId,
}

/// The log, opened by this agent, and the state after its newest record.
#[derive(Debug)]
pub(super) struct MetaLog {
    store: Store,
    ids: Arc<dyn IdGenerator>,
    author: Author,
    chain: Chain<MetaBody>,
    state: ClusterState,
}

impl MetaLog {
    /// Reads the log and opens it in the next controller epoch, which deposes whoever wrote before.
    ///
    /// # Errors
    ///
    /// If the bucket does not answer, the log is inconsistent, or others keep opening it.
    pub(super) async fn open(
        store: Store,
        ids: Arc<dyn IdGenerator>,
        author: Author,
    ) -> Result<Self, ControlError> {
        let (mut state, mut next_slot) = (ClusterState::default(), FIRST_SLOT);
        for _ in 0..OPEN_TRIES_MAX {
            next_slot = read(&store, &mut state, next_slot).await?;
            let controller_epoch = state.controller_epoch.next();
            let record = MetaRecord::Open {
                controller_epoch,
                agent_id: author.agent_id,
            };
            let open_with = |slot| MetaBody {
                format_version: MetaBody::version(),
                cluster_id: author.cluster_id,
                slot,
                epoch: controller_epoch.get(),
                agent_id: author.agent_id,
                nonce: opening_nonce(&*ids),
                prev_sha256: [0; 32],
                record: record.clone(),
            };
            match open_chain(
                &store,
                next_slot,
                author.cluster_id,
                controller_epoch,
                open_with,
            )
            .await?
            {
                None => tracing::info!("metadata log moved on while it was opened"),
                Some(chain) => {
                    apply(&mut state, next_slot, &record)?;
                    return Ok(Self {
                        store,
                        ids,
                        author,
                        chain,
                        state,
                    });
                }
            }
        }
        Err(ControlError::Contended)
    }

    /// Reads the state without opening the log.
    ///
    /// # Errors
    ///
    /// If the bucket does not answer, or the log is inconsistent.
    pub(super) async fn read(store: &Store) -> Result<ClusterState, ControlError> {
        let mut state = ClusterState::default();
        read(store, &mut state, FIRST_SLOT).await?;
        Ok(state)
    }

    /// Returns the state after the newest record.
    pub(super) const fn state(&self) -> &ClusterState {
        &self.state
    }

    /// Appends a record. It is won, applied and durable when this returns.
    ///
    /// # Errors
    ///
    /// `Deposed` if another agent wrote: nothing of this agent's will be written any more. Any
    /// other error is about this record alone, whose outcome [`ControlError::has_no_side_effects`]
    /// tells; one that is in doubt is settled before the next.
    pub(super) async fn append(&mut self, record: MetaRecord) -> Result<(), ControlError> {
        self.settle().await?;
        let slot = self.chain.next_slot();
        let mut after = self.state.clone();
        apply(&mut after, slot, &record)?;
        let body = MetaBody {
            format_version: MetaBody::version(),
            cluster_id: self.author.cluster_id,
            slot,
            epoch: self.chain.epoch(),
            agent_id: self.author.agent_id,
            nonce: next_nonce(&*self.ids),
            prev_sha256: [0; 32],
            record,
        };
        self.chain.append(body).await?;
        self.state = after;
        Ok(())
    }

    /// Finds out what became of a record whose outcome was unknown.
    ///
    /// # Errors
    ///
    /// `Deposed` if another agent wrote in its place; otherwise it is still unknown.
    pub(super) async fn settle(&mut self) -> Result<(), ControlError> {
        if self.chain.settle().await? {
            let tip = self.chain.tip();
            apply(&mut self.state, tip.slot, &tip.body.record)?;
        }
        Ok(())
    }

    /// Returns whether somebody else has written since: one GET. A record of our own that is in
    /// doubt is not mistaken for theirs.
    pub(super) async fn is_deposed(&mut self) -> Result<bool, ControlError> {
        match self.settle().await {
            Err(ControlError::Deposed) => return Ok(true),
            settled => settled?,
        }
        match self
            .store
            .get(&ChainName::Metadata.slot(self.chain.next_slot()))
            .await
        {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Opens the chain at `next_slot`; `None` if it has moved past that.
async fn open_chain(
    store: &Store,
    next_slot: u64,
    cluster_id: ClusterId,
    epoch: ControllerEpoch,
    open_with: impl Fn(u64) -> MetaBody + Send + Sync,
) -> Result<Option<Chain<MetaBody>>, ControlError> {
    let mut has_moved = false;
    let opened = Chain::open(
        store.clone(),
        ChainName::Metadata,
        epoch.get(),
        RetryPolicy::default(),
        |tip| {
            let slot = tip.map_or(FIRST_SLOT, |tip| tip.slot + 1);
            if let Some(tip) = tip {
                check_cluster(tip.slot, &tip.body, cluster_id)?;
            }
            if slot == next_slot {
                return Ok(open_with(slot));
            }
            has_moved = true;
            Err(Error::Cancelled {
                operation: "open the metadata log",
            })
        },
    )
    .await;
    match opened {
        Ok(chain) => Ok(Some(chain)),
        Err(error) if has_moved || error.kind() == esker_tiering::ErrorKind::Fenced => {
            tracing::debug!(%error, "opening lost");
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Refuses to append to the log of another cluster: readers would take the mix for damage.
fn check_cluster(slot: u64, newest: &MetaBody, cluster_id: ClusterId) -> Result<(), Error> {
    if newest.cluster_id == cluster_id {
        return Ok(());
    }
    let (key, theirs) = (ChainName::Metadata.slot(slot), newest.cluster_id);
    Err(Error::corrupt(
        key,
        format!(
            "written by cluster {theirs}, while cluster.json says {cluster_id}; restore cluster.json \
             from a copy of the bucket"
        ),
    ))
}

/// Applies every record from `from` on, and returns the slot after the last.
async fn read(store: &Store, state: &mut ClusterState, from: u64) -> Result<u64, ControlError> {
    let mut reader = ChainReader::new(store.clone(), ChainName::Metadata);
    let mut next_slot = from;
    loop {
        let entries = match reader.tail::<MetaBody>(next_slot, SLOTS_PER_READ).await? {
            Tail::Entries(entries) => entries,
            // Metadata slots are never collected yet: a boundary above one is damage.
            Tail::Behind { floor } => {
                let key = ChainName::Metadata.slot(floor);
                return Err(Error::corrupt(key, "records below it are gone").into());
            }
        };
        for entry in &entries {
            apply(state, entry.slot, &entry.body.record)?;
            next_slot = entry.slot + 1;
        }
        if entries.len() < SLOTS_PER_READ {
            return Ok(next_slot);
        }
    }
}

fn apply(state: &mut ClusterState, slot: u64, record: &MetaRecord) -> Result<(), ControlError> {
    state
        .apply(record)
        .map_err(|source| ControlError::Inconsistent { slot, source })
}

#[cfg(test)]
mod tests {
    use esker_tiering::env::SeededIds;
    use esker_tiering::store::StoreOptions;
    use prometheus::Registry;
    use uuid::Uuid;

    use super::*;

    #[tokio::test]
    async fn nothing_is_written_behind_records_of_another_cluster() {
        let url = "memory://".parse().unwrap();
        let store = Store::open(&url, StoreOptions::default(), &Registry::new())
            .await
            .unwrap();
        let open = async |cluster: u128| {
            let author = Author {
                cluster_id: ClusterId::new(Uuid::from_u128(cluster)),
                agent_id: AgentId::new(Uuid::from_u128(1)),
            };
            MetaLog::open(store.clone(), Arc::new(SeededIds::new(1)), author).await
        };
        let mut first = open(1).await.unwrap();
        assert_eq!(first.chain.next_slot(), FIRST_SLOT + 1);

        let refused = open(2).await.unwrap_err();

        assert!(
            refused.to_string().contains("restore cluster.json"),
            "{refused}"
        );
        assert!(!first.is_deposed().await.unwrap());
    }
}
