//! A checkpoint whose files are complete on rank 0, before it takes its place.

use super::files::UnfinishedFolder;
use super::manifest::Manifest;
use super::rank::RankState;
use crate::error::Result;

/// A checkpoint that lacks only its manifest, and maybe the files of other ranks. Dropping it
/// removes its files.
#[derive(Debug)]
pub(crate) struct Unpublished {
    pub(crate) folder: UnfinishedFolder,
    pub(crate) manifest: Manifest,
}

impl Unpublished {
    /// Checks that the files of the other ranks belong to this save, writes the manifest, and moves
    /// the checkpoint into its place.
    ///
    /// # Errors
    ///
    /// Returns an error that names the rank if the text of a rank is missing, which is the last of
    /// its files, or if a file cannot be written.
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
