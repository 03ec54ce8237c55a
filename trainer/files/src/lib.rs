//! How the training library [`trainer`](https://docs.rs/trainer) and its command open, create,
//! change, lock and remove files.
//!
//! In all other crates of the workspace, `clippy.toml` forbids the functions of the standard
//! library that do this, so the same rules hold everywhere:
//!
//! - **Links are not followed.** A symbolic link to a file is not opened, and neither is a file in
//!   a linked folder inside the folder of a run. Only two paths may be links: that of a folder that
//!   the caller names, and that of a file that the caller names and only reads.
//! - **Only regular files are opened**, and without waiting: a FIFO would block, and a device may
//!   never end.
//! - **Only what the caller recognizes is replaced or removed.** The caller of [`replace_file`]
//!   defines how. A new file gets a name that is free.
//! - **A file that is replaced is complete at all times**: the new content is written to a
//!   temporary file, which is synced and renamed. A temporary file that a killed process has left
//!   is removed when the file is replaced again. [`replace_volatile_file`] does not sync.
//! - **What is read has a limit**: [`read_text`] and [`read_small`] refuse a file that is longer
//!   than their limit, and [`read_start`] reads no more than its caller requests.
//!
//! libtorch itself writes the profile of its kernels and the store of a rendezvous, but into files
//! or folders that this crate created.

#![allow(clippy::disallowed_methods, reason = "this crate is where files are opened and changed")]

mod change;
mod error;
#[cfg(feature = "faults")]
#[doc(hidden)]
pub mod fault;
mod lock;
mod process;
mod replace;
mod temporary;

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

pub use change::{
    Output, append, create, create_folders, create_folders_below, create_new_folder, create_numbered,
    free_name, link_and_append, open_or_create, remove_empty_folder, remove_file, rename, sync, write,
};
pub use lock::{Claim, Lock, lock_identity};
pub use process::Process;
pub use replace::{
    create_unfinished_folder, folders_left_unfinished, is_unfinished, move_aside,
    remove_files_left_unfinished, replace_file, replace_volatile_file,
};
pub use temporary::TemporaryFolder;

pub use error::{Error, Result, in_file};

/// The code in the README, which must compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;

/// Whether to follow a symbolic link when a file is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// Follows the link. For a file that the program names and that is only read.
    Follow,
    /// Returns an error. For a file that this crate has written, because this crate never creates
    /// symbolic links.
    Refuse,
}

/// Opens a file for reading and returns it with its length. Returns an error for anything but a
/// regular file.
pub fn open(path: &Path, links: Links) -> Result<(File, u64)> {
    let mut options = File::options();
    options.read(true);
    open_with(&mut options, path, links).map_err(|error| in_file(path, error))
}

/// Opens a regular file without waiting, and returns it with its length.
fn open_with(options: &mut OpenOptions, path: &Path, links: Links) -> io::Result<(File, u64)> {
    // Opening a device may already have an effect, so the path is checked first.
    let look = if links == Links::Follow { fs::metadata } else { fs::symlink_metadata };
    match look(path) {
        Ok(metadata) => drop(length_of_file(&metadata)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    #[cfg(unix)]
    {
        let no_link = if links == Links::Refuse { libc::O_NOFOLLOW } else { 0 };
        std::os::unix::fs::OpenOptionsExt::custom_flags(options, libc::O_NONBLOCK | no_link);
    }
    let file = options.open(path)?;
    let length = length_of_file(&file.metadata()?)?;
    Ok((file, length))
}

/// Returns the length of a regular file, or an error that says what was found instead.
fn length_of_file(metadata: &Metadata) -> io::Result<u64> {
    let kind = metadata.file_type();
    let found = match () {
        () if kind.is_file() => return Ok(metadata.len()),
        () if kind.is_symlink() => "expected a file, found a symbolic link",
        () if kind.is_dir() => "expected a file, found a folder",
        () => "expected a regular file, found a pipe, socket or device",
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, found))
}

/// Reads the first `length` bytes of a file.
pub fn read_start(path: &Path, file: &File, length: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let room = usize::try_from(length).ok().and_then(|length| bytes.try_reserve_exact(length).ok());
    room.ok_or_else(|| in_file(path, format!("not enough memory to read its {length} bytes")))?;
    file.take(length).read_to_end(&mut bytes).map_err(|error| in_file(path, error))?;
    if bytes.len() as u64 != length {
        let text = format!(
            "only {} of {length} bytes could be read: the file was changed while it was read; try again",
            bytes.len()
        );
        return Err(in_file(path, text));
    }
    Ok(bytes)
}

/// Fills `bytes` from a position in a file. Other threads may read the file at the same time.
pub fn read_at(path: &Path, file: &File, position: u64, bytes: &mut [u8]) -> Result<()> {
    let length = bytes.len();
    fill_at(file, position, bytes).map_err(|error| {
        if error.kind() != io::ErrorKind::UnexpectedEof {
            return in_file(path, error);
        }
        let text = format!(
            "the {length} bytes from byte {position} on no longer exist: the file was shortened while it was open"
        );
        in_file(path, text)
    })
}

#[cfg(unix)]
fn fill_at(file: &File, position: u64, bytes: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, position)
}

#[cfg(windows)]
fn fill_at(file: &File, mut position: u64, mut bytes: &mut [u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let read = std::os::windows::fs::FileExt::seek_read(file, bytes, position)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        position += read as u64;
        bytes = &mut bytes[read..];
    }
    Ok(())
}

/// The maximum number of bytes that [`read_text`] reads.
pub const MAX_TEXT_BYTES: u64 = 1 << 24;

/// Reads a text file, following links. Ignores the reported length, which is 0 for files in
/// `/proc`.
pub fn read_text(path: &Path) -> Result<String> {
    let (file, _) = open(path, Links::Follow)?;
    let mut bytes = Vec::new();
    // One byte more than the maximum is read, so that a longer file is detected.
    file.take(MAX_TEXT_BYTES + 1).read_to_end(&mut bytes).map_err(|error| in_file(path, error))?;
    if bytes.len() as u64 > MAX_TEXT_BYTES {
        return Err(in_file(path, "the file is longer than 16 MiB: it is not the text file expected here"));
    }
    String::from_utf8(bytes)
        .map_err(|_| in_file(path, "the file is not UTF-8: it is not the text file expected here"))
}

/// The folder that contains `path`.
#[must_use]
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The metadata of a path, without following links; `None` if the path does not exist.
pub fn metadata(path: &Path) -> Result<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(in_file(path, error)),
    }
}

/// Whether `path` is a regular file, not a link to one.
#[must_use]
pub fn is_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file())
}

/// Whether `path` is a folder, not a link to one.
#[must_use]
pub fn is_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir())
}

/// Reads a file that this crate's caller has written, without following a link. Returns an error if
/// the file is longer than `limit` bytes.
pub fn read_small(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let (file, length) = open(path, Links::Refuse)?;
    if length > limit {
        return Err(in_file(path, format!("the file has {length} bytes: expected at most {limit}")));
    }
    read_start(path, &file, length)
}

/// Returns the paths of the files and folders in a folder.
pub fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).map_err(|error| in_file(folder, error))?;
    entries.map(|entry| Ok(entry.map_err(|error| in_file(folder, error))?.path())).collect()
}

/// The last component of a path as text; empty if it is not UTF-8.
#[must_use]
pub fn name_of(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_file_has_what_was_written_while_it_is_flushed_and_the_error_of_the_work() {
        let folder = TemporaryFolder::create("flushed").unwrap();
        let mut file = create(&folder.path().join("large")).unwrap();
        let piece: Vec<u8> = (0..1 << 24).map(|nth: u32| nth as u8).collect();
        let written =
            file.while_flushed(|file| (0..5).try_for_each(|_| file.write(&piece))).and_then(|()| file.sync());
        written.unwrap();
        let error = file.while_flushed(|file| {
            file.write(b"end")?;
            Err::<(), _>(in_file(file.path(), "no more"))
        });
        assert!(error.unwrap_err().to_string().contains("no more"));
        let panicking = || file.while_flushed(|_| -> Result<()> { panic!("in the work") });
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panicking)).is_err());
        let bytes = fs::read(file.path()).unwrap();
        assert!(bytes == [&piece.repeat(5)[..], b"end"].concat());
    }

    #[test]
    fn a_text_longer_than_the_maximum_is_refused_instead_of_truncated() {
        let folder = TemporaryFolder::create("read-text").unwrap();
        let path = folder.path().join("text");
        // Of two bytes each, so that the limit is within a character after one of a single byte.
        let text = "ü".repeat(1 << 23);
        fs::write(&path, &text).unwrap();
        assert_eq!(read_text(&path).unwrap().len() as u64, MAX_TEXT_BYTES);
        for longer in [text.clone() + "u", "u".to_owned() + &text] {
            fs::write(&path, longer).unwrap();
            let error = read_text(&path).unwrap_err().to_string();
            assert!(error.contains("longer than 16 MiB"), "{error}");
        }
        fs::write(&path, [0xff]).unwrap();
        let error = read_text(&path).unwrap_err().to_string();
        assert!(error.contains("not UTF-8"), "{error}");
    }
}
