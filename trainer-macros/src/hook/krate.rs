//! How the expansion names the `trainer` crate.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens, quote_spanned};
use syn::Path;

use super::arguments::Arguments;

/// `::trainer`, or what `crate = path` says.
pub(super) struct Krate<'a>(Option<&'a Path>);

impl<'a> Krate<'a> {
    pub(super) fn of(arguments: &'a Arguments) -> Self {
        Krate(arguments.krate.as_ref())
    }

    /// Its path, reported as if it stood there: rustc points at a part of an expression only if all of it
    /// comes from one place.
    pub(super) fn at(&self, span: Span) -> TokenStream {
        let here = |mut token: TokenTree| {
            token.set_span(span.resolved_at(token.span()));
            token
        };
        match self.0 {
            None => quote_spanned!(span=> ::trainer),
            Some(path) => path.to_token_stream().into_iter().map(here).collect(),
        }
    }
}
