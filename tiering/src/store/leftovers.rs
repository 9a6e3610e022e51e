//! What puts that never ended leave in a directory.
//!
//! An object is written under its name, `#` and a number, and gets its name once it is whole. A process
//! that is killed in between leaves such a file. Listings hide it, so it is looked for here. Stores that
//! are no directory have nothing of the kind.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use esker_proto::types::TimestampMs;

use super::Store;
use crate::{error::Error, keys::Key};

/// Folders of a key, at most: nothing below them is ours.
const DEPTH_MAX: usize = 4;

/// A file of a put that did not end, or not yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leftover {
    /// The key of the object, `#` and a number. Relative to the store's prefix.
    pub key: String,
    pub size_bytes: u64,
    /// When it was last written to.
    pub modified: TimestampMs,
}

impl Store {
    /// Finds files of puts that did not end under `prefix`, a folder or nothing.
    ///
    /// # Errors
    ///
    /// When the directory cannot be read.
    pub(crate) async fn leftovers(&self, prefix: &str) -> Result<Vec<Leftover>, Error> {
        let Some(root) = self.directory() else {
            return Ok(Vec::new());
        };
        let prefix = prefix.to_owned();
        off_thread(move || {
            let mut found = Vec::new();
            let depth = prefix.split('/').filter(|part| !part.is_empty()).count();
            walk(&root, &prefix, depth, &mut found)?;
            found.sort_unstable_by(|a: &Leftover, b| a.key.cmp(&b.key));
            Ok(found)
        })
        .await
    }

    /// Deletes files of puts that did not end, unless they were written to at `before` or later.
    ///
    /// # Errors
    ///
    /// The first that cannot be deleted; those before it are gone.
    pub(crate) async fn delete_leftovers(
        &self,
        keys: Vec<String>,
        before: TimestampMs,
    ) -> Result<(), Error> {
        let Some(root) = self.directory() else {
            return Ok(());
        };
        off_thread(move || {
            for path in keys
                .iter()
                .filter(|key| is_leftover(key))
                .map(|key| root.join(key))
            {
                match fs::symlink_metadata(&path) {
                    Ok(meta) if modified(&meta) < before => gone_or(fs::remove_file(&path), &path)?,
                    Ok(_) => {}
                    Err(error) => gone_or(Err(error), &path)?,
                }
            }
            Ok(())
        })
        .await
    }

    fn directory(&self) -> Option<PathBuf> {
        let directory = self.0.clients.directory.as_ref()?;
        Some(directory.join(&self.0.prefix))
    }
}

async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let working = tokio::task::spawn_blocking(work).await;
    working.map_err(|_| Error::Cancelled {
        operation: "read directory",
    })?
}

/// Whether a file's name is that of one of our objects, `#` and a number.
fn is_leftover(key: &str) -> bool {
    let Some((name, number)) = key.rsplit_once('#') else {
        return false;
    };
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number && Key::parse(name).is_some()
}

fn walk(root: &Path, folder: &str, depth: usize, found: &mut Vec<Leftover>) -> Result<(), Error> {
    let dir = root.join(folder);
    let entries = match fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(error) => return gone_or(Err(error), &dir),
    };
    for entry in entries {
        let entry = entry.map_err(failed(&dir))?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let key = match folder {
            "" => name,
            folder => format!("{folder}/{name}"),
        };
        let kind = entry.file_type().map_err(failed(&dir))?;
        if kind.is_dir() && depth < DEPTH_MAX {
            walk(root, &key, depth + 1, found)?;
        } else if kind.is_file() && is_leftover(&key) {
            // It may just have got its name.
            if let Ok(meta) = entry.metadata() {
                found.push(Leftover {
                    size_bytes: meta.len(),
                    modified: modified(&meta),
                    key,
                });
            }
        }
    }
    Ok(())
}

/// A file that does not tell was written in the far future, and so is never old.
fn modified(meta: &fs::Metadata) -> TimestampMs {
    let modified = meta.modified().ok();
    let since = modified.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let millis = since.and_then(|since: Duration| i64::try_from(since.as_millis()).ok());
    TimestampMs::new(millis.unwrap_or(i64::MAX))
}

fn gone_or(outcome: io::Result<()>, path: &Path) -> Result<(), Error> {
    match outcome {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(path)(error)),
        _ => Ok(()),
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
    let path = path.display().to_string();
    |source| Error::LocalFile {
        path,
        source: Arc::new(source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unfinished_objects_of_ours_are_leftovers() {
        let manifest = "topics/00000000-0000-0000-0000-000000000001/000000/manifest/00000000000000000001.parquet";
        for (key, is_ours) in [
            ("cluster.json#1", true),
            ("meta/log/00000000000000000001#12", true),
            (&format!("{manifest}#2"), true),
            (manifest, false),
            (&format!("{manifest}#"), false),
            (&format!("{manifest}#1#1"), false),
            (&format!("{manifest}#1x"), false),
            ("notes.txt#1", false),
            ("../cluster.json#1", false),
        ] {
            assert_eq!(is_leftover(key), is_ours, "{key}");
        }
    }
}
