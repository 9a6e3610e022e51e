//! The plain records of a request that has not been decoded: how many there are, and one after the other.
//!
//! A record of two bytes takes a hundred when it is decoded, and so does each header. So they are counted
//! first, and decoded one at a time.

use bytes::{Buf, Bytes};
use esker_proto::v1::Record;
use prost::{
    DecodeError, Message,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field},
};

/// Number of `AppendRequest.records`.
const RECORDS_FIELD: u32 = 4;
/// Number of `Record.headers`.
const HEADERS_FIELD: u32 = 3;

/// What an `AppendRequest` says besides its records.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Envelope {
    #[prost(string, tag = "1")]
    pub(super) topic: String,
    #[prost(uint32, optional, tag = "2")]
    pub(super) partition: Option<u32>,
    #[prost(enumeration = "esker_proto::v1::Acks", tag = "3")]
    pub(super) acks: i32,
    #[prost(bytes = "bytes", tag = "5")]
    pub(super) topic_id: Bytes,
}

/// How many there are in a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) records: usize,
    pub(super) headers: usize,
}

impl Counts {
    pub(super) const fn sum(self) -> usize {
        self.records + self.headers
    }

    /// Counts records and headers of an `AppendRequest`; stops soon after there are more than `most`.
    ///
    /// # Errors
    ///
    /// If it is no message.
    pub(super) fn of(request: &Bytes, most: usize) -> Result<Self, DecodeError> {
        let mut counts = Self::default();
        let mut records = Fields::new(request.clone(), RECORDS_FIELD);
        while let Some(record) = records.next().transpose()? {
            counts.records += 1;
            let mut headers = Fields::new(record, HEADERS_FIELD);
            while counts.sum() <= most && headers.next().transpose()?.is_some() {
                counts.headers += 1;
            }
            if counts.sum() > most {
                break;
            }
        }
        Ok(counts)
    }
}

/// Decodes the records of an `AppendRequest`, one after the other. They share its memory.
pub(super) fn records(request: Bytes) -> impl Iterator<Item = Result<Record, DecodeError>> {
    Fields::new(request, RECORDS_FIELD).map(|record| Record::decode(record?))
}

/// The occurrences of one field of a message that is a message itself.
struct Fields {
    rest: Bytes,
    number: u32,
}

impl Fields {
    const fn new(rest: Bytes, number: u32) -> Self {
        Self { rest, number }
    }

    fn find(&mut self) -> Result<Option<Bytes>, DecodeError> {
        while self.rest.has_remaining() {
            let (number, kind) = decode_key(&mut self.rest)?;
            if number != self.number || kind != WireType::LengthDelimited {
                skip_field(kind, number, &mut self.rest, DecodeContext::default())?;
                continue;
            }
            let mut field = self.rest.clone();
            let length = decode_varint(&mut self.rest)?;
            return match usize::try_from(length) {
                Ok(length) if length <= self.rest.len() => Ok(Some(self.rest.split_to(length))),
                // Longer than what is left, as whoever skips it says.
                _ => skip_field(kind, number, &mut field, DecodeContext::default()).map(|()| None),
            };
        }
        Ok(None)
    }
}

impl Iterator for Fields {
    type Item = Result<Bytes, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        let found = self.find().transpose();
        if matches!(found, Some(Err(_))) {
            self.rest.clear();
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use esker_proto::v1::{AppendRequest, Header};

    use super::*;

    fn request(records: Vec<Record>) -> AppendRequest {
        AppendRequest {
            topic: "orders".to_owned(),
            partition: Some(3),
            acks: 1,
            topic_id: Bytes::from_static(&[7; 16]),
            records,
        }
    }

    fn record(headers: usize) -> Record {
        Record {
            key: Some("key".into()),
            headers: vec![Header::default(); headers],
            ..Record::default()
        }
    }

    #[test]
    fn a_request_is_read_without_being_decoded_as_a_whole() {
        let expected = request(vec![record(0), record(2), record(1)]);
        let bytes = Bytes::from(expected.encode_to_vec());
        let envelope = Envelope::decode(bytes.clone()).unwrap();
        assert_eq!(
            (&*envelope.topic, envelope.partition, envelope.acks),
            ("orders", Some(3), 1)
        );
        assert_eq!(envelope.topic_id, expected.topic_id);
        let counts = Counts::of(&bytes, 100).unwrap();
        assert_eq!((counts.records, counts.headers), (3, 3));
        let decoded: Vec<_> = records(bytes).map(Result::unwrap).collect();
        assert_eq!(decoded, expected.records);
    }

    #[test]
    fn counting_stops_soon_after_too_many() {
        let many = request(vec![Record::default(); 50]).encode_to_vec();
        assert_eq!(Counts::of(&many.into(), 10).unwrap().sum(), 11);
        let many = request(vec![record(50)]).encode_to_vec();
        assert_eq!(Counts::of(&many.into(), 10).unwrap().sum(), 11);
    }

    #[test]
    fn what_is_cut_short_is_an_error_and_the_end() {
        let whole = request(vec![record(1)]).encode_to_vec();
        let records_end = whole.len() - 18;
        let cut = Bytes::from(whole).slice(..records_end - 1);
        assert!(Counts::of(&cut, 10).is_err());
        assert_eq!(
            records(cut).map(|one| one.is_ok()).collect::<Vec<_>>(),
            [false]
        );
    }
}
