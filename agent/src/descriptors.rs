//! How the agent divides the files that its process may have open.
//!
//! Sockets and files come out of one limit, and each side could take what the other needs: clients that
//! connect must not keep a log from creating its next segment.

use rustix::process::{Resource, getrlimit};

/// Files of sealed segments that readers have open at a time.
const SEALED_MAX: u64 = 256;
/// For everything else: connections to the store, the disk cache, small files while they are written.
const OTHERS_MAX: u64 = 256;

/// Open files by what they are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptors {
    /// Connections of clients.
    pub(crate) connections: usize,
    /// Sealed segments that are read.
    pub(crate) sealed: usize,
    /// Segments that are appended to: one for each partition with local data.
    pub(crate) partitions: usize,
}

impl Descriptors {
    /// Divides what this process may have open.
    pub(crate) fn of_process(connections_max: u32) -> Self {
        Self::divide(getrlimit(Resource::Nofile).current, connections_max)
    }

    fn divide(limit: Option<u64>, connections_max: u32) -> Self {
        let limit = limit.unwrap_or(u64::MAX);
        let connections = u64::from(connections_max).min(limit / 4);
        let sealed = SEALED_MAX.min(limit / 8);
        let others = OTHERS_MAX.min(limit / 8);
        let count = |files: u64| usize::try_from(files).unwrap_or(usize::MAX);
        Self {
            connections: count(connections),
            sealed: count(sealed),
            partitions: count(limit - connections - sealed - others),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_keep_half_of_a_small_limit_and_connections_their_setting_of_a_large_one() {
        let small = Descriptors::divide(Some(256), 4096);
        assert_eq!(
            (small.connections, small.sealed, small.partitions),
            (64, 32, 128)
        );
        let large = Descriptors::divide(Some(1 << 20), 4096);
        assert_eq!((large.connections, large.sealed), (4096, 256));
        assert!(Descriptors::divide(None, 4096).partitions > 1 << 20);
    }
}
