//! The records in a file of the client of Weights & Biases, and how the file frames them.

use crate::loggers::proto::Message;
use crate::{Histogram, Hyperparameter};

/// The first bytes of a file.
const HEADER: [u8; 7] = *b":W&B\xe1\xbe\0";

/// The length of a block in bytes. The fragments of a record do not cross the end of a block.
const BLOCK: u64 = 1 << 15;

/// The length in bytes of what precedes a fragment: its checksum, length and kind.
const PREFIX: u64 = 7;

/// The maximum number of bins of a histogram that the client accepts.
const MAX_BINS: usize = 512;

/// A buffer of records that are to be appended to a file.
pub(super) struct Records {
    pub(super) bytes: Vec<u8>,
    /// The length of the file in bytes.
    position: u64,
}

impl Records {
    /// Creates a buffer for a file of this length. The first records of a file follow its header.
    pub(super) fn at(position: u64) -> Self {
        Records { bytes: if position == 0 { HEADER.to_vec() } else { Vec::new() }, position }
    }

    /// Appends a record: field `field` of the message `Record`. Each fragment has a CRC-32 of its
    /// kind and content, and a file is otherwise a log of `LevelDB`.
    pub(super) fn push(&mut self, field: u8, content: &Message) {
        let record = Message::default().message(field, content);
        let mut rest = record.bytes();
        let mut is_first = true;
        loop {
            let end = self.position + self.bytes.len() as u64;
            let mut room = BLOCK - end % BLOCK;
            if room < PREFIX {
                self.bytes.resize(self.bytes.len() + room as usize, 0);
                room = BLOCK;
            }
            let (fragment, others) = rest.split_at(rest.len().min((room - PREFIX) as usize));
            let kind = match (is_first, others.is_empty()) {
                (true, true) => 1,
                (true, false) => 2,
                (false, false) => 3,
                (false, true) => 4_u8,
            };
            let mut checksum = crc32fast::Hasher::new();
            checksum.update(&[kind]);
            checksum.update(fragment);
            self.bytes.extend(checksum.finalize().to_le_bytes());
            self.bytes.extend((fragment.len() as u16).to_le_bytes());
            self.bytes.push(kind);
            self.bytes.extend(fragment);
            if others.is_empty() {
                return;
            }
            (rest, is_first) = (others, false);
        }
    }
}

/// The fields of the message `Record`.
pub(super) mod field {
    pub(in super::super) const HISTORY: u8 = 2;
    pub(in super::super) const SUMMARY: u8 = 3;
    pub(in super::super) const FILES: u8 = 6;
    pub(in super::super) const METRIC: u8 = 12;
    pub(in super::super) const RUN: u8 = 17;
    pub(in super::super) const EXIT: u8 = 18;
}

/// Returns the record of a named value in JSON, which configurations, histories and summaries
/// consist of.
pub(super) fn item(name: &str, json: &str) -> Message {
    Message::default().field(1, name).field(16, json)
}

/// Writes a number as the client does, with the NaN and the infinities that JSON lacks.
pub(super) fn number(number: f64) -> String {
    if number.is_nan() {
        "NaN".to_owned()
    } else if number.is_infinite() {
        if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()
    } else if number.fract() == 0.0 && number.abs() < 1e15 && !(number == 0.0 && number.is_sign_negative()) {
        format!("{number}") // without a point, as a count is written
    } else {
        format!("{number:?}")
    }
}

pub(super) fn text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

pub(super) fn hyperparameter(value: &Hyperparameter) -> String {
    match value {
        Hyperparameter::Number(value) => number(*value),
        Hyperparameter::Bool(value) => value.to_string(),
        Hyperparameter::Text(value) => text(value),
    }
}

/// Writes a histogram. If it has more bins than the client accepts, joins neighbors.
pub(super) fn histogram(histogram: &Histogram) -> String {
    // The first count is of what is below the first limit, which is nothing.
    let counts = histogram.counts.get(1..).unwrap_or_default();
    let joined = counts.len().div_ceil(MAX_BINS).max(1);
    let values: Vec<String> =
        counts.chunks(joined).map(|counts| counts.iter().sum::<u64>().to_string()).collect();
    let lower = histogram.limits.iter().step_by(joined).take(values.len());
    let bins: Vec<String> = lower.chain(histogram.limits.last()).map(|limit| number(*limit)).collect();
    format!(r#"{{"_type":"histogram","values":[{}],"bins":[{}]}}"#, values.join(","), bins.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the contents of the records in a file, as the client reads them.
    fn read(file: &[u8]) -> Vec<Vec<u8>> {
        assert_eq!(file[..7], HEADER);
        let (mut at, mut records, mut record) = (7, Vec::new(), Vec::new());
        while at < file.len() {
            let room = BLOCK as usize - at % BLOCK as usize;
            if room < 7 {
                assert!(file[at..at + room].iter().all(|byte| *byte == 0));
                at += room;
                continue;
            }
            let length = usize::from(u16::from_le_bytes([file[at + 4], file[at + 5]]));
            let content = &file[at + 7..at + 7 + length];
            let kind = file[at + 6];
            let checksum = crc32fast::hash(&[&[kind], content].concat());
            assert_eq!(file[at..at + 4], checksum.to_le_bytes());
            assert_eq!(record.is_empty(), kind <= 2, "kind {kind}");
            record.extend(content);
            if matches!(kind, 1 | 4) {
                records.push(std::mem::take(&mut record));
            }
            at += 7 + length;
        }
        records
    }

    #[test]
    fn records_of_every_length_are_split_at_the_ends_of_blocks() {
        let mut file = Vec::new();
        let mut expected = Vec::new();
        // The lengths leave every number of bytes below eight at the end of a block.
        for length in (32_700..32_780).chain([0, 1, 70_000, 100_000]) {
            let content = Message::default().field(1, vec![7; length]);
            let mut records = Records::at(file.len() as u64);
            records.push(field::HISTORY, &content);
            file.extend(records.bytes);
            expected.push(Message::default().message(field::HISTORY, &content).bytes().to_vec());
        }
        assert_eq!(read(&file), expected);
    }

    #[test]
    fn numbers_are_written_with_all_their_digits() {
        let cases = [(8.0, "8"), (0.1, "0.1"), (-0.0, "-0.0"), (1e300, "1e300"), (f64::NAN, "NaN")];
        for (value, expected) in cases {
            assert_eq!(number(value), expected);
        }
        assert_eq!(number(f64::NEG_INFINITY), "-Infinity");
    }

    #[test]
    fn a_histogram_with_too_many_bins_keeps_every_count() {
        for bins in [1, 2, 511, 512, 513, 1_500] {
            let histogram = Histogram {
                min: 0.0,
                max: bins as f64,
                count: 3 * bins,
                sum: 0.0,
                sum_squares: 0.0,
                limits: (0..=bins).map(|limit| limit as f64).collect(),
                counts: [0].into_iter().chain((0..bins).map(|_| 3)).collect(),
            };
            let json: serde_json::Value = serde_json::from_str(&super::histogram(&histogram)).unwrap();
            let [values, limits] = ["values", "bins"].map(|key| json[key].as_array().unwrap());
            assert!(values.len() <= MAX_BINS && limits.len() == values.len() + 1, "{bins}");
            assert_eq!(values.iter().map(|value| value.as_u64().unwrap()).sum::<u64>(), 3 * bins);
            for (value, limits) in values.iter().zip(limits.windows(2)) {
                let width = limits[1].as_f64().unwrap() - limits[0].as_f64().unwrap();
                assert_eq!(value.as_f64().unwrap(), 3.0 * width, "{bins}");
            }
        }
    }
}
