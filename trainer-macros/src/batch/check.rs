//! Every mistake that can be seen from the tokens alone. Whether the type of a field is a batch is rustc's to check.

use super::Derived;
use super::parse::{Item, Kind};
use crate::errors::Errors;

pub(super) fn check(item: &Item, derived: Derived, errors: &mut Errors) {
    let name = derived.name();
    match item.kind {
        Kind::Enum(word) => errors.push(
            word,
            format!("`#[derive({name})]` goes on a struct: the fields of an enum differ from variant to variant, so that only you can implement `{name}` for it"),
        ),
        Kind::Union(word) => errors.push(
            word,
            format!("`#[derive({name})]` goes on a struct: nobody knows which field of a union is there"),
        ),
        Kind::Struct if item.fields.is_empty() => errors.push(
            item.name.span(),
            "a batch has a field with data; where a step needs none, its batch is `()`",
        ),
        Kind::Struct if item.parts().next().is_none() && derived == Derived::Batch => errors.push(
            item.name.span(),
            "every field is left alone by `#[batch(skip)]`, and no data remains: a batch has a field with some",
        ),
        Kind::Struct => {}
    }
    if let Some(borrowed) = item.generics.lifetimes().next() {
        errors.push(
            borrowed.lifetime.span(),
            "a batch may be made on one thread and used on another, so that its type cannot borrow: let it own its data",
        );
    }
    if derived == Derived::Rows {
        for skip in item.fields.iter().filter_map(|field| field.skip) {
            errors.push(
                skip,
                "`#[derive(Rows)]` cuts batches out of every field, so that none can be left alone",
            );
        }
    }
}
