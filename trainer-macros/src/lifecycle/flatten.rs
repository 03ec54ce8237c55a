//! The declared tree as a list of moments, in the order in which a run meets them.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Attribute, Expr, ExprLit, Lit, Meta, Path};

use super::parse::{Declaration, Hanging, Head, Node};
use crate::errors::Errors;

/// One moment, flattened out of the tree. Their order is the order in which a run meets them.
pub(super) struct Moment {
    /// `before_step`; for an operation `step`.
    pub(super) name: Ident,
    /// `BeforeStep`, `Step`.
    pub(super) marker: Ident,
    /// What the declaration says about it.
    pub(super) docs: Vec<String>,
    pub(super) kind: Kind,
    /// None are those of `outside`.
    pub(super) phases: Vec<Ident>,
    pub(super) counts: Option<Ident>,
    /// The operations that this moment lies in, outermost first: their indices.
    pub(super) within: Vec<usize>,
    /// The operation of another lifecycle that the whole tree lies in.
    pub(super) outside: Option<Path>,
    /// What was promised to exist here, by its noun, besides what the declaration's own spans say.
    pub(super) has: Vec<Path>,
    /// Who alone reaches it.
    pub(super) by: Vec<Path>,
    /// The operations that run in this one again.
    pub(super) again: Vec<Path>,
}

#[derive(Clone)]
pub(super) enum Kind {
    Point,
    Before,
    Operation { before: Ident, after: Ident },
    After,
}

/// The moments of all trees of a declaration.
pub(super) fn moments(declaration: &Declaration, errors: &mut Errors) -> Vec<Moment> {
    let mut moments = Vec::new();
    for node in &declaration.nodes {
        flatten(node, &Place::default(), &mut moments, errors);
    }
    let trainer = declaration.trainer();
    for Hanging { operation, by, nodes } in &declaration.hanging {
        let place =
            Place { outside: Some(elsewhere(operation, &trainer)), by: by.clone(), ..Place::default() };
        for node in nodes {
            flatten(node, &place, &mut moments, errors);
        }
    }
    moments
}

/// An operation of another lifecycle: a path, or one word for one of the trainer's own.
pub(super) fn elsewhere(operation: &Path, trainer: &Path) -> Path {
    match operation.get_ident() {
        Some(word) => {
            let trainer = spanned(trainer, word.span());
            syn::parse_quote_spanned!(word.span()=> #trainer::at::#word)
        }
        None => operation.clone(),
    }
}

/// A path of ours, reported as if it stood there.
pub(super) fn spanned(path: &Path, span: Span) -> TokenStream {
    let there = |mut token: TokenTree| {
        token.set_span(span);
        token
    };
    path.to_token_stream().into_iter().map(there).collect()
}

/// What a node has from where it stands.
#[derive(Default, Clone)]
struct Place {
    phases: Vec<Ident>,
    counts: Option<Ident>,
    within: Vec<usize>,
    outside: Option<Path>,
    has: Vec<Path>,
    by: Vec<Path>,
}

fn flatten(node: &Node, place: &Place, moments: &mut Vec<Moment>, errors: &mut Errors) {
    let (head, children) = match node {
        Node::Again(operation) => {
            match place.within.last() {
                Some(&parent) => moments[parent].again.push(operation.clone()),
                None => errors
                    .push(operation.span(), "`again` stands in an operation: it says what runs there too"),
            }
            return;
        }
        Node::Point(head) => (head, None),
        Node::Operation(head, children) => (head, Some(children)),
    };
    let Head { name, .. } = head;
    if let Some(other) = head.docs.iter().find(|attribute| !attribute.path().is_ident("doc")) {
        errors.push(
            other.path().span(),
            "only doc comments stand here: what is declared is there for every program",
        );
    }
    let bare = name.unraw().to_string();
    if bare.contains(char::is_uppercase) {
        errors.push(name.span(), "expected a name in snake_case: the marker's is made of it");
    }
    let taken = |name: &str| moments.iter().any(|moment| moment.name.unraw() == name);
    let names = match children {
        None => vec![bare.clone()],
        Some(_) => vec![format!("before_{bare}"), bare.clone(), format!("after_{bare}")],
    };
    if let Some(twice) = names.iter().find(|name| taken(name)) {
        return errors.push(name.span(), format!("`{twice}` is declared already"));
    }
    let mut here = place.clone();
    here.phases = head.phases.clone().unwrap_or(here.phases);
    here.counts = head.counts.clone().or(here.counts);
    here.has.extend(head.has.iter().cloned());
    if here.phases.is_empty() && here.outside.is_none() {
        errors.push(
            name.span(),
            "expected `in <phase> | …`, the phases that reach it, or `within <operation> { … }` around it",
        );
    }
    if let Some(unit) = head.counts.as_ref().filter(|unit| *unit != "steps" && *unit != "epochs") {
        errors.push(unit.span(), "expected `counts steps` or `counts epochs`");
        here.counts = None;
    }
    let about = doc_lines(&head.docs);
    if about.is_empty() {
        errors
            .push(name.span(), "expected a doc comment: it is what `describe_hooks` and the docs say of it");
    }
    let moment = |name: Ident, kind: Kind, docs: Vec<String>, place: Place| Moment {
        marker: format_ident!("{}", pascal(&name.unraw().to_string()), span = name.span()),
        name,
        docs,
        kind,
        phases: place.phases,
        counts: place.counts,
        within: place.within,
        outside: place.outside,
        has: place.has,
        by: place.by,
        again: Vec::new(),
    };
    let Some(children) = children else {
        moments.push(moment(name.clone(), Kind::Point, about, here));
        return;
    };

    let before = format_ident!("before_{bare}", span = name.span());
    let after = format_ident!("after_{bare}", span = name.span());
    let said = |when: &str| {
        let mut lines = vec![format!(" {when} `{bare}`:")];
        lines.extend(about.iter().cloned());
        lines
    };
    let kind = Kind::Operation {
        before: format_ident!("{}", pascal(&before.to_string())),
        after: format_ident!("{}", pascal(&after.to_string())),
    };
    // The operation itself comes second, and what lies in it speaks of it.
    here.within.push(moments.len() + 1);
    moments.push(moment(before, Kind::Before, said("Before"), here.clone()));
    moments.push(moment(name.clone(), kind, about.clone(), here.clone()));
    for child in children {
        flatten(child, &here, moments, errors);
    }
    moments.push(moment(after, Kind::After, said("After"), here));
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

/// `AfterStep` for `after_step`.
pub(crate) fn pascal(name: &str) -> String {
    let word = |word: &str| {
        let mut letters = word.chars();
        letters.next().map(|first| first.to_ascii_uppercase().to_string() + letters.as_str())
    };
    name.split('_').filter_map(word).collect()
}

/// `after_step` for `AfterStep`.
pub(crate) fn snake(marker: &str) -> String {
    let mut name = String::new();
    for letter in marker.chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.extend(letter.to_lowercase());
    }
    name
}
