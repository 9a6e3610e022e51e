//! What the tiering crate expects of a store, on every kind of store there is.

mod contract;
mod faults;
mod localstack;
mod places;
mod refusals;
