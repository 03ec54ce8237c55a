//! What the type parameters must be for their type to be a batch.

use std::collections::HashSet;

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Generics, parse_quote};

use super::parse::Item;

/// The item's generics, with a bound for each type parameter: one that a field holds is a batch itself, and so is
/// what a field takes from one, `T::Item`. Of any other no more is known than that it is part of the type.
pub(super) fn bounded(item: &Item, batch: &TokenStream) -> Generics {
    let mut generics = item.generics.clone();
    let parameters: HashSet<String> = generics.type_params().map(|it| it.ident.to_string()).collect();
    let mut held = HashSet::new();
    let mut predicates: Vec<syn::WherePredicate> = Vec::new();
    for field in item.parts() {
        let mut uses = Uses { parameters: &parameters, held: &mut held, projects: false };
        uses.find(field.ty.to_token_stream());
        if uses.projects {
            let ty = &field.ty;
            predicates.push(parse_quote!(#ty: #batch));
        }
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

/// The type parameters in the type of a field.
struct Uses<'a> {
    parameters: &'a HashSet<String>,
    /// Those that stand there by themselves.
    held: &'a mut HashSet<String>,
    /// Is there one of which something else is taken: `T::Item`, `<T as Source>::Item`?
    projects: bool,
}

impl Uses<'_> {
    fn find(&mut self, tokens: TokenStream) {
        let mut tokens = tokens.into_iter().peekable();
        let mut last = String::new();
        while let Some(token) = tokens.next() {
            if let TokenTree::Group(group) = &token {
                self.find(group.stream());
            }
            let word = token.to_string();
            // In `a::T` it is somebody else's name.
            if matches!(token, TokenTree::Ident(_)) && last != ":" && self.parameters.contains(&word) {
                match tokens.peek() {
                    Some(next) if [":", "as"].contains(&&*next.to_string()) => self.projects = true,
                    _ => drop(self.held.insert(word.clone())),
                }
            }
            last = word;
        }
    }
}
