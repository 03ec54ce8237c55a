//! [`Error`]: why a run cannot be read.

use std::io;
use std::path::{Path, PathBuf};

/// An error that occurs when the folder of a run is read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder cannot be read.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The reason.
        #[source]
        error: io::Error,
    },
    /// The content of a file is invalid.
    #[error("{}: {why}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The problem.
        why: String,
    },
}

impl Error {
    pub(crate) fn io(path: &Path, error: io::Error) -> Self {
        Error::Io { path: path.to_owned(), error }
    }

    pub(crate) fn content(path: &Path, why: impl Into<String>) -> Self {
        Error::Content { path: path.to_owned(), why: why.into() }
    }

    /// Returns the file or folder that cannot be read.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Error::Io { path, .. } | Error::Content { path, .. } => path,
        }
    }

    /// Returns what is wrong with the file or folder, without its path.
    #[must_use]
    pub fn why(&self) -> String {
        match self {
            Error::Io { error, .. } => error.to_string(),
            Error::Content { why, .. } => why.clone(),
        }
    }
}
