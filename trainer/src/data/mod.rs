//! Batches, and the loaders that yield them.

mod batch;
mod loader;
mod rows;

pub use batch::Batch;
pub use loader::{Batches, FromFn, InMemory, IntoBatch, Loader, from_fn};
pub use rows::Rows;
