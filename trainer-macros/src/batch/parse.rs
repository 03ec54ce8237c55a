//! Parses the item with the derive: its kind, its fields and their attributes.

use proc_macro2::{Ident, Span, TokenStream};
use syn::{Data, DeriveInput, Generics, Member, Path, Type};

use super::Derived;
use super::attributes::{Attributes, On};
use crate::errors::Errors;
use crate::lints::allowed;

pub(super) struct Item {
    pub(super) name: Ident,
    pub(super) generics: Generics,
    pub(super) kind: Kind,
    /// The fields, if the item is a struct.
    pub(super) fields: Vec<Field>,
    /// `crate = path`: the path of the `trainer` crate.
    pub(super) krate: Option<Path>,
    /// The lints that the expansion of the item needs to allow.
    pub(super) allowed: TokenStream,
}

/// The kind of an item, with the keyword's span if the item is not a struct.
pub(super) enum Kind {
    Struct,
    Enum(Span),
    Union(Span),
}

pub(super) struct Field {
    pub(super) member: Member,
    pub(super) ty: Type,
    /// The span of `skip`.
    pub(super) skip: Option<Span>,
}

impl Item {
    pub(super) fn parse(input: DeriveInput, derived: Derived, errors: &mut Errors) -> Self {
        let DeriveInput { attrs, ident: name, generics, data, .. } = input;
        // Both derives parse the same attributes; only `Batch` reports their mistakes.
        let mut discarded = Errors::default();
        let errors = if derived == Derived::Batch { errors } else { &mut discarded };
        let krate = Attributes::parse(&attrs, On::Item, errors).krate;
        let (kind, fields) = match data {
            Data::Struct(data) => (Kind::Struct, data.fields),
            Data::Enum(data) => (Kind::Enum(data.enum_token.span), syn::Fields::Unit),
            Data::Union(data) => (Kind::Union(data.union_token.span), syn::Fields::Unit),
        };
        let members: Vec<Member> = fields.members().collect();
        let fields = fields.into_iter().zip(members).map(|(field, member)| {
            let skip = Attributes::parse(&field.attrs, On::Field, errors).skip;
            Field { member, ty: field.ty, skip }
        });
        Item { name, generics, kind, fields: fields.collect(), krate, allowed: allowed(&attrs) }
    }

    /// Returns the fields without `skip`.
    pub(super) fn parts(&self) -> impl Iterator<Item = &Field> {
        self.fields.iter().filter(|field| field.skip.is_none())
    }
}
