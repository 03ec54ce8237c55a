//! Pages of the documentation.

pub mod guide;
pub mod language;
pub mod migration;
