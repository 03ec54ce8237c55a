//! The expansion after a mistake: a placeholder impl, so that code that needs the trait still
//! compiles.

use proc_macro2::{Span, TokenStream};
use quote::quote;

use super::Derived;
use super::expand::implement;
use super::parse::Item;
use crate::krate::Krate;

pub(super) fn expand(item: &Item, derived: Derived, report: &TokenStream) -> TokenStream {
    // A type that borrows can implement neither trait.
    if item.generics.lifetimes().next().is_some() {
        return report.clone();
    }
    let krate = Krate::of(item.krate.as_ref());
    let trainer = krate.at(Span::call_site());
    let methods = match derived {
        Derived::Batch => quote! {
            fn samples(&self) -> ::core::option::Option<::core::primitive::u64> {
                ::core::unreachable!()
            }
            fn describe(&self, _: &mut ::std::string::String) {}
            fn tensors(&self, _: &mut dyn ::core::ops::FnMut(&#trainer::tch::Tensor)) {}
            fn tensors_mut(&mut self, _: &mut dyn ::core::ops::FnMut(&mut #trainer::tch::Tensor)) {}
        },
        Derived::Rows => quote! {
            fn rows(&self) -> #trainer::Result<::core::primitive::i64> {
                ::core::unreachable!()
            }
            fn slice(&self, _: ::core::primitive::i64, _: ::core::primitive::i64) -> Self {
                ::core::unreachable!()
            }
            fn select(&self, _: &#trainer::tch::Tensor) -> Self {
                ::core::unreachable!()
            }
        },
    };
    let implementation = implement(item, derived, &methods, Vec::new());
    quote!(#report #implementation)
}
