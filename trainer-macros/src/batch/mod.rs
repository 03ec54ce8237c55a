//! `#[derive(Batch)]` and `#[derive(Rows)]`: parse → check → expand. After a mistake, these derives
//! expand to all messages, and to an impl that prevents follow-up errors.

mod attributes;
mod bounds;
mod check;
mod expand;
mod fallback;
mod parse;

use proc_macro2::TokenStream;

use crate::errors::Errors;
use crate::krate::Krate;
use crate::lifecycle::borrows;
use parse::Item;

/// The trait that is derived.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Derived {
    Batch,
    Rows,
}

impl Derived {
    fn name(self) -> &'static str {
        match self {
            Derived::Batch => "Batch",
            Derived::Rows => "Rows",
        }
    }
}

pub(crate) fn expand(derived: Derived, tokens: TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    // rustc has parsed the item already, so an error here is ours to report.
    let Some(input) = errors.keep(syn::parse2(tokens)) else {
        return errors.finish().err().unwrap_or_default();
    };
    let item = Item::parse(input, derived, &mut errors);
    if !Krate::check(item.krate.as_ref(), "#[batch(crate = my_framework::trainer)]", &mut errors) {
        return errors.finish().err().unwrap_or_default();
    }
    // rustc reports a lifetime that the struct does not declare.
    if item.generics.lifetimes().next().is_none() && item.fields.iter().any(|field| borrows(&field.ty)) {
        return errors.finish().err().unwrap_or_default();
    }
    check::check(&item, derived, &mut errors);
    match errors.finish() {
        Ok(()) => expand::expand(&item, derived),
        Err(report) => fallback::expand(&item, derived, &report),
    }
}

#[cfg(test)]
mod tests {
    use quote::quote;

    use super::*;

    #[test]
    fn type_parameters_are_bounded_by_their_use() {
        let expanded = expand(
            Derived::Batch,
            quote! {
                struct Pair<A, B, C: Source, D = u8, const N: usize = 2> {
                    a: [Option<A>; N],
                    b: <B as Source>::Item,
                    c: C::Item,
                    #[batch(skip)]
                    d: PhantomData<D>,
                }
            },
        );
        let expected = quote! {
            impl<A, B, C: Source, D, const N: usize> ::trainer::data::Batch for Pair<A, B, C, D, N>
            where
                <B as Source>::Item: ::trainer::data::Batch,
                C::Item: ::trainer::data::Batch,
                A: ::trainer::data::Batch,
                B: ::core::marker::Send + 'static,
                C: ::core::marker::Send + 'static,
                D: ::core::marker::Send + 'static
        };
        assert!(expanded.to_string().contains(&expected.to_string()), "{expanded}");
    }
}
