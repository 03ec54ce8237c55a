//! The files and folders of checkpoints: their names, and how they are replaced and removed.
//!
//! A folder is removed only if it has a name that this crate gives to checkpoint folders. Only
//! files with names from [`FILES`] or [`rank_file`] are removed from it.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::error::Result;
use crate::io::files::{
    Claim, Links, create_folders, create_unfinished_folder, entries, folder_of, folders_left_unfinished,
    free_name, in_file, is_file, is_folder, is_unfinished, metadata, move_aside, name_of, open, read_start,
    remove_empty_folder, remove_file, rename, sync,
};

pub(crate) const MANIFEST: &str = "manifest.json";
pub(crate) const MODEL: &str = "model.safetensors";
pub(crate) const OPTIMIZER: &str = "optimizer.safetensors";
pub(crate) const AVERAGES: &str = "averages.safetensors";
pub(crate) const STATE: &str = "state.safetensors";
pub(crate) const HISTORY: &str = "history.jsonl";

/// The files of rank 0, in the order of their removal. The manifest is removed last, so that a
/// partly removed folder is still recognized as a checkpoint.
const FILES: [&str; 6] = [MODEL, AVERAGES, OPTIMIZER, STATE, HISTORY, MANIFEST];

/// The name of a file that a rank other than rank 0 writes: `rank-00003.json`.
pub(crate) fn rank_file(rank: u32, extension: &str) -> String {
    format!("{RANK}{rank:05}.{extension}")
}

const RANK: &str = "rank-";

/// The extensions of the files that a rank other than rank 0 writes, in the order of writing.
pub(crate) const RANK_FILES: [&str; 2] = ["safetensors", "json"];

/// Whether this is a name that [`rank_file`] returns.
fn is_rank_file(name: &str) -> bool {
    let parts = name.strip_prefix(RANK).and_then(|name| name.split_once('.'));
    parts.is_some_and(|(rank, extension)| {
        RANK_FILES.contains(&extension) && rank.parse().is_ok_and(|rank| rank_file(rank, extension) == name)
    })
}

/// The maximum length of a manifest in bytes. State that needs more belongs in tensors.
pub(crate) const MAX_MANIFEST_BYTES: u64 = 1 << 28;

/// The value of the field `format` in every manifest.
pub(crate) const FORMAT: &str = "trainer checkpoint";

/// The name that this crate gives the folder of a checkpoint: `step-00000400`.
pub(crate) fn step_name(step: u64) -> String {
    format!("step-{step:08}")
}

/// The step in a name that [`step_name`] returned; `None` for any other name.
pub(crate) fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (step_name(step) == name).then_some(step)
}

/// The path of a checkpoint while it is being replaced: `step-00000400.replaced`.
fn replaced(path: &Path) -> PathBuf {
    path.with_file_name(format!("{}{REPLACED}", name_of(path)))
}

const REPLACED: &str = ".replaced";

/// The name of a checkpoint while it is being removed: `.removing-step-00000400-1`.
fn removing(name: &str, number: u64) -> String {
    format!("{REMOVING}{name}-{number}")
}

const REMOVING: &str = ".removing-";

/// A temporary name of a checkpoint folder. Each variant holds the permanent name of the folder.
#[derive(Debug, PartialEq)]
enum Leftover<'a> {
    /// The checkpoint is incomplete.
    Unfinished(&'a str),
    /// A newer checkpoint replaces this one.
    Replaced(&'a str),
    /// The checkpoint is no longer kept.
    Removing(&'a str),
}

impl<'a> Leftover<'a> {
    fn of(temporary: &'a str) -> Option<Self> {
        if let Some(name) = is_unfinished(temporary) {
            return step_of(name).map(|_| Leftover::Unfinished(name));
        }
        if let Some(name) = temporary.strip_suffix(REPLACED) {
            return step_of(name).map(|_| Leftover::Replaced(name));
        }
        let (name, number) = temporary.strip_prefix(REMOVING)?.rsplit_once('-')?;
        let is_ours = number.parse().is_ok_and(|number| removing(name, number) == temporary);
        step_of(name).filter(|_| is_ours).map(|_| Leftover::Removing(name))
    }
}

/// Cleans up a folder that this process has locked: completes or undoes the work that a killed
/// process left unfinished, so that no temporary folder remains. Files that are not part of a
/// checkpoint are kept.
pub(crate) fn remove_leftovers(folder: &Path) -> Result<()> {
    for path in entries(folder)?.into_iter().filter(|path| is_folder(path)) {
        match Leftover::of(name_of(&path)) {
            Some(Leftover::Unfinished(name)) => remove_unfinished(&folder.join(name))?,
            Some(Leftover::Replaced(name)) => settle(&folder.join(name))?,
            Some(Leftover::Removing(name)) => finish_removal(&path, &folder.join(name))?,
            None => {}
        }
    }
    Ok(())
}

/// Removes the checkpoint of a step, if there is one. If its folder contains other files, they and
/// the folder are kept.
pub(crate) fn remove_step(folder: &Path, step: u64) -> Result<()> {
    let path = folder.join(step_name(step));
    if !is_folder(&path) || is_ours(&path, true).is_err() {
        return Ok(());
    }
    // A kill while its files are removed must not leave a damaged checkpoint.
    finish_removal(&move_aside(&path, removing)?, &path)
}

/// Removes the checkpoint `path`, which was renamed to `aside`. If other files remain, the folder
/// gets its name back.
fn finish_removal(aside: &Path, path: &Path) -> Result<()> {
    remove_files(aside)?;
    if is_folder(aside) && metadata(path)?.is_none() {
        rename(aside, path)?;
    }
    Ok(())
}

/// Removes the temporary folders that killed processes left behind while they wrote a checkpoint.
fn remove_unfinished(target: &Path) -> Result<()> {
    for (left, claim) in folders_left_unfinished(target)? {
        remove_files(&left)?;
        drop(claim);
    }
    Ok(())
}

/// Completes an interrupted replacement of a checkpoint, or undoes it if the new checkpoint has not
/// been moved into place.
fn settle(target: &Path) -> Result<()> {
    let before = replaced(target);
    if !is_folder(&before) || is_ours(&before, step_of(name_of(target)).is_some()).is_err() {
        return Ok(());
    }
    if metadata(target)?.is_none() {
        rename(&before, target)?;
        return Ok(sync(folder_of(target))?);
    }
    if !is_folder(target) {
        return Ok(());
    }
    keep_others(&before, target)?;
    remove_files(&before)
}

/// Removes the files of a checkpoint from a folder, and then the folder if it is empty.
fn remove_files(folder: &Path) -> Result<()> {
    let mut files = entries(folder).unwrap_or_default();
    files.retain(|path| is_rank_file(name_of(path)));
    files.extend(FILES.map(|name| folder.join(name)));
    for path in files.iter().filter(|path| is_file(path)) {
        remove_file(path)?;
    }
    Ok(remove_empty_folder(folder)?)
}

/// Whether a folder that lacks a readable manifest contains other files that only a checkpoint has.
fn holds_state(folder: &Path) -> bool {
    let is_of_checkpoint = |name: &str| [OPTIMIZER, STATE, HISTORY].contains(&name) || is_rank_file(name);
    entries(folder).unwrap_or_default().iter().any(|path| is_of_checkpoint(name_of(path)))
}

/// Whether this is the folder of a checkpoint, even a damaged one: it has a manifest, or it is
/// named after a step and has other files of a checkpoint.
pub(crate) fn is_checkpoint(folder: &Path) -> bool {
    let is_damaged = || step_of(name_of(folder)).is_some() && holds_state(folder);
    is_folder(folder) && (is_file(&folder.join(MANIFEST)) || is_damaged())
}

/// Returns an error unless `folder` is empty or a checkpoint of this crate. A folder whose manifest
/// is missing or cannot be parsed counts as a checkpoint only if `named` is true, which means that
/// the folder is named after a step.
fn is_ours(folder: &Path, named: bool) -> Result<()> {
    #[derive(Deserialize)]
    struct Head {
        format: String,
    }

    if !is_folder(folder) {
        return Err(in_file(folder, "this is not a checkpoint, so it is not replaced: choose another name"));
    }
    let path = folder.join(MANIFEST);
    if entries(folder)?.is_empty() {
        return Ok(());
    }
    let head = open(&path, Links::Refuse)
        .and_then(|(file, length)| read_start(&path, &file, length.min(MAX_MANIFEST_BYTES)))
        .map(|bytes| serde_json::from_slice::<Head>(&bytes));
    match head {
        Ok(Ok(head)) if head.format == FORMAT => Ok(()),
        Ok(Err(_)) if named => Ok(()),
        Err(_) if named && holds_state(folder) => Ok(()),
        _ => Err(in_file(
            folder,
            "this folder is not a checkpoint of this trainer, so it is not replaced: choose another name",
        )),
    }
}

/// The folder in which a checkpoint is written before it is moved into place. Dropping the value
/// without publishing it removes the written files.
#[derive(Debug)]
pub(crate) struct UnfinishedFolder {
    target: PathBuf,
    path: PathBuf,
    is_published: bool,
    /// While the claim is held, the folder does not count as a leftover of a killed process.
    _claim: Claim,
}

impl UnfinishedFolder {
    /// Creates the folder in which the checkpoint `target` is written.
    ///
    /// An existing `target` is replaced only if it is a checkpoint of this crate.
    pub(crate) fn create(target: &Path) -> Result<Self> {
        let parent = folder_of(target);
        if name_of(target).is_empty() {
            return Err(in_file(target, "expected a path that ends in a folder name, in UTF-8"));
        }
        create_folders(parent)?;
        let named = step_of(name_of(target)).is_some();
        let before = replaced(target);
        // Checked first, so that nothing is written for a target that must stay as it is.
        if metadata(target)?.is_some() {
            is_ours(target, named)?;
            if metadata(&before)?.is_some() {
                is_ours(&before, named)?;
            }
        }
        settle(target)?;
        remove_unfinished(target)?;
        let (path, claim) = create_unfinished_folder(target)?;
        Ok(UnfinishedFolder { target: target.to_owned(), path, is_published: false, _claim: claim })
    }

    /// The temporary path of the folder, at which the checkpoint is written.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Atomically replaces the checkpoint at the target with this one: a reader sees either the old
    /// one or the complete new one, even after an error or a crash. Other files in the old folder
    /// are kept.
    pub(crate) fn publish(mut self) -> Result<()> {
        let target = &self.target;
        let before = replaced(target);
        sync(&self.path)?;
        let is_replaced = metadata(target)?.is_some();
        if is_replaced {
            // One folder cannot replace another in a single step, so the old one is moved aside
            // first, under a name that is recognized when checkpoints are read.
            rename(target, &before)?;
        }
        if let Err(error) = rename(&self.path, target) {
            if is_replaced {
                let _ = rename(&before, target);
            }
            return Err(error.into());
        }
        self.is_published = true;
        sync(folder_of(target))?;
        if is_replaced {
            keep_others(&before, target)?;
            remove_files(&before)?;
        }
        Ok(())
    }
}

impl Drop for UnfinishedFolder {
    fn drop(&mut self) {
        if !self.is_published {
            let _ = remove_files(&self.path);
        }
    }
}

/// Moves the files that are not part of the checkpoint from its old folder to its new one. If a
/// name is taken there, adds a number.
fn keep_others(before: &Path, target: &Path) -> Result<()> {
    for from in entries(before)? {
        let Some(name) = from.file_name() else { continue };
        let mut to = target.join(name);
        let is_known = FILES.iter().any(|known| name == *known) || is_rank_file(name_of(&from));
        if is_known && is_file(&from) {
            continue;
        }
        if metadata(&to)?.is_some() {
            (to, _) = free_name(&to, |name, number| format!("{name}.before-{number}"))?;
        }
        rename(&from, &to)?;
    }
    Ok(())
}

/// The folder of a checkpoint: `path`, or its temporary name if a replacement was interrupted.
pub(crate) fn present(path: &Path) -> PathBuf {
    let before = replaced(path);
    if !path.exists() && is_folder(&before) { before } else { path.to_owned() }
}

/// The checkpoints in `folder`, even damaged ones, except unfinished ones and those that were
/// replaced or are being removed.
pub(crate) fn checkpoints_in(folder: &Path) -> Vec<PathBuf> {
    let mut found = entries(folder).unwrap_or_default();
    found.retain(|path| {
        let name = name_of(path);
        let is_replaced = name.strip_suffix(REPLACED).is_some_and(|new| is_folder(&path.with_file_name(new)));
        !name.starts_with('.') && !is_replaced && is_checkpoint(path)
    });
    found
}

#[cfg(test)]
mod tests {
    use super::{Leftover, is_rank_file, rank_file, step_of};

    #[test]
    fn only_names_that_this_crate_generates_are_recognized() {
        assert_eq!(rank_file(3, "json"), "rank-00003.json");
        for name in ["rank-00001.json", "rank-00001.safetensors", "rank-123456.json"] {
            assert!(is_rank_file(name), "{name}");
        }
        for name in ["rank-1.json", "rank-00001.txt", "rank-00001", "rank-.json", "rank-00001.json.bak"] {
            assert!(!is_rank_file(name), "{name}");
        }
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
        for (name, leftover) in [
            (".writing-step-00000400-17", Leftover::Unfinished("step-00000400")),
            ("step-00000400.replaced", Leftover::Replaced("step-00000400")),
            (".removing-step-00000400-1", Leftover::Removing("step-00000400")),
        ] {
            assert_eq!(Leftover::of(name), Some(leftover), "{name}");
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
            ".removing-",
            ".removing-step-00000400",
            ".removing-step-00000400-01",
            ".removing-best-1",
            "notes.txt.replaced",
            "step-00000400",
            ".replaced",
            "best.replaced",
            "step-400.replaced",
        ] {
            assert_eq!(Leftover::of(name), None, "{name}");
        }
    }
}
