//! `lifecycle!`: generates the types, names and docs of moments from one declaration, and defines
//! what exists at each moment.

mod availability;
mod docs;
mod expand;
mod flatten;
mod parse;

pub(crate) use flatten::Origin;
pub(crate) use flatten::{pascal, snake};
use proc_macro2::TokenStream;
use quote::quote;

use crate::errors::Errors;
use crate::krate::Krate;

pub(crate) fn expand(declaration: TokenStream, origin: Origin) -> TokenStream {
    let mut errors = Errors::default();
    let parsed = errors.keep(syn::parse2::<parse::Declaration>(declaration));
    let named = parsed.filter(|declaration| {
        let example = "lifecycle! { crate = my_framework::trainer; … }";
        Krate::check(declaration.krate.as_ref(), example, &mut errors)
    });
    let expanded = named.map(|declaration| expand::expand(&declaration, origin, &mut errors));
    // Also expanded after a mistake, so that code that uses the names still compiles.
    let report = errors.finish().err();
    quote!(#expanded #report)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the error messages for a declaration.
    fn messages(declaration: TokenStream) -> String {
        let text = expand(declaration, Origin::Builtin).to_string();
        let messages = text.split("compile_error ! (").skip(1).filter_map(|rest| rest.split('"').nth(1));
        messages.collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn mistakes_in_a_declaration_are_reported() {
        let cases = [
            (quote!(operation fit in train;), "expected a doc comment"),
            (quote!(#[doc = " x"] point setup;), "expected `in <phase> | …`"),
            (
                quote!(#[doc = " x"] point setup in train counts samples;),
                "expected `counts batches`, `counts steps`, `counts epochs` or `counts records`",
            ),
            (
                quote!(#[doc = " x"] operation fit in train { again vaild; }),
                "no point or operation `vaild` in this declaration",
            ),
            (
                quote!(#[doc = " x"] point a in train; #[doc = " y"] exists loss: HasLoss from a to b;),
                "no point or operation `b` in this declaration",
            ),
            (quote!(#[doc = " x"] moment a in train;), "expected one of"),
        ];
        for (declaration, expected) in cases {
            let found = messages(declaration.clone());
            assert!(found.contains(expected), "{declaration}: {found}");
        }
    }

    #[test]
    fn each_reason_for_being_unavailable_has_its_own_trait() {
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
            Origin::Builtin,
        )
        .to_string();
        let sentence = "Available from [`AfterLoss`](crate::AfterLoss) to [`AfterStep`](crate::AfterStep): \
                        [`HasLoss`](crate::HasLoss).";
        assert!(expanded.contains(sentence), "{expanded}");
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
