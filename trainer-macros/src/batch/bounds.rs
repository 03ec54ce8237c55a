//! The bounds of a batch.

use std::collections::HashSet;

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::{Generics, Ident, Type, WherePredicate, parse_quote, parse_quote_spanned};

use super::Derived;
use super::parse::{Field, Item};
use crate::krate::Krate;

/// Returns the item's generics with the bounds that its impl needs. A type parameter that occurs in
/// a field outside of a projection (`T`, `Vec<T>`) must implement the derived trait. A field whose
/// type contains a projection (`T::Item`) must implement this trait too. Other parameters need only
/// `Send + 'static`.
pub(super) fn of_parameters(item: &Item, batch: &TokenStream) -> Generics {
    let mut generics = item.generics.clone();
    let names = names(&generics);
    let mut held = HashSet::new();
    let mut predicates: Vec<WherePredicate> = Vec::new();
    for field in item.parts() {
        let uses = Uses::of(&field.ty, &names);
        if uses.projects {
            let ty = &field.ty;
            predicates.push(parse_quote!(#ty: #batch));
        }
        held.extend(uses.held);
    }
    for parameter in generics.type_params() {
        let name = &parameter.ident;
        predicates.push(if held.contains(&name.to_string()) {
            parse_quote!(#name: #batch)
        } else {
            parse_quote!(#name: ::core::marker::Send + 'static)
        });
    }
    if !predicates.is_empty() {
        generics.make_where_clause().predicates.extend(predicates);
    }
    generics
}

/// Returns the bounds of the fields that name no parameter. The impl needs none of them, but the
/// methods, and `Send` of the struct, then take them for granted: rustc reports a field whose type
/// is no batch, or is not `Send`, once, and at this field. A field that contains the struct itself
/// has no bound, because it would need itself.
pub(super) fn of_fields(item: &Item, derived: Derived) -> Vec<WherePredicate> {
    let krate = Krate::of(item.krate.as_ref());
    let (names, own) = (names(&item.generics), HashSet::from([item.name.to_string(), "Self".to_owned()]));
    let plain = item.fields.iter().filter(|Field { ty, .. }| {
        let (parameters, own) = (Uses::of(ty, &names), Uses::of(ty, &own));
        !parameters.projects && parameters.held.is_empty() && own.held.is_empty()
    });
    let bounds = plain.map(|Field { ty, skip, .. }| {
        let here = Span::call_site().located_at(ty.span());
        match skip {
            None => {
                let (trainer, derived) = (krate.at(here), Ident::new(derived.name(), here));
                parse_quote_spanned!(here=> #ty: #trainer::data::#derived)
            }
            Some(_) => parse_quote_spanned!(here=> #ty: ::core::marker::Send),
        }
    });
    bounds.collect()
}

fn names(generics: &Generics) -> HashSet<String> {
    generics.type_params().map(|parameter| parameter.ident.to_string()).collect()
}

/// How a type uses names, such as those of the type parameters.
#[derive(Default)]
struct Uses {
    /// The names that occur outside of a projection: `T`, `Vec<T>`.
    held: HashSet<String>,
    /// Whether a name occurs in a projection: `T::Item`, `<T as Source>::Item`.
    projects: bool,
}

impl Uses {
    fn of(ty: &Type, names: &HashSet<String>) -> Self {
        let mut uses = Self::default();
        uses.find(ty.to_token_stream(), names);
        uses
    }

    fn find(&mut self, tokens: TokenStream, names: &HashSet<String>) {
        let mut tokens = tokens.into_iter().peekable();
        let mut last = String::new();
        while let Some(token) = tokens.next() {
            if let TokenTree::Group(group) = &token {
                self.find(group.stream(), names);
            }
            let word = token.to_string();
            // In `a::T`, `T` does not refer to the parameter.
            if matches!(token, TokenTree::Ident(_)) && last != ":" && names.contains(&word) {
                match tokens.peek() {
                    Some(next) if [":", "as"].contains(&&*next.to_string()) => self.projects = true,
                    _ => drop(self.held.insert(word.clone())),
                }
            }
            last = word;
        }
    }
}
