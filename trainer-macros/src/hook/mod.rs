//! `#[hook]`: parse → check → expand, or on a mistake the user's item and every message.

mod arguments;
mod check;
mod expand;
mod fallback;
mod foreign;
mod krate;
mod parse;

use proc_macro2::{Span, TokenStream};
use quote::quote;

use crate::errors::Errors;
use arguments::Arguments;
use check::Checked;
use krate::Krate;
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
                let (names, keys) = (fallback::names(&checked), keys(&checked, &arguments));
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
    let trainer = Krate::of(arguments).at(Span::call_site());
    quote! {
        #[allow(unexpected_cfgs)]
        const _: () = {
            #[cfg(rust_analyzer)]
            const _: () = { #(use #trainer::language::#keys as _;)* };
        };
    }
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use proc_macro2::TokenTree;

    use super::*;

    fn tokens(text: &str) -> TokenStream {
        TokenStream::from_str(text).unwrap()
    }

    const ITEMS: &[&str] = &[
        "fn after_step(cx: &mut Cx<AfterStep>) -> Result<()> { cx. }",
        "#[hook(ord = 3)] pub(crate) async unsafe extern \"C\" fn x<T: A, 'a>(self, a: impl B, ...) where T: C;",
        "impl<T: A> X<T> where T: B { const C: u8 = 3; #[hook(after_step, only(train))] fn y(&mut self, cx: Cx<Z>) {} }",
        "impl A for B { fn after_step(&self, cx: &mut trainer::Cx<AfterStep>) {} type C = D; e!(); }",
        "pub struct X { a: u8 }",
    ];
    const ATTRIBUTES: &[&str] = &[
        "",
        "after_step, ord = -3 * 2, only(train, valid), every = 10",
        "ord = \"10\", order, = 3,, every()",
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

    #[test]
    fn tokens_left_out_doubled_and_swapped_never_panic() {
        // Knuth's MMIX generator: the same changes each time.
        let mut state = 1_u64;
        let mut below = |end: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).unwrap() % end.max(1)
        };
        for round in 0..4_000 {
            let mut item: Vec<TokenTree> = flat(tokens(ITEMS[round % ITEMS.len()]));
            let mut attribute: Vec<TokenTree> = flat(tokens(ATTRIBUTES[below(ATTRIBUTES.len())]));
            for list in [&mut item, &mut attribute] {
                for _ in 0..1 + below(3) {
                    let (one, other) = (below(list.len()), below(list.len()));
                    match below(3) {
                        _ if list.is_empty() => {}
                        0 => drop(list.remove(one)),
                        1 => list.insert(other, list[one].clone()),
                        _ => list.swap(one, other),
                    }
                }
            }
            expand(attribute.into_iter().collect(), &item.into_iter().collect());
        }
    }

    fn flat(stream: TokenStream) -> Vec<TokenTree> {
        stream.into_iter().collect()
    }
}
