//! Everything Esker does with an object store.
//!
//! # Overview
//!
//! A partition is one log. Its newest part, the hot tail, lives on the disks of agents; everything
//! below the *tiered offset* lives in a bucket, as immutable segment objects named by an immutable
//! manifest. This crate owns the bucket side: it uploads sealed segments, commits manifests, serves
//! cold reads, trims, and deletes what no manifest names any more.
//!
//! ```text
//!            log start            tiered offset        high watermark      log end
//!   trimmed      │   in the bucket     │  hot tail, readable  │  hot tail, not yet │
//! ───────────────┼─────────────────────┼──────────────────────┼────────────────────┼──▶ offset
//!   garbage      │  named by manifest  │  uploaded when sealed│                    │
//! ```
//!
//! One task owns one partition's [`archive::Archive`]. Whoever only reads takes a manifest from its
//! watch, or from [`archive::view`], and a [`reader`]. [`scrub`] needs nothing but the bucket.
//!
//! # Objects and keys
//!
//! [`keys`] is the only place that formats or parses a key. Under the partition's prefix:
//!
//! | object | written by | may change | goes |
//! | --- | --- | --- | --- |
//! | segment: batches and a trailer | the archive, one put | never | when trimmed, or orphaned |
//! | index page: an older part of the index | the archive, before the manifest that names it | never | when trimmed or merged, or orphaned |
//! | manifest version | the [`chain`], create-if-absent | never | below the collection boundary, unless it opened an epoch |
//! | collection boundary | the [`chain`], create-if-absent | never | never |
//!
//! The name of a segment and of a page holds the leader epoch of its writer and an id drawn afresh
//! for each attempt, so no put ever lands on an existing object and no leader can overwrite
//! another's.
//!
//! # Order of writes
//!
//! 1. Open: a manifest version with the leader's epoch and nothing else changed. Until it is
//!    definitely in place, nothing is uploaded, trimmed or deleted.
//! 2. Upload: the segment object, then the index pages the commit spills, then the manifest version
//!    that names them. The tiered offset moves only after that version is definitely in place, and
//!    local copies go only once [`archive::Archive::see`] has found all of it.
//! 3. Trim: the manifest version with the higher log start offset, then the deletion of segments
//!    and pages that lie wholly below it.
//! 4. Merge: the merged pages, then the manifest version that names them, then the deletion of the
//!    pages they replace.
//! 5. Collection of manifest versions: the boundary, then the versions below it.
//!
//! Data before the pointer, the pointer by a conditional write, deletion after the pointer.
//!
//! # What a reader may see
//!
//! A manifest is one snapshot: gapless and without overlap from its log start offset to its tiered
//! offset, and every object it names was in place before it was. Only committed manifests are
//! published. A reader may hold an older one; what was deleted since lies below the newer log start
//! or was replaced by a merged page with the same rows, so on a missing object it takes the latest
//! manifest and resolves its offset again. Never does it skip.
//!
//! # Fencing
//!
//! Manifest versions are slots that can be written once. A leader writes at the slot after the last
//! it knows; to lose a slot to anybody is to be deposed. Opening epoch E therefore stops every
//! earlier leader at its next commit, however long it slept, with no lease and no clock. A leader
//! epoch belongs to one owner: whoever takes over, a restarted process too, takes a higher one.
//! Objects a deposed leader still uploads stay unnamed, and their names say that they may go.
//!
//! The collection of manifest versions must not reopen a slot to a stalled writer: the version that
//! opened an epoch is kept for ever, and whoever opens or tails checks the boundary again after
//! reading. [`chain`] holds the argument and its model.
//!
//! # Retries and limits
//!
//! Reads, lists, deletes and puts of uniquely named objects are repeated by [`store`] with back-off
//! up to a limit. A conditional write is repeated only with the same body, and its outcome is read
//! from the slot, never from a status code. A put whose outcome is in doubt is settled by asking
//! for the object's size. Per uploaded segment that makes two requests: one put, one commit; when
//! behind, one commit serves several segments. Segments above
//! [`archive::PartSizes`] go in parts. An idle partition makes none. Memory of uploads is
//! bounded by [`archive::UploadBudget`], work per call of garbage collection by constants in
//! `archive::plan`.
//!
//! # Cancellation
//!
//! An upload ends soon after its token is cancelled, at the latest when the request in flight
//! ends; a commit whose request was sent counts as unknown. Every method of the archive may be
//! dropped at any await: what it had sent is remembered, and the next call settles it first.
//!
//! # Crash at each step
//!
//! | crash after | left behind | next owner |
//! | --- | --- | --- |
//! | segment put | an unnamed segment | uploads the segment again under another name; the first is an orphan of a lower epoch |
//! | page put | an unnamed page | the same |
//! | commit sent | either version | reads it while opening; the tiered offset says what remains to upload |
//! | commit, before local deletion | local copies too many | deletes them again by the tiered offset |
//! | trim committed | dead segments | finds them by listing below the first live segment |
//! | some deletions | fewer dead segments | the same |
//! | boundary written | dead manifest versions | deletes below the boundary again |
//!
//! # Garbage
//!
//! An object is deleted only when the latest manifest does not name it and no commit can name it
//! any more: it lies below the tiered offset (commits only add above), or it is a page whose name
//! carries an epoch below the opened one, or this very owner put it and gave it up; and an owner
//! asks whether it still is one before each deletion. What lies above the tiered offset stays,
//! since a manifest that was lost may name it (`archive::beyond`). No age decides. A listing
//! may be stale: an object missing from it is not thereby gone, and an object found in it is judged
//! by the manifest. Nothing is deleted in a partition without a manifest, except by the tombstone
//! of its topic.
//!
//! # Not handled
//!
//! - A store that lets two creators of one key both win. [`probe`] refuses it at start.
//! - A lifecycle rule of the bucket that deletes live objects. An owner notices before local copies
//!   go, and [`scrub`] finds the damage.
//! - Two owners that were given the same leader epoch: commits stay safe, since a slot has one
//!   writer and the loser is fenced, but either may open again.
//! - Compaction of small segments into larger ones.

pub mod archive;
pub mod chain;
pub mod env;
pub mod error;
pub mod keys;
mod page_load;
pub mod probe;
pub mod reader;
pub mod scrub;
pub mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use error::{Error, ErrorKind};
pub use esker_index as index;
pub use prometheus::Registry as MetricsRegistry;
