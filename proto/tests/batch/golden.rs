//! Bytes on disk and in buckets must stay readable: golden bytes of format v2.
//!
//! `one-of-everything-*.bin` were written by the `kafka-protocol` crate and hold
//! [`one_of_everything`].

use std::{fs, path::PathBuf};

use bytes::{Bytes, BytesMut};
use esker_proto::batch::Compression;

use crate::{
    peer::peer_build,
    samples::{PRODUCER, build, one_of_everything, raw_batch, read},
};

const RAW_SNAPPY: &str = "one-of-everything-snappy-raw";

fn path(name: &str) -> PathBuf {
    let manifest_dir = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    manifest_dir.join("testdata/v2").join(format!("{name}.bin"))
}

fn golden(name: &str) -> Bytes {
    fs::read(path(name)).unwrap().into()
}

fn of_everything(compression: Compression) -> String {
    format!("one-of-everything-{compression}")
}

/// The records of the uncompressed batch, as raw snappy without framing.
fn raw_snappy() -> BytesMut {
    let samples = one_of_everything();
    let plain = peer_build(&samples, Compression::None);
    let body = snap::raw::Encoder::new()
        .compress_vec(&plain[61..])
        .unwrap();
    let mut batch = raw_batch(2, u32::try_from(samples.len()).unwrap(), &body);
    batch[27..43].copy_from_slice(&plain[27..43]);
    crate::samples::seal(&mut batch);
    batch
}

#[test]
#[ignore = "rewrites the golden bytes, which belongs to a new format version"]
fn rewrite_golden_bytes() {
    for compression in Compression::ALL {
        let batch = peer_build(&one_of_everything(), compression);
        fs::write(path(&of_everything(compression)), batch).unwrap();
    }
    fs::write(path(RAW_SNAPPY), raw_snappy()).unwrap();
}

#[test]
fn golden_bytes_still_read() {
    for compression in Compression::ALL {
        let bytes = golden(&of_everything(compression));
        assert_eq!(read(bytes).unwrap(), one_of_everything(), "{compression}");
    }
    assert_eq!(
        read(golden(RAW_SNAPPY)).unwrap(),
        one_of_everything(),
        "raw snappy"
    );
}

#[test]
fn uncompressed_golden_bytes_are_still_written() {
    let bytes = build(&one_of_everything(), Compression::None, PRODUCER);
    assert!(
        bytes == golden(&of_everything(Compression::None)),
        "the encoding has changed"
    );
}
