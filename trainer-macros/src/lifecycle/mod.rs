//! `lifecycle!`: one declaration, from which the points, their types, names, docs and what exists
//! at them are generated.

mod docs;
mod existence;
mod expand;
mod flatten;
mod parse;

pub(crate) use expand::Whose;
pub(crate) use flatten::{pascal, snake};
use proc_macro2::{Group, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::Path;

use crate::errors::Errors;

pub(crate) fn expand(declaration: TokenStream, whose: Whose) -> TokenStream {
    let mut errors = Errors::default();
    let parsed = errors.keep(syn::parse2::<parse::Declaration>(declaration));
    let expanded = parsed.map(|declaration| {
        let expanded = expand::expand(&declaration, whose, &mut errors);
        match &declaration.krate {
            None => expanded,
            Some(path) => at(path, expanded),
        }
    });
    // After a mistake too, so that what speaks of the names goes on compiling.
    let report = errors.finish().err();
    quote!(#expanded #report)
}

/// The same with the trainer crate at this path.
fn at(path: &Path, tokens: TokenStream) -> TokenStream {
    let mut renamed = Vec::new();
    for token in tokens {
        renamed.push(match token {
            TokenTree::Group(group) => {
                let mut inside = Group::new(group.delimiter(), at(path, group.stream()));
                inside.set_span(group.span());
                inside.into()
            }
            TokenTree::Ident(word) if word == "trainer" && ends_in_colons(&renamed) => {
                renamed.truncate(renamed.len() - 2);
                renamed.extend(path.to_token_stream());
                continue;
            }
            token => token,
        });
    }
    renamed.into_iter().collect()
}

/// Words that come before a path and are not part of it.
const BEFORE_PATHS: [&str; 9] = ["as", "dyn", "for", "impl", "in", "mut", "static", "use", "where"];

/// `::`, at the start of a path.
fn ends_in_colons(tokens: &[TokenTree]) -> bool {
    let is_colon = |token: &TokenTree| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ':');
    match tokens {
        [before @ .., one, other] if is_colon(one) && is_colon(other) => match before.last() {
            Some(TokenTree::Ident(word)) => BEFORE_PATHS.contains(&&*word.to_string()),
            _ => true,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages of a declaration, one after the other.
    fn messages(declaration: TokenStream) -> String {
        let text = expand(declaration, Whose::Trainers).to_string();
        let said = text.split("compile_error ! (").skip(1).filter_map(|rest| rest.split('"').nth(1));
        said.collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn mistakes_of_a_declaration_are_told() {
        let cases = [
            (quote!(operation fit in train;), "expected a doc comment"),
            (quote!(#[doc = " x"] point setup;), "expected `in <phase> | …`"),
            (
                quote!(#[doc = " x"] point setup in train counts batches;),
                "expected `counts steps` or `counts epochs`",
            ),
            (
                quote!(#[doc = " x"] operation fit in train { again vaild; }),
                "no operation `vaild` is declared here",
            ),
            (
                quote!(#[doc = " x"] point a in train; #[doc = " y"] exists loss: HasLoss from a to b;),
                "no point or operation `b` is declared here",
            ),
            (quote!(#[doc = " x"] moment a in train;), "expected one of"),
        ];
        for (declaration, expected) in cases {
            let told = messages(declaration.clone());
            assert!(told.contains(expected), "{declaration}: {told}");
        }
    }

    #[test]
    fn what_comes_and_goes_has_three_ways_of_not_being_there() {
        let expanded = expand(
            quote! {
                #[doc = " One batch."]
                operation step in train {
                    #[doc = " The loss."]
                    operation loss;
                }
                #[doc = " Elsewhere."]
                point teardown in train;
                #[doc = " The loss."]
                exists loss: HasLoss from after_loss to after_step;
            },
            Whose::Trainers,
        )
        .to_string();
        for (trait_name, marker, is) in [
            ("HasLoss", "AfterLoss", true),
            ("LossBegun", "BeforeStep", false),
            ("LossWithin", "BeforeStep", true),
            ("LossKept", "BeforeStep", true),
            ("LossWithin", "Teardown", false),
            ("LossBegun", "Teardown", true),
        ] {
            assert_eq!(
                expanded.contains(&format!("impl {trait_name} for {marker} ")),
                is,
                "{trait_name} for {marker}"
            );
        }
    }
}
