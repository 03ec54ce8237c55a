//! [`Rows`]: data that can be split into batches.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hash};

use tch::{Device, Tensor};

use super::batch::Batch;
use crate::error::{Error, Result};

/// Data that consists of rows, and can be split into batches: tensors, along their first dimension,
/// and tuples, arrays, `Vec`s and maps of data with the same number of rows. Derive the trait for a
/// struct.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be split into batches",
    note = "tensors can be split, and so can tuples, arrays, `Vec`, `HashMap` and `BTreeMap` of them; for a struct of these, `#[derive(Batch, Rows)]`"
)]
pub trait Rows: Batch + Sized {
    /// Returns the number of rows.
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - there are no tensors;
    /// - the tensors do not all have the same number of rows;
    /// - a tensor has no dimensions.
    fn rows(&self) -> Result<i64>;

    /// Returns a copy of `count` rows, starting with row `start`.
    #[must_use]
    fn slice(&self, start: i64, count: i64) -> Self;

    /// Returns a copy of the rows with these indices, a one-dimensional `Int64` tensor.
    #[must_use]
    fn select(&self, indices: &Tensor) -> Self;
}

impl Rows for Tensor {
    fn rows(&self) -> Result<i64> {
        match self.size().first() {
            Some(rows) => Ok(*rows),
            None => Err(Error::usage(
                "a tensor without dimensions cannot be split into batches: expected at least one dimension",
            )),
        }
    }

    fn slice(&self, start: i64, count: i64) -> Self {
        self.narrow(0, start, count).copy()
    }

    fn select(&self, indices: &Tensor) -> Self {
        // Only a copy to a GPU may return before it has ended; the selection is queued after it.
        let is_async = matches!(self.device(), Device::Cuda(_));
        self.index_select(0, &indices.to_device_(self.device(), indices.kind(), is_async, false))
    }
}

/// Returns the number of rows, which must be the same in all parts.
///
/// # Errors
///
/// Returns an error if the parts do not all have the same number of rows, if there are no parts, or
/// if a count is an error.
pub fn common_row_count(counts: impl IntoIterator<Item = Result<i64>>) -> Result<i64> {
    let counts = counts.into_iter().collect::<Result<Vec<_>>>()?;
    match counts.first() {
        None => Err(Error::usage("the data contains no tensor to split into batches: expected at least one")),
        Some(first) if counts.iter().all(|count| count == first) => Ok(*first),
        Some(_) => {
            let listed: Vec<_> = counts.iter().map(ToString::to_string).collect();
            Err(Error::usage(format!(
                "the tensors of the data have different numbers of rows, {}: expected the same number in all",
                listed.join(", ")
            )))
        }
    }
}

impl<R: Rows> Rows for Vec<R> {
    fn rows(&self) -> Result<i64> {
        common_row_count(self.iter().map(Rows::rows))
    }

    fn slice(&self, start: i64, count: i64) -> Self {
        self.iter().map(|part| part.slice(start, count)).collect()
    }

    fn select(&self, indices: &Tensor) -> Self {
        self.iter().map(|part| part.select(indices)).collect()
    }
}

impl<R: Rows, const N: usize> Rows for [R; N] {
    fn rows(&self) -> Result<i64> {
        common_row_count(self.iter().map(Rows::rows))
    }

    fn slice(&self, start: i64, count: i64) -> Self {
        self.each_ref().map(|part| part.slice(start, count))
    }

    fn select(&self, indices: &Tensor) -> Self {
        self.each_ref().map(|part| part.select(indices))
    }
}

macro_rules! maps {
    ($(impl<$($generic:ident),+> $map:ty where { $($bound:tt)* })+) => {$(
        impl<$($generic),+> Rows for $map where $($bound)* {
            fn rows(&self) -> Result<i64> {
                common_row_count(self.values().map(Rows::rows))
            }

            fn slice(&self, start: i64, count: i64) -> Self {
                self.iter().map(|(key, part)| (key.clone(), part.slice(start, count))).collect()
            }

            fn select(&self, indices: &Tensor) -> Self {
                self.iter().map(|(key, part)| (key.clone(), part.select(indices))).collect()
            }
        }
    )+};
}

maps! {
    impl<K, R> BTreeMap<K, R> where { K: Ord + Clone + Send + 'static, R: Rows }
    impl<K, R, S> HashMap<K, R, S> where {
        K: Ord + Hash + Clone + Send + 'static, R: Rows, S: BuildHasher + Default + Send + 'static
    }
}

macro_rules! tuples {
    ($(($($part:ident)+))+) => {$(
        #[allow(non_snake_case)]
        impl<$($part: Rows),+> Rows for ($($part,)+) {
            fn rows(&self) -> Result<i64> {
                let ($($part,)+) = self;
                common_row_count([$($part.rows()),+])
            }

            fn slice(&self, start: i64, count: i64) -> Self {
                let ($($part,)+) = self;
                ($($part.slice(start, count),)+)
            }

            fn select(&self, indices: &Tensor) -> Self {
                let ($($part,)+) = self;
                ($($part.select(indices),)+)
            }
        }
    )+};
}

tuples! { (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) (A B C D E F G) (A B C D E F G H) }
