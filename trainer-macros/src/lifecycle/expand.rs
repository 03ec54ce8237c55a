//! From the declared tree to types, names, tables and impls.

use proc_macro2::{Ident, Literal, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::{Attribute, Expr, ExprLit, Lit, Meta};

use super::existence::Resolved;
use super::parse::{Declaration, Head, Node};
use crate::errors::Errors;

/// One moment, flattened out of the tree. Their order is the order in which a run meets them.
pub(super) struct Moment {
    /// `before_step`; for an operation `step`.
    pub(super) name: Ident,
    /// `BeforeStep`, `Step`.
    marker: Ident,
    /// What the declaration says about it.
    docs: Vec<String>,
    kind: Kind,
    phases: Vec<Ident>,
    counts: Option<Ident>,
    depth: u8,
    /// For each operation that this moment lies in, outermost first: its index.
    pub(super) within: Vec<usize>,
}

pub(super) enum Kind {
    Point,
    Operation { before: Ident, after: Ident },
}

pub(super) fn expand(declaration: &Declaration, errors: &mut Errors) -> TokenStream {
    let mut moments = Vec::new();
    for node in &declaration.nodes {
        flatten(node, &Place::default(), &mut moments, errors);
    }
    for node in &declaration.nodes {
        check_again(node, &moments, errors);
    }
    let existences: Vec<_> =
        declaration.existences.iter().filter_map(|it| Resolved::new(it, &moments, errors)).collect();

    let types = moments.iter().enumerate().map(|(index, moment)| marker(index, moment, &existences));
    let aliases = moments.iter().map(|moment| {
        let Moment { name, marker, .. } = moment;
        let about = &moment.docs;
        quote_spanned! { name.span()=> #(#[doc = #about])* pub type #name = super::#marker; }
    });
    let infos = moments.iter().map(info);
    let count = moments.len();
    let traits = existences.iter().map(Resolved::traits);
    let (variants, variant_docs): (Vec<_>, Vec<_>) = moments
        .iter()
        .filter(|moment| matches!(moment.kind, Kind::Point))
        .map(|moment| (&moment.marker, &moment.docs))
        .unzip();

    quote! {
        #(#types)*

        /// The name of every point and operation of the trainer, as `#[hook]` resolves them.
        #[allow(non_camel_case_types)]
        pub mod at { #(#aliases)* }

        /// The points of the trainer, in the order in which a run meets them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Point { #( #(#[doc = #variant_docs])* #variants, )* }

        impl Point {
            /// Every point, in the order in which a run meets them.
            pub const ALL: &[Point] = &[#(Point::#variants),*];

            /// What the declaration says about this point.
            #[must_use]
            pub fn info(self) -> &'static ::trainer::moment::MomentInfo {
                match self { #(Point::#variants => <#variants as ::trainer::moment::Moment>::INFO,)* }
            }
        }

        /// Everything that the declaration says, in the order of the tree.
        pub(crate) static MOMENTS: [::trainer::moment::MomentInfo; #count] = [#(#infos),*];

        #(#traits)*
    }
}

/// `again x` speaks of an operation that is declared.
fn check_again(node: &Node, moments: &[Moment], errors: &mut Errors) {
    match node {
        Node::Point(_) => {}
        Node::Operation(_, children) => children.iter().for_each(|child| check_again(child, moments, errors)),
        Node::Again(name) => {
            let is_it =
                |moment: &Moment| moment.name == *name && matches!(moment.kind, Kind::Operation { .. });
            if !moments.iter().any(is_it) {
                errors.push(name.span(), format!("no operation `{name}` is declared here"));
            }
        }
    }
}

/// What a node has from the operation that it stands in.
#[derive(Default, Clone)]
struct Place {
    phases: Vec<Ident>,
    counts: Option<Ident>,
    depth: u8,
    within: Vec<usize>,
}

fn flatten(node: &Node, place: &Place, moments: &mut Vec<Moment>, errors: &mut Errors) {
    let (head, children) = match node {
        Node::Again(_) => return,
        Node::Point(head) => (head, None),
        Node::Operation(head, children) => (head, Some(children)),
    };
    let Head { name, .. } = head;
    let phases = head.phases.clone().unwrap_or_else(|| place.phases.clone());
    if phases.is_empty() {
        errors.push(name.span(), "expected `in <phase> | …`: the phases that reach it");
    }
    let here = Place {
        phases,
        counts: head.counts.clone().or_else(|| place.counts.clone()),
        depth: place.depth + 1,
        within: place.within.clone(),
    };
    let about = doc_lines(&head.docs);
    if about.is_empty() {
        errors
            .push(name.span(), "expected a doc comment: it is what `describe_hooks` and the docs say of it");
    }
    let moment = |name: Ident, kind: Kind, docs: Vec<String>, within: Vec<usize>| Moment {
        marker: format_ident!("{}", pascal(&name.to_string()), span = name.span()),
        name,
        docs,
        kind,
        phases: here.phases.clone(),
        counts: here.counts.clone(),
        depth: place.depth,
        within,
    };
    let Some(children) = children else {
        moments.push(moment(name.clone(), Kind::Point, about, here.within.clone()));
        return;
    };

    let start = moments.len();
    let mut inside = here.clone();
    inside.within.push(start);
    let before = format_ident!("before_{name}", span = name.span());
    let after = format_ident!("after_{name}", span = name.span());
    let said = |when: &str| {
        let mut lines = vec![format!(" {when} `{name}`:")];
        lines.extend(about.iter().cloned());
        lines
    };
    moments.push(moment(before.clone(), Kind::Point, said("Before"), inside.within.clone()));
    let kind = Kind::Operation {
        before: format_ident!("{}", pascal(&before.to_string())),
        after: format_ident!("{}", pascal(&after.to_string())),
    };
    moments.push(moment(name.clone(), kind, about.clone(), inside.within.clone()));
    for child in children {
        flatten(child, &inside, moments, errors);
    }
    moments.push(moment(after, Kind::Point, said("After"), inside.within));
}

fn marker(index: usize, moment: &Moment, existences: &[Resolved<'_>]) -> TokenStream {
    let Moment { marker, docs, .. } = moment;
    let exists: Vec<_> = existences.iter().filter(|it| it.holds(index)).map(Resolved::noted).collect();
    let phases = moment.phases.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let mut facts = format!(" Phases: {phases}.");
    if let Some(unit) = &moment.counts {
        facts += &format!(" `every` counts {unit}.");
    }
    if !exists.is_empty() {
        facts += &format!(" Exists or can be called here: {}.", exists.join(", "));
    }
    let kind = match &moment.kind {
        Kind::Point => quote_spanned!(marker.span()=> impl ::trainer::moment::AtPoint for #marker {}),
        Kind::Operation { before, after } => {
            quote!(impl ::trainer::moment::AtOperation for #marker { type Before = #before; type After = #after; })
        }
    };
    let counted = moment.counts.iter().map(|_| quote!(impl ::trainer::moment::Counted for #marker {}));
    let reached = moment
        .phases
        .iter()
        .map(|phase| quote_spanned!(marker.span()=> impl ::trainer::moment::ReachedIn<::trainer::phase::#phase> for #marker {}));
    let impls = existences.iter().flat_map(|it| it.impls(index, marker));
    let impls = [quote!(#kind)].into_iter().chain(counted).chain(reached).chain(impls);
    let declared = quote_spanned! { marker.span()=>
        #(#[doc = #docs])*
        #[doc = ""]
        #[doc = #facts]
        #[derive(Debug)]
        pub enum #marker {}
    };
    let impls = quote_spanned!(marker.span()=> #(#[diagnostic::do_not_recommend] #impls)*);
    quote! {
        #declared

        #[diagnostic::do_not_recommend]
        impl ::trainer::moment::Moment for #marker {
            const INFO: &'static ::trainer::moment::MomentInfo = &MOMENTS[#index];
            #[inline]
            fn index() -> usize { #index }
        }
        #impls
    }
}

fn info(moment: &Moment) -> TokenStream {
    let name = moment.name.to_string();
    let depth = Literal::u8_suffixed(moment.depth);
    let kind = match moment.kind {
        Kind::Point => quote!(::trainer::moment::MomentKind::Point),
        Kind::Operation { .. } => quote!(::trainer::moment::MomentKind::Operation),
    };
    let phases = moment.phases.iter().map(|phase| format_ident!("{}", pascal(&phase.to_string())));
    let counts = match &moment.counts {
        None => quote!(::core::option::Option::None),
        Some(unit) => {
            let unit = format_ident!("{}", pascal(&unit.to_string()));
            quote!(::core::option::Option::Some(::trainer::moment::Unit::#unit))
        }
    };
    let docs = moment.docs.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
    quote! {
        ::trainer::moment::MomentInfo {
            name: #name,
            krate: ::core::env!("CARGO_CRATE_NAME"),
            kind: #kind,
            phases: ::trainer::PhaseSet::of(&[#(::trainer::Phase::#phases),*]),
            counts: #counts,
            depth: #depth,
            docs: #docs,
        }
    }
}

/// The text of `///` lines, each with its leading space.
fn doc_lines(attributes: &[Attribute]) -> Vec<String> {
    let text = |attribute: &Attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(line), .. }) => Some(line.value()),
            _ => None,
        },
        _ => None,
    };
    attributes.iter().filter_map(text).collect()
}

pub(crate) fn pascal(name: &str) -> String {
    let word = |word: &str| {
        let mut letters = word.chars();
        letters.next().map(|first| first.to_ascii_uppercase().to_string() + letters.as_str())
    };
    name.split('_').filter_map(word).collect()
}
