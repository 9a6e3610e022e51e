//! The generated wire messages and gRPC stubs.

/// Messages and stubs of the protobuf package `esker.v1`; documented in the `.proto` files.
#[allow(
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::pedantic,
    clippy::nursery,
    clippy::restriction,
    reason = "generated"
)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/esker.v1.rs"));
}

/// The encoded `FileDescriptorSet` of `esker.v1`, for gRPC reflection.
pub const DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/esker.v1.bin"));
