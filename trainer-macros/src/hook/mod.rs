//! `#[hook]`: parse → check → expand, or on a mistake the user's item and every message.

mod arguments;
mod check;
mod expand;
mod fallback;
mod foreign;
mod parse;

use proc_macro2::TokenStream;
use quote::quote;

use crate::errors::Errors;
use arguments::Arguments;
use parse::Item;

pub(crate) fn expand(attribute: TokenStream, tokens: &TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let arguments = Arguments::parse(attribute, &mut errors);
    let parsed = Item::parse(tokens.clone(), &mut errors);
    let Some(item) = errors.keep(parsed) else {
        return fallback::outline(tokens, errors);
    };
    let checked = check::check(&item, &arguments, &mut errors);
    match errors.finish() {
        Ok(()) => {
            let registration = expand::expand(&checked);
            quote!(#item #registration)
        }
        // Within an impl block there is no place beside the method for what we have to say.
        Err(report) => match &item {
            Item::Function(method) if method.signature.receiver().is_some() => method.reporting(&report),
            _ => {
                let names = fallback::names(&checked);
                quote!(#item #names #report)
            }
        },
    }
}
