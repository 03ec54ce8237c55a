//! `lifecycle!`: one declaration, from which the points, their types, names, docs and what exists
//! at them are generated.

mod expand;
mod parse;

pub(crate) use expand::pascal;
use proc_macro2::TokenStream;

use crate::errors::Errors;

pub(crate) fn expand(declaration: TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let parsed = errors.keep(syn::parse2::<parse::Declaration>(declaration));
    let expanded = parsed.map(|declaration| expand::expand(&declaration, &mut errors));
    errors.finish().map_or_else(|report| report, |()| expanded.unwrap_or_default())
}
