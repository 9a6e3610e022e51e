//! What an archive promises, with a bucket that fails at every step.

mod beyond;
pub(crate) mod fixture;
mod garbage;
mod histories;
mod retention;
mod seen;
mod upload;
