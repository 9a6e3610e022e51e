//! One response on its way to the application: part by part, and around what is damaged.
//!
//! Records are decompressed when a part is taken, never all of a response at once: a few kilobytes
//! may hold gigabytes. What lies before damage is handed out before the damage is reported, and
//! what lies beyond the wanted range is not looked into.

use bytes::{Buf, Bytes};
use esker_proto::{
    batch::{BatchError, BatchHeader, RecordBatch, Records},
    types::{Offset, OffsetRange},
    v1,
};

use super::fetched::FetchSource;
use crate::error::{Error, ErrorKind};

/// A response that is not handed out completely.
#[derive(Debug)]
pub(crate) struct Response {
    rest: Bytes,
    /// Comes next.
    damage: Option<Damage>,
    /// Where the agent reads on.
    next_offset: Offset,
    pub(crate) high_watermark: Offset,
    pub(crate) log_start_offset: Offset,
    pub(crate) source: FetchSource,
}

/// Some of a response.
#[derive(Debug)]
pub(crate) enum Part {
    /// The records up to `end`.
    Records {
        batches: Vec<Records>,
        end: Offset,
    },
    Damage(Damage),
}

/// Records that cannot be read, and why.
#[derive(Debug)]
pub(crate) struct Damage {
    /// Empty: nobody knows where the damage ends.
    pub(crate) offsets: OffsetRange,
    pub(crate) error: Error,
}

/// How a response is taken apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taking {
    /// A part ends once it has so many decompressed bytes.
    pub(crate) bytes_max: usize,
    /// Decode every record, to see whether it can be.
    pub(crate) is_checked: bool,
}

/// A batch's records, as far as they hold.
struct Decoded {
    records: Records,
    end: Offset,
    /// They end in something that cannot be decoded.
    is_cut: bool,
}

impl Response {
    pub(crate) fn new(response: v1::FetchResponse) -> Self {
        Self {
            source: response.source().into(),
            rest: response.batches,
            damage: None,
            next_offset: Offset::new(response.next_offset),
            high_watermark: Offset::new(response.high_watermark),
            log_start_offset: Offset::new(response.log_start_offset),
        }
    }

    /// Takes the next part of `wanted`; `None`: nothing of it is left here.
    pub(crate) fn next_part(&mut self, wanted: &OffsetRange, taking: Taking) -> Option<Part> {
        let (mut batches, mut bytes, mut end) = (Vec::new(), 0, wanted.start);
        while bytes < taking.bytes_max && self.damage.is_none() {
            let left = end..wanted.end;
            let Some(batch) = self.next_batch(&left) else {
                break;
            };
            match batch.and_then(|batch| self.decode(&batch, &left, taking.is_checked)) {
                Ok(decoded) => {
                    end = decoded.end.min(wanted.end);
                    bytes += decoded.records.bytes().len();
                    batches.push(decoded.records);
                    if decoded.is_cut {
                        break;
                    }
                }
                Err(damage) => self.damage = Some(damage),
            }
        }
        match batches.is_empty() {
            true => self.damage.take().map(Part::Damage),
            false => Some(Part::Records { batches, end }),
        }
    }

    /// Puts back what was taken last, to be taken next.
    pub(crate) fn put_back(&mut self, damage: Damage) {
        self.damage = Some(damage);
    }

    fn next_batch(&mut self, wanted: &OffsetRange) -> Option<Result<RecordBatch, Damage>> {
        while !self.rest.is_empty() && !wanted.is_empty() {
            let header = match whole_header(&self.rest) {
                Ok(header) => header,
                Err(error) => return Some(Err(self.pass(wanted, error))),
            };
            let (offsets, size_bytes) = (header.offsets(), header.size_bytes as usize);
            if offsets.start > wanted.start {
                return Some(Err(self.gap(wanted, offsets.start)));
            }
            let batch = self.rest.split_to(size_bytes);
            if offsets.end > wanted.start {
                let batch = RecordBatch::validate(batch);
                return Some(batch.map_err(|error| self.pass(wanted, error)));
            }
        }
        None
    }

    fn decode(
        &mut self,
        batch: &RecordBatch,
        wanted: &OffsetRange,
        is_checked: bool,
    ) -> Result<Decoded, Damage> {
        let end = batch.header().next_offset();
        let lost = |from, error| Damage {
            offsets: from..end.min(wanted.end),
            error: Error::corrupt(error),
        };
        let records = batch.records().map_err(|error| lost(wanted.start, error))?;
        let fault = is_checked.then(|| first_fault(&records)).flatten();
        let Some((at, error)) = fault else {
            return Ok(Decoded {
                records,
                end,
                is_cut: false,
            });
        };
        if at <= wanted.start {
            return Err(lost(wanted.start, error));
        }
        // Bytes behind the last record are no loss.
        self.damage = (at < end.min(wanted.end)).then(|| lost(at, error));
        Ok(Decoded {
            records,
            end: at,
            is_cut: true,
        })
    }

    /// Passes over batches that do not hold. The next one that does says where the damage ends;
    /// without one the agent's own count does.
    fn pass(&mut self, wanted: &OffsetRange, error: BatchError) -> Damage {
        let mut end = self.next_offset.max(wanted.start);
        while let Ok(header) = whole_header(&self.rest) {
            let size_bytes = header.size_bytes as usize;
            let is_next = header.base_offset > wanted.start && header.base_offset < end;
            if is_next && RecordBatch::validate(self.rest.slice(..size_bytes)).is_ok() {
                end = header.base_offset;
                break;
            }
            self.rest.advance(size_bytes);
        }
        if end == self.next_offset {
            self.rest.clear();
        }
        Damage {
            offsets: wanted.start..end.min(wanted.end),
            error: Error::corrupt(error),
        }
    }

    fn gap(&mut self, wanted: &OffsetRange, found: Offset) -> Damage {
        // Beyond the agent's own count it is the batch's offset that is wrong.
        let end = found.min(self.next_offset.max(wanted.start));
        if end < found {
            self.rest.clear();
        }
        let message = format!(
            "agent left records out. expected_offset=`{}` offset=`{found}`",
            wanted.start
        );
        Damage {
            offsets: wanted.start..end.min(wanted.end),
            error: Error::new(ErrorKind::Corrupt, message),
        }
    }
}

/// Parses the header of the first batch, which must be there completely.
fn whole_header(bytes: &[u8]) -> Result<BatchHeader, BatchError> {
    let header = BatchHeader::parse(bytes)?;
    let expected_bytes = header.size_bytes as usize;
    match bytes.len() < expected_bytes {
        false => Ok(header),
        true => Err(BatchError::Truncated {
            bytes: bytes.len(),
            expected_bytes,
        }),
    }
}

/// Returns the offset of the first record that cannot be decoded.
fn first_fault(records: &Records) -> Option<(Offset, BatchError)> {
    let check = |record: Result<esker_proto::batch::Record<'_>, _>| {
        record?.headers.try_for_each(|header| header.map(|_| ()))
    };
    let error = records.iter().find_map(|record| check(record).err())?;
    Some((fault_offset(records, &error), error))
}

/// Returns the offset of the record that an error is about.
pub(super) fn fault_offset(records: &Records, error: &BatchError) -> Offset {
    let index = match error {
        BatchError::Record { index, .. } => *index,
        _ => 0,
    };
    records.header().base_offset.advance(index)
}

#[cfg(test)]
pub(super) mod tests {
    use esker_proto::{
        batch::{BatchBuilder, Compression, HEADER_BYTES, crc32c},
        types::{LeaderEpoch, TimestampMs},
    };

    use super::*;

    const TAKING: Taking = Taking {
        bytes_max: 1 << 20,
        is_checked: false,
    };
    const CHECKING: Taking = Taking {
        is_checked: true,
        ..TAKING
    };

    /// Ten records of some bytes each.
    fn batch(base_offset: u64, compression: Compression, record_bytes: usize) -> Vec<u8> {
        let mut builder = BatchBuilder::new(compression);
        let value = vec![7; record_bytes];
        for _ in 0..10 {
            let timestamp = TimestampMs::new(1);
            builder.push(timestamp, None, Some(&value), &[]).unwrap();
        }
        let batch = RecordBatch::validate(builder.finish(None)).unwrap();
        let (head, body) = batch.stamped(Offset::new(base_offset), LeaderEpoch::new(3));
        [&head[..], &body[..]].concat()
    }

    pub(in super::super) fn plain(base_offset: u64) -> Vec<u8> {
        batch(base_offset, Compression::None, 5)
    }

    pub(in super::super) fn flipped(mut batch: Vec<u8>) -> Vec<u8> {
        *batch.last_mut().unwrap() ^= 1;
        batch
    }

    /// A batch with a checksum that fits, and nonsense from the given record on.
    pub(in super::super) fn undecodable_from(index: usize, mut batch: Vec<u8>) -> Vec<u8> {
        let record_bytes = (batch.len() - HEADER_BYTES) / 10;
        batch[HEADER_BYTES + index * record_bytes] = 0x7f;
        let mut header = BatchHeader::parse(&batch).unwrap();
        header.crc = crc32c(&batch[21..]);
        batch[..HEADER_BYTES].copy_from_slice(&header.encode());
        RecordBatch::validate(batch.clone().into()).unwrap();
        batch
    }

    pub(in super::super) fn response(batches: &[Vec<u8>], next_offset: u64) -> Response {
        Response::new(v1::FetchResponse {
            batches: batches.concat().into(),
            next_offset,
            ..v1::FetchResponse::default()
        })
    }

    /// Takes everything of `range`: what records, and (in brackets) what damage.
    fn take_all(response: &mut Response, range: std::ops::Range<u64>, taking: Taking) -> String {
        let mut wanted = Offset::new(range.start)..Offset::new(range.end);
        let mut taken = Vec::new();
        while let Some(part) = response.next_part(&wanted, taking) {
            let end = match &part {
                Part::Records { end, .. } => *end,
                Part::Damage(damage) => damage.offsets.end,
            };
            let start = std::mem::replace(&mut wanted.start, end);
            taken.push(match part {
                Part::Records { .. } => format!("{start}..{end}"),
                Part::Damage(_) => format!("[{start}..{end}]"),
            });
            if end == start {
                break;
            }
        }
        taken.join(" ")
    }

    #[test]
    fn records_before_and_behind_damage_are_taken() {
        let cases = [
            (
                vec![plain(0), flipped(plain(10)), plain(20)],
                "0..10 [10..20] 20..30",
            ),
            (
                vec![flipped(plain(0)), plain(10), plain(20)],
                "[0..10] 10..30",
            ),
            (
                vec![plain(0), plain(10), flipped(plain(20))],
                "0..20 [20..30]",
            ),
            (vec![plain(0), plain(20)], "0..10 [10..20] 20..30"),
            (vec![plain(0), vec![7; 200]], "0..10 [10..30]"),
            (
                vec![plain(0), plain(10), plain(20)[..90].to_vec()],
                "0..20 [20..30]",
            ),
            (
                vec![plain(0), flipped(plain(10)), flipped(plain(20))],
                "0..10 [10..30]",
            ),
            // A batch that claims to lie beyond what the agent read.
            (vec![plain(0), plain(1 << 40)], "0..10 [10..30]"),
        ];
        for (batches, expected) in cases {
            let mut response = response(&batches, 30);
            assert_eq!(take_all(&mut response, 0..1000, TAKING), expected);
        }
    }

    #[test]
    fn damage_outside_of_the_wanted_range_is_not_seen() {
        let batches = [flipped(plain(0)), plain(10), flipped(plain(20))];
        assert_eq!(
            take_all(&mut response(&batches, 30), 10..20, TAKING),
            "10..20"
        );
        assert_eq!(
            take_all(&mut response(&batches, 30), 13..17, TAKING),
            "13..17"
        );
        assert_eq!(
            take_all(&mut response(&batches, 30), 13..27, TAKING),
            "13..20 [20..27]"
        );
    }

    #[test]
    fn records_that_decode_are_told_from_those_behind_them() {
        let batches = [plain(0), undecodable_from(4, plain(10)), plain(20)];
        let mut whole = response(&batches, 30);
        assert_eq!(
            take_all(&mut whole, 0..1000, CHECKING),
            "0..14 [14..20] 20..30"
        );
        let mut from_the_middle = response(&batches, 30);
        assert_eq!(
            take_all(&mut from_the_middle, 16..1000, CHECKING),
            "[16..20] 20..30"
        );
        let first = [undecodable_from(0, plain(0)), plain(10)];
        assert_eq!(
            take_all(&mut response(&first, 20), 0..1000, CHECKING),
            "[0..10] 10..20"
        );
    }

    #[test]
    fn damage_without_an_end_is_empty() {
        let mut response = response(&[vec![7; 200]], 0);
        assert_eq!(take_all(&mut response, 5..1000, TAKING), "[5..5]");
    }

    #[test]
    fn few_compressed_bytes_are_decompressed_batch_by_batch() {
        let batches: Vec<_> = (0..20)
            .map(|number| batch(number * 10, Compression::Zstd, 1 << 20))
            .collect();
        let mut response = response(&batches, 200);
        let mut wanted = Offset::ZERO..Offset::MAX;
        let mut parts = 0;
        while let Some(part) = response.next_part(&wanted, TAKING) {
            let Part::Records { batches, end } = part else {
                panic!("{part:?}");
            };
            assert_eq!(batches.len(), 1, "10 MiB of records at a time");
            wanted.start = end;
            parts += 1;
        }
        assert_eq!(parts, 20);
    }
}
