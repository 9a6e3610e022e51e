//! Tests of the local log, on a disk in memory that can fail and be cut off at any operation.

mod append;
mod crash;
mod damage;
mod faults;
mod flush;
mod mem_disk;
mod recovery;
mod repair;
mod shortage;
mod support;
mod truncation;
