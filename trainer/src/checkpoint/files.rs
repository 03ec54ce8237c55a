//! Files on disk: reading with limits, writing, atomic replacement, removal.
//!
//! Only this module changes or removes existing files of checkpoints: files with the names in
//! [`FILES`], in folders that are not links. [`replace_file`] replaces the files that its caller
//! accepts.

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::time::SystemTime;

use serde::Deserialize;

use crate::error::{BoxError, Error, FileError, Result};

pub(crate) const MANIFEST: &str = "manifest.json";
pub(crate) const MODEL: &str = "model.safetensors";
pub(crate) const OPTIMIZER: &str = "optimizer.safetensors";
pub(crate) const AVERAGES: &str = "averages.safetensors";
pub(crate) const STATE: &str = "state.safetensors";
pub(crate) const HISTORY: &str = "history.jsonl";

/// The files of a checkpoint, in the order in which they are removed: the manifest first, so that a
/// partly removed folder is not taken for a checkpoint.
const FILES: [&str; 6] = [MANIFEST, MODEL, AVERAGES, OPTIMIZER, STATE, HISTORY];

/// The maximum length of a manifest in bytes. State that needs more belongs in tensors.
pub(crate) const MAX_MANIFEST_BYTES: u64 = 1 << 28;

/// The value of the field `format` in every manifest.
pub(crate) const FORMAT: &str = "trainer checkpoint";

/// Adds the path of a file to an error.
pub(crate) fn in_file(path: &Path, error: impl Into<BoxError>) -> Error {
    Error::File(Box::new(FileError { path: path.to_owned(), source: error.into() }))
}

/// Whether to follow a symbolic link when a file is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    /// Follows the link. For a path that the program specified.
    Follow,
    /// Returns an error. For a file of a checkpoint, because this crate writes no symbolic links.
    Refuse,
}

/// Opens a file and returns it with its length. Anything but a regular file is refused, because
/// opening a FIFO may block and reading a device may never end.
pub(crate) fn open(path: &Path, links: Links) -> Result<(File, u64)> {
    let look = if links == Links::Follow { fs::metadata } else { fs::symlink_metadata };
    let check = |metadata: Metadata| {
        let kind = metadata.file_type();
        match () {
            () if kind.is_file() => Ok(metadata.len()),
            () if kind.is_symlink() => Err(in_file(path, "expected a file, found a symbolic link")),
            () if kind.is_dir() => Err(in_file(path, "expected a file, found a folder")),
            () => Err(in_file(path, "expected a regular file, found a pipe, socket or device")),
        }
    };
    check(look(path).map_err(|error| in_file(path, error))?)?;
    let file = File::open(path).map_err(|error| in_file(path, error))?;
    let length = check(file.metadata().map_err(|error| in_file(path, error))?)?;
    Ok((file, length))
}

/// Reads the first `length` bytes of a file.
pub(crate) fn read_start(path: &Path, file: &File, length: u64) -> Result<Vec<u8>> {
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

/// Creates a file, which must not exist yet.
pub(crate) fn create(path: &Path) -> Result<File> {
    File::options().write(true).create_new(true).open(path).map_err(|error| in_file(path, error))
}

/// Creates a new file: `path`, or if that exists, `path` with the first free number, such as
/// `run-2.json` or `run-2.trace.json`.
pub(crate) fn create_numbered(path: &Path) -> Result<(File, PathBuf)> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (stem, suffix) = name.split_at(name.find('.').filter(|at| *at > 0).unwrap_or(name.len()));
    for number in 1_u32.. {
        let numbered = match number {
            1 => path.to_owned(),
            number => path.with_file_name(format!("{stem}-{number}{suffix}")),
        };
        match File::options().write(true).create_new(true).open(&numbered) {
            Ok(file) => return Ok((file, numbered)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(in_file(&numbered, error)),
        }
    }
    Err(in_file(path, "every numbered name is taken: remove some of these files"))
}

/// Writes a small new file, and waits until it is on disk.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = create(path)?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(|error| in_file(path, error))
}

/// Creates `path` as a hard link to the file `from` and appends to it, if that file is `length`
/// bytes long and the link can be created. Returns whether it did.
///
/// Existing bytes do not change, so `from` remains valid up to its recorded length.
pub(crate) fn link_and_append(from: &Path, length: u64, path: &Path, bytes: &[u8]) -> Result<bool> {
    let is_as_written = fs::symlink_metadata(from).is_ok_and(|it| it.is_file() && it.len() == length);
    if !is_as_written || fs::hard_link(from, path).is_err() {
        return Ok(false);
    }
    let appended = File::options().append(true).open(path).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    appended.map_err(|error| in_file(path, error))?;
    Ok(true)
}

/// The folder that contains `path`.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Waits until the entries of a folder are on disk. Does nothing on platforms other than Unix.
fn sync(folder: &Path) -> Result<()> {
    if cfg!(unix) {
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| in_file(folder, error))?;
    }
    Ok(())
}

/// The metadata of a path, without following links; `None` if the path does not exist.
fn metadata(path: &Path) -> Result<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(in_file(path, error)),
    }
}

/// Whether `path` is a regular file, not a link to one.
pub(crate) fn is_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file())
}

/// Whether `path` is a folder, not a link to one.
fn is_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir())
}

/// The name that this crate gives the folder of a checkpoint: `step-00000400`.
pub(crate) fn step_name(step: u64) -> String {
    format!("step-{step:08}")
}

/// The step in a name that [`step_name`] returned; `None` for any other name.
pub(crate) fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (step_name(step) == name).then_some(step)
}

/// The name of the temporary folder, next to its target, in which a checkpoint is written.
fn unfinished(name: &str) -> String {
    format!("{UNFINISHED}{name}-{}", process::id())
}

const UNFINISHED: &str = ".writing-";

/// The temporary name of a checkpoint that is being replaced.
fn replaced(name: &str) -> String {
    format!("{name}{REPLACED}")
}

const REPLACED: &str = ".replaced";

/// Whether `name` is the temporary name of an unfinished checkpoint, or of one that is being
/// replaced.
fn is_leftover(name: &str) -> bool {
    if let Some(name) = name.strip_suffix(REPLACED) {
        return step_of(name).is_some();
    }
    let Some((name, pid)) = name.strip_prefix(UNFINISHED).and_then(|rest| rest.rsplit_once('-')) else {
        return false;
    };
    step_of(name).is_some() && pid.parse::<u32>().is_ok_and(|id| id.to_string() == pid)
}

/// Removes the temporary folders that a killed process left behind in a folder that this process
/// has locked. An old checkpoint that was moved aside is kept if the new one is missing.
pub(crate) fn remove_leftovers(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(|error| in_file(folder, error))?.flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| is_leftover(name)) else { continue };
        // If the new checkpoint never took its place, the one moved aside is the newest.
        let is_needed = name.strip_suffix(REPLACED).is_some_and(|new| !is_folder(&folder.join(new)));
        if is_folder(&path) && !is_needed {
            remove_files(&path)?;
        }
    }
    Ok(())
}

/// Removes the checkpoint of a step, if there is one. If its folder contains other files, they and
/// the folder are kept.
pub(crate) fn remove_step(folder: &Path, step: u64) -> Result<()> {
    let path = folder.join(step_name(step));
    if is_folder(&path) && is_ours(&path, true).is_ok() { remove_files(&path) } else { Ok(()) }
}

/// Removes the files of a checkpoint from a folder, and then the folder if it is empty.
fn remove_files(folder: &Path) -> Result<()> {
    for path in FILES.map(|name| folder.join(name)).iter().filter(|path| is_file(path)) {
        fs::remove_file(path).map_err(|error| in_file(path, error))?;
    }
    match fs::remove_dir(folder) {
        Err(error) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty) => {
            Err(in_file(folder, error))
        }
        _ => Ok(()),
    }
}

/// Returns an error unless `folder` is empty or a checkpoint of this crate. A folder whose manifest
/// cannot be parsed counts as a checkpoint only if `named` is true: the folder is named after a
/// step.
fn is_ours(folder: &Path, named: bool) -> Result<()> {
    #[derive(Deserialize)]
    struct Head {
        format: String,
    }

    if !is_folder(folder) {
        return Err(in_file(folder, "this is not a checkpoint, so it is not replaced: choose another name"));
    }
    let is_empty = fs::read_dir(folder).map_err(|error| in_file(folder, error))?.next().is_none();
    let path = folder.join(MANIFEST);
    if is_empty {
        return Ok(());
    }
    let head = open(&path, Links::Refuse)
        .and_then(|(file, length)| read_start(&path, &file, length.min(MAX_MANIFEST_BYTES)))
        .map(|bytes| serde_json::from_slice::<Head>(&bytes));
    match head {
        Ok(Ok(head)) if head.format == FORMAT => Ok(()),
        Ok(Err(_)) if named => Ok(()),
        _ => Err(in_file(
            folder,
            "this folder is not a checkpoint of this trainer, so it is not replaced: choose another name",
        )),
    }
}

/// Atomically replaces `target` with the folder that `fill` writes: a reader sees either the old
/// checkpoint or the complete new one, even after an error or a crash.
///
/// An existing `target` is replaced only if it is a checkpoint of this crate. Other files in its
/// folder are kept.
pub(crate) fn replace_folder(target: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let parent = folder_of(target);
    fs::create_dir_all(parent).map_err(|error| in_file(parent, error))?;
    let name = target.file_name().and_then(|name| name.to_str());
    let name =
        name.ok_or_else(|| in_file(target, "expected a path that ends in the name of a folder, in UTF-8"))?;
    let named = step_of(name).is_some();
    let before = parent.join(replaced(name));
    let is_replaced = metadata(target)?.is_some();
    // Checked first, so that nothing is written for a target that must stay as it is.
    if is_replaced {
        is_ours(target, named)?;
        if metadata(&before)?.is_some() {
            is_ours(&before, named)?;
        }
    }

    let aside = parent.join(unfinished(name));
    if is_folder(&aside) {
        remove_files(&aside)?; // left by a killed process with the same process ID
    }
    fs::create_dir(&aside).map_err(|error| in_file(&aside, error))?;
    let unfinished = Unfinished(&aside);
    fill(&aside)?;
    sync(&aside)?;
    if is_replaced {
        // One folder cannot replace another in a single step, so the old one is moved aside first,
        // under a name that is recognized when checkpoints are read.
        if is_folder(&before) {
            remove_files(&before)?;
        }
        fs::rename(target, &before).map_err(|error| in_file(target, error))?;
    }
    fs::rename(&aside, target).map_err(|error| in_file(target, error))?;
    std::mem::forget(unfinished);
    sync(parent)?;
    if is_replaced {
        keep_others(&before, target)?;
        remove_files(&before)?;
    }
    Ok(())
}

/// Moves the files that are not part of the checkpoint from its old folder to its new one.
fn keep_others(before: &Path, target: &Path) -> Result<()> {
    for entry in fs::read_dir(before).map_err(|error| in_file(before, error))?.flatten() {
        let to = target.join(entry.file_name());
        if metadata(&to)?.is_none()
            && !(FILES.iter().any(|name| entry.file_name() == *name) && is_file(&entry.path()))
        {
            fs::rename(entry.path(), &to).map_err(|error| in_file(&to, error))?;
        }
    }
    Ok(())
}

/// The folder of a checkpoint: `path`, or its temporary name if a replacement was interrupted.
pub(crate) fn present(path: &Path) -> PathBuf {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let before = path.with_file_name(replaced(name));
    if !path.exists() && is_folder(&before) { before } else { path.to_owned() }
}

/// The folders in `folder` that have a manifest, except unfinished ones and those that were
/// replaced.
pub(crate) fn checkpoints_in(folder: &Path) -> Vec<PathBuf> {
    let is_checkpoint = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_replaced = name.strip_suffix(REPLACED).is_some_and(|new| is_folder(&path.with_file_name(new)));
        !name.starts_with('.') && !is_replaced && is_folder(path) && is_file(&path.join(MANIFEST))
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(is_checkpoint).collect()
}

/// Removes the unfinished checkpoint in a folder when dropped.
struct Unfinished<'a>(&'a Path);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        let _ = remove_files(self.0);
    }
}

/// Atomically replaces `path` with the file that `fill` writes. An existing file is replaced only
/// if `is_ours` accepts it.
pub(crate) fn replace_file(
    path: &Path,
    is_ours: impl FnOnce(&Path) -> Result<()>,
    fill: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    if metadata(path)?.is_some() {
        is_ours(path)?;
    }
    let mut aside = path.as_os_str().to_owned();
    aside.push(format!(".writing-{}", process::id()));
    let aside = PathBuf::from(aside);
    if is_file(&aside) {
        // Left by a process that was killed.
        fs::remove_file(&aside).map_err(|error| in_file(&aside, error))?;
    }
    let written = fill(&aside)
        .and_then(|()| fs::rename(&aside, path).map_err(|error| in_file(path, error)))
        .and_then(|()| sync(folder_of(path)));
    if written.is_err() && is_file(&aside) {
        let _ = fs::remove_file(&aside);
    }
    written
}

/// The file that is locked while a trainer uses a folder of checkpoints.
const LOCK: &str = ".trainer-lock";

/// The lock of a folder, released when dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    path: PathBuf,
    file: File,
}

impl Lock {
    /// Locks a folder, which is created if it does not exist.
    pub(crate) fn acquire(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder).map_err(|error| in_file(folder, error))?;
        let path = folder.join(LOCK);
        if metadata(&path)?.is_some_and(|metadata| !metadata.is_file()) {
            return Err(in_file(
                &path,
                "expected a regular file that the trainer can lock: remove what is there",
            ));
        }
        let file = File::options().create(true).append(true).open(&path);
        let file = file.map_err(|error| in_file(&path, error))?;
        match file.try_lock() {
            Ok(()) => Ok(Lock { path, file }),
            Err(fs::TryLockError::WouldBlock) => {
                Err(in_file(folder, "the folder is locked by another trainer: give each run its own folder"))
            }
            Err(fs::TryLockError::Error(error)) => Err(in_file(&path, error)),
        }
    }

    /// Whether the locked file is still the one in the folder; `false` if the folder was removed or
    /// replaced in the meantime. On platforms other than Unix, a replacement is not detected.
    pub(crate) fn is_held(&self) -> bool {
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            let identity = |it: io::Result<Metadata>| it.ok().map(|it| (it.dev(), it.ino()));
            identity(self.file.metadata()) == identity(fs::symlink_metadata(&self.path))
        }
        #[cfg(not(unix))]
        self.path.exists()
    }
}

/// Returns a text that differs between the lock files of two folders, and is the same on all hosts
/// that share a folder; `None` if the metadata of the lock file cannot be read.
pub(crate) fn lock_identity(folder: &Path) -> Option<String> {
    let metadata = fs::metadata(folder.join(LOCK)).ok()?;
    let modified = metadata.modified().ok()?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    #[cfg(unix)]
    let number = std::os::unix::fs::MetadataExt::ino(&metadata);
    #[cfg(not(unix))]
    let number = 0;
    Some(format!("{} {number}", modified.as_nanos()))
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing the file is not enough: a child process that was forked and has not called `exec`
        // yet shares the open file, and with it the lock.
        let _ = self.file.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::{is_leftover, step_of};

    #[test]
    fn only_names_that_this_crate_generates_are_recognized() {
        assert_eq!(step_of("step-00000400"), Some(400));
        assert_eq!(step_of("step-123456789"), Some(123_456_789));
        for name in [
            "step-400",
            "step-+0000400",
            "step-",
            "step-000004000",
            "step-00000400 ",
            "../step-00000400",
            "step-00000400/..",
            "step-18446744073709551616",
            "Step-00000400",
            "step--0000400",
        ] {
            assert_eq!(step_of(name), None, "{name}");
        }
        for name in [".writing-step-00000400-17", "step-00000400.replaced"] {
            assert!(is_leftover(name), "{name}");
        }
        for name in [
            ".git",
            ".venv",
            ".writing-",
            ".writing-step-400-17",
            ".writing-step-00000400-",
            ".writing-step-00000400-x",
            ".writing-step-00000400-017",
            ".writing-best-17",
            "notes.txt.replaced",
            "step-00000400",
            ".replaced",
            "best.replaced",
            "step-400.replaced",
        ] {
            assert!(!is_leftover(name), "{name}");
        }
    }
}
