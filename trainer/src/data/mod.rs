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
pub(crate) mod rows;

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

/// Makes a struct a [`Batch`](trait@Batch): each of its fields is one.
///
/// ```
/// use trainer::prelude::*;
///
/// #[derive(Batch)]
/// struct Sentences {
///     tokens: Tensor,
///     mask: Option<Tensor>,
///     #[batch(skip)]
///     source: std::path::PathBuf,
/// }
/// # fn main() {}
/// ```
///
/// - The first field that knows how many samples there are says so for all.
/// - Every field moves to the device, and messages show each by its name: `Sentences { tokens: Int64 [8, 40], mask: [] }`.
/// - **`#[batch(skip)]`** leaves a field alone, and out of messages: it need only be `Send`.
/// - A type parameter that a field holds must be a batch.
/// - **`#[batch(crate = my_framework::trainer)]`**, on the struct, is for a crate that reaches `trainer` by another path.
///
/// An enum is no batch by itself: implement the trait for it.
pub use trainer_macros::Batch;
/// Makes a struct, all of whose fields are [`Rows`](trait@Rows), data that [`InMemory`] cuts batches of the same type out of.
///
/// ```
/// use trainer::prelude::*;
///
/// #[derive(Batch, Rows)]
/// struct Pairs {
///     left: Tensor,
///     right: Tensor,
///     same: Tensor,
/// }
///
/// let zeros = |size: &[i64]| Tensor::zeros(size, (Kind::Float, Device::Cpu));
/// let pairs = Pairs { left: zeros(&[100, 8]), right: zeros(&[100, 8]), same: zeros(&[100]) };
/// let mut train = InMemory::new(pairs)?.batch_size(32);
/// let batch: Pairs = train.batches(0, 0)?.next().expect("there are four batches")?;
/// assert_eq!(batch.right.size(), [32, 8]);
/// # Ok::<(), trainer::Error>(())
/// ```
pub use trainer_macros::Rows;
