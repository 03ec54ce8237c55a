//! The arguments of `#[batch(…)]`.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use syn::parse::Parser;
use syn::spanned::Spanned;
use syn::{Attribute, Meta, Path};

use crate::errors::Errors;
use crate::keys::{Form, nearest, split_at_commas};

/// The target of an attribute.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum On {
    Item,
    Field,
}

/// The combined arguments of all `#[batch(…)]` attributes of an item or field.
#[derive(Default)]
pub(super) struct Attributes {
    /// The span of `skip`, on a field.
    pub(super) skip: Option<Span>,
    /// `crate = path`, on the item: the path of the `trainer` crate.
    pub(super) krate: Option<Path>,
    keys: Vec<Ident>,
}

impl Attributes {
    /// Parses each argument separately, so that one mistake does not hide the next.
    pub(super) fn parse(attributes: &[Attribute], on: On, errors: &mut Errors) -> Self {
        let mut parsed = Attributes::default();
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("batch")) {
            match &attribute.meta {
                Meta::List(list) => {
                    for argument in split_at_commas(list.tokens.clone()) {
                        parsed.add(argument, on, errors);
                    }
                }
                _ => errors.push(attribute.path().span(), format!("expected {}", on.grammar())),
            }
        }
        parsed
    }

    fn add(&mut self, argument: TokenStream, on: On, errors: &mut Errors) {
        let span = argument.span();
        let mut rest = argument.into_iter();
        let Some(TokenTree::Ident(key)) = rest.next() else {
            return errors.push(span, format!("expected {}", on.grammar()));
        };
        let name = key.to_string();
        let span = key.span();
        if self.keys.contains(&key) {
            return errors.push(span, format!("duplicate key `{name}`"));
        }
        self.keys.push(key);
        match (&*name, on, Form::of(&rest.collect())) {
            ("skip", On::Field, Form::Nothing) => self.skip = Some(span),
            ("skip", On::Field, _) => errors.push(span, "expected `skip` without a value"),
            ("skip", On::Item, _) => {
                errors.push(span, "`skip` goes on a field, to leave it out of the batch");
            }
            ("crate", On::Item, Form::Value(path)) => {
                let at = if path.is_empty() { span } else { path.span() };
                match Path::parse_mod_style.parse2(path) {
                    Ok(path) => self.krate = Some(path),
                    Err(_) => errors.push(at, "expected `crate = <path of the trainer crate>`"),
                }
            }
            ("crate", On::Item, _) => errors.push(span, "expected `crate = <path of the trainer crate>`"),
            ("crate", On::Field, _) => {
                errors.push(span, "`crate` goes on the struct, where it applies to all its fields");
            }
            _ => {
                let help = match nearest(&name, [on.key()]) {
                    Some(nearest) => format!("did you mean `{nearest}`?"),
                    None => format!("expected {}", on.grammar()),
                };
                errors.push(span, format!("`#[batch]` has no key `{name}`; {help}"));
            }
        }
    }
}

impl On {
    /// Returns the only valid key on this target.
    fn key(self) -> &'static str {
        match self {
            On::Item => "crate",
            On::Field => "skip",
        }
    }

    /// Returns the only form of the attribute that is valid on this target.
    fn grammar(self) -> &'static str {
        match self {
            On::Item => "`#[batch(crate = <path of the trainer crate>)]`",
            On::Field => "`#[batch(skip)]`",
        }
    }
}
