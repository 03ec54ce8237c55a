//! Replacing files atomically, through temporary files that are recognized after a kill.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::change::{free_name, try_create, try_create_folder};
use crate::lock::Claim;
use crate::{
    Error, Links, Output, Result, entries, folder_of, in_file, is_file, is_folder, metadata, name_of,
    open_with, remove_file, rename, sync,
};

const UNFINISHED: &str = ".writing-";

/// The temporary name under which the file or folder `name` is written: `.writing-run.json-1`.
fn unfinished(name: &str, number: u64) -> String {
    format!("{UNFINISHED}{name}-{number}")
}

/// Returns the final name of the file or folder with this temporary name; `None` if it is not a
/// temporary name.
#[must_use]
pub fn is_unfinished(temporary: &str) -> Option<&str> {
    let (name, number) = temporary.strip_prefix(UNFINISHED)?.rsplit_once('-')?;
    number.parse().is_ok_and(|number| unfinished(name, number) == temporary).then_some(name)
}

/// Returns the existing temporary files and folders of `path`.
fn temporaries(path: &Path) -> Result<Vec<PathBuf>> {
    let name = name_of(path);
    let mut found = entries(folder_of(path))?;
    found.retain(|path| is_unfinished(name_of(path)) == Some(name));
    Ok(found)
}

/// Atomically replaces `path` with a file whose content `fill` writes. An existing file is replaced
/// only if `is_ours` accepts it.
pub fn replace_file<E: From<Error>>(
    path: &Path,
    is_ours: impl FnOnce(&Path) -> Result<(), E>,
    fill: impl FnOnce(&mut Output) -> Result<(), E>,
) -> Result<(), E> {
    replace(path, is_ours, |aside| {
        fill(aside)?;
        Ok(aside.sync()?)
    })?;
    Ok(sync(folder_of(path))?)
}

/// Replaces `path` as [`replace_file`] does, but does not wait until the content is on the disk.
/// Use this for a file that is replaced often and is not needed after a power loss, because a power
/// loss may truncate it.
pub fn replace_volatile_file<E: From<Error>>(
    path: &Path,
    is_ours: impl FnOnce(&Path) -> Result<(), E>,
    fill: impl FnOnce(&mut Output) -> Result<(), E>,
) -> Result<(), E> {
    replace(path, is_ours, fill)
}

fn replace<E: From<Error>>(
    path: &Path,
    is_ours: impl FnOnce(&Path) -> Result<(), E>,
    fill: impl FnOnce(&mut Output) -> Result<(), E>,
) -> Result<(), E> {
    check_name(path)?;
    if metadata(path)?.is_some() {
        is_ours(path)?;
    }
    remove_files_left_unfinished(folder_of(path), |name| name == name_of(path))?;
    let (mut aside, claim) = create_unfinished(path, |path| {
        let created = try_create(path)?;
        let file = created.file().try_clone()?;
        Ok((created, file))
    })?;
    let replaced = fill(&mut aside).and_then(|()| Ok(rename(aside.path(), path)?));
    if replaced.is_err() {
        let _ = remove_file(aside.path());
    }
    drop(claim);
    replaced
}

/// Removes from a folder the temporary files whose final names `is_of` accepts. Files that a
/// process is writing stay.
pub fn remove_files_left_unfinished(folder: &Path, is_of: impl Fn(&str) -> bool) -> Result<()> {
    let mut left = entries(folder)?;
    left.retain(|path| is_unfinished(name_of(path)).is_some_and(&is_of) && is_file(path));
    for left in left {
        // NFS locks only files that are open for writing.
        let opened = open_with(File::options().read(true).write(true), &left, Links::Refuse);
        if opened.ok().and_then(|(file, _)| Claim::of(&left, file)).is_some() {
            remove_file(&left)?;
        }
    }
    Ok(())
}

/// Returns an error if a path does not end in a name that can be part of a temporary name.
fn check_name(path: &Path) -> Result<()> {
    if name_of(path).is_empty() {
        return Err(in_file(path, "expected a path that ends in a file name, in UTF-8"));
    }
    Ok(())
}

/// Creates the temporary folder in which the folder `path` is written. While the returned claim
/// exists, no process treats the folder as a leftover.
pub fn create_unfinished_folder(path: &Path) -> Result<(PathBuf, Claim)> {
    create_unfinished(path, |path| {
        try_create_folder(path)?;
        Ok((path.to_owned(), File::open(path)?))
    })
}

fn create_unfinished<T>(path: &Path, create: impl Fn(&Path) -> io::Result<(T, File)>) -> Result<(T, Claim)> {
    check_name(path)?;
    for number in 1.. {
        let aside = path.with_file_name(unfinished(name_of(path), number));
        match create(&aside) {
            Ok((created, file)) => {
                // Another process may have taken the file for a leftover before it was claimed.
                if let Some(claim) = Claim::of(&aside, file) {
                    return Ok((created, claim));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(in_file(&aside, error)),
        }
    }
    Err(in_file(path, "every temporary name is taken: remove the files that begin with `.writing-`"))
}

/// Returns the temporary folders of `path` that no process is writing, and claims them.
pub fn folders_left_unfinished(path: &Path) -> Result<Vec<(PathBuf, Claim)>> {
    let folders = temporaries(path)?.into_iter().filter(|left| is_folder(left));
    Ok(folders.filter_map(|left| Some((left.clone(), Claim::of(&left, File::open(&left).ok()?)?))).collect())
}

/// Renames `path` to the first free name that `make` returns for the numbers 1, 2, …, and returns
/// the new path.
pub fn move_aside(path: &Path, make: impl Fn(&str, u64) -> String) -> Result<PathBuf> {
    let (free, _) = free_name(path, make)?;
    rename(path, &free)?;
    sync(folder_of(path))?;
    Ok(free)
}
