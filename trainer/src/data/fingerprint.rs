//! [`Fingerprinted`], and the hashes of content in the fingerprints of loaders.

use std::path::Path;

use super::batch::Batch;
use super::loader::{Batches, Loader, NamedLoader};
use super::notes::PassNotes;
use crate::distributed::Share;
use crate::error::Result;
use crate::io::files::{Links, open, read_at};
use crate::libtorch;
use crate::values::facts::SettingList;

/// What a fingerprint says of data whose content is unknown.
pub(crate) const UNKNOWN_CONTENT: &str = "unknown content";

/// What precedes a description of the content in a fingerprint. [`END`] follows it.
const START: &str = "content <";
const END: char = '>';

/// The number of characters of a hash in a fingerprint.
const DIGITS: usize = 16;

/// The length of a sample of a file, in bytes.
const SAMPLE: u64 = 1 << 16;

/// The number of samples of the files of a data set, of which each has at least one.
const SAMPLES: usize = 256;

/// Returns whether two fingerprints describe the same data, as far as they can tell: unless both
/// describe the content, the rest is compared.
pub(crate) fn is_same(saved: &str, now: &str) -> bool {
    saved == now
        || (!(saved.contains(START) && now.contains(START)) && without_content(saved) == without_content(now))
}

/// Removes what a fingerprint says of the content.
fn without_content(fingerprint: &str) -> String {
    let mut parts = fingerprint.split(START);
    let first = parts.next().unwrap_or_default().to_owned();
    let text = parts.fold(first, |text, part| {
        let rest = part.split_once(END).map_or("", |(_, rest)| rest);
        text.strip_suffix(", ").unwrap_or(&text).to_owned() + rest
    });
    [
        ", unknown content",
        " of unknown content",
        " from unknown content",
        "unknown content: ",
        "of unknown content",
        UNKNOWN_CONTENT,
        "unknown data",
    ]
    .iter()
    .fold(text, |text, unknown| text.replace(unknown, ""))
}

/// Appends a description of the content to a fingerprint.
fn described(fingerprint: &str, content: &str) -> String {
    let separator = if fingerprint.is_empty() { "" } else { ", " };
    format!("{fingerprint}{separator}{START}{}{END}", content.replace(['<', '>'], "|"))
}

/// Appends the hash of a content to a fingerprint.
pub(super) fn with_hash(fingerprint: &str, content: &blake3::Hasher) -> String {
    described(fingerprint, &content.finalize().to_hex()[..DIGITS])
}

/// Returns the fingerprint of a data set, which may be empty, for use in that of another.
pub(super) fn or_unknown(fingerprint: String) -> String {
    if fingerprint.is_empty() { UNKNOWN_CONTENT.to_owned() } else { fingerprint }
}

/// Adds the dtypes, shapes and values of all tensors to a hash.
///
/// # Errors
///
/// Returns an error if a tensor has no values that can be read.
pub(super) fn add_tensors(hash: &mut blake3::Hasher, batch: &impl Batch) -> Result<()> {
    let mut result = Ok(());
    batch.tensors(&mut |tensor| {
        let mut add = || -> Result<()> {
            let shape = format!("{:?} {:?}", tensor.kind(), tensor.size());
            hash.update(&(shape.len() as u64).to_le_bytes());
            hash.update(shape.as_bytes());
            hash.update(&libtorch::bytes(tensor, "a tensor of the data")?);
            Ok(())
        };
        if result.is_ok() {
            result = add();
        }
    });
    result
}

/// Returns a fingerprint with a hash of the files of a data set: their lengths, and samples of
/// their content at equal distances, the first and the last bytes of each file among them. Files of
/// at most 16 MiB in all are read as a whole; of more than 256 files, every n-th is read.
pub(super) fn with_files<'a>(fingerprint: &str, files: impl ExactSizeIterator<Item = &'a Path>) -> String {
    let (step, samples) = (files.len().div_ceil(SAMPLES).max(1), (SAMPLES / files.len().max(1)).max(2));
    let mut hash = blake3::Hasher::new();
    for path in files.step_by(step) {
        if add_file(&mut hash, path, samples as u64).is_err() {
            return format!("{fingerprint}, {UNKNOWN_CONTENT}");
        }
    }
    with_hash(fingerprint, &hash)
}

/// Adds the length of a file and at most this number of samples, at least 2, to a hash.
fn add_file(hash: &mut blake3::Hasher, path: &Path, samples: u64) -> Result<()> {
    let (file, length) = open(path, Links::Follow)?;
    hash.update(&length.to_le_bytes());
    let mut bytes = vec![0; SAMPLE.min(length) as usize];
    let (samples, last) = (length.div_ceil(SAMPLE).min(samples), length - bytes.len() as u64);
    for nth in 0..samples {
        // `last` is 0 if there is one sample.
        let start = u128::from(last) * u128::from(nth) / u128::from((samples - 1).max(1));
        read_at(path, &file, start as u64, &mut bytes)?;
        hash.update(&bytes);
    }
    Ok(())
}

/// A loader whose data the program identifies: see [`Loader::with_fingerprint`].
///
/// ```
/// use tch::Tensor;
/// use trainer::data::from_fn;
/// use trainer::prelude::*;
///
/// let stream = from_fn(|_| (0..10).map(Tensor::from)).deterministic(true);
/// let stream = stream.with_fingerprint("numbers, version 3");
/// let fingerprint = Loader::<Tensor>::fingerprint(&stream);
/// assert_eq!(fingerprint.as_deref(), Some("content <numbers, version 3>"));
/// ```
#[derive(Debug)]
pub struct Fingerprinted<L> {
    loader: L,
    text: String,
}

impl<L> Fingerprinted<L> {
    pub(super) fn new(loader: L, text: String) -> Self {
        Fingerprinted { loader, text }
    }
}

impl<B: Batch, L: Loader<B>> Loader<B> for Fingerprinted<L> {
    fn batches(&mut self, epoch: u64, start: u64) -> Result<Batches<'_, B>> {
        self.loader.batches(epoch, start)
    }

    fn len(&self) -> Option<u64> {
        self.loader.len()
    }

    fn is_deterministic(&self) -> bool {
        self.loader.is_deterministic()
    }

    /// Returns the fingerprint of the wrapped loader with the text of the program.
    fn fingerprint(&self) -> Option<String> {
        let inner = self.loader.fingerprint().map(|inner| without_content(&inner)).unwrap_or_default();
        Some(described(&inner, &self.text))
    }

    fn settings(&self) -> SettingList {
        self.loader.settings()
    }

    fn named(&mut self) -> Option<Vec<NamedLoader<'_, B>>> {
        self.loader.named()
    }

    fn share(&mut self, share: Share) -> Result<()> {
        self.loader.share(share)
    }

    fn notes(&self) -> Option<PassNotes> {
        self.loader.notes()
    }

    fn seek(&mut self, epoch: u64, batch: u64, position: &str) -> Result<()> {
        self.loader.seek(epoch, batch, position)
    }
}

#[cfg(test)]
mod tests {
    use super::is_same;

    #[test]
    fn fingerprints_without_the_content_are_compared_by_the_rest() {
        // The left texts are those of version 8 of the format of checkpoints.
        for (saved, now) in [
            ("8 rows, batch size 4, not shuffled", "8 rows, batch size 4, not shuffled, content <0123>"),
            ("8 rows, batch size 4, not shuffled", "unknown content: 8 rows, batch size 4, not shuffled"),
            ("of unknown content", "content <v1>"),
            ("rows 1a: 8 rows, batch size 1", "rows 1a of unknown content: 8 rows, batch size 1"),
            ("drawn by weights 1a: 8 rows", "drawn by weights 1a from unknown content: 8 rows"),
            ("(5 rows, weight 1)", "(5 rows, unknown content, weight 1)"),
            ("a: 8 rows; b: unknown data", "a: 8 rows, content <1>; b: unknown content"),
        ] {
            assert!(is_same(saved, now) && is_same(now, saved), "{saved} / {now}");
            let other = now.replace('8', "9").replace("v1", "v2");
            assert_eq!(is_same(saved, &other), !now.contains('8'), "{saved} / {other}");
        }
        assert!(!is_same("8 rows, content <1>", "8 rows, content <2>"));
    }
}
