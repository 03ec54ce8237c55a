//! `lifecycle!`: one declaration, from which the points, their types, names, docs and what exists
//! at them are generated.

mod docs;
mod existence;
mod expand;
mod flatten;
mod parse;

pub(crate) use expand::Whose;
pub(crate) use flatten::{pascal, snake};
use proc_macro2::TokenStream;
use quote::quote;

use crate::errors::Errors;
use crate::krate::Krate;

pub(crate) fn expand(declaration: TokenStream, whose: Whose) -> TokenStream {
    let mut errors = Errors::default();
    let parsed = errors.keep(syn::parse2::<parse::Declaration>(declaration));
    let named = parsed.filter(|declaration| {
        let example = "lifecycle! { crate = my_framework::trainer; … }";
        Krate::check(declaration.krate.as_ref(), example, &mut errors)
    });
    let expanded = named.map(|declaration| expand::expand(&declaration, whose, &mut errors));
    // After a mistake too, so that what speaks of the names goes on compiling.
    let report = errors.finish().err();
    quote!(#expanded #report)
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
                quote!(#[doc = " x"] point setup in train counts samples;),
                "expected `counts batches`, `counts steps` or `counts epochs`",
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
