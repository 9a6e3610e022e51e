//! Tests of the manifest.

mod bounds;
mod golden;
mod invariants;
mod model;
mod updates;
