//! The changes to files that the preloaded library records.

use std::path::{Path, PathBuf};

/// A change to the files of a folder, as `preload.cpp` records it. Paths are relative to the
/// folder.
#[derive(Debug)]
pub(crate) enum Change {
    Create(String),
    Truncate(String, usize),
    Write(String, usize, Vec<u8>),
    Sync(String),
    Rename(String, String),
    Link(String, String),
    /// Removes a file or a folder.
    Remove(String),
    CreateFolder(String),
    /// The program has reached this step in `after_save_checkpoint`.
    Saved(u64),
}

/// Parses a log of `preload.cpp`.
pub(crate) fn recorded_changes(log: &[u8], folder: &Path) -> Vec<Change> {
    let mut rest = log;
    let mut found = Vec::new();
    let relative = |path: Vec<u8>| {
        let path = PathBuf::from(String::from_utf8(path).unwrap());
        path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned()
    };
    while let Some((kind, mut more)) = rest.split_first() {
        let mut text = || {
            let (length, after) = more.split_first_chunk::<4>().unwrap();
            let (text, after) = after.split_at(u32::from_le_bytes(*length) as usize);
            more = after;
            text.to_vec()
        };
        let number = |text: Vec<u8>| String::from_utf8(text).unwrap().parse().unwrap();
        found.push(match kind {
            b'C' => Change::Create(relative(text())),
            b'T' => Change::Truncate(relative(text()), number(text())),
            b'W' => Change::Write(relative(text()), number(text()), text()),
            b'S' => Change::Sync(relative(text())),
            b'R' => Change::Rename(relative(text()), relative(text())),
            b'L' => Change::Link(relative(text()), relative(text())),
            b'U' => Change::Remove(relative(text())),
            b'M' => Change::CreateFolder(relative(text())),
            b'X' => Change::Saved(number(text()) as u64),
            other => panic!("unknown record {other}"),
        });
        rest = more;
    }
    found
}
