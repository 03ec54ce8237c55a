//! Batches, and the loaders that yield them.
//!
//! Tensors that fit into memory go into [`InMemory`]; samples that are made when they are asked for are a [`Dataset`], which
//! a [`DataLoader`] makes on several threads; a stream, or anything else that iterates, goes through [`from_fn`].
//! [`prefetch`](Loader::prefetch) puts any of them on a thread of its own.

mod ahead;
mod batch;
mod cut;
mod data_loader;
mod dataset;
mod from_fn;
mod in_memory;
mod loader;
mod prefetch;
mod rng;
mod rows;

pub use batch::Batch;
pub use data_loader::DataLoader;
pub use dataset::Dataset;
pub use from_fn::{FromFn, IntoBatch, from_fn};
pub use in_memory::InMemory;
pub use loader::{Batches, Loader};
pub use prefetch::Prefetch;
/// The version of rand that this crate is built on: what a [`BatchRng`] is used with.
pub use rand;
pub use rng::BatchRng;
pub use rows::Rows;
