//! Tools for tests of this crate and of those above it (feature `testing`).

mod faults;
mod faulty;

pub use faults::{Faults, Op, Trouble, When};
pub use faulty::FaultyStore;

#[cfg(test)]
mod tests;
