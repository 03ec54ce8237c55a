//! [`CheckpointFolder`]: the checkpoints of one run, each in a folder named after its step.

use std::cmp::Reverse;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::files;
use super::manifest::Progress;
use super::read::is_exact;
use crate::error::Result;
use crate::io::files::{Lock, name_of};

/// A folder of checkpoints that is locked for one trainer: for example, `runs/first` with the
/// checkpoint `step-00000400`.
///
/// [`hooks::Checkpoint`](crate::hooks::Checkpoint) uses it, and so can a hook with a custom policy
/// for keeping checkpoints. A `CheckpointFolder` removes only the files of checkpoints, in folders
/// with names such as `step-00000400` or with the temporary names of checkpoints that are being
/// written (`.writing-step-00000400-1`), replaced (`step-00000400.replaced`) or removed
/// (`.removing-step-00000400-1`), and then the empty folders. It follows no links.
///
/// ```
/// use trainer::checkpoint::CheckpointFolder;
///
/// # let path = std::env::temp_dir().join(format!("trainer-folder-{}", std::process::id()));
/// let folder = CheckpointFolder::lock(&path)?;
/// assert!(folder.steps().is_empty());
/// assert!(folder.step(400).ends_with("step-00000400")); // for `Cx::save_checkpoint`
/// # drop(folder);
/// # std::fs::remove_dir_all(path)?;
/// # Ok::<(), trainer::Error>(())
/// ```
#[derive(Debug)]
pub struct CheckpointFolder {
    path: PathBuf,
    lock: Lock,
}

impl CheckpointFolder {
    /// Creates the folder if it does not exist, and locks it until the value is dropped. If a
    /// killed process has left unfinished work in the folder, completes or undoes the work, so that
    /// no temporary folder remains.
    ///
    /// # Errors
    ///
    /// Returns an error if another trainer, in this process or another, has locked the folder, or
    /// if the folder cannot be written.
    pub fn lock(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let lock = Lock::acquire(&path)?;
        files::remove_leftovers(&path)?;
        Ok(CheckpointFolder { path, lock })
    }

    /// Locks the folder again if it was removed or replaced since it was locked.
    ///
    /// # Errors
    ///
    /// Returns an error for the same reasons as [`lock`](CheckpointFolder::lock).
    pub fn relock(&mut self) -> Result<()> {
        if !self.lock.is_held() {
            self.lock = Lock::acquire(&self.path)?;
        }
        Ok(())
    }

    /// The path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder name of the checkpoint written after `step` training batches: `step-00000400`.
    #[must_use]
    pub fn name(step: u64) -> String {
        files::step_name(step)
    }

    /// The path of the checkpoint written after `step` training batches:
    /// `runs/first/step-00000400`.
    #[must_use]
    pub fn step(&self, step: u64) -> PathBuf {
        self.path.join(Self::name(step))
    }

    /// The step of the checkpoint at `path`; `None` unless [`step`](CheckpointFolder::step) returns
    /// `path` for some step.
    #[must_use]
    pub fn step_of(&self, path: &Path) -> Option<u64> {
        let name = path.file_name()?.to_str()?;
        (path.parent() == Some(&self.path)).then(|| files::step_of(name)).flatten()
    }

    /// The steps of the checkpoints in this folder, newest first. Checkpoints whose manifest is
    /// missing or cannot be read come before all others.
    #[must_use]
    pub fn steps(&self) -> Vec<u64> {
        newest_first(&self.path).iter().filter_map(|path| self.step_of(path)).collect()
    }

    /// Whether a run can resume exactly from the checkpoint of this step. It cannot if the
    /// checkpoint was written after an error in the middle of a step, for example, or if its
    /// manifest is damaged.
    #[must_use]
    pub fn is_exact(&self, step: u64) -> bool {
        is_exact(&self.step(step))
    }

    /// Removes the checkpoint of this step, if there is one. Files in its folder that are not part
    /// of a checkpoint are kept. If the process is killed meanwhile,
    /// [`lock`](CheckpointFolder::lock) removes what is left.
    ///
    /// # Errors
    ///
    /// Returns an error if a file cannot be removed.
    pub fn remove(&self, step: u64) -> Result<()> {
        files::remove_step(&self.path, step)
    }
}

/// The checkpoints in a folder, newest first, ordered by the progress of their run rather than by
/// time. Those whose manifest cannot be read come before all others, so that a resume tries them
/// first and reports the damage.
pub(crate) fn newest_first(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<_> =
        files::checkpoints_in(folder).into_iter().map(|path| (progress_of(&path), path)).collect();
    found.sort_by_cached_key(|(progress, path)| Reverse((*progress, path.clone())));
    found.into_iter().map(|(_, path)| path).collect()
}

/// The progress of the run that wrote a checkpoint; if the manifest cannot be read, an estimate
/// from the name and the modification time of the folder.
fn progress_of(path: &Path) -> Progress {
    Progress::load(path).unwrap_or_else(|| {
        let modified = fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
        let since = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        Progress::of_damaged(files::step_of(name_of(path)).unwrap_or_default(), since)
    })
}
