//! Collects mistakes, so that one expansion reports all of them.

use proc_macro2::{Ident, Span, TokenStream};
use quote::quote_spanned;
use syn::ext::IdentExt;
use syn::spanned::Spanned;

/// The mistakes found so far, which [`Errors::finish`] converts to the tokens that report them.
#[derive(Default)]
pub(crate) struct Errors(Vec<(Span, String)>);

impl Errors {
    pub(crate) fn push(&mut self, at: Span, message: impl Into<String>) {
        self.0.push((at, message.into()));
    }

    /// Reports `message` at `found` if it is present, because it is not allowed there.
    pub(crate) fn refuse(&mut self, found: &Option<impl Spanned>, message: &str) {
        if let Some(found) = found {
            self.push(found.span(), message);
        }
    }

    /// Runs `check` and returns whether it added no errors.
    pub(crate) fn none_in(&mut self, check: impl FnOnce(&mut Self)) -> bool {
        let before = self.0.len();
        check(self);
        self.0.len() == before
    }

    /// Adds every message of a `syn` error, each at its own span.
    pub(crate) fn push_syn(&mut self, error: &syn::Error) {
        for one in error {
            self.push(one.span(), one.to_string());
        }
    }

    /// Reports a user's name that could clash with a name in the expansion.
    pub(crate) fn reserved(&mut self, name: &Ident) {
        if name.unraw().to_string().starts_with("__") {
            self.push(
                name.span(),
                "names that start with two underscores are reserved for the code that macros generate: rename this",
            );
        }
    }

    /// Returns the value of a result, or records its error.
    pub(crate) fn keep<T>(&mut self, result: syn::Result<T>) -> Option<T> {
        result.map_err(|error| self.push_syn(&error)).ok()
    }

    /// Returns `Ok` if there were no mistakes, and otherwise the tokens that report them.
    ///
    /// Each message is in its own constant: an item-level `compile_error!` would hide rustc's name
    /// errors in the same module.
    pub(crate) fn finish(self) -> Result<(), TokenStream> {
        if self.0.is_empty() {
            return Ok(());
        }
        Err(self
            .0
            .into_iter()
            .map(|(at, message)| quote_spanned!(at=> const _: () = ::core::compile_error!(#message);))
            .collect())
    }
}
