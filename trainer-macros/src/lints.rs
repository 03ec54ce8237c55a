//! The lints that an expansion allows. It allows only those that the user's item needs, because
//! `#![forbid(…)]` in the user's crate would reject any other `allow`. The code that the macro adds
//! needs none, because rustc does not report lints for tokens that are not the user's.

use proc_macro2::{TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::Attribute;

/// Returns the `#[allow(…)]`s of an item. The expansion needs them too, because it repeats the
/// names in the item. Adds `#[allow(deprecated)]` if the item is deprecated.
pub(crate) fn allowed(attributes: &[Attribute]) -> TokenStream {
    let deprecated = is_deprecated(attributes).then(|| quote!(#[allow(deprecated)]));
    let allowed = attributes.iter().filter(|attribute| attribute.path().is_ident("allow"));
    quote!(#deprecated #(#allowed)*)
}

/// Returns whether an item has the attribute `deprecated`, directly or in a `cfg_attr`.
pub(crate) fn is_deprecated(attributes: &[Attribute]) -> bool {
    let mut streams: Vec<TokenStream> =
        attributes.iter().map(|attribute| attribute.meta.to_token_stream()).collect();
    while let Some(stream) = streams.pop() {
        for token in stream {
            match token {
                TokenTree::Ident(word) if word == "deprecated" => return true,
                TokenTree::Group(group) => streams.push(group.stream()),
                _ => {}
            }
        }
    }
    false
}
