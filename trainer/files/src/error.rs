//! [`Error`]: what went wrong, and with which file.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A `Result` whose error type defaults to [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error that concerns a file or folder.
///
/// `Display` already includes the message of the problem, so `source()` skips the problem and
/// returns its source instead.
#[derive(Debug)]
#[non_exhaustive]
pub struct Error {
    /// The file or folder.
    pub path: PathBuf,
    /// The problem: a [`io::Error`] if the operating system reported it.
    pub source: BoxError,
}

impl Error {
    /// Whether the file or folder does not exist.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        self.is(ErrorKind::NotFound)
    }

    /// Whether a file could not be created because its path exists.
    #[must_use]
    pub fn is_present(&self) -> bool {
        self.is(ErrorKind::AlreadyExists)
    }

    fn is(&self, kind: ErrorKind) -> bool {
        self.source.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == kind)
    }
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
