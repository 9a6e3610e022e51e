//! The decisions that keep a chain safe, apart from all I/O. The writer, the reader and the model
//! call the same functions.

/// The first slot of every chain.
pub const FIRST_SLOT: u64 = 1;

/// Rule (a): a writer's next slot is the one after its own last, never one it looked up.
pub(super) const fn next_slot(tip: Option<u64>) -> u64 {
    match tip {
        Some(slot) => slot + 1,
        None => FIRST_SLOT,
    }
}

/// Rule (b): what may be deleted. The opening object of an epoch blocks its slot for ever: it is
/// where a stalled writer of an older epoch runs aground.
pub(super) const fn may_delete(slot: u64, floor: u64, opens: bool) -> bool {
    slot < floor && !opens
}

/// Rule (c): whether an epoch opened at `slot` holds, by a boundary read *after* the opening was
/// put. Below the floor the slot may have been used and deleted before, so the put proves nothing.
pub(super) const fn opening_stands(slot: u64, floor: u64) -> bool {
    floor <= slot
}

/// Rule (d): whether slots from `from` on may be applied, by a boundary read *after* they were.
/// Below the floor there may be an object that was put after the real one was deleted.
pub(super) const fn may_apply(from: u64, floor: u64) -> bool {
    floor <= from
}

/// Nonces of opening objects are odd, all others even, so that whoever collects garbage can tell
/// them apart from the body alone. Persisted.
pub(super) const fn opens(nonce: u128) -> bool {
    nonce & 1 == 1
}

/// Nonces of what a repair puts have the next bit set too, those of other openings since this rule do
/// not: a repair may end below what it replaces, and nobody else may. Persisted.
pub(crate) const fn repairs(nonce: u128) -> bool {
    nonce & 0b11 == 0b11
}
