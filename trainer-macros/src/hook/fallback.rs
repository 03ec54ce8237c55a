//! What is left after a mistake: the user's item, so that nothing else breaks because of it.

use proc_macro2::TokenStream;
use quote::quote;

use super::check::Checked;
use super::krate::Krate;
use crate::errors::Errors;

/// An item that cannot be parsed goes back as it is: rustc says what is wrong with it, and better.
pub(super) fn outline(tokens: &TokenStream, errors: Errors) -> TokenStream {
    // rustc's parser reads the same tokens; if it accepts them, ours has to say why it does not.
    if syn::parse2::<syn::Item>(tokens.clone()).is_err() {
        return tokens.clone();
    }
    let report = errors.finish().err();
    quote!(#tokens #report)
}

/// The names of the points, so that rustc checks them even though nothing is registered.
pub(super) fn names(checked: &Checked<'_>, krate: &Krate<'_>) -> TokenStream {
    let names = checked.hooks().iter().map(|hook| &hook.moment);
    let import = krate.import();
    quote!(const _: () = { #import #(const _: ::core::marker::PhantomData<#names> = ::core::marker::PhantomData;)* };)
}
