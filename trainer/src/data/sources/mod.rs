//! Data sets of files, and mixtures of data sets.

#[cfg(any(feature = "parquet", feature = "tar"))]
mod cache;
#[cfg(feature = "csv")]
mod csv;
mod foreign;
#[cfg(feature = "image")]
mod images;
mod mixture;
mod npy;
#[cfg(feature = "parquet")]
mod parquet;
#[cfg(feature = "parquet")]
mod parquet_row;
#[cfg(any(feature = "parquet", feature = "tar"))]
mod shards;
#[cfg(feature = "tar")]
mod tar;
mod tokens;

#[cfg(feature = "csv")]
pub use csv::{CsvReader, CsvRows, read_csv};
#[cfg(feature = "image")]
pub use images::{ImageFolder, decode_image, decode_image_up_to};
pub use mixture::Mixture;
#[cfg(feature = "parquet")]
pub use parquet::Parquet;
#[cfg(any(feature = "parquet", feature = "tar"))]
pub use shards::Shards;
#[cfg(feature = "tar")]
pub use tar::{Sample, Tar};
pub use tokens::{TokenFile, TokenRows};
