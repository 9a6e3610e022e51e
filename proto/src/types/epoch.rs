//! Counters that only rise: whoever holds an older one is fenced.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident($raw:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name($raw);

        impl $name {
            /// Wraps the raw counter.
            pub const fn new(raw: $raw) -> Self {
                Self(raw)
            }

            /// Returns the raw counter.
            pub const fn get(self) -> $raw {
                self.0
            }

            /// Returns the next value.
            ///
            /// # Panics
            ///
            /// On overflow, which a counter of elections or commits never reaches.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0.checked_add(1).expect("a counter never overflows"))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

counter! {
    /// Rises at each election of a partition's leader; stamped on every batch.
    LeaderEpoch(u32)
}
counter! {
    /// Rises each time an agent takes over the metadata log.
    ControllerEpoch(u64)
}
counter! {
    /// Rises at each start of an agent.
    AgentEpoch(u64)
}
counter! {
    /// Counts the commits of one partition's manifest.
    ManifestVersion(u64)
}
