//! `#[hook]`: parse → check → expand, or on a mistake the user's item and every message.

mod arguments;
mod check;
mod expand;
mod fallback;
mod foreign;
mod parse;
mod signature;

use proc_macro2::{Span, TokenStream};
use quote::quote;

use crate::errors::Errors;
use crate::krate::Krate;
use arguments::Arguments;
use check::Checked;
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
            let registration = expand::expand(&checked, &arguments);
            quote!(#item #registration)
        }
        // Within an impl block there is no place beside the method for what we have to say.
        Err(report) => match &item {
            Item::Function(method) if method.signature.receiver().is_some() => method.reporting(&report),
            _ => {
                let (names, keys) = (
                    fallback::names(&checked, &Krate::of(arguments.krate.as_ref())),
                    keys(&checked, &arguments),
                );
                quote!(#item #names #keys #report)
            }
        },
    }
}

/// The keys as paths, so that an editor completes them and shows what they mean. rustc never sees it: whether a
/// key exists is said with better words.
fn keys(checked: &Checked<'_>, arguments: &Arguments) -> TokenStream {
    let of_methods = checked.hooks().iter().map(|hook| hook.arguments);
    let mut keys: Vec<_> = [arguments].into_iter().chain(of_methods).flat_map(|it| &it.keys).collect();
    keys.retain(|key| *key != "crate");
    if keys.is_empty() {
        return TokenStream::new();
    }
    let krate = Krate::of(arguments.krate.as_ref());
    let (trainer, import) = (krate.at(Span::call_site()), krate.import());
    quote! {
        #[allow(unexpected_cfgs)]
        const _: () = {
            #[cfg(rust_analyzer)]
            const _: () = { #import #(use #trainer::language::#keys as _;)* };
        };
    }
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use super::*;

    fn tokens(text: &str) -> TokenStream {
        TokenStream::from_str(text).unwrap()
    }

    const ATTRIBUTES: &[&str] = &[
        "",
        "ord =",
        "after_step, ord = -3",
        "ord = \"10\", order, = 3,, every()",
        "around = , after()",
        "a::b::c",
    ];

    #[test]
    fn a_half_typed_item_survives_and_nothing_panics() {
        for item in
            ["", "fn", "fn after_step", "pub", "impl", "impl X", "impl X { fn }", "# [doc]", "fn x() -> {}"]
        {
            for attribute in ATTRIBUTES {
                let expanded = expand(tokens(attribute), &tokens(item)).to_string();
                assert!(expanded.contains(&tokens(item).to_string()), "`{item}` became `{expanded}`");
            }
        }
    }
}
