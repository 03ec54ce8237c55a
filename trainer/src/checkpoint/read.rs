//! Reading and verifying the files of a checkpoint.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tch::Tensor;

use super::files::{AVERAGES, HISTORY, MANIFEST, MODEL, OPTIMIZER, STATE};
use super::folder::newest_first;
use super::journal::Journal;
use super::manifest::Manifest;
use super::tensors;
use crate::error::Result;
use crate::io::files::in_file;
use crate::log::history::History;

/// Returns the newest undamaged checkpoint in a folder, by the progress of its run; `None` if there
/// is none.
#[must_use]
pub fn newest(folder: impl AsRef<Path>) -> Option<PathBuf> {
    newest_first(folder.as_ref()).into_iter().find(|candidate| verify(candidate).is_ok())
}

/// Checks that no file of a checkpoint was changed or damaged.
///
/// # Errors
///
/// Returns an error that names the first file that is missing, changed or damaged.
pub fn verify(folder: impl AsRef<Path>) -> Result<()> {
    let folder = folder.as_ref();
    let manifest = Manifest::load(folder)?;
    load_journal(folder, &manifest)?;
    load_tensors(folder, &manifest).map(drop)
}

/// The recorded digest of a file.
fn digest_of<'a>(folder: &Path, manifest: &'a Manifest, name: &str) -> Result<&'a tensors::FileDigest> {
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

/// Returns the tensors of the model, of the optimizers and of the remaining state, and the
/// averages, which are empty if the checkpoint has none.
pub(crate) fn load_tensors(folder: &Path, manifest: &Manifest) -> Result<[BTreeMap<String, Tensor>; 4]> {
    let load = |name| tensors::load_own(&folder.join(name), digest_of(folder, manifest, name)?);
    let averages = if manifest.files.contains_key(AVERAGES) { load(AVERAGES)? } else { BTreeMap::new() };
    Ok([load(MODEL)?, load(OPTIMIZER)?, load(STATE)?, averages])
}
