//! How the expansion names the `trainer` crate.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::Path;

/// `::trainer`, or what `crate = path` says.
pub(crate) struct Krate<'a>(Option<&'a Path>);

impl<'a> Krate<'a> {
    pub(crate) fn of(path: Option<&'a Path>) -> Self {
        Krate(path)
    }

    /// What comes before the first use: the user's own path, once.
    pub(crate) fn import(&self) -> Option<TokenStream> {
        self.0.map(|path| quote!(use #path as __trainer;))
    }

    /// Its path, reported as if it stood there: rustc points at a part of an expression only if all of it
    /// comes from one place.
    pub(crate) fn at(&self, span: Span) -> TokenStream {
        match self.0 {
            None => quote_spanned!(span=> ::trainer),
            Some(_) => Ident::new("__trainer", Span::call_site().located_at(span)).into_token_stream(),
        }
    }
}
