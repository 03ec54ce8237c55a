//! The rows that loggers wrote, for comparison.

use std::fs;
use std::path::{Path, PathBuf};

/// The rows of all loggers in a run folder, without times.
#[derive(Debug, PartialEq)]
pub(crate) struct Rows {
    pub(crate) csv: Vec<String>,
    pub(crate) json: Vec<String>,
    pub(crate) report: Vec<String>,
    pub(crate) tsv: String,
    pub(crate) events: Vec<Vec<u8>>,
    pub(crate) wandb: Vec<String>,
}

pub(crate) fn rows(folder: &Path) -> Rows {
    let csv = fs::read_to_string(folder.join("values.csv")).unwrap();
    let without_time = |line: &str| {
        let fields: Vec<_> = line.splitn(6, ',').collect();
        [&fields[..4], &fields[5..]].concat().join(",")
    };
    let json_without_time = |line: &str| {
        let mut object: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(object.as_object_mut().unwrap().remove("time").unwrap().as_f64().unwrap() > 1e9);
        object.to_string()
    };
    let json = |name: &str| {
        let text = fs::read_to_string(folder.join(name)).unwrap();
        text.lines().map(json_without_time).collect()
    };
    Rows {
        csv: csv.lines().map(without_time).collect(),
        json: json("records.jsonl"),
        report: json("report.jsonl"),
        tsv: fs::read_to_string(folder.join("values.tsv")).unwrap(),
        events: events(folder),
        wandb: wandb(&folder.join("wandb/offline-run")),
    }
}

/// Returns the events in the event files of a folder, without times, and without the events that
/// begin or end a session. Asserts that the checksums of every event are correct.
pub(crate) fn events(folder: &Path) -> Vec<Vec<u8>> {
    let is_events = |path: &PathBuf| path.to_string_lossy().contains("tfevents");
    let mut files: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(is_events).collect();
    files.sort();
    let mut found = Vec::new();
    for bytes in files.iter().map(|path| fs::read(path).unwrap()) {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let length = usize::try_from(u64::from_le_bytes(rest[..8].try_into().unwrap())).unwrap();
            assert_eq!(rest[8..12], masked(&rest[..8]));
            let event = &rest[12..12 + length];
            assert_eq!(rest[12 + length..16 + length], masked(event));
            let has = |text: &[u8]| event.windows(text.len()).any(|window| window == text);
            // After the time comes the step, whose last byte is its first one below 0x80.
            let step = event[10..].iter().position(|byte| *byte < 0x80).unwrap();
            let is_restart = event[9] == 0x10 && event.get(11 + step) == Some(&0x3a);
            if !has(b"brain.Event:2") && !has(b"_hparams_") && !is_restart {
                found.push(event[9..].to_vec());
            }
            rest = &rest[16 + length..];
        }
    }
    found
}

fn masked(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

/// Returns the rows in the file for Weights & Biases as `name json`, without times. Asserts that
/// the checksums are correct, that the run begins and ends once, and that its images exist.
fn wandb(folder: &Path) -> Vec<String> {
    const BLOCK: usize = 1 << 15;
    /// The fields of the message `Record`.
    const HISTORY: u64 = 2;
    const FILES: u64 = 6;
    const RUN: u64 = 17;
    const EXIT: u64 = 18;
    let file = fs::read(folder.join("run.wandb")).unwrap();
    let (mut at, mut record, mut rows, mut kinds) = (7, Vec::new(), Vec::new(), Vec::new());
    while at < file.len() {
        let room = BLOCK - at % BLOCK;
        if room < 7 {
            at += room;
            continue;
        }
        let end = at + 7 + usize::from(u16::from_le_bytes([file[at + 4], file[at + 5]]));
        assert_eq!(file[at..at + 4], crc32fast::hash(&file[at + 6..end]).to_le_bytes());
        record.extend(&file[at + 7..end]);
        if matches!(file[at + 6], 1 | 4) {
            let whole = std::mem::take(&mut record);
            let (kind, content) = fields(&whole)[0];
            kinds.push(kind);
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            match kind {
                FILES => {
                    for (_, item) in fields(content) {
                        let path = folder.join("files").join(text(fields(item)[0].1));
                        assert!(path.is_file(), "{}", path.display());
                    }
                }
                HISTORY => {
                    let items = fields(content).into_iter().filter(|(field, _)| *field == 1);
                    let items =
                        items.map(|(_, item)| fields(item)).map(|item| [item[0].1, item[1].1].map(text));
                    let items = items.filter(|[name, _]| !matches!(name.as_str(), "_timestamp" | "_runtime"));
                    rows.extend(items.map(|item| item.join(" ")));
                }
                _ => {}
            }
        }
        at = end;
    }
    let count = |wanted: u64| kinds.iter().filter(|kind| **kind == wanted).count();
    assert_eq!((count(RUN), count(EXIT), kinds.last()), (1, 1, Some(&EXIT)), "{kinds:?}");
    rows
}

/// Returns the fields of a message of protocol buffers. Integers have no content.
fn fields(mut message: &[u8]) -> Vec<(u64, &[u8])> {
    let mut found = Vec::new();
    while !message.is_empty() {
        let mut varint = || {
            let length = message.iter().position(|byte| *byte < 0x80).unwrap() + 1;
            let (bytes, rest) = message.split_at(length);
            message = rest;
            bytes.iter().rev().fold(0, |number, byte| number << 7 | u64::from(byte & 0x7f))
        };
        let (key, number) = (varint(), varint());
        let length = if key & 7 == 2 { usize::try_from(number).unwrap() } else { 0 };
        let (content, rest) = message.split_at(length);
        found.push((key >> 3, content));
        message = rest;
    }
    found
}
