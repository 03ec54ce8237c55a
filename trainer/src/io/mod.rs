//! File operations and terminal output.

pub(crate) mod files;
pub(crate) mod tensor_format;
pub(crate) mod terminal;
