//! The record batch codec.
