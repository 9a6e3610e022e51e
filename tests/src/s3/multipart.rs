//! Multipart uploads on their way to becoming objects.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};

use super::backend::Content;

/// Parts received so far.
#[derive(Debug, Default)]
pub(super) struct Upload {
    pub(super) bucket: String,
    pub(super) key: String,
    /// All but the bytes.
    pub(super) content: Content,
    /// Tag and bytes by part number.
    pub(super) parts: BTreeMap<i32, (String, Bytes)>,
}

impl Upload {
    /// Returns the object made of these parts in this order, unless one is missing, has another
    /// tag or stands out of order.
    pub(super) fn join(&self, parts: &[(i32, String)]) -> Option<Content> {
        if parts.is_empty() || !parts.is_sorted_by(|a, b| a.0 < b.0) {
            return None;
        }
        let mut joined = BytesMut::new();
        for (number, e_tag) in parts {
            let (_, part) = self.parts.get(number).filter(|(tag, _)| tag == e_tag)?;
            joined.extend_from_slice(part);
        }
        Some(Content {
            bytes: joined.freeze(),
            ..self.content.clone()
        })
    }
}
