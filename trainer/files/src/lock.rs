//! Locks of folders, and of files that are being written.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::{Result, create_folders, in_file, open_or_create};

/// The file that is locked while a trainer uses a folder.
const LOCK: &str = ".trainer-lock";

/// The lock of a folder, released when dropped.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    file: File,
}

impl Lock {
    /// Locks a folder. Creates the folder if it does not exist.
    pub fn acquire(folder: &Path) -> Result<Self> {
        create_folders(folder)?;
        let path = folder.join(LOCK);
        let (file, _) = open_or_create(&path)?;
        match file.file().try_lock() {
            Ok(()) => Ok(Lock { path, file: file.into_file() }),
            Err(TryLockError::WouldBlock) => {
                Err(in_file(folder, "the folder is locked by another trainer: give each run its own folder"))
            }
            Err(TryLockError::Error(error)) => Err(in_file(&path, error)),
        }
    }

    /// Whether the folder still contains the locked file; `false` if the folder was removed or
    /// replaced in the meantime. On platforms other than Unix, a replacement is not detected.
    #[must_use]
    pub fn is_held(&self) -> bool {
        is_at(&self.file, &self.path)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing the file is not enough: a child process that was forked and has not called `exec`
        // yet shares the open file, and with it the lock.
        let _ = self.file.unlock();
    }
}

/// Returns a string that identifies the lock file of a folder. The string differs between folders,
/// and is the same on all hosts that share the folder. Returns `None` if the metadata of the file
/// cannot be read.
#[must_use]
pub fn lock_identity(folder: &Path) -> Option<String> {
    let metadata = fs::symlink_metadata(folder.join(LOCK)).ok()?;
    let modified = metadata.modified().ok()?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    #[cfg(unix)]
    let number = std::os::unix::fs::MetadataExt::ino(&metadata);
    #[cfg(not(unix))]
    let number = 0;
    Some(format!("{} {number}", modified.as_nanos()))
}

/// The lock of a temporary file or folder, held by the process that writes it. A file or folder
/// whose lock is held is not a leftover of a killed process.
#[derive(Debug)]
pub struct Claim(File);

impl Claim {
    /// Claims a temporary file or folder. Returns `None` if another process is writing it, or if it
    /// was removed in the meantime. On a file system without locks, nothing counts as claimed.
    pub(super) fn of(path: &Path, file: File) -> Option<Self> {
        let is_free = !matches!(file.try_lock(), Err(TryLockError::WouldBlock));
        let claim = Claim(file);
        (is_free && is_at(&claim.0, path)).then_some(claim)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let _ = self.0.unlock(); // see `Lock`
    }
}

/// Whether the file at a path is this open file.
fn is_at(file: &File, path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let [own, at_path] = [file.metadata(), fs::symlink_metadata(path)]
            .map(|metadata| metadata.ok().map(|metadata| (metadata.dev(), metadata.ino())));
        own == at_path
    }
    #[cfg(not(unix))]
    {
        file.metadata().is_ok() && path.exists()
    }
}
