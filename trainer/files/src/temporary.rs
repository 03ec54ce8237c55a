//! [`TemporaryFolder`]: a folder for the temporary files of tests.

use std::path::{Path, PathBuf};
use std::{env, fs, io, process};

use crate::change::try_create_folder;

/// A new folder for temporary files, removed with everything in it when dropped.
#[derive(Debug)]
pub struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    /// Creates a folder `<name>-<process>-<number>` in the folder for temporary files.
    pub fn create(name: &str) -> io::Result<Self> {
        let mut number = 0_u64;
        loop {
            let path = env::temp_dir().join(format!("{name}-{}-{number}", process::id()));
            match try_create_folder(&path) {
                Ok(()) => return Ok(TemporaryFolder(path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
