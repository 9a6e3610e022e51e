//! Says what may be deleted, and deletes it, without owning anything.

use std::collections::BTreeMap;

use esker_proto::types::TopicPartition;

use super::{
    Progress, Scrubber,
    inventory::{Inventories, Inventory},
};
use crate::{
    archive::{Reason, pages::Pages, scan::Scan, view},
    error::Error,
    keys::Keys,
};

const KEYS_PER_DELETE: usize = 1000;

/// An object that may be deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GarbageObject {
    /// Its key.
    pub key: String,
    /// Its length.
    pub size_bytes: u64,
    /// Why it is garbage.
    pub reason: Reason,
}

/// What may be deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GarbagePlan {
    /// The objects, partition by partition.
    pub objects: Vec<GarbageObject>,
    /// Partitions with objects but without a manifest. Nothing there is judged: that a manifest is
    /// absent is no order to delete.
    pub unjudged: Vec<TopicPartition>,
}

impl GarbagePlan {
    /// Objects and bytes by reason.
    pub fn totals(&self) -> BTreeMap<Reason, (u64, u64)> {
        let mut totals = BTreeMap::<Reason, (u64, u64)>::new();
        for object in &self.objects {
            let (objects, bytes) = totals.entry(object.reason).or_default();
            *objects += 1;
            *bytes += object.size_bytes;
        }
        totals
    }
}

impl Scrubber {
    /// Says what may be deleted in one partition, or in all: the same as what their leaders would
    /// find by themselves.
    ///
    /// # Errors
    ///
    /// Those of the store, and of a damaged manifest or page: where that is unreadable, nobody
    /// knows what is garbage.
    pub async fn plan_garbage(&self, only: Option<TopicPartition>) -> Result<GarbagePlan, Error> {
        let mut inventories = Inventories::list(&self.store, only);
        let mut plan = GarbagePlan::default();
        let mut progress = Progress::default();
        while let Some(inventory) = inventories.next().await? {
            self.plan_partition(&inventory, &mut plan).await?;
            progress.partitions += 1;
            self.report(&progress);
        }
        Ok(plan)
    }

    async fn plan_partition(
        &self,
        inventory: &Inventory,
        plan: &mut GarbagePlan,
    ) -> Result<(), Error> {
        let keys = Keys::new(inventory.topic_partition);
        // Read after the listing, so that it is at least as new as what was listed.
        let Some(manifest) = view(&self.store, inventory.topic_partition).await? else {
            plan.unjudged
                .extend((!inventory.data.is_empty()).then_some(inventory.topic_partition));
            return Ok(());
        };
        let pages = Pages::new(self.store.clone(), keys, self.tasks.clone());
        let mut scan = Scan::new(keys, &manifest, pages);
        for object in &inventory.data {
            let found = scan.garbage(object).await?;
            plan.objects.extend(found.map(|found| GarbageObject {
                key: found.key,
                size_bytes: found.size_bytes,
                reason: found.reason,
            }));
        }
        Ok(())
    }

    /// Deletes what a plan names. What was garbage once stays garbage, so the plan may be old.
    ///
    /// # Errors
    ///
    /// The first refusal of the store; some objects may be gone.
    pub async fn delete_garbage(&self, plan: &GarbagePlan) -> Result<(), Error> {
        for run in plan.objects.chunks(KEYS_PER_DELETE) {
            self.store
                .delete(run.iter().map(|object| &object.key))
                .await?;
        }
        Ok(())
    }
}
