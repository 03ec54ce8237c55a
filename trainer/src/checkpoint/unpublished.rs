//! A checkpoint whose files are complete on rank 0, before it is moved into place.

use super::files::UnfinishedFolder;
use super::manifest::Manifest;
use super::rank::RankState;
use crate::error::Result;

/// A checkpoint that lacks only its manifest, and possibly files of other ranks. Dropping it
/// removes its files.
#[derive(Debug)]
pub(crate) struct Unpublished {
    pub(crate) folder: UnfinishedFolder,
    pub(crate) manifest: Manifest,
}

impl Unpublished {
    /// Checks that the files of the other ranks belong to this save, writes the manifest, and moves
    /// the checkpoint into place.
    ///
    /// # Errors
    ///
    /// Returns an error if a rank's JSON file, which the rank writes last, is missing or belongs to
    /// a different save; the error names the rank. Also returns an error if a file cannot be
    /// written.
    pub(crate) fn publish(self) -> Result<()> {
        let Unpublished { folder, manifest } = self;
        if let Some(saved_by) = &manifest.saved_by {
            (1..saved_by.ranks)
                .try_for_each(|rank| RankState::load(folder.path(), rank, saved_by).map(drop))?;
        }
        manifest.write(folder.path())?;
        folder.publish()
    }
}
