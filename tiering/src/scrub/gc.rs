//! Says what may be deleted, and deletes it, without owning anything.

use std::collections::BTreeMap;

use esker_proto::types::{TimestampMs, TopicPartition};

use super::{
    Progress, Scrubber,
    inventory::{Inventories, Inventory},
};
use crate::{
    archive::{Reason, pages::Pages, plan::Verdict, scan::Scan, trim::is_damage, view},
    env::{Clock, SystemClock},
    error::Error,
    keys::Keys,
};

const KEYS_PER_DELETE: usize = 1000;
/// No put takes as long: what is older will never end.
const UNFINISHED_MS: i64 = 24 * 3_600_000;

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
    /// Partitions of which some or all objects could not be judged.
    pub unjudged: Vec<Unjudged>,
}

/// A partition of which nobody knows what is garbage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unjudged {
    /// Which.
    pub topic_partition: TopicPartition,
    /// What is damaged.
    pub reason: String,
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

/// The folder of a partition, or that of everything.
pub(super) fn folder_of(only: Option<TopicPartition>) -> String {
    only.map_or_else(String::new, |tp| Keys::new(tp).folder())
}

/// By the clock of this machine, as are the times of files.
fn unfinished_before() -> TimestampMs {
    TimestampMs::new(SystemClock.now().get().saturating_sub(UNFINISHED_MS))
}

impl Scrubber {
    /// Says what may be deleted in one partition, or in all: the same as what their leaders would
    /// find by themselves.
    ///
    /// # Errors
    ///
    /// Those of the store. A damaged manifest or page is part of the plan: what it may name is not
    /// judged, and everything else is.
    pub async fn plan_garbage(&self, only: Option<TopicPartition>) -> Result<GarbagePlan, Error> {
        let mut inventories = Inventories::list(&self.store, only);
        let mut plan = GarbagePlan::default();
        let mut progress = Progress::default();
        while let Some(inventory) = inventories.next().await? {
            self.plan_partition(&inventory, &mut plan).await?;
            progress.partitions += 1;
            self.report(&progress);
        }
        plan.objects.extend(self.unfinished(only).await?);
        Ok(plan)
    }

    async fn unfinished(&self, only: Option<TopicPartition>) -> Result<Vec<GarbageObject>, Error> {
        let mut leftovers = self.store.leftovers(&folder_of(only)).await?;
        leftovers.retain(|leftover| leftover.modified < unfinished_before());
        let objects = leftovers.into_iter().map(|leftover| GarbageObject {
            key: leftover.key,
            size_bytes: leftover.size_bytes,
            reason: Reason::Unfinished,
        });
        Ok(objects.collect())
    }

    async fn plan_partition(
        &self,
        inventory: &Inventory,
        plan: &mut GarbagePlan,
    ) -> Result<(), Error> {
        let keys = Keys::new(inventory.topic_partition);
        let unjudged = |reason: String| Unjudged {
            topic_partition: inventory.topic_partition,
            reason,
        };
        // Read after the listing, so that it is at least as new as what was listed.
        let manifest = match view(&self.store, inventory.topic_partition).await {
            Ok(Some(manifest)) => manifest,
            // That a manifest is absent is no order to delete.
            Ok(None) if inventory.data.is_empty() => return Ok(()),
            Ok(None) => {
                plan.unjudged
                    .push(unjudged("there are objects but no manifest".to_owned()));
                return Ok(());
            }
            Err(error) if is_damage(&error) => {
                plan.unjudged.push(unjudged(error.to_string()));
                return Ok(());
            }
            Err(error) => return Err(error),
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
        let damage = scan.into_damage();
        plan.unjudged
            .extend(damage.map(|error| unjudged(error.to_string())));
        Ok(())
    }

    /// Deletes what a plan names, and what the latest manifest still calls garbage: a repair may have
    /// named since what was given up before.
    ///
    /// # Errors
    ///
    /// The first refusal of the store, and damage met on the way; some objects may be gone.
    pub async fn delete_garbage(&self, plan: &GarbagePlan) -> Result<(), Error> {
        let of_one = |a: &GarbageObject, b: &GarbageObject| {
            Keys::partition_of(&a.key) == Keys::partition_of(&b.key)
        };
        let is_unfinished = |object: &&GarbageObject| object.reason == Reason::Unfinished;
        let unfinished = plan.objects.iter().filter(is_unfinished);
        let unfinished = unfinished.map(|object| object.key.clone()).collect();
        self.store
            .delete_leftovers(unfinished, unfinished_before())
            .await?;
        for run in plan.objects.chunk_by(of_one) {
            for run in run.chunks(KEYS_PER_DELETE) {
                let keys = self.still_garbage(run).await?;
                self.store.delete(&keys).await?;
            }
        }
        Ok(())
    }

    async fn still_garbage(&self, run: &[GarbageObject]) -> Result<Vec<String>, Error> {
        let at = run
            .first()
            .and_then(|object| Keys::partition_of(&object.key));
        let Some(topic_partition) = at else {
            return Ok(Vec::new());
        };
        let Some(manifest) = view(&self.store, topic_partition).await? else {
            return Ok(Vec::new());
        };
        let keys = Keys::new(topic_partition);
        let pages = Pages::new(self.store.clone(), keys, self.tasks.clone());
        let mut scan = Scan::new(keys, &manifest, pages);
        let mut still = Vec::new();
        for object in run {
            if let Verdict::Garbage(_) = scan.verdict(&object.key).await? {
                still.push(object.key.clone());
            }
        }
        Ok(still)
    }
}
