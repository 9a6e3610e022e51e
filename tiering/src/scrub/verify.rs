//! Walks manifests and checks that every object they name is there and whole.

use std::{collections::HashMap, sync::Arc, time::Duration};

use esker_index::{IndexEntry, Manifest, PageRef, Rows, SegmentMeta};
use esker_proto::types::{SegmentId, TopicPartition};
use futures::{StreamExt, stream};

use super::{
    Anomaly, Damage, Progress, Scrubber, VerifyReport,
    gc::folder_of,
    inventory::{Inventories, Inventory},
    segment,
};
use crate::{
    archive::{beyond, pages::Pages, scan::Scan, trim::is_damage, view},
    chain::ChainBody,
    error::{Error, ErrorKind},
    keys::Keys,
};

/// How often the manifest is read again while segments above it are waited for.
const PATIENCE_STEP: Duration = Duration::from_secs(1);

/// How closely segments are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Whether they are there and long enough. Costs listings, and the reading of index pages.
    Sizes,
    /// Every byte, trailers and checksums too. Downloads everything.
    Bytes,
}

impl Scrubber {
    /// Checks one partition, or all. What is trimmed or uploaded meanwhile does no harm: whatever
    /// looks wrong is held against the latest manifest once more.
    ///
    /// # Errors
    ///
    /// Those of the store. Damage is no error, but part of the report.
    pub async fn verify(
        &self,
        only: Option<TopicPartition>,
        depth: Depth,
    ) -> Result<VerifyReport, Error> {
        let mut inventories = Inventories::list(&self.store, only);
        let mut report = VerifyReport {
            is_deep: depth == Depth::Bytes,
            ..VerifyReport::default()
        };
        let mut progress = Progress::default();
        while let Some(inventory) = inventories.next().await? {
            let verify = self.verify_partition(&inventory, depth, &mut report, &mut progress);
            verify.await?;
        }
        for leftover in self.store.leftovers(&folder_of(only)).await? {
            report.unfinished += 1;
            report.unfinished_bytes += leftover.size_bytes;
        }
        Ok(report)
    }

    pub(super) async fn verify_partition(
        &self,
        inventory: &Inventory,
        depth: Depth,
        report: &mut VerifyReport,
        progress: &mut Progress,
    ) -> Result<(), Error> {
        let tp = inventory.topic_partition;
        report.partitions += 1;
        progress.partitions += 1;
        report.anomalies.extend(strangers(inventory));
        let manifest = match self.read_manifest(inventory).await? {
            Ok(Some(manifest)) => manifest,
            Ok(None) => return Ok(()),
            Err(anomaly) => {
                report.anomalies.push(anomaly);
                return Ok(());
            }
        };
        let mut walk = Walk {
            scrubber: self,
            keys: Keys::new(tp),
            depth,
            sizes: inventory.segment_sizes(),
            manifest: &manifest,
            found: Vec::new(),
        };
        progress.segments_total += manifest.segment_count();
        walk.all_rows(report, progress).await?;
        let found = walk.found;
        report.anomalies.extend(self.still_true(tp, found).await?);
        report.anomalies.extend(self.unnamed(tp, &manifest).await?);
        if depth == Depth::Bytes {
            let old = self.old_versions(inventory, &manifest).await?;
            report.anomalies.extend(old);
        }
        self.count_orphans(inventory, &manifest, report).await
    }

    /// Reads the manifest; a partition without one is damaged only if it has segments.
    async fn read_manifest(
        &self,
        inventory: &Inventory,
    ) -> Result<Result<Option<Arc<Manifest>>, Anomaly>, Error> {
        let tp = inventory.topic_partition;
        let has_data = !inventory.data.is_empty() || inventory.newest_version.is_some();
        let reason = match view(&self.store, tp).await {
            Ok(Some(manifest)) => return Ok(Ok(Some(manifest))),
            Ok(None) if !has_data => return Ok(Ok(None)),
            Ok(None) => "none exists".to_owned(),
            Err(error) if error.kind() == ErrorKind::Corrupt => error.to_string(),
            Err(error) => return Err(error),
        };
        Ok(Err(Anomaly {
            topic_partition: tp,
            key: Keys::new(tp).manifests(),
            damage: Damage::NoManifest { reason },
            offsets: None,
        }))
    }

    /// Drops what a newer manifest does not name any more.
    async fn still_true(
        &self,
        tp: TopicPartition,
        found: Vec<Finding>,
    ) -> Result<Vec<Anomaly>, Error> {
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let Some(manifest) = view(&self.store, tp).await? else {
            return Ok(Vec::new());
        };
        let is_named = |finding: &Finding| match &finding.named {
            Named::Segment(meta) => meta.next_offset > manifest.log_start_offset(),
            Named::Page(page) => manifest.pages().iter().any(|named| named.id == page.id),
        };
        Ok(found
            .into_iter()
            .filter(is_named)
            .map(|finding| finding.anomaly)
            .collect())
    }

    /// Reads the versions before the newest. Nobody needs them, but their damage tells of the store.
    async fn old_versions(
        &self,
        inventory: &Inventory,
        manifest: &Manifest,
    ) -> Result<Vec<Anomaly>, Error> {
        let keys = Keys::new(inventory.topic_partition);
        let newest = manifest.header().version;
        let mut found = Vec::new();
        for version in inventory.versions.iter().filter(|older| **older < newest) {
            let key = keys.manifest(*version);
            let damage = match self.store.get(&key).await {
                Ok(bytes) => <Manifest as ChainBody>::decode(&key, bytes).err(),
                Err(error) if error.is_not_found() => None,
                Err(error) => return Err(error),
            };
            found.extend(damage.map(|error| Anomaly {
                topic_partition: inventory.topic_partition,
                key,
                damage: Damage::Unneeded {
                    reason: error.to_string(),
                },
                offsets: None,
            }));
        }
        Ok(found)
    }

    /// Finds segments that lie above the manifest. Waits a little for an owner that is about to
    /// commit them.
    async fn unnamed(
        &self,
        tp: TopicPartition,
        manifest: &Arc<Manifest>,
    ) -> Result<Vec<Anomaly>, Error> {
        let until = tokio::time::Instant::now() + self.patience;
        let mut manifest = Arc::clone(manifest);
        loop {
            let found = self.unnamed_now(tp, &manifest).await?;
            if found.is_empty() || tokio::time::Instant::now() >= until {
                return Ok(found);
            }
            tokio::time::sleep(PATIENCE_STEP).await;
            manifest = view(&self.store, tp).await?.unwrap_or(manifest);
        }
    }

    async fn unnamed_now(
        &self,
        tp: TopicPartition,
        manifest: &Manifest,
    ) -> Result<Vec<Anomaly>, Error> {
        let (keys, tiered_offset) = (Keys::new(tp), manifest.tiered_offset());
        let mut found = Vec::new();
        for (name, size_bytes) in beyond::list_beyond(&self.store, keys, tiered_offset).await? {
            if beyond::is_overtaken(manifest.epochs(), name.leader_epoch, name.base_offset) {
                continue;
            }
            let trailer = beyond::valid_trailer(&self.store, keys, &name, size_bytes).await?;
            found.extend(trailer.map(|trailer| Anomaly {
                topic_partition: tp,
                key: keys.segment(name),
                damage: Damage::Unnamed { tiered_offset },
                offsets: Some(trailer.meta.base_offset..trailer.meta.next_offset),
            }));
        }
        Ok(found)
    }

    async fn count_orphans(
        &self,
        inventory: &Inventory,
        manifest: &Manifest,
        report: &mut VerifyReport,
    ) -> Result<(), Error> {
        let keys = Keys::new(inventory.topic_partition);
        let pages = Pages::new(self.store.clone(), keys, self.tasks.clone());
        let mut scan = Scan::new(keys, manifest, pages);
        for object in &inventory.data {
            // A damaged page is in the report already.
            if let Some(found) = scan.garbage(object).await? {
                report.orphans += 1;
                report.orphan_bytes += found.size_bytes;
            }
        }
        Ok(())
    }
}

fn strangers(inventory: &Inventory) -> impl Iterator<Item = Anomaly> + '_ {
    inventory.strangers.iter().map(|object| Anomaly {
        topic_partition: inventory.topic_partition,
        key: object.key.clone(),
        damage: Damage::Stranger,
        offsets: None,
    })
}

/// An anomaly and what the manifest named.
struct Finding {
    anomaly: Anomaly,
    named: Named,
}

enum Named {
    Segment(SegmentMeta),
    Page(PageRef),
}

struct Walk<'a> {
    scrubber: &'a Scrubber,
    keys: Keys,
    depth: Depth,
    sizes: HashMap<SegmentId, u64>,
    manifest: &'a Manifest,
    found: Vec<Finding>,
}

impl Walk<'_> {
    /// Page by page, then the head: memory for the rows of one at a time.
    async fn all_rows(
        &mut self,
        report: &mut VerifyReport,
        progress: &mut Progress,
    ) -> Result<(), Error> {
        let scrubber = self.scrubber;
        let pages = Pages::new(scrubber.store.clone(), self.keys, scrubber.tasks.clone());
        for page in self.manifest.pages() {
            report.pages += 1;
            match pages.load(page).await {
                Ok(rows) => self.rows(&rows, report, progress).await?,
                Err(error) if is_damage(&error) => self.note_page(page, &error),
                Err(error) => return Err(error),
            }
        }
        let head = self.manifest.head().clone();
        self.rows(&head, report, progress).await
    }

    fn note_page(&mut self, page: &PageRef, error: &Error) {
        let damage = match error {
            Error::NotFound { .. } => Damage::Missing,
            error => Damage::Corrupt {
                reason: error.to_string(),
            },
        };
        let anomaly = Anomaly {
            topic_partition: self.keys.topic_partition(),
            key: self.keys.page(page.into()),
            damage,
            offsets: Some(page.base_offset..page.next_offset),
        };
        self.found.push(Finding {
            anomaly,
            named: Named::Page(*page),
        });
    }

    async fn rows(
        &mut self,
        rows: &Rows,
        report: &mut VerifyReport,
        progress: &mut Progress,
    ) -> Result<(), Error> {
        let this = &*self;
        let log_start_offset = this.manifest.log_start_offset();
        let live = rows.segments().iter().enumerate();
        let live = live.filter(|(_, meta)| meta.next_offset > log_start_offset);
        let checks: Vec<_> = live
            .map(|(index, meta)| this.segment(*meta, rows.entries(index)))
            .collect();
        let mut checks = stream::iter(checks).buffer_unordered(this.scrubber.concurrency);
        let mut found = Vec::new();
        while let Some(checked) = checks.next().await {
            let (meta, finding) = checked?;
            report.segments += 1;
            report.segment_bytes += meta.size_bytes;
            progress.segments += 1;
            if this.depth == Depth::Bytes {
                progress.bytes_read += meta.size_bytes;
            }
            this.scrubber.report(progress);
            found.extend(finding);
        }
        drop(checks);
        self.found.extend(found);
        Ok(())
    }

    async fn segment(
        &self,
        meta: SegmentMeta,
        entries: Vec<IndexEntry>,
    ) -> Result<(SegmentMeta, Option<Finding>), Error> {
        let key = self.keys.segment((&meta).into());
        let damage = self.damage(&key, &meta, &entries).await?;
        let finding = damage.map(|(damage, offsets)| Finding {
            anomaly: Anomaly {
                topic_partition: self.keys.topic_partition(),
                key,
                damage,
                offsets: Some(offsets.unwrap_or(meta.base_offset..meta.next_offset)),
            },
            named: Named::Segment(meta),
        });
        Ok((meta, finding))
    }

    async fn damage(
        &self,
        key: &str,
        meta: &SegmentMeta,
        entries: &[IndexEntry],
    ) -> Result<Option<(Damage, Option<esker_proto::types::OffsetRange>)>, Error> {
        let expected_bytes = segment::size_bytes_min(meta);
        let listed = self.sizes.get(&meta.segment_id).copied();
        // A listing may be old: what it lacks is asked for.
        if listed.is_none_or(|size_bytes| size_bytes < expected_bytes) {
            match self.scrubber.store.head(key).await {
                Ok(object) if object.size_bytes < expected_bytes => {
                    let actual_bytes = object.size_bytes;
                    return Ok(Some((
                        Damage::Truncated {
                            expected_bytes,
                            actual_bytes,
                        },
                        None,
                    )));
                }
                Ok(_) => {}
                Err(error) if error.is_not_found() => return Ok(Some((Damage::Missing, None))),
                Err(error) => return Err(error),
            }
        }
        if self.depth == Depth::Sizes {
            return Ok(None);
        }
        match segment::check_bytes(&self.scrubber.store, key, meta, entries).await {
            Ok(Ok(())) => Ok(None),
            Ok(Err(fault)) => Ok(Some((
                Damage::Corrupt {
                    reason: fault.reason,
                },
                fault.offsets,
            ))),
            Err(error) if error.is_not_found() => Ok(Some((Damage::Missing, None))),
            Err(error) if is_damage(&error) => Ok(Some((
                Damage::Corrupt {
                    reason: error.to_string(),
                },
                None,
            ))),
            Err(error) => Err(error),
        }
    }
}
