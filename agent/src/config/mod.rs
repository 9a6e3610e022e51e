//! The agent's settings: one table of keys gives the file's keys, the flags, the environment
//! variables, their defaults and the reference in `docs/config.md`.
//!
//! Later sources win: default, file, environment, flag. Every fault of every source is reported
//! in one error.

mod keys;
mod load;
mod reference;
mod settings;
mod value;

pub use keys::{KEYS, Key};
pub use load::{ConfigError, Sources, load};
pub use reference::reference;
pub use settings::{LogFormat, Settings};
pub use value::{ByteCount, DiskReserve, Millis};
