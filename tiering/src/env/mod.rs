//! What a process takes from its surroundings, as handles: wall-clock time, randomness and tasks.
//!
//! The rest of the workspace reaches for none of them directly, so that tests and a simulator can
//! put their own in place.

mod clock;
mod ids;
mod tasks;

pub use clock::{Clock, ManualClock, SystemClock};
pub use ids::{IdGenerator, RandomIds, SeededIds};
pub use tasks::TaskSet;
