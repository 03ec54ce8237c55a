//! [`Collate`]: combining rows into a batch.

use tch::{Kind, Tensor};

use super::batch::Batch;
use crate::error::{Error, Result};

/// A row that can be combined with others into a batch.
///
/// | rows | batch |
/// |---|---|
/// | tensors of the same shape and dtype | a tensor with one more dimension, the first |
/// | numbers and `bool` | a tensor `[rows]` |
/// | `Vec` and arrays of numbers, all of the same length | a tensor `[rows, length]` |
/// | [`Sequence`](super::Sequence)s | [`Sequences`](super::Sequences), padded to the longest |
/// | `String` | `Vec<String>` |
/// | tuples of these | tuples |
///
/// Implement the trait for other types of rows:
///
/// ```
/// use trainer::data::{Collate, pad};
/// use trainer::prelude::*;
///
/// struct Recording {
///     samples: Vec<f32>,
///     speaker: i64,
/// }
///
/// impl Collate for Recording {
///     type Batch = (Tensor, Tensor);
///
///     fn collate(rows: Vec<Self>) -> Result<(Tensor, Tensor)> {
///         let speakers: Vec<i64> = rows.iter().map(|row| row.speaker).collect();
///         let samples: Vec<Vec<f32>> = rows.into_iter().map(|row| row.samples).collect();
///         Ok((pad(&samples, 0.0)?, Tensor::from_slice(&speakers)))
///     }
/// }
/// # let recording = |n| Recording { samples: vec![1.0; n], speaker: 1 };
/// # assert_eq!(Recording::collate(vec![recording(3), recording(5)])?.0.size(), [2, 5]);
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias("collate_fn", "default_collate"))]
#[diagnostic::on_unimplemented(
    message = "rows of type `{Self}` cannot be made into a batch",
    note = "rows can be tensors, numbers, strings, `Vec` and arrays of numbers, and tuples of these; implement `Collate` for another \
            type, or turn the rows into one of these with `.map(…)`"
)]
pub trait Collate: Sized + Send + 'static {
    /// The type of the batch.
    type Batch: Batch;

    /// Combines one or more rows into a batch.
    ///
    /// # Errors
    ///
    /// Returns an error if the rows cannot be combined into one batch.
    fn collate(rows: Vec<Self>) -> Result<Self::Batch>;
}

impl Collate for Tensor {
    type Batch = Tensor;

    fn collate(rows: Vec<Tensor>) -> Result<Tensor> {
        let of = |row: &Tensor| (row.kind(), row.size());
        if let Some(other) = rows.iter().find(|row| of(row) != of(&rows[0])) {
            let text = |row: &Tensor| format!("{:?} {:?}", row.kind(), row.size());
            return Err(Error::usage(format!(
                "the rows of a batch are tensors of different shapes or dtypes, {} and {}: make them equal in `Dataset::row` or \
                 with `.map(…)`, or implement `Collate` for a row of another type, for example with `data::pad`",
                text(&rows[0]),
                text(other)
            )));
        }
        Ok(Tensor::f_stack(&rows, 0)?)
    }
}

impl Collate for String {
    type Batch = Vec<String>;

    fn collate(rows: Vec<String>) -> Result<Vec<String>> {
        Ok(rows)
    }
}

macro_rules! numbers {
    ($($number:ty),+) => {$(
        impl Collate for $number {
            type Batch = Tensor;

            fn collate(rows: Vec<$number>) -> Result<Tensor> {
                Ok(Tensor::f_from_slice(&rows)?)
            }
        }

        impl Collate for Vec<$number> {
            type Batch = Tensor;

            fn collate(rows: Vec<Vec<$number>>) -> Result<Tensor> {
                let length = rows.first().map_or(0, Vec::len);
                if let Some(other) = rows.iter().find(|row| row.len() != length) {
                    return Err(Error::usage(format!(
                        "the rows of a batch have different lengths, {length} and {}: make them equal in `Dataset::row` or with \
                         `.map(…)`, or implement `Collate` for a row of another type, for example with `data::pad`",
                        other.len()
                    )));
                }
                let count = rows.len();
                Ok(Tensor::f_from_slice(&rows.concat())?.f_view([count as i64, length as i64])?)
            }
        }

        impl<const N: usize> Collate for [$number; N] {
            type Batch = Tensor;

            fn collate(rows: Vec<[$number; N]>) -> Result<Tensor> {
                Ok(Tensor::f_from_slice(rows.as_flattened())?.f_view([rows.len() as i64, N as i64])?)
            }
        }
    )+};
}

numbers!(bool, i8, i16, i32, i64, u8, f32, f64);

macro_rules! tuples {
    ($(($($part:ident)+))+) => {$(
        #[allow(non_snake_case)]
        impl<$($part: Collate),+> Collate for ($($part,)+) {
            type Batch = ($($part::Batch,)+);

            fn collate(rows: Vec<Self>) -> Result<Self::Batch> {
                let count = rows.len();
                $(let mut $part = Vec::with_capacity(count);)+
                for row in rows {
                    tuples!(@push row ($($part)+));
                }
                Ok(($($part::collate($part)?,)+))
            }
        }
    )+};
    (@push $row:ident ($($part:ident)+)) => {
        tuples!(@each $row ($($part)+) (0 1 2 3 4 5 6 7))
    };
    (@each $row:ident ($part:ident $($rest:ident)*) ($at:tt $($further:tt)*)) => {
        $part.push($row.$at);
        tuples!(@each $row ($($rest)*) ($($further)*))
    };
    (@each $row:ident () ($($at:tt)*)) => {};
}

tuples! { (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) (A B C D E F G) (A B C D E F G H) }

/// Returns the rows as a tensor `[rows, longest]`, with `padding` after the end of shorter rows.
///
/// ```
/// # use tch::Tensor;
/// let padded = trainer::data::pad(&[vec![1_i64, 2, 3], vec![4]], 0)?;
/// assert_eq!(padded, Tensor::from_slice2(&[[1_i64, 2, 3], [4, 0, 0]]));
/// # Ok::<(), trainer::Error>(())
/// ```
///
/// # Errors
///
/// Returns an error if libtorch cannot allocate the tensor.
#[doc(alias = "pad_sequence")]
pub fn pad<T: tch::kind::Element + Copy>(rows: &[impl AsRef<[T]>], padding: T) -> Result<Tensor> {
    let longest = rows.iter().map(|row| row.as_ref().len()).max().unwrap_or(0);
    let mut values = Vec::with_capacity(rows.len() * longest);
    for row in rows {
        values.extend_from_slice(row.as_ref());
        values.resize(values.len() + longest - row.as_ref().len(), padding);
    }
    Ok(Tensor::f_from_slice(&values)?.f_view([rows.len() as i64, longest as i64])?)
}

/// Returns a mask `[rows, longest]` for rows of these lengths: true for the values of the rows,
/// false for the padding that [`pad`] adds.
pub fn pad_mask(lengths: &[usize]) -> Tensor {
    let longest = lengths.iter().max().map_or(0, |longest| *longest as i64);
    let lengths: Vec<i64> = lengths.iter().map(|length| *length as i64).collect();
    let positions = Tensor::arange(longest, (Kind::Int64, tch::Device::Cpu));
    positions.unsqueeze(0).less_tensor(&Tensor::from_slice(&lengths).unsqueeze(1))
}
