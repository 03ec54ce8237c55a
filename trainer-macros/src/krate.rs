//! The path by which an expansion refers to the `trainer` crate.

use proc_macro_crate::{Error, FoundCrate, crate_name};
use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};

use crate::errors::Errors;

/// The name of the crate's package.
const PACKAGE: &str = "trainer";

/// The path of the `trainer` crate: the user's `crate = path`, or the name of the dependency.
pub(crate) enum Krate<'a> {
    Path(&'a syn::Path),
    Dependency(String),
}

impl<'a> Krate<'a> {
    pub(crate) fn of(path: Option<&'a syn::Path>) -> Self {
        match path {
            Some(path) => Krate::Path(path),
            None => Krate::Dependency(dependency().unwrap_or_else(|| PACKAGE.to_owned())),
        }
    }

    /// Returns whether `trainer` can be named, by `crate = path` or as a dependency. Otherwise,
    /// reports an error that shows `example` as the way to write `crate = path`.
    pub(crate) fn check(path: Option<&syn::Path>, example: &str, errors: &mut Errors) -> bool {
        let found = path.is_some() || dependency().is_some();
        if !found {
            errors.push(
                Span::call_site(),
                format!(
                    "this package does not depend on the `trainer` crate: add the dependency, or name a re-export, `{example}`"
                ),
            );
        }
        found
    }

    /// If the user gave a path, returns the import with which the expansion starts, so that the
    /// path occurs only once. The import names an item that only `trainer` has. If the path leads
    /// to a different crate, rustc therefore reports only that mistake.
    pub(crate) fn import(&self) -> Option<TokenStream> {
        match self {
            Krate::Path(path) => {
                let last = path.segments.last().map_or_else(Span::call_site, |last| last.ident.span());
                let private = Ident::new("__private", Span::call_site().located_at(last));
                Some(quote!(use #path::#private::trainer as __trainer;))
            }
            Krate::Dependency(_) => None,
        }
    }

    /// Returns the path, located at `span`. rustc points at a part of an expression only if all
    /// tokens of that part have the same location.
    pub(crate) fn at(&self, span: Span) -> TokenStream {
        match self {
            Krate::Path(_) => Ident::new("__trainer", Span::call_site().located_at(span)).into_token_stream(),
            Krate::Dependency(name) => {
                let name = Ident::new(name, span);
                quote_spanned!(span=> ::#name)
            }
        }
    }
}

/// Returns the name under which the package being compiled depends on `trainer`, or `None` if its
/// manifest lists no such dependency. In the package `trainer` itself, which is an `extern crate
/// self as trainer`, and if there is no manifest to read, as under other build systems, returns
/// this crate's own name.
fn dependency() -> Option<String> {
    // In a unit test, the environment describes this package itself.
    if !proc_macro::is_available() {
        return Some(PACKAGE.to_owned());
    }
    match crate_name(PACKAGE) {
        Ok(FoundCrate::Name(name)) => Some(name),
        Err(Error::CrateNotFound { .. }) => None,
        Ok(FoundCrate::Itself) | Err(_) => Some(PACKAGE.to_owned()),
    }
}
