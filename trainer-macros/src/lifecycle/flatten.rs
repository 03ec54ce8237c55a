//! The declared tree as a list of moments, in the order in which a run meets them.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Attribute, Expr, ExprLit, Lit, Meta, Path};

use super::expand::Whose;
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
    /// Those of them that `outside` must reach too.
    pub(super) checked: Vec<Ident>,
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
pub(super) fn moments(declaration: &Declaration, whose: Whose, errors: &mut Errors) -> Vec<Moment> {
    let mut moments = Vec::new();
    let root = Place { leaves_phases: whose == Whose::Trainers, ..Place::default() };
    for node in &declaration.nodes {
        flatten(node, &root, &mut moments, errors);
    }
    let trainer = declaration.trainer();
    for Hanging { operation, by, nodes } in &declaration.hanging {
        let mut outside = elsewhere(operation, &trainer);
        if let Some(name) = in_itself(operation, nodes) {
            errors.push(
                name.span(),
                format!("`{name}` is declared within these braces, and an operation cannot be within itself"),
            );
            // Anything that exists, so that nothing else is wrong.
            outside = syn::parse_quote!(#trainer::at::step);
        }
        let place = Place { outside: Some(outside), by: by.clone(), ..root.clone() };
        for node in nodes {
            flatten(node, &place, &mut moments, errors);
        }
    }
    moments
}

/// The name after `within`, if it is that of an operation in these nodes.
fn in_itself<'a>(operation: &'a Path, nodes: &[Node]) -> Option<&'a Ident> {
    let words: Vec<_> = operation.segments.iter().map(|segment| &segment.ident).collect();
    let name = match &words[..] {
        [at, name] if *at == "at" => name,
        [this, at, name] if *this == "self" && *at == "at" => name,
        _ => return None,
    };
    let mut nodes: Vec<&Node> = nodes.iter().collect();
    while let Some(node) = nodes.pop() {
        let Node::Operation(head, children) = node else { continue };
        if head.name == **name {
            return Some(name);
        }
        nodes.extend(children);
    }
    None
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
    /// What lies in an operation may run in a phase of its own, as the trainer's `valid` does in `epoch`.
    leaves_phases: bool,
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
    let mut bare = name.unraw().to_string();
    let mut name = name.clone();
    if bare.contains(char::is_uppercase) {
        errors.push(name.span(), "expected a name in snake_case: the marker's is made of it");
        // Goes on with what was meant: the marker and the name must differ.
        let Ok(mut meant) = syn::parse_str::<Ident>(&snake(&bare)) else { return };
        meant.set_span(name.span());
        (bare, name) = (meant.to_string(), meant);
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
    let mut checked = Vec::new();
    if let Some(listed) = &head.phases {
        here.phases = phases(listed, errors);
        if place.phases.is_empty() {
            checked.clone_from(&here.phases);
        } else if !place.leaves_phases {
            for phase in here.phases.iter().filter(|phase| !place.phases.contains(phase)) {
                let around = place.within.last().map(|&operation| moments[operation].name.to_string());
                errors.push(
                    phase.span(),
                    format!(
                        "`{}` does not run in the phase `{phase}`, so `{bare}` cannot either",
                        around.unwrap_or_default()
                    ),
                );
            }
        }
    }
    here.counts = head.counts.clone().or(here.counts);
    here.has.extend(head.has.iter().cloned());
    if here.phases.is_empty() && here.outside.is_none() && head.phases.is_none() {
        errors.push(
            name.span(),
            "expected `in <phase> | …`, the phases that reach it, or `within <operation> { … }` around it",
        );
    }
    let is_unit = |unit: &&Ident| ["batches", "steps", "epochs"].iter().any(|known| *unit == known);
    if let Some(unit) = head.counts.as_ref().filter(|unit| !is_unit(unit)) {
        errors.push(unit.span(), "expected `counts batches`, `counts steps` or `counts epochs`");
        here.counts = None;
    }
    let about = doc_lines(&head.docs);
    if about.is_empty() {
        errors
            .push(name.span(), "expected a doc comment: it is what `describe_hooks` and the docs say of it");
    }
    let mut moment = |name: Ident, kind: Kind, docs: Vec<String>, place: Place| Moment {
        checked: std::mem::take(&mut checked),
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

/// The phases that are listed, without those that are not phases or that come twice.
fn phases(listed: &[Ident], errors: &mut Errors) -> Vec<Ident> {
    let mut phases: Vec<Ident> = Vec::new();
    for name in listed {
        if phases.contains(name) {
            errors.push(name.span(), format!("the phase `{name}` is listed twice"));
        } else if let Some(phase) = crate::phases::check(name.clone(), errors) {
            phases.push(phase);
        }
    }
    phases
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
