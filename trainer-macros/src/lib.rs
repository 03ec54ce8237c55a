//! The macros of the `trainer` crate; use them from there.
//!
//! Each macro is a pipeline: tokens are parsed into a model, the model is checked with every
//! mistake collected, and only then expanded. A mistake of the user's never takes the user's own
//! item away: `fallback` hands it back without our attributes.

mod batch;
mod errors;
#[cfg(test)]
mod fuzz;
mod hook;
mod keys;
mod krate;
mod lifecycle;
mod migration;
mod phases;

use proc_macro::TokenStream;

// Documented where `trainer` re-exports it.
#[allow(missing_docs)]
#[proc_macro_attribute]
pub fn hook(attribute: TokenStream, item: TokenStream) -> TokenStream {
    hook::expand(attribute.into(), &item.into()).into()
}

// Documented where `trainer` re-exports it.
#[allow(missing_docs)]
#[proc_macro]
pub fn lifecycle(declaration: TokenStream) -> TokenStream {
    lifecycle::expand(declaration.into(), lifecycle::Whose::Own).into()
}

// Documented where `trainer` re-exports it.
#[allow(missing_docs)]
#[proc_macro_derive(Batch, attributes(batch))]
pub fn batch(item: TokenStream) -> TokenStream {
    batch::expand(batch::Derived::Batch, item.into()).into()
}

// Documented where `trainer` re-exports it.
#[allow(missing_docs)]
#[proc_macro_derive(Rows, attributes(batch))]
pub fn rows(item: TokenStream) -> TokenStream {
    batch::expand(batch::Derived::Rows, item.into()).into()
}

/// The trainer's own lifecycle, which the others hang from.
#[doc(hidden)]
#[proc_macro]
pub fn root_lifecycle(declaration: TokenStream) -> TokenStream {
    lifecycle::expand(declaration.into(), lifecycle::Whose::Trainers).into()
}

/// The code in the cells of all pages of `trainer::migration` as one example, as a string.
#[doc(hidden)]
#[proc_macro]
pub fn migration_cells(_: TokenStream) -> TokenStream {
    migration::cells().into()
}

/// A page of `trainer::migration`, by the name of its module, as a string.
#[doc(hidden)]
#[proc_macro]
pub fn migration_page(name: TokenStream) -> TokenStream {
    migration::page(&name.into()).into()
}

/// The tables of points of all these pages: a slice of the struct that is named.
#[doc(hidden)]
#[proc_macro]
pub fn migration_points(row: TokenStream) -> TokenStream {
    migration::table(&row.into()).into()
}
