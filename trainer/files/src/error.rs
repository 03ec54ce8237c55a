//! [`Error`]: what went wrong, and with which file.

use std::fmt;
use std::path::{Path, PathBuf};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A `Result` whose error type defaults to [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error that concerns a file or folder.
///
/// `Display` already includes the message of the problem, so `source()` skips the problem and returns
/// its source instead.
#[derive(Debug)]
#[non_exhaustive]
pub struct Error {
    /// The file or folder.
    pub path: PathBuf,
    /// The problem: a [`std::io::Error`] if the operating system reported it.
    pub source: BoxError,
}

/// Adds the path of a file to an error.
pub fn in_file(path: &Path, error: impl Into<BoxError>) -> Error {
    Error { path: path.to_owned(), source: error.into() }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX_BYTES: usize = 2000;
        let mut text = format!("{}: {}", self.path.display(), self.source);
        if text.len() > MAX_BYTES {
            text.truncate(text.floor_char_boundary(MAX_BYTES));
            text.push('…');
        }
        f.write_str(&text)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.source()
    }
}
