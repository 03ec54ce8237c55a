//! Shards that are tar files, in the layout of WebDataset.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use ::tar::Archive;

use super::foreign::Found;
use super::shards::{Format, Indexed, Shards};
use crate::error::{Error, Result};
use crate::io::files::{Links, in_file, open, read_at};
use crate::io::format::Format as Kind;

/// The length of a block of a tar file, in bytes.
const BLOCK: u64 = 512;

/// The maximum number of files that are held open.
const OPEN_FILES: usize = 128;

/// Tar files in the layout of [WebDataset](https://github.com/webdataset/webdataset): see
/// [`Shards::tar`].
#[doc(alias = "WebDataset")]
#[derive(Debug)]
pub struct Tar(());

/// The files of one sample in a tar file: those with the same name up to the first dot.
///
/// The files `cats/17.jpg` and `cats/17.class.txt` form the sample with the key `cats/17` and the
/// parts `jpg` and `class.txt`.
///
/// ```
/// use trainer::data::Sample;
/// use trainer::prelude::*;
///
/// /// Returns the text and the label of a sample, for `Dataset::map`.
/// fn decode(sample: Sample) -> Result<(String, i64)> {
///     let label = sample.text("cls")?.trim().parse().map_err(Error::new)?;
///     Ok((sample.text("txt")?.to_owned(), label))
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    key: String,
    parts: BTreeMap<String, Vec<u8>>,
}

impl Sample {
    /// Returns the key: the path of each file, up to the first dot in the file name.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the content of the file with this extension.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such file.
    pub fn part(&self, extension: &str) -> Result<&[u8]> {
        self.parts.get(extension).map(Vec::as_slice).ok_or_else(|| {
            let parts: Vec<String> = self.parts.keys().map(|part| format!("`{part}`")).collect();
            Error::msg(format!(
                "the sample `{}` has no part `{extension}`: it has {}",
                self.key,
                parts.join(", ")
            ))
        })
    }

    /// Returns the content of the file with this extension, as text.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such file, or if it is not UTF-8.
    pub fn text(&self, extension: &str) -> Result<&str> {
        std::str::from_utf8(self.part(extension)?).map_err(|error| {
            Error::msg(format!("the part `{extension}` of the sample `{}` is not text: {error}", self.key))
        })
    }

    /// Returns the contents of the files, by extension.
    #[must_use]
    pub fn parts(&self) -> &BTreeMap<String, Vec<u8>> {
        &self.parts
    }
}

impl Shards<Tar> {
    /// Opens tar files in the layout of WebDataset: consecutive files with the same name up to the
    /// first dot form a [`Sample`]. Each path is a file, or a folder whose `*.tar` files are used
    /// in the order of their names.
    ///
    /// ```
    /// use trainer::data::{Sample, Shards};
    /// use trainer::prelude::*;
    ///
    /// # let folder = std::env::temp_dir().join(format!("trainer-tar-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    /// # std::fs::write(folder.join("0.tar"), [0; 1024])?;
    /// let texts = Shards::tar([&folder])?.buffer(1000).map(|sample: Sample, _| {
    ///     Ok((sample.text("txt")?.to_owned(), sample.text("cls")?.trim().parse::<i64>().map_err(Error::new)?))
    /// });
    /// let train = DataLoader::new(texts).batch_size(32).shuffle(42).workers(2);
    /// # assert_eq!(train.len(), Some(0));
    /// # std::fs::remove_dir_all(folder)?;
    /// # Ok::<(), trainer::Error>(())
    /// ```
    ///
    /// As in WebDataset, extensions are lower-cased, and folders, links and files without an
    /// extension are left out. This function reads the headers of all files, so that each sample
    /// can be read by its index. A compressed tar file counts as damaged, because a sample cannot
    /// be read without decompressing all data before it. The contents of the files have no
    /// checksum, so damage to them is noticed only when they are decoded.
    ///
    /// # Errors
    ///
    /// Returns an error if there are no such files, or if a file cannot be opened. For damaged
    /// files, see [Damaged shards](Shards#damaged-shards).
    pub fn tar(paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Result<Self> {
        Self::open(paths)
    }
}

/// Splits the path of a file into the key of its sample and its extension, if it has both.
fn divide(path: &str) -> Option<(&str, String)> {
    let name = path.rfind('/').map_or(0, |at| at + 1);
    let dot = path[name..].find('.')? + name;
    (dot > name).then(|| (&path[..dot], path[dot + 1..].to_lowercase()))
}

/// The positions of the start and the end of each sample, in bytes.
#[derive(Debug)]
pub struct Samples(Vec<(u64, u64)>);

impl Format for Tar {
    type Row = Sample;
    type Index = Samples;
    type Piece = File;

    const EXTENSION: &'static str = "tar";

    fn index(path: &Path, file: File, length: u64) -> Indexed<Samples> {
        let mut samples = Vec::new();
        let problem = find_samples(&file, length, &mut samples).err();
        if problem.is_some() {
            samples.pop(); // the sample before the damage may be incomplete
        }
        let rows = samples.len();
        let mut damage =
            problem.map(|problem| format!("only its first {rows} samples can be read: {problem}"));
        // A block of zeros, which can precede other data, is an empty archive.
        if rows == 0
            && let Ok(found) = Found::in_file(path, &file, length)
            && !matches!(found.format, Kind::Tar | Kind::TorchTar | Kind::Unknown)
        {
            damage = Some(found.refused("a tar archive"));
        }
        Indexed { index: Samples(samples), rows, largest: 1, damage }
    }

    fn piece(_: &Samples, _: usize) -> (usize, usize) {
        (0, 1)
    }

    fn read(path: &Path, _: &Samples, _: usize) -> Result<File> {
        Ok(open(path, Links::Follow)?.0)
    }

    fn row(path: &Path, samples: &Samples, file: &File, row: usize) -> Result<Sample> {
        let (start, end) = samples.0[row];
        let mut bytes = vec![0; (end - start) as usize];
        read_at(path, file, start, &mut bytes)?;
        read_sample(&bytes).map_err(|problem| in_file(path, format!("row {row}: {problem}")))
    }

    fn size(_: usize) -> usize {
        1
    }

    fn capacity(_: usize, _: usize) -> usize {
        OPEN_FILES
    }
}

/// Adds the positions of all complete samples. After an error, the last sample may be incomplete.
fn find_samples(file: &File, length: u64, samples: &mut Vec<(u64, u64)>) -> Result<(), String> {
    let mut archive = Archive::new(file);
    let mut key: Option<String> = None;
    let mut end = 0;
    for entry in archive.entries_with_seek().map_err(|error| error.to_string())? {
        let entry = entry.map_err(|error| format!("{error}, at byte {end}"))?;
        // An entry starts where the one before it ends, because extended headers may precede its
        // own.
        let start = end;
        let end_of_data = entry.raw_file_position().saturating_add(entry.size());
        end = end_of_data.checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX);
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let path = entry.path_bytes();
        let path =
            std::str::from_utf8(&path).map_err(|error| format!("the name of a file is not text: {error}"))?;
        let Some((of, _)) = divide(path) else { continue };
        if key.as_deref() == Some(of)
            && let Some(sample) = samples.last_mut()
        {
            sample.1 = end;
        } else {
            key = Some(of.to_owned());
            samples.push((start, end));
        }
        if end > length {
            return Err(format!("the file is truncated at byte {length}, in `{path}`"));
        }
    }
    if end.saturating_add(BLOCK) > length {
        return Err(format!(
            "the file ends at byte {length} without the end-of-archive marker, so it is probably truncated"
        ));
    }
    Ok(())
}

/// Returns the sample whose entries are in `bytes`, a part of a tar file.
fn read_sample(bytes: &[u8]) -> Result<Sample, String> {
    let changed = "the file has changed since it was opened";
    let mut sample = Sample { key: String::new(), parts: BTreeMap::new() };
    let mut archive = Archive::new(bytes);
    for entry in archive.entries().map_err(|error| error.to_string())? {
        let entry = entry.map_err(|error| format!("{error}: {changed}"))?;
        let path = entry.path_bytes();
        let path = String::from_utf8_lossy(&path);
        let Some((key, extension)) = divide(&path) else { continue };
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let start = entry.raw_file_position() as usize;
        let content = bytes.get(start..start + entry.size() as usize).ok_or(changed)?;
        sample.key = key.to_owned();
        if sample.parts.insert(extension.clone(), content.to_vec()).is_some() {
            return Err(format!("the sample `{key}` has two files with the extension `{extension}`"));
        }
    }
    if sample.parts.is_empty() { Err(changed.to_owned()) } else { Ok(sample) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_ends_at_the_first_dot_of_the_name_as_in_webdataset() {
        let of = |path| divide(path).map(|(key, extension)| (key.to_owned(), extension));
        let some = |key: &str, extension: &str| Some((key.to_owned(), extension.to_owned()));
        assert_eq!(of("17.jpg"), some("17", "jpg"));
        assert_eq!(of("a.b/17.Seg.PNG"), some("a.b/17", "seg.png"));
        assert_eq!(of("17"), None);
        assert_eq!(of("a.b/17"), None);
        assert_eq!(of("a/.hidden"), None);
    }
}
