//! Derived batches for every form of struct, including one whose module shadows names that the
//! expansion uses.

#![deny(rust_2018_idioms, unsafe_code, missing_docs, unused_qualifications, deprecated)]

use std::collections::BTreeMap;
use std::marker::PhantomData;

use trainer::data::{Batch, Rows};
use trainer::tch::Tensor;

mod reexported {
    pub(crate) use ::trainer as training;
}

/// Names that the expansion must not refer to.
mod shadowed {
    #![allow(dead_code, non_camel_case_types, non_upper_case_globals)]

    struct Option;
    struct Some;
    struct None;
    struct String;
    struct Result;
    struct Send;
    struct u64;
    struct i64;
    const device: u8 = 0;
    const text: u8 = 0;
    mod trainer {}
    mod core {}
    mod std {}

    #[derive(::trainer::data::Batch, ::trainer::data::Rows)]
    struct Shadowed<T> {
        text: ::trainer::tch::Tensor,
        device: T,
    }
}

/// Named fields, one of them raw, one deprecated.
#[derive(Batch, Rows)]
#[batch(crate = reexported::training)]
pub struct Named {
    /// A field with a raw identifier.
    pub r#type: Tensor,
    /// A deprecated field.
    #[deprecated]
    pub old: Tensor,
    /// Nested batches.
    pub others: BTreeMap<String, (Tensor, [Tensor; 2])>,
}

/// Unnamed fields.
#[derive(Batch)]
pub struct Unnamed(Tensor, #[batch(skip)] pub std::path::PathBuf, Option<Named>);

/// A source of items.
pub trait Source {
    /// The type of the items.
    type Item;
}

/// Type parameters that are fields, projections and phantom data.
#[derive(Batch)]
pub struct Generic<T: Default, S: Source, U: Source = (), M = u8, const N: usize = 2>
where
    S::Item: Clone,
{
    /// A field.
    pub held: [T; N],
    /// A projection.
    pub taken: Vec<S::Item>,
    /// A projection with its trait.
    pub by_path: <U as Source>::Item,
    /// Phantom data.
    #[batch(skip)]
    pub named: PhantomData<M>,
}

impl Source for () {
    type Item = Tensor;
}

/// Not a batch itself, but a source of batches.
pub struct Words;

impl Source for Words {
    type Item = String;
}

fn is_batch<B: Batch>() {}

fn main() {
    is_batch::<Named>();
    is_batch::<Unnamed>();
    is_batch::<Generic<f64, Words, (), Words, 3>>();
}
