//! Checkpoints on disk: each a folder that is there whole, or not at all.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process;

use crate::error::{Error, Result};

/// An error about a file, which it names.
pub(super) fn in_file(path: &Path, error: impl Display) -> Error {
    Error::usage(format!("{}: {error}", path.display()))
}

/// All of a file, with room for as much as there is.
pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut file = File::open(path).map_err(|error| in_file(path, error))?;
    let length = length(path)?;
    let room = usize::try_from(length).ok().and_then(|length| bytes.try_reserve_exact(length).ok());
    room.ok_or_else(|| in_file(path, format!("there is no memory for its {length} bytes")))?;
    file.read_to_end(&mut bytes).map_err(|error| in_file(path, error))?;
    Ok(bytes)
}

/// How long a file is.
pub(super) fn length(path: &Path) -> Result<u64> {
    fs::metadata(path).map(|metadata| metadata.len()).map_err(|error| in_file(path, error))
}

/// Writes a small file, and waits until the disk has it.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let written = File::create(path).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.map_err(|error| in_file(path, error))
}

/// The folder that something lies in.
pub(super) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// What the names of folders begin with that are being written, and are no checkpoints.
const UNFINISHED: &str = ".writing-";

/// Makes a folder of what this writes into it. A reader sees what was there before or all of the new, never a mixture; after an
/// error, or a crash, it is what was there before.
pub(super) fn write_whole(target: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let parent = folder_of(target);
    fs::create_dir_all(parent).map_err(|error| in_file(parent, error))?;
    let name = target.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if name.is_empty() {
        return Err(in_file(target, "this is no name for a folder"));
    }
    let aside = parent.join(format!("{UNFINISHED}{name}-{}", process::id()));
    let unfinished = Unfinished(&aside);
    remove(&aside)?;
    fs::create_dir(&aside).map_err(|error| in_file(&aside, error))?;
    fill(&aside)?;
    sync(&aside)?;
    if target.exists() {
        // A folder cannot take the place of another in one step: the old one moves aside, under a name that readers know.
        let before = parent.join(replaced(name));
        remove(&before)?;
        fs::rename(target, &before).map_err(|error| in_file(target, error))?;
        fs::rename(&aside, target).map_err(|error| in_file(target, error))?;
        sync(parent)?;
        remove(&before)?;
    } else {
        fs::rename(&aside, target).map_err(|error| in_file(target, error))?;
    }
    std::mem::forget(unfinished);
    sync(parent)
}

/// The name of a checkpoint while another takes its place.
fn replaced(name: &str) -> String {
    format!("{name}{REPLACED}")
}

const REPLACED: &str = ".replaced";

/// Is it being written, or was it one that another has taken the place of?
pub(super) fn is_aside(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let new = name.strip_suffix(REPLACED).map(|new| path.with_file_name(new));
    name.starts_with('.') || new.is_some_and(|new| new.exists())
}

/// Is removed unless it was finished.
struct Unfinished<'a>(&'a Path);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.0);
    }
}

/// Waits until the disk has the names in a folder.
pub(super) fn sync(folder: &Path) -> Result<()> {
    if cfg!(unix) {
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| in_file(folder, error))?;
    }
    Ok(())
}

/// Removes a folder, if it is there.
pub(crate) fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(in_file(folder, error)),
        _ => Ok(()),
    }
}

/// The folder of a checkpoint, or the one that it had while another was taking its place.
pub(super) fn present(path: &Path) -> PathBuf {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let before = path.with_file_name(replaced(name));
    if !path.exists() && before.exists() { before } else { path.to_owned() }
}

/// Holds a folder of checkpoints for this process alone, for as long as it lives.
#[derive(Debug)]
pub(crate) struct Lock(#[allow(dead_code, reason = "the file is what holds the lock")] File);

impl Lock {
    pub(crate) fn of(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder).map_err(|error| in_file(folder, error))?;
        let path = folder.join(".lock");
        let file =
            File::options().create(true).append(true).open(&path).map_err(|error| in_file(&path, error))?;
        match file.try_lock() {
            Ok(()) => {
                // What a process that is gone has left.
                for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                    if is_aside(&entry.path()) && entry.path().is_dir() {
                        remove(&entry.path())?;
                    }
                }
                Ok(Lock(file))
            }
            Err(fs::TryLockError::WouldBlock) => Err(in_file(
                folder,
                "another process, or another trainer, writes its checkpoints there: give each a folder of its own",
            )),
            Err(fs::TryLockError::Error(error)) => Err(in_file(&path, error)),
        }
    }
}
