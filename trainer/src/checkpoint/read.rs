//! Reading and verifying the files of a checkpoint.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::files::{AVERAGES, HISTORY, MANIFEST, MODEL, OPTIMIZER, STATE, present};
use super::folder::newest_first;
use super::journal::Journal;
use super::manifest::Manifest;
use super::rank::RankState;
use super::tensors::{FileDigest, TensorFile};
use crate::distributed::Share;
use crate::error::Result;
use crate::io::files::in_file;
use crate::log::history::History;

/// Returns the newest undamaged checkpoint in a folder, by the progress of its run; `None` if there
/// is none. To also lock the folder, keep checkpoints in it or remove them, use
/// [`CheckpointFolder`](super::CheckpointFolder).
#[must_use]
pub fn newest(folder: impl AsRef<Path>) -> Option<PathBuf> {
    newest_first(folder.as_ref()).into_iter().find(|candidate| verify(candidate).is_ok())
}

/// Whether a run can resume exactly from this checkpoint, according to its manifest. Returns
/// `false` if the manifest cannot be read.
pub(crate) fn is_exact(folder: &Path) -> bool {
    Manifest::load(&present(folder)).is_ok_and(|manifest| manifest.inexact.is_empty())
}

/// Checks that no file of a checkpoint was changed or damaged.
///
/// # Errors
///
/// Returns an error that names the first file that is missing, changed or damaged.
pub fn verify(folder: impl AsRef<Path>) -> Result<()> {
    verify_share(folder.as_ref(), Share { rank: 0, of: 1 })
}

/// Checks the manifest of a checkpoint, and one rank's share of the other files.
pub(crate) fn verify_share(folder: &Path, share: Share) -> Result<()> {
    let manifest = Manifest::load(folder)?;
    let mut nth = 0;
    let mut is_own = || {
        nth += 1;
        (nth - 1) % share.of == share.rank
    };
    if is_own() {
        Journal::verified(folder, digest_of(folder, &manifest, HISTORY)?)?;
    }
    for name in tensor_files(&manifest) {
        if is_own() {
            open_file(folder, &manifest, name)?;
        }
    }
    let Some(saved_by) = &manifest.saved_by else { return Ok(()) };
    for rank in 1..saved_by.ranks {
        if is_own() {
            RankState::load(folder, rank, saved_by)?.load_tensors(folder)?;
        }
    }
    Ok(())
}

/// The recorded digest of a file.
fn digest_of<'a>(folder: &Path, manifest: &'a Manifest, name: &str) -> Result<&'a FileDigest> {
    let digest = manifest.files.get(name);
    digest.ok_or_else(|| {
        in_file(
            &folder.join(MANIFEST),
            format!("its field `files` has no `{name}`: the file was changed or damaged; restore it, or use another checkpoint"),
        )
    })
}

pub(crate) fn load_journal(folder: &Path, manifest: &Manifest) -> Result<(Journal, History)> {
    Journal::load(folder, digest_of(folder, manifest, HISTORY)?)
}

/// The names of the tensor files that rank 0 has written.
fn tensor_files(manifest: &Manifest) -> impl Iterator<Item = &'static str> {
    let averages = manifest.files.contains_key(AVERAGES).then_some(AVERAGES);
    [MODEL, OPTIMIZER, STATE].into_iter().chain(averages)
}

fn open_file(folder: &Path, manifest: &Manifest, name: &str) -> Result<TensorFile> {
    TensorFile::open(&folder.join(name), digest_of(folder, manifest, name)?)
}

/// Returns the verified files with tensors that rank 0 has written, by name.
pub(crate) fn open_files(folder: &Path, manifest: &Manifest) -> Result<BTreeMap<&'static str, TensorFile>> {
    tensor_files(manifest).map(|name| Ok((name, open_file(folder, manifest, name)?))).collect()
}
