//! Tests of the local log.
