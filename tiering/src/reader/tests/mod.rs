//! Promises of the cold-read path, on a store that can be made to fail.

mod crowd;
mod faults;
mod faulty_store;
mod fixture;
mod memory;
mod offsets;
mod prefetch;
