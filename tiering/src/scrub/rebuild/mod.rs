//! Writes a manifest anew, from the segments alone.
//!
//! The last resort, for a manifest or index page that is damaged or gone. What is written is a new
//! version in a new epoch, so the leader of the partition is deposed.

mod write;

use std::sync::Arc;

use esker_index::{Manifest, SegmentTrailer};
use esker_proto::types::{
    ClusterId, LeaderEpoch, ManifestVersion, Offset, OffsetRange, TopicPartition,
};
use futures::{StreamExt, stream};

use write::Rebuild;

use super::{
    Anomaly, Damage, Depth, Progress, Scrubber, VerifyReport,
    chain_choice::{Candidate, Choice, choose},
    inventory::{Inventories, Inventory},
    segment,
};
use crate::{
    chain::{ChainName, ChainReader},
    env::IdGenerator,
    error::{Error, ErrorKind},
    keys::{Keys, SegmentName},
};

/// How a manifest is rebuilt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RebuildOptions {
    /// Only says what would be written.
    pub dry_run: bool,
    /// Rebuilds although the manifest is intact, or although offsets would be lost.
    pub force: bool,
}

/// Why nothing was rebuilt.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The manifest and all it names are in order.
    Intact,
    /// There is no segment whose trailer can be read.
    NoSegments,
    /// Segments hold offsets that no gapless manifest can name together with the newest ones.
    Holes(Vec<OffsetRange>),
    /// Segments come from several clusters.
    SeveralClusters,
}

/// What a rebuild came to.
#[derive(Clone, Debug, Default)]
pub struct RebuildReport {
    /// Why nothing was written, if so.
    pub refusal: Option<Refusal>,
    /// The manifest, as written or as it would be; `None` on a refusal.
    pub manifest: Option<Arc<Manifest>>,
    /// The segments it names.
    pub chosen: Vec<Candidate>,
    /// Segments it does not name: their offsets are there from elsewhere, or trimmed.
    pub spare: Vec<Candidate>,
    /// Segments whose trailers cannot be read.
    pub damaged: Vec<Anomaly>,
}

/// What the chain of manifests still tells.
struct Remains {
    /// The first slot that is free.
    slot: u64,
    /// The newest epoch known.
    epoch: LeaderEpoch,
    prev_sha256: [u8; 32],
    /// The highest log start that some version tells.
    log_start_offset: Offset,
}

impl Scrubber {
    /// Rebuilds one partition's manifest: the longest gapless run of segments that ends highest.
    /// Refuses while the manifest and all it names are intact, and when offsets would be lost that
    /// some segment holds, unless forced.
    ///
    /// The partition's agent should rest meanwhile, and whoever follows the manifest must start
    /// over: the rebuilt one may end lower than the one before. Offsets below the highest log start that any
    /// readable version of the manifest names stay trimmed.
    ///
    /// # Errors
    ///
    /// Those of the store; `Fenced` when somebody else wrote the slot; `Unknown` when nobody can
    /// tell.
    pub async fn rebuild_index(
        &self,
        topic_partition: TopicPartition,
        ids: &dyn IdGenerator,
        options: RebuildOptions,
    ) -> Result<RebuildReport, Error> {
        let mut inventories = Inventories::list(&self.store, Some(topic_partition));
        let inventory = inventories.next().await?;
        let inventory = inventory.unwrap_or_else(|| Inventory::new(topic_partition));
        let mut report = RebuildReport::default();
        if !options.force && self.is_intact(&inventory).await? {
            report.refusal = Some(Refusal::Intact);
            return Ok(report);
        }
        let keys = Keys::new(topic_partition);
        let remains = self.remains(keys, &inventory).await?;
        let (candidates, cluster) = self.candidates(&inventory, &mut report).await?;
        let Choice { chain, spare, lost } = choose(candidates, remains.log_start_offset);
        report.refusal = match cluster {
            _ if chain.is_empty() => Some(Refusal::NoSegments),
            Cluster::Several => Some(Refusal::SeveralClusters),
            _ if !lost.is_empty() && !options.force => Some(Refusal::Holes(lost)),
            _ => None,
        };
        (report.chosen, report.spare) = (chain, spare);
        if let (None, Cluster::One(cluster_id)) = (&report.refusal, cluster) {
            let rebuild = Rebuild {
                scrubber: self,
                keys,
                ids,
                options,
                remains,
            };
            report.manifest = Some(rebuild.write(cluster_id, &report.chosen).await?);
        }
        Ok(report)
    }

    async fn is_intact(&self, inventory: &Inventory) -> Result<bool, Error> {
        let (mut report, mut progress) = (VerifyReport::default(), Progress::default());
        self.verify_partition(inventory, Depth::Sizes, &mut report, &mut progress)
            .await?;
        let has_manifest = inventory.newest_version.is_some();
        Ok(has_manifest && report.is_intact())
    }

    /// Reads whatever versions there are, newest first, until one can be read.
    async fn remains(&self, keys: Keys, inventory: &Inventory) -> Result<Remains, Error> {
        let name = ChainName::Manifest(keys);
        let newest = self.newest_slot(name, inventory).await?;
        // Readers apply nothing below the floor, even if all that was above it is gone.
        let floor = ChainReader::new(self.store.clone(), name).floor().await?;
        let mut remains = Remains {
            slot: floor.max(newest + 1),
            epoch: LeaderEpoch::default(),
            prev_sha256: [0; 32],
            log_start_offset: Offset::ZERO,
        };
        for slot in (1..=newest).rev() {
            let bytes = match self.store.get(&name.slot(slot)).await {
                Ok(bytes) => bytes,
                Err(error) if error.is_not_found() => continue,
                Err(error) => return Err(error),
            };
            if slot + 1 == remains.slot {
                remains.prev_sha256 = esker_index::sha256(&bytes);
            }
            if let Ok(manifest) = Manifest::decode(bytes) {
                remains.epoch = manifest.header().leader_epoch;
                remains.log_start_offset = manifest.log_start_offset();
                break;
            }
        }
        Ok(remains)
    }

    /// The listing may be old: reads on from what it shows.
    async fn newest_slot(&self, name: ChainName, inventory: &Inventory) -> Result<u64, Error> {
        let mut newest = inventory.newest_version.map_or(0, ManifestVersion::get);
        loop {
            match self.store.head(&name.slot(newest + 1)).await {
                Ok(_) => newest += 1,
                Err(error) if error.is_not_found() => return Ok(newest),
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads every trailer.
    async fn candidates(
        &self,
        inventory: &Inventory,
        report: &mut RebuildReport,
    ) -> Result<(Vec<Candidate>, Cluster), Error> {
        let keys = Keys::new(inventory.topic_partition);
        let objects: Vec<_> = inventory.segments().collect();
        let mut progress = Progress {
            partitions: 1,
            ..Progress::default()
        };
        progress.segments_total = objects.len() as u64;
        let reads = objects.into_iter().map(|(name, size_bytes)| async move {
            let outcome = self.trailer(keys, &name, size_bytes).await;
            outcome.map(|trailer| (name, trailer))
        });
        let mut reads = stream::iter(reads).buffered(self.concurrency);
        let (mut candidates, mut cluster) = (Vec::new(), Cluster::None);
        while let Some(read) = reads.next().await {
            let (name, trailer) = read?;
            progress.segments += 1;
            self.report(&progress);
            match trailer {
                Ok(trailer) => {
                    cluster = cluster.with(trailer.cluster_id);
                    candidates.push(candidate(&trailer));
                }
                Err(reason) => report.damaged.push(Anomaly {
                    topic_partition: inventory.topic_partition,
                    key: keys.segment(name),
                    damage: Damage::Corrupt { reason },
                    offsets: None,
                }),
            }
        }
        Ok((candidates, cluster))
    }

    /// Reads one trailer; the inner error says why there is none that fits the object's name.
    async fn trailer(
        &self,
        keys: Keys,
        name: &SegmentName,
        size_bytes: u64,
    ) -> Result<Result<SegmentTrailer, String>, Error> {
        let read = segment::read_trailer(&self.store, &keys.segment(*name), size_bytes).await;
        let trailer = match read {
            Ok(Ok(trailer)) => trailer,
            Ok(Err(fault)) => return Ok(Err(fault.reason)),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => {
                return Ok(Err(error.to_string()));
            }
            Err(error) => return Err(error),
        };
        let fits = SegmentName::from(&trailer.meta) == *name
            && trailer.topic_partition == keys.topic_partition();
        Ok(if fits {
            Ok(trailer)
        } else {
            Err("trailer of another segment".to_owned())
        })
    }
}

const fn candidate(trailer: &SegmentTrailer) -> Candidate {
    let meta = &trailer.meta;
    Candidate {
        segment_id: meta.segment_id,
        leader_epoch: meta.leader_epoch,
        base_offset: meta.base_offset,
        next_offset: meta.next_offset,
    }
}

/// Whose segments they are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cluster {
    None,
    One(ClusterId),
    Several,
}

impl Cluster {
    fn with(self, cluster_id: ClusterId) -> Self {
        match self {
            Self::None => Self::One(cluster_id),
            Self::One(known) if known == cluster_id => self,
            Self::One(_) | Self::Several => Self::Several,
        }
    }
}
