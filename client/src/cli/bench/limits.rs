//! What the disk and the store do by themselves.

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
    time::Instant,
};

use esker_tiering::{
    MetricsRegistry,
    store::{Store, StoreOptions},
};
use futures::{StreamExt, TryStreamExt, stream};

/// Bytes appended between two flushes.
const APPEND_BYTES: usize = 1 << 20;
const APPENDS: usize = 256;
/// Ranges asked for at a time, and their size.
const GETS_AT_A_TIME: usize = 8;
const GET_BYTES: u64 = 4 << 20;

/// Writes back what is dirty in the file system of `directory`: what was prepared must not compete
/// for the disk with what is measured.
pub(super) fn settle(directory: &Path) -> anyhow::Result<()> {
    Ok(rustix::fs::syncfs(File::open(directory)?)?)
}

/// Bytes a second that the disk under `directory` takes when each MiB is flushed.
pub(super) fn append_rate(directory: &Path) -> anyhow::Result<f64> {
    let path = directory.join("append-rate");
    let mut file = File::create(&path)?;
    let block = vec![7; APPEND_BYTES];
    let started = Instant::now();
    for _ in 0..APPENDS {
        file.write_all(&block)?;
        file.sync_data()?;
    }
    let seconds = started.elapsed().as_secs_f64();
    fs::remove_file(path)?;
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    Ok((APPENDS * APPEND_BYTES) as f64 / seconds)
}

/// Bytes a second that plain ranged reads of the bucket's segments reach.
pub(super) async fn get_rate(url: &str, options: StoreOptions) -> anyhow::Result<f64> {
    let store = Store::open(&url.parse()?, options, &MetricsRegistry::new()).await?;
    let objects: Vec<_> = store.list("topics/", None).try_collect().await?;
    let segments = objects
        .into_iter()
        .filter(|object| object.key.ends_with(".log"));
    let mut ranges = Vec::new();
    for segment in segments {
        let mut start = 0;
        while start < segment.size_bytes {
            let end = (start + GET_BYTES).min(segment.size_bytes);
            ranges.push((segment.key.clone(), start..end));
            start = end;
        }
    }
    anyhow::ensure!(!ranges.is_empty(), "the bucket holds no segments");
    let started = Instant::now();
    let gets = ranges.into_iter().map(|(key, range)| {
        let store = store.clone();
        async move { store.get_range(&key, range).await.map(|bytes| bytes.len()) }
    });
    let bytes: usize = stream::iter(gets)
        .buffered(GETS_AT_A_TIME)
        .try_fold(0, |sum, n| async move { Ok(sum + n) })
        .await?;
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    Ok(bytes as f64 / started.elapsed().as_secs_f64())
}
