//! Files, and lines on a terminal.

pub(crate) mod files;
pub(crate) mod tensor_format;
pub(crate) mod terminal;
