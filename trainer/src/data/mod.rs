//! Batches, and the loaders that yield them.
//!
//! - [`InMemory`] splits tensors in memory into batches.
//! - [`DataLoader`] forms batches of the rows of a [`Dataset`], which are produced on demand,
//!   optionally on several threads. The rows can be grouped by their
//!   [lengths](DataLoader::by_length) or [packed](DataLoader::pack).
//! - [`TokenFile`], `Shards` (features `tar` and `parquet`), `ImageFolder` (feature `image`) and
//!   `read_csv` (feature `csv`) read data sets from files, and [`Mixture`] combines data sets.
//!   Every data set has [`map`](Dataset::map), [`random_split`](Dataset::random_split),
//!   [`folds`](Dataset::folds), [`weighted`](Dataset::weighted) and
//!   [`balanced`](Dataset::balanced). [`augment`] changes images at random.
//! - [`from_fn`] takes batches from an iterator, such as a stream.
//! - [`NamedLoaders`] combines several validation or test loaders, each with a name.
//!
//! [`prefetch`](Loader::prefetch) runs any single loader on a background thread.

mod adapters;
pub mod augment;
pub(crate) mod batch;
mod batch_sampler;
mod by_length;
mod collate;
mod data_loader;
mod dataset;
mod fingerprint;
mod from_fn;
mod in_memory;
mod loader;
mod named;
mod notes;
mod prefetch;
mod prefetch_pool;
mod rng;
pub(crate) mod rows;
mod sequence;
mod share;
mod sources;

pub use adapters::{Map, Subset, Weighted};
pub use batch::Batch;
pub(crate) use batch::change_tensors;
pub use by_length::{Buckets, ByLength, Grouping, Packing};
pub use collate::{Collate, pad, pad_mask};
pub use data_loader::DataLoader;
pub use dataset::Dataset;
pub use fingerprint::Fingerprinted;
pub(crate) use fingerprint::{UNKNOWN_CONTENT, is_same};
pub use from_fn::{FromFn, IntoBatch, from_fn, from_fn_per_rank};
pub use in_memory::InMemory;
pub use loader::{Batches, Loader, NamedLoader};
pub use named::NamedLoaders;
pub(crate) use named::not_one_loader;
pub use notes::PassNotes;
pub use prefetch::Prefetch;
/// The version of rand whose traits [`RowRng`] implements.
pub use rand;
pub use rng::RowRng;
pub use rows::Rows;
pub use sequence::{IGNORED, Sequence, Sequences};
pub use share::{PerRank, Sliced};
#[cfg(feature = "parquet")]
pub use sources::Parquet;
#[cfg(any(feature = "parquet", feature = "tar"))]
pub use sources::Shards;
#[cfg(feature = "csv")]
pub use sources::{CsvReader, CsvRows, read_csv};
#[cfg(feature = "image")]
pub use sources::{ImageFolder, decode_image, decode_image_up_to};
pub use sources::{Mixture, TokenFile, TokenRows};
#[cfg(feature = "tar")]
pub use sources::{Sample, Tar};

/// Derives [`Batch`](trait@Batch) for a struct whose fields are all batches.
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
/// - The number of samples is taken from the first field that has samples.
/// - All fields are moved to the device, and messages show each by name:
///   `Sentences { tokens: Int64 [8, 40], mask: [] }`.
/// - **`#[batch(skip)]`** ignores a field: it is neither moved nor shown, and only needs to be
///   `Send`.
/// - A type parameter used as the type of a field must implement `Batch`.
/// - **`#[batch(crate = my_framework::trainer)]`** on the struct sets the path of `trainer`, for a
///   crate that does not depend on it directly.
///
/// The macro does not support enums: implement the trait by hand.
pub use trainer_macros::Batch;
/// Derives [`Rows`](trait@Rows) for a struct whose fields all implement it, so that [`InMemory`]
/// can split it into batches of the same type.
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
