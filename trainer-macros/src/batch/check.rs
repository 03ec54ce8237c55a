//! Checks a parsed item. Mistakes in `#[batch(…)]` are reported during parsing; rustc checks that
//! the field types are batches.

use super::Derived;
use super::parse::{Item, Kind};
use crate::errors::Errors;

pub(super) fn check(item: &Item, derived: Derived, errors: &mut Errors) {
    // The message is the same for both traits, because rustc drops the second of two equal errors.
    match item.kind {
        Kind::Enum(word) => errors.push(
            word,
            "`Batch` and `Rows` can only be derived for structs: for an enum, implement the traits by hand",
        ),
        Kind::Union(word) => errors.push(
            word,
            "`Batch` and `Rows` can only be derived for structs: the active field of a union is unknown",
        ),
        Kind::Struct if item.fields.is_empty() => errors.push(
            item.name.span(),
            "a batch needs at least one field: for a task without data, use `()` as the batch",
        ),
        Kind::Struct if item.parts().next().is_none() && derived == Derived::Batch => errors.push(
            item.name.span(),
            "`#[batch(skip)]` skips every field: a batch needs at least one field without `skip`",
        ),
        Kind::Struct => {}
    }
    if let Some(borrowed) = item.generics.lifetimes().next() {
        errors.push(
            borrowed.lifetime.span(),
            "a batch cannot borrow, because it may be built on one thread and used on another: own the data",
        );
    }
    if derived == Derived::Rows {
        for skip in item.fields.iter().filter_map(|field| field.skip) {
            errors.push(
                skip,
                "`#[batch(skip)]` cannot be combined with `#[derive(Rows)]`, which slices every field: remove one of them",
            );
        }
    }
}
