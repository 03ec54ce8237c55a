//! The macros of the `trainer` crate; use them from there.
//!
//! Each macro is a pipeline: tokens are parsed into a model, the model is checked with every
//! mistake collected, and only then expanded. A mistake of the user's never takes the user's own
//! item away: `fallback` hands it back without our attributes.

mod errors;
#[cfg(test)]
mod fuzz;
mod hook;
mod lifecycle;

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

/// The trainer's own lifecycle, which the others hang from.
#[doc(hidden)]
#[proc_macro]
pub fn root_lifecycle(declaration: TokenStream) -> TokenStream {
    lifecycle::expand(declaration.into(), lifecycle::Whose::Trainers).into()
}
