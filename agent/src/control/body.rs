//! How a metadata record stands in its slot: one line of JSON, and a line with its checksum.

use bytes::Bytes;
use esker_proto::{
    batch::crc32c,
    types::{AgentId, ClusterId},
};
use esker_tiering::{Error, chain::ChainBody};
use serde::{Deserialize, Serialize};

use super::record::MetaRecord;

const FORMAT_VERSION: u32 = 1;

/// A record and what fences it. Persisted; the numbers that JSON cannot hold are hexadecimal text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MetaBody {
    pub(super) format_version: u32,
    pub(super) cluster_id: ClusterId,
    pub(super) slot: u64,
    pub(super) epoch: u64,
    /// Who wrote it.
    pub(super) agent_id: AgentId,
    #[serde(with = "hex_nonce")]
    pub(super) nonce: u128,
    #[serde(with = "hex_digest")]
    pub(super) prev_sha256: [u8; 32],
    pub(super) record: MetaRecord,
}

impl MetaBody {
    pub(super) fn check_version(&self) -> Result<(), String> {
        match self.format_version {
            FORMAT_VERSION => Ok(()),
            other => Err(format!(
                "format version {other} is not known; run a newer esker-agent"
            )),
        }
    }

    pub(super) const fn version() -> u32 {
        FORMAT_VERSION
    }
}

impl ChainBody for MetaBody {
    fn slot(&self) -> u64 {
        self.slot
    }

    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn nonce(&self) -> u128 {
        self.nonce
    }

    fn prev_sha256(&self) -> [u8; 32] {
        self.prev_sha256
    }

    fn check_follows(&self, previous: &Self) -> Result<(), String> {
        if self.cluster_id == previous.cluster_id {
            Ok(())
        } else {
            Err(format!("written by another cluster, {}", self.cluster_id))
        }
    }

    fn encode(&self, prev_sha256: [u8; 32]) -> Bytes {
        let body = Self {
            prev_sha256,
            ..self.clone()
        };
        let mut text = serde_json::to_string(&body).expect("a record has only plain fields");
        let crc = crc32c(text.as_bytes());
        text.push_str(&format!("\n{crc:08x}\n"));
        text.into()
    }

    fn decode(key: &str, bytes: Bytes) -> Result<Self, Error> {
        let body = parse(&bytes).map_err(|reason| Error::corrupt(key, reason))?;
        body.check_version()
            .map_err(|reason| Error::corrupt(key, reason))?;
        Ok(body)
    }

    fn nonce_of(bytes: &[u8]) -> Option<u128> {
        parse(bytes).ok().map(|body| body.nonce)
    }
}

fn parse(bytes: &[u8]) -> Result<MetaBody, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let (json, checksum) = text
        .split_once('\n')
        .ok_or("the checksum line is missing")?;
    if checksum != format!("{:08x}\n", crc32c(json.as_bytes())) {
        return Err("checksum mismatch".to_owned());
    }
    serde_json::from_str(json).map_err(|error| error.to_string())
}

mod hex_nonce {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(nonce: &u128, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&format!("{nonce:032x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<u128, D::Error> {
        u128::from_str_radix(&String::deserialize(d)?, 16).map_err(Error::custom)
    }
}

mod hex_digest {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(digest: &[u8; 32], s: S) -> Result<S::Ok, S::Error> {
        let text: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        s.serialize_str(&text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<[u8; 32], D::Error> {
        let text = String::deserialize(d)?;
        let mut digest = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return Err(D::Error::custom("a digest has 64 hexadecimal digits"));
        }
        for (index, byte) in digest.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16)
                .map_err(D::Error::custom)?;
        }
        Ok(digest)
    }
}

#[cfg(test)]
mod tests {
    use esker_proto::types::ControllerEpoch;
    use uuid::Uuid;

    use super::*;

    fn body() -> MetaBody {
        let agent_id = AgentId::new(Uuid::from_u128(2));
        MetaBody {
            format_version: 1,
            cluster_id: ClusterId::new(Uuid::from_u128(1)),
            slot: 3,
            epoch: 4,
            agent_id,
            nonce: u128::MAX - 1,
            prev_sha256: [0xab; 32],
            record: MetaRecord::Open {
                controller_epoch: ControllerEpoch::new(4),
                agent_id,
            },
        }
    }

    #[test]
    fn a_body_survives_its_slot() {
        let bytes = body().encode([0xab; 32]);
        assert_eq!(MetaBody::decode("k", bytes.clone()).unwrap(), body());
        assert_eq!(MetaBody::nonce_of(&bytes), Some(u128::MAX - 1));
    }

    #[test]
    fn a_damaged_body_is_named_and_refused() {
        let good = body().encode([0xab; 32]);
        for index in 0..good.len() {
            let mut bad = good.to_vec();
            bad[index] ^= 1;
            assert!(MetaBody::decode("k", bad.into()).is_err(), "byte {index}");
        }
        assert!(MetaBody::decode("k", good.slice(..good.len() - 1)).is_err());
    }

    #[test]
    fn a_later_format_is_not_guessed_at() {
        let later = MetaBody {
            format_version: 2,
            ..body()
        };
        let error = MetaBody::decode("k", later.encode([0; 32]))
            .unwrap_err()
            .to_string();
        assert!(error.contains("newer esker-agent"), "{error}");
    }
}
