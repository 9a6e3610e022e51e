//! Promises of the accumulator.
