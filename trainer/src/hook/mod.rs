//! Hooks: their definition, discovery, order, dispatch table and description.

pub(crate) mod check;
pub(crate) mod constraint;
pub(crate) mod definition;
pub(crate) mod describe;
pub(crate) mod discovery;
pub(crate) mod instance;
pub(crate) mod order;
pub(crate) mod read;
pub(crate) mod selected;
pub(crate) mod set;
pub mod stages;
pub(crate) mod table;

pub use describe::{HookRow, HookTable};
pub use discovery::Discover;
