//! Everything Esker does with an object store.

pub mod env;
