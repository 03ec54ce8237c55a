//! Hooks: their definition, discovery, order, dispatch table, calls and description.
//!
//! All of this is generic over the state of a [loop](call::Loop), and knows no trainer.

pub(crate) mod call;
pub(crate) mod check;
pub(crate) mod constraint;
pub(crate) mod definition;
pub(crate) mod describe;
pub(crate) mod discovery;
pub(crate) mod frame;
pub(crate) mod instance;
pub(crate) mod order;
pub(crate) mod read;
pub(crate) mod selected;
pub(crate) mod selection;
pub(crate) mod set;
pub mod stages;
pub(crate) mod table;
#[cfg(test)]
mod tests;

pub use describe::{HookRow, HookTable};
pub use discovery::Discover;
