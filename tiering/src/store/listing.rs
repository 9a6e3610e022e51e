//! Listings: each step is bounded, and one whose connection broke goes on where it was.

use object_store::{ObjectMeta, path::Path};

use super::*;

type Found = BoxStream<'static, object_store::Result<ObjectMeta>>;

/// A listing that is under way.
struct Listing {
    store: Store,
    /// As others name it.
    prefix: String,
    path: Path,
    /// What the listing goes on after: the last object, where keys come in order.
    after: Option<Path>,
    found: Found,
    pauses: std::slice::Iter<'static, Duration>,
}

impl Listing {
    /// Returns the next object. Waits for it at most as long as for a whole call.
    async fn next(&mut self) -> Result<Option<ObjectInfo>, Error> {
        loop {
            let step = tokio::time::timeout(self.store.0.call_timeout, self.found.next()).await;
            let Ok(step) = step else {
                return Err(self.store.timed_out(Verb::List, &self.prefix));
            };
            match step.transpose() {
                Ok(None) => return Ok(None),
                Ok(Some(meta)) => {
                    let info = self.store.info(&meta);
                    if self.store.0.clients.lists_in_order {
                        self.after = Some(meta.location);
                    }
                    return Ok(Some(info));
                }
                Err(error) => self.go_on_after(error).await?,
            }
        }
    }

    /// Lists on after a connection that broke; where keys do not come in order, from the start.
    async fn go_on_after(&mut self, error: object_store::Error) -> Result<(), Error> {
        let error = self.store.error(&self.prefix, error);
        let pause = self.pauses.next().filter(|_| error.is_interrupted());
        let Some(pause) = pause else {
            return Err(error);
        };
        tracing::debug!(prefix = self.prefix, %error, "a listing broke off, going on");
        tokio::time::sleep(*pause).await;
        self.found = self.store.found(&self.path, self.after.as_ref());
        Ok(())
    }
}

impl Store {
    /// Lists the objects under `prefix`, a folder, in the order of keys, from after `start_after`.
    ///
    /// What was put lately may be missing on stores that list late: absence is no proof.
    pub fn list(
        &self,
        prefix: &str,
        start_after: Option<&str>,
    ) -> BoxStream<'static, Result<ObjectInfo, Error>> {
        let paths = self
            .path(prefix)
            .and_then(|path| Ok((path, start_after.map(|key| self.path(key)).transpose()?)));
        let (path, offset) = match paths {
            Ok(paths) => paths,
            Err(error) => return stream::once(async { Err(error) }).boxed(),
        };
        let listing = Listing {
            store: self.clone(),
            prefix: prefix.to_owned(),
            found: self.found(&path, offset.as_ref()),
            path,
            after: offset,
            pauses: PAUSES.iter(),
        };
        let listed = stream::unfold(Some(listing), |listing| async {
            let mut listing = listing?;
            match listing.next().await {
                Ok(None) => None,
                Ok(Some(object)) => Some((Ok(object), Some(listing))),
                Err(error) => Some((Err(error), None)),
            }
        });
        // Whoever asks once more after the end is told again that it is the end.
        let listed = listed.fuse().boxed();
        if self.0.clients.lists_in_order {
            listed
        } else {
            self.sorted(listed)
        }
    }

    fn found(&self, path: &Path, after: Option<&Path>) -> Found {
        let objects = &self.0.clients.objects;
        match after {
            Some(after) => objects.list_with_offset(Some(path), after),
            None => objects.list(Some(path)),
        }
    }

    /// Holds the whole listing, which only stores on this machine need.
    fn sorted(
        &self,
        listed: BoxStream<'static, Result<ObjectInfo, Error>>,
    ) -> BoxStream<'static, Result<ObjectInfo, Error>> {
        let store = self.clone();
        let start = Instant::now();
        let sorting = async move {
            let found = listed.try_collect::<Vec<_>>().await;
            let outcome = if found.is_ok() {
                Outcome::Ok
            } else {
                Outcome::Failed
            };
            let pages = found
                .as_ref()
                .map_or(0, |found| found.len() as u64 / LIST_PAGE);
            (0..=pages).for_each(|_| store.count(Verb::List, outcome, start));
            let mut found = found?;
            found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
            found.dedup_by(|a, b| a.key == b.key);
            Ok::<_, Error>(stream::iter(found.into_iter().map(Ok)))
        };
        stream::once(sorting).try_flatten().boxed()
    }
}
