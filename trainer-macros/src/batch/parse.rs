//! The item that derives: its fields, and what is to become of each.

use proc_macro2::{Ident, Span};
use syn::{Data, DeriveInput, Generics, Member, Path, Type};

use super::Derived;
use super::attributes::{Attributes, On};
use crate::errors::Errors;

pub(super) struct Item {
    pub(super) name: Ident,
    pub(super) generics: Generics,
    pub(super) kind: Kind,
    /// Those of a struct.
    pub(super) fields: Vec<Field>,
    /// `crate = path`.
    pub(super) krate: Option<Path>,
}

/// What it is; the word that says so, if it is no struct.
pub(super) enum Kind {
    Struct,
    Enum(Span),
    Union(Span),
}

pub(super) struct Field {
    pub(super) member: Member,
    pub(super) ty: Type,
    /// `skip`: the word itself.
    pub(super) skip: Option<Span>,
}

impl Item {
    pub(super) fn parse(input: DeriveInput, derived: Derived, errors: &mut Errors) -> Self {
        let DeriveInput { attrs, ident: name, generics, data, .. } = input;
        // Both traits read the same attributes, and one of them is enough to say what is wrong there.
        let mut unheard = Errors::default();
        let told = if derived == Derived::Batch { errors } else { &mut unheard };
        let krate = Attributes::parse(&attrs, On::Item, told).krate;
        let (kind, fields) = match data {
            Data::Struct(data) => (Kind::Struct, data.fields),
            Data::Enum(data) => (Kind::Enum(data.enum_token.span), syn::Fields::Unit),
            Data::Union(data) => (Kind::Union(data.union_token.span), syn::Fields::Unit),
        };
        let members: Vec<Member> = fields.members().collect();
        let field = |(field, member): (syn::Field, Member)| {
            let skip = Attributes::parse(&field.attrs, On::Field, told).skip;
            Field { member, ty: field.ty, skip }
        };
        let fields = fields.into_iter().zip(members).map(field).collect();
        Item { name, generics, kind, fields, krate }
    }

    /// The fields that are part of the batch.
    pub(super) fn parts(&self) -> impl Iterator<Item = &Field> {
        self.fields.iter().filter(|field| field.skip.is_none())
    }
}
