//! Expands a checked item to its impl, field by field.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Ident, Member, WherePredicate};

use super::Derived;
use super::bounds;
use super::parse::Item;
use crate::krate::Krate;

pub(super) fn expand(item: &Item, derived: Derived) -> TokenStream {
    let krate = Krate::of(item.krate.as_ref());
    let methods = match derived {
        Derived::Batch => batch(item, &krate),
        Derived::Rows => rows(item, &krate),
    };
    implement(item, derived, &methods, bounds::of_fields(item, derived))
}

/// Expands to the impl with the given methods, and with bounds beside those of the parameters.
pub(super) fn implement(
    item: &Item,
    derived: Derived,
    methods: &TokenStream,
    further: Vec<WherePredicate>,
) -> TokenStream {
    let krate = Krate::of(item.krate.as_ref());
    let trainer = krate.at(Span::call_site());
    let import = krate.import();
    let derived = Ident::new(derived.name(), Span::call_site());
    let path = quote!(#trainer::data::#derived);
    let mut generics = bounds::of_parameters(item, &path);
    generics.make_where_clause().predicates.extend(further);
    let (impl_generics, arguments, clause) = generics.split_for_impl();
    let Item { name, allowed, .. } = item;
    quote! {
        #allowed
        const _: () = {
            #import
            #[automatically_derived]
            impl #impl_generics #path for #name #arguments #clause { #methods }
        };
    }
}

fn batch(item: &Item, krate: &Krate<'_>) -> TokenStream {
    let trainer = krate.at(Span::call_site());
    let call = |method, arguments| calls(item, krate, ("Batch", method), &quote!(&), &arguments);
    let samples = call("samples", quote!());
    let describe = call("describe", quote!(__text));
    let tensors = call("tensors", quote!(__visit));
    let copies = copies(item, krate);
    let tensors_mut = calls(item, krate, ("Batch", "tensors_mut"), &quote!(&mut), &quote!(__visit));
    let (begins, end) = layout(item);
    quote! {
        fn samples(&self) -> ::core::option::Option<::core::primitive::u64> {
            #(
                if let ::core::option::Option::Some(__samples) = #samples {
                    return ::core::option::Option::Some(__samples);
                }
            )*
            ::core::option::Option::None
        }
        fn describe(&self, __text: &mut ::std::string::String) {
            #(
                ::std::string::String::push_str(__text, #begins);
                #describe;
            )*
            ::std::string::String::push_str(__text, #end);
        }
        fn tensors(&self, __visit: &mut dyn ::core::ops::FnMut(&#trainer::tch::Tensor)) {
            #(#tensors;)*
        }
        fn try_clone(&self) -> ::core::option::Option<Self> {
            ::core::option::Option::Some(Self { #(#copies,)* })
        }
        fn tensors_mut(&mut self, __visit: &mut dyn ::core::ops::FnMut(&mut #trainer::tch::Tensor)) {
            #(#tensors_mut;)*
        }
    }
}

/// Expands to a copy of each field, as in a struct literal.
fn copies(item: &Item, krate: &Krate<'_>) -> Vec<TokenStream> {
    let mut copies = calls(item, krate, ("Batch", "try_clone"), &quote!(&), &quote!()).into_iter();
    let trainer = krate.at(Span::call_site());
    let copies = item.fields.iter().map(|field| {
        let member = here(&field.member);
        let copy = match field.skip {
            None => copies.next(),
            Some(_) => Some(quote!(#trainer::__private::Skipped::new(&self.#member).try_clone())),
        };
        quote!(#member: #copy?)
    });
    copies.collect()
}

/// Returns a member with the hygiene of the expansion.
fn here(member: &Member) -> Member {
    let mut member = member.clone();
    let here = Span::call_site().located_at(member.span());
    match &mut member {
        Member::Named(name) => name.set_span(here),
        Member::Unnamed(index) => index.span = here,
    }
    member
}

fn rows(item: &Item, krate: &Krate<'_>) -> TokenStream {
    let trainer = krate.at(Span::call_site());
    let call = |method, arguments| calls(item, krate, ("Rows", method), &quote!(&), &arguments);
    let rows = call("rows", quote!());
    let slice = call("slice", quote!(__start, __count));
    let select = call("select", quote!(__indices));
    let members: Vec<_> = item.parts().map(|field| here(&field.member)).collect();
    quote! {
        fn rows(&self) -> #trainer::Result<::core::primitive::i64> {
            #trainer::__private::same_rows([#(#rows),*])
        }
        fn slice(&self, __start: ::core::primitive::i64, __count: ::core::primitive::i64) -> Self {
            Self { #(#members: #slice,)* }
        }
        fn select(&self, __indices: &#trainer::tch::Tensor) -> Self {
            Self { #(#members: #select,)* }
        }
    }
}

/// Expands to a call of a trait's method for each field without `skip`. The call is located at the
/// field's type, so rustc reports there if the type does not implement the trait.
fn calls(
    item: &Item,
    krate: &Krate<'_>,
    (derived, method): (&str, &str),
    borrow: &TokenStream,
    arguments: &TokenStream,
) -> Vec<TokenStream> {
    let calls = item.parts().map(|field| {
        let span = Span::call_site().located_at(field.ty.span());
        let [derived, method] = [derived, method].map(|word| Ident::new(word, span));
        let trainer = krate.at(span);
        let member = &field.member;
        let mut part = quote!(#borrow self.#member).into_iter().collect::<Vec<_>>();
        part.iter_mut().for_each(|token| token.set_span(span));
        quote_spanned!(span=> #trainer::data::#derived::#method(#(#part)*, #arguments))
    });
    calls.collect()
}

/// Returns the text before each field without `skip`, and the text after the last:
/// `Sentences { tokens: …, mask: … }`, `Pair(…, …)`.
fn layout(item: &Item) -> (Vec<String>, &'static str) {
    let name = item.name.unraw();
    let begins = item.parts().enumerate().map(|(nth, field)| match (&field.member, nth) {
        (Member::Named(member), 0) => format!("{name} {{ {}: ", member.unraw()),
        (Member::Named(member), _) => format!(", {}: ", member.unraw()),
        (Member::Unnamed(_), 0) => format!("{name}("),
        (Member::Unnamed(_), _) => ", ".to_owned(),
    });
    let named = item.fields.iter().any(|field| matches!(field.member, Member::Named(_)));
    (begins.collect(), if named { " }" } else { ")" })
}
