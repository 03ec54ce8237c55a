//! `lifecycle!`: generates the types, names and docs of moments from one declaration, and defines
//! what exists at each moment.

mod availability;
mod docs;
mod expand;
mod flatten;
mod parse;
mod payload;

pub(crate) use flatten::Origin;
pub(crate) use flatten::{pascal, snake};
pub(crate) use payload::borrows;
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

    #[test]
    fn a_payload_as_its_message_advises_leads_to_no_further_error() {
        for (payload, advice, followed) in [
            ("&u8", "own the data", "u8"),
            ("(u8, &'a u8)", "or borrow for `'static`", "(u8, &'static u8)"),
            ("Samples<'_>", "or borrow for `'static`", "Samples<'static>"),
            ("impl Shape", "write `Box<dyn Shape + Send>`", "Box<dyn Shape + Send>"),
            ("dyn Shape + Send", "write `Box<dyn Shape + Send>`", "Box<dyn Shape + Send>"),
            ("str", "write `String`", "String"),
            ("[u8]", "write `Vec<u8>`", "Vec<u8>"),
            ("_", "expected the type of the payload", "u8"),
        ] {
            let expanded = |payload: &str| {
                let text = format!("within step {{ /// A.\n point sampled({payload}); }}");
                expand(text.parse().unwrap(), Origin::Custom).to_string()
            };
            let text = expanded(payload);
            assert!(text.contains(advice), "{payload}: {text}");
            assert_eq!(text.matches("compile_error").count(), 1, "{payload}: {text}");
            assert!(!expanded(followed).contains("compile_error"), "{followed}");
        }
        let text =
            expand("within step { /// A.\n point a(fn(&u8) -> u8); }".parse().unwrap(), Origin::Custom);
        assert!(!text.to_string().contains("compile_error"), "a function may have lifetimes of its own");
    }

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
    fn names_of_other_frameworks_are_aliases_of_built_in_moments() {
        let declaration = quote! {
            #[doc = " One batch."]
            operation step in train;
        };
        let expanded = expand(declaration.clone(), Origin::Builtin).to_string();
        for name in ["on_train_batch_end", "on_step_end", "after_train_iter"] {
            assert!(expanded.contains(&format!("alias = \"{name}\"")), "{name}: {expanded}");
        }
        assert!(!expand(declaration, Origin::Custom).to_string().contains("alias"));
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
