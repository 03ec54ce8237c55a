//! File operations, formats of files and terminal output.

pub(crate) mod format;
pub(crate) mod tensor_format;
pub(crate) mod terminal;

/// The package `trainer-files`, with the error of this crate.
pub(crate) mod files {
    use std::path::Path;

    pub(crate) use trainer_files::*;

    use crate::error::{BoxError, Error};

    /// Adds the path of a file to an error.
    pub(crate) fn in_file(path: &Path, error: impl Into<BoxError>) -> Error {
        Error::in_file(path, error)
    }
}
