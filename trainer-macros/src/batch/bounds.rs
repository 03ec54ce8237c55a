//! The bounds on the type parameters of a batch.

use std::collections::HashSet;

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Generics, parse_quote};

use super::parse::Item;

/// Returns the item's generics with the required bounds. A type parameter that occurs in a field
/// outside of a projection (`T`, `Vec<T>`) must implement the derived trait. A field whose type
/// contains a projection (`T::Item`) must implement this trait too. Other parameters need only
/// `Send + 'static`.
pub(super) fn bounded(item: &Item, batch: &TokenStream) -> Generics {
    let mut generics = item.generics.clone();
    let parameters: HashSet<String> =
        generics.type_params().map(|parameter| parameter.ident.to_string()).collect();
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

/// How the type of a field uses the type parameters.
struct Uses<'a> {
    parameters: &'a HashSet<String>,
    /// The parameters that occur outside of a projection in any field so far: `T`, `Vec<T>`.
    held: &'a mut HashSet<String>,
    /// Whether a parameter occurs in a projection: `T::Item`, `<T as Source>::Item`.
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
            // In `a::T`, `T` does not refer to the parameter.
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
