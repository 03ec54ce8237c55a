//! The expansion after a mistake: the user's item, so that code that uses it still compiles.

use proc_macro2::{Span, TokenStream};
use quote::quote;

use super::check::Checked;
use super::expand::bounded;
use crate::errors::Errors;
use crate::krate::Krate;

/// Returns the tokens of an item that could not be parsed, and the report of its errors. If the
/// tokens have a syntax error, only rustc reports it, because its message is better than ours.
pub(super) fn outline(tokens: &TokenStream, errors: Errors) -> TokenStream {
    // If the full parser accepts the tokens, rustc will too, and our own error is the only report.
    if syn::parse2::<syn::Item>(tokens.clone()).is_err() {
        return tokens.clone();
    }
    let report = errors.finish().err();
    quote!(#tokens #report)
}

/// Expands to uses of the moments that were probably meant as written, so that rustc resolves their
/// paths although nothing is registered.
///
/// The type of a block with a mistake still implements `Hooks`, so that code that uses it as a hook
/// compiles.
pub(super) fn names(checked: &Checked<'_>, krate: &Krate<'_>) -> TokenStream {
    let names = checked.hooks().iter().filter(|hook| hook.is_clear()).map(|hook| &hook.moment);
    let hooks = match checked {
        Checked::Block(block, _) if block.can_be_hooks() => {
            let generics = bounded(block);
            let (generics, _, clause) = generics.split_for_impl();
            let trainer = krate.at(Span::call_site());
            let self_type = &block.self_type;
            Some(quote! {
                #[diagnostic::do_not_recommend]
                impl #generics #trainer::__private::Hooks for #self_type #clause {
                    const HOOKS: &'static [#trainer::__private::HookDef] = &[];
                }
            })
        }
        _ => None,
    };
    let import = krate.import();
    quote!(const _: () = { #import #(const _: ::core::marker::PhantomData<#names> = ::core::marker::PhantomData;)* #hooks };)
}
