//! Writes a manifest anew, from the segments and what is left of the manifest.
//!
//! For a manifest or index page that is damaged or gone. What is written is a new version that opens
//! the newest epoch known once more. It takes the slot that the partition's owner writes next, so
//! the owner is fenced, whatever its epoch: it commits nothing more, and it deletes nothing more,
//! since it asks for that slot before each deletion. The epoch stays, so that an agent elected next
//! is above it, however often a manifest was rebuilt.
//!
//! Where several uploads hold the same offsets, the one that the last readable manifest or page
//! names is taken. What an owner gave up is never named, but it may be about to delete that. One
//! deletion may be under way while the rebuild commits, so whether all that was chosen still exists
//! is checked after the commit, and the rebuild done again if not.

mod named;
mod write;

use std::sync::Arc;

use esker_index::{EpochHistory, Manifest, SegmentMeta, SegmentTrailer};
use esker_proto::types::{
    ClusterId, LeaderEpoch, ManifestVersion, Offset, OffsetRange, TopicPartition,
};
use futures::{StreamExt, stream};

use named::NamedSegments;
use write::Rebuild;

use super::{
    Anomaly, Damage, Depth, Progress, Scrubber, VerifyReport,
    chain_choice::{Candidate, Choice, choose},
    inventory::{Inventories, Inventory},
    segment,
};
use crate::{
    archive::beyond::is_overtaken,
    chain::{ChainBody, ChainName, ChainReader},
    env::IdGenerator,
    error::{Error, ErrorKind},
    keys::{Keys, SegmentName},
};

/// How often a rebuild is done again because something it named was deleted meanwhile.
const TRIES_MAX: u32 = 4;

/// How a manifest is rebuilt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RebuildOptions {
    /// Only says what would be written.
    pub dry_run: bool,
    /// Rebuilds although the manifest is intact, or although offsets would be lost. Segments that
    /// are left out and lie above the new manifest are deleted.
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
    /// Segments hold offsets that no gapless manifest can name together with the newest ones, or a
    /// manifest says that they exist and no segment holds them.
    Holes(Vec<OffsetRange>),
    /// A segment that the new manifest would leave out cannot be read, so that nobody knows where it
    /// ends.
    Unreadable {
        /// Key of the segment.
        key: String,
        /// Its first offset: from here on records may be lost.
        base_offset: Offset,
    },
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
    /// Offsets that a forced rebuild gives up.
    pub lost: Vec<OffsetRange>,
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
    /// The newest version that can be read.
    manifest: Option<Manifest>,
    /// The newest boundary object cannot be read.
    boundary_is_damaged: bool,
}

impl Remains {
    /// Offsets below it stay trimmed.
    fn log_start_offset(&self) -> Offset {
        self.offsets().start
    }

    /// What is known to exist.
    fn offsets(&self) -> OffsetRange {
        let known = self.manifest.as_ref();
        known.map_or(Offset::ZERO..Offset::ZERO, |known| {
            known.log_start_offset()..known.tiered_offset()
        })
    }

    fn epochs(&self) -> EpochHistory {
        let known = self.manifest.as_ref();
        known.map_or_else(EpochHistory::new, |known| known.epochs().clone())
    }
}

impl Scrubber {
    /// Rebuilds one partition's manifest: the longest gapless run of segments that ends highest.
    /// Refuses while the manifest and all it names are intact, and when offsets would be lost that
    /// some segment holds or the newest readable manifest names, unless forced.
    ///
    /// Fences the partition's owner, so its agent has to be started again, and whoever follows the
    /// manifest must start over: the rebuilt one may end lower than the one before. Offsets below
    /// the log start of the newest readable version stay trimmed.
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
        for tries in 0..TRIES_MAX {
            // The manifest that the try before wrote is whole, and names a segment that is gone.
            let is_needed = options.force || tries > 0;
            let report = self
                .rebuild_once(topic_partition, ids, options, is_needed)
                .await?;
            let is_done = options.dry_run || report.refusal.is_some();
            if is_done || self.all_exist(topic_partition, &report.chosen).await? {
                return Ok(report);
            }
            tracing::warn!(%topic_partition, "a segment was deleted meanwhile, rebuilding again");
        }
        let reason = "segments are deleted as fast as they are named; stop the agent";
        Err(Error::corrupt(Keys::new(topic_partition).folder(), reason))
    }

    async fn rebuild_once(
        &self,
        topic_partition: TopicPartition,
        ids: &dyn IdGenerator,
        options: RebuildOptions,
        is_needed: bool,
    ) -> Result<RebuildReport, Error> {
        let mut inventories = Inventories::list(&self.store, Some(topic_partition));
        let inventory = inventories.next().await?;
        let inventory = inventory.unwrap_or_else(|| Inventory::new(topic_partition));
        let mut report = RebuildReport::default();
        if !is_needed && self.is_intact(&inventory).await? {
            report.refusal = Some(Refusal::Intact);
            return Ok(report);
        }
        let keys = Keys::new(topic_partition);
        let remains = self.remains(keys, &inventory).await?;
        let named = NamedSegments::read(self, keys, remains.manifest.as_ref()).await?;
        let found = self.candidates(&inventory, &named, &mut report).await?;
        let Choice { chain, spare, lost } =
            choose(found.candidates, &remains.offsets(), &remains.epochs());
        let unreadable = unreadable(keys, &found.unreadable, &chain, &remains);
        let cluster = found.cluster;
        report.refusal = match (cluster, unreadable) {
            _ if chain.is_empty() => Some(Refusal::NoSegments),
            (Cluster::Several, _) => Some(Refusal::SeveralClusters),
            _ if !lost.is_empty() && !options.force => Some(Refusal::Holes(lost.clone())),
            (_, Some(unreadable)) if !options.force => Some(unreadable),
            _ => None,
        };
        (report.chosen, report.spare, report.lost) = (chain, spare, lost);
        if let (None, Cluster::One(cluster_id)) = (&report.refusal, cluster) {
            let rebuild = Rebuild {
                scrubber: self,
                keys,
                ids,
                options,
                remains,
                named,
            };
            let manifest = rebuild.write(cluster_id, &report.chosen).await?;
            if options.force && !options.dry_run {
                self.delete_above(keys, &manifest, &report.spare).await?;
            }
            report.manifest = Some(manifest);
        }
        Ok(report)
    }

    /// Deletes segments that were left out, and that would keep an agent from continuing the log: it
    /// takes what lies above a manifest for the remains of a newer one.
    async fn delete_above(
        &self,
        keys: Keys,
        manifest: &Manifest,
        spare: &[Candidate],
    ) -> Result<(), Error> {
        let above = spare
            .iter()
            .filter(|candidate| candidate.base_offset >= manifest.tiered_offset());
        let above = above.map(|candidate| keys.segment(write::name_of(candidate)));
        self.store.delete(above.collect::<Vec<_>>()).await
    }

    async fn all_exist(
        &self,
        topic_partition: TopicPartition,
        chosen: &[Candidate],
    ) -> Result<bool, Error> {
        let keys = Keys::new(topic_partition);
        let heads: Vec<_> = chosen
            .iter()
            .map(|candidate| self.exists(keys.segment(write::name_of(candidate))))
            .collect();
        let mut heads = stream::iter(heads).buffer_unordered(self.concurrency);
        while let Some(exists) = heads.next().await {
            if !exists? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn exists(&self, key: String) -> Result<bool, Error> {
        match self.store.head(&key).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
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
        let floor = ChainReader::new(self.store.clone(), name).floor().await;
        let (floor, boundary_is_damaged) = match floor {
            Ok(floor) => (floor, false),
            Err(error) if error.kind() == ErrorKind::Corrupt => (newest, true),
            Err(error) => return Err(error),
        };
        let mut remains = Remains {
            boundary_is_damaged,
            slot: floor.max(newest + 1),
            epoch: LeaderEpoch::default(),
            prev_sha256: [0; 32],
            manifest: None,
        };
        for slot in (1..=newest).rev() {
            let key = name.slot(slot);
            let bytes = match self.store.get(&key).await {
                Ok(bytes) => bytes,
                Err(error) if error.is_not_found() => continue,
                Err(error) => return Err(error),
            };
            if slot + 1 == remains.slot {
                remains.prev_sha256 = esker_index::sha256(&bytes);
            }
            if let Ok(manifest) = <Manifest as ChainBody>::decode(&key, bytes) {
                remains.epoch = manifest.header().leader_epoch;
                remains.manifest = Some(manifest);
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

    /// Reads every trailer. A segment that is named needs none.
    async fn candidates(
        &self,
        inventory: &Inventory,
        named: &NamedSegments,
        report: &mut RebuildReport,
    ) -> Result<Found, Error> {
        let keys = Keys::new(inventory.topic_partition);
        let objects: Vec<_> = inventory.segments().collect();
        let mut progress = Progress {
            partitions: 1,
            ..Progress::default()
        };
        progress.segments_total = objects.len() as u64;
        let reads = objects.into_iter().map(|(name, size_bytes)| async move {
            let outcome = self.trailer(keys, &name, size_bytes).await;
            outcome.map(|trailer| (name, size_bytes, trailer))
        });
        let reads: Vec<_> = reads.collect();
        let mut reads = stream::iter(reads).buffered(self.concurrency);
        let (mut candidates, mut unreadable) = (Vec::new(), Vec::new());
        let mut cluster = named.cluster();
        while let Some(read) = reads.next().await {
            let (name, size_bytes, trailer) = read?;
            let known = named.get(&name);
            progress.segments += 1;
            self.report(&progress);
            match trailer {
                Ok(trailer) => {
                    cluster = cluster.with(trailer.cluster_id);
                    candidates.push(candidate(&trailer.meta, known == Some(&trailer.meta)));
                }
                Err(reason) => {
                    let is_long_enough =
                        |meta: &&SegmentMeta| size_bytes >= segment::size_bytes_min(meta);
                    let known = known.filter(is_long_enough);
                    match known {
                        Some(meta) => candidates.push(candidate(meta, true)),
                        None => unreadable.push(name),
                    }
                    report.damaged.push(Anomaly {
                        topic_partition: inventory.topic_partition,
                        key: keys.segment(name),
                        damage: Damage::Corrupt { reason },
                        offsets: known.map(|meta| meta.base_offset..meta.next_offset),
                    });
                }
            }
        }
        Ok(Found {
            candidates,
            unreadable,
            cluster,
        })
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

/// The segments of a partition.
struct Found {
    candidates: Vec<Candidate>,
    /// Those of which nobody tells where they end.
    unreadable: Vec<SegmentName>,
    cluster: Cluster,
}

/// Finds a segment that cannot be read and would be left out, though nothing else has its offsets.
fn unreadable(
    keys: Keys,
    unreadable: &[SegmentName],
    chain: &[Candidate],
    remains: &Remains,
) -> Option<Refusal> {
    let (log_start_offset, epochs) = (remains.log_start_offset(), remains.epochs());
    let is_held = |offset: Offset| {
        let mut chain = chain.iter();
        chain.any(|held| (held.base_offset..held.next_offset).contains(&offset))
    };
    let is_missed = |name: &&SegmentName| {
        let (epoch, base) = (name.leader_epoch, name.base_offset);
        base >= log_start_offset && !is_held(base) && !is_overtaken(&epochs, epoch, base)
    };
    let lowest = unreadable
        .iter()
        .filter(is_missed)
        .min_by_key(|name| name.base_offset)?;
    Some(Refusal::Unreadable {
        key: keys.segment(*lowest),
        base_offset: lowest.base_offset,
    })
}

const fn candidate(meta: &SegmentMeta, is_named: bool) -> Candidate {
    Candidate {
        segment_id: meta.segment_id,
        leader_epoch: meta.leader_epoch,
        base_offset: meta.base_offset,
        next_offset: meta.next_offset,
        is_named,
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
