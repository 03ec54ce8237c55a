//! The model: its variables, named modules and gradients.

pub(crate) mod added;
pub(crate) mod finite;
pub(crate) mod grad_hook;
pub(crate) mod leaves;
pub mod losses;
pub mod modules;
pub(crate) mod norms;
pub(crate) mod vars;
