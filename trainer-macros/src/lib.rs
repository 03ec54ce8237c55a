//! The macros of the `trainer` crate, which re-exports them. Do not depend on this crate directly.
//!
//! Each macro is a pipeline: it parses the tokens into a model, checks the model, collecting every
//! mistake, and only then expands it. After a mistake, `fallback` still emits the user's item,
//! without our attributes.

mod batch;
mod docs;
mod errors;
#[cfg(test)]
mod fuzz;
mod hook;
mod keys;
mod krate;
mod lifecycle;
mod lints;
mod migration;
mod moments;
#[cfg(test)]
mod names;
mod phases;

use proc_macro::TokenStream;

// Documented where `trainer` re-exports it.
#[allow(missing_docs)]
#[proc_macro_attribute]
pub fn hook(attribute: TokenStream, item: TokenStream) -> TokenStream {
    hook::expand(attribute.into(), &item.into()).into()
}

/// Marks the hooks of `trainer` itself, whose files import this as `hook`.
#[doc(hidden)]
#[proc_macro_attribute]
pub fn own_hook(attribute: TokenStream, item: TokenStream) -> TokenStream {
    hook::expand_as(attribute.into(), &item.into(), true).into()
}

// Documented where `trainer` re-exports it.
#[allow(missing_docs)]
#[proc_macro]
pub fn lifecycle(declaration: TokenStream) -> TokenStream {
    lifecycle::expand(declaration.into(), lifecycle::Origin::Custom).into()
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

/// Declares the trainer's built-in lifecycle, which custom lifecycles extend.
#[doc(hidden)]
#[proc_macro]
pub fn root_lifecycle(declaration: TokenStream) -> TokenStream {
    lifecycle::expand(declaration.into(), lifecycle::Origin::Builtin).into()
}

/// Expands to a string literal: one example with the code of all table cells of
/// `trainer::migration`.
#[doc(hidden)]
#[proc_macro]
pub fn migration_cells(_: TokenStream) -> TokenStream {
    migration::cells().into()
}

/// Expands to a string literal: the page of `trainer::migration` with the given module name.
#[doc(hidden)]
#[proc_macro]
pub fn migration_page(name: TokenStream) -> TokenStream {
    migration::page(&name.into()).into()
}

/// Expands to a slice of the given struct. Each value is one row of a table of points on the
/// migration pages.
#[doc(hidden)]
#[proc_macro]
pub fn migration_points(row: TokenStream) -> TokenStream {
    migration::table(&row.into()).into()
}
