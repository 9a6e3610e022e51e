//! Numbered chains of objects, each written once: how an owner commits, and how an older one is
//! stopped.
//!
//! # Overview
//!
//! A chain is a row of slots numbered from 1. A slot is one object, created if absent and never
//! changed: whoever creates it first decides what stands there, and everybody else finds out by
//! reading it. That makes each slot a tiny consensus. A partition's manifests are such a chain, and
//! so is the cluster's metadata log.
//!
//! ```text
//! slot     1      2      3      4      5      6      7
//!        open   body   body   open   body   body   (free)
//! epoch    1      1      1      2      2      2
//!          └ kept for ever ─────┘             └ tip
//!          floor 4: slots 2 and 3 may be gone, 1 and 4 stay
//! ```
//!
//! # Objects and keys
//!
//! Slots and boundary objects are named by [`ChainName`]. A body ([`ChainBody`]) holds its slot, its
//! writer's epoch, a nonce and the digest of the slot before. Boundary objects form a chain of
//! their own, without epochs and never deleted; each holds the *floor*, below which slots may have
//! been deleted.
//!
//! # Order of writes
//!
//! - An owner opens its epoch with an *opening* in the slot after the newest, and reads the
//!   boundary afterwards. From then on it writes the slot after its own last, one at a time.
//! - Collection raises the floor, durably, and deletes below it afterwards.
//!
//! # What a reader may see
//!
//! What it read from slot `n` on, if the boundary, read afterwards, has a floor of at most `n`.
//! Else it starts over at the floor, or from a snapshot.
//!
//! # Fencing
//!
//! An owner whose slot is taken by somebody else has been deposed, whatever the epochs say, and its
//! handle is void. It cannot find its slot free again by the deletion of what took it, because of
//! four rules (`rules`):
//!
//! - (a) each owner writes to the slot after its own last, never to one it looked up;
//! - (b) an opening is never deleted. It stands in the very slot the deposed owner tries next;
//! - (c) an opening holds only if the floor, read after it was put, is not above it: a slot below
//!   may have been used and freed;
//! - (d) a reader applies what it read only if the floor, read after it, is not above where it
//!   began.
//!
//! No clock takes part. The model in `model.rs` explores owners, readers and collectors with lost
//! replies, delayed and repeated puts, and finds a counterexample for each rule that is dropped.
//!
//! # Retries and limits
//!
//! [`put_definite`]: within a deadline, only ever the same body, never trusting a status. A plain
//! commit costs one request. Opening costs up to two listings, the reading of what a listing did
//! not show, one put, and the reads of the boundary. One collection costs one read, one put, one
//! deletion per thousand slots, and one read for each slot that an earlier owner left.
//!
//! What was read and cannot be decoded is read again, a few times, before it counts as damaged; and
//! an owner counts as deposed only by bytes that it read twice. A damaged boundary object is passed
//! over once a repair has put another after it.
//!
//! # Cancellation
//!
//! A call dropped in the middle of a put may leave that put in flight. It may land as long as its
//! slot is free: that is, as the commit of the owner of that epoch, before any later opening. The
//! handle remembers it: [`Chain::settle`] finds out, by putting the same body again. If the handle
//! is dropped too, the next opening finds it or takes its slot.
//!
//! # Crash at each step
//!
//! - During an opening or a commit: the slot holds the body or not; the next owner reads it.
//! - Between boundary and deletion: slots below the floor are left over. The next collection
//!   deletes from where the boundary object says that everything was swept.
//!
//! # Garbage
//!
//! A put that was delayed until after its slot was collected leaves a ghost below the floor, which
//! no reader applies and no owner stands on. It stays, a few kilobytes.
//!
//! # Not handled
//!
//! A store on which two creates of one key both succeed, or an object that was created is not
//! found afterwards. [`crate::probe`] refuses such stores.

mod body;
mod boundary;
#[cfg(test)]
mod model;
mod put;
mod reader;
mod rules;
#[cfg(test)]
mod tests;
mod writer;

pub(crate) use body::repair_nonce;
pub use body::{ChainBody, ChainName, Entry, next_nonce, opening_nonce};
pub use put::{Put, RetryPolicy, put_definite};
pub use reader::{ChainReader, Tail};
pub use rules::FIRST_SLOT;
pub(crate) use rules::repairs;
pub use writer::{Chain, OpeningCheck};
