//! Promises of the cold-read path, on a store that can be made to fail.
