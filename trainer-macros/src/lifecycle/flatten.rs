//! Flattens the declared tree to a list of moments, in the order of a run.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, format_ident};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Path, Type};

use super::parse::{Declaration, Extension, Head, Node};
use super::payload;
use crate::docs::{self, Line};
use crate::errors::Errors;
use crate::moments::{is_operation, is_point, nearest_operation, operations};

/// Whether a lifecycle is the trainer's own, or a custom one that extends the trainer's.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Origin {
    Builtin,
    Custom,
}

/// One moment of the flattened tree.
pub(super) struct Moment {
    /// The name: `before_step`, or `step` for an operation.
    pub(super) name: Ident,
    /// The name of the marker type: `BeforeStep`, `Step`.
    pub(super) marker: Ident,
    /// The lines of the moment's doc comment.
    pub(super) docs: Vec<Line>,
    pub(super) kind: Kind,
    /// The type of the payload, if the moment is a point with a payload.
    pub(super) payload: Option<Type>,
    /// The phases that reach the moment. If empty, the phases of `outside` reach it.
    pub(super) phases: Vec<Ident>,
    /// The phases that must also reach the operation `outside`.
    pub(super) checked: Vec<Ident>,
    pub(super) counts: Option<Ident>,
    /// Whether the operation itself computes with the task.
    pub(super) computes: bool,
    /// The indices of the operations around the moment, outermost first. An operation is in its own
    /// list.
    pub(super) within: Vec<usize>,
    /// The operation, in another lifecycle, that the tree extends.
    pub(super) outside: Option<Path>,
    /// The nouns listed after `:` by the moment and by the operations around it.
    pub(super) has: Vec<Path>,
    /// The only tasks and hooks that may reach the moment; empty if any may.
    pub(super) by: Vec<Path>,
    /// The operations and points that run here too, listed with `again`.
    pub(super) again: Vec<Path>,
}

impl Moment {
    /// Returns whether the moment and its marker type have the same name, because the letters of
    /// the name have no case.
    pub(super) fn is_marker(&self) -> bool {
        self.name == self.marker
    }
}

/// The kind of a moment.
#[derive(Clone)]
pub(super) enum Kind {
    Point,
    Before,
    Operation { before: Ident, after: Ident },
    After,
}

/// Returns the moments of all trees of a declaration.
pub(super) fn moments(declaration: &Declaration, origin: Origin, errors: &mut Errors) -> Vec<Moment> {
    let mut moments = Vec::new();
    let root = Position { leaves_phases: origin == Origin::Builtin, ..Position::default() };
    for node in &declaration.nodes {
        flatten(node, &root, &mut moments, errors);
    }
    let trainer = declaration.trainer();
    for Extension { operation, by, nodes } in &declaration.extensions {
        let mut outside = elsewhere(operation, &trainer);
        if let Some(name) = in_itself(operation, nodes) {
            errors.push(
                name.span(),
                format!("`{name}` is declared inside these braces, and an operation cannot be within itself"),
            );
            // Any operation that exists, to avoid further errors.
            outside = syn::parse_quote!(#trainer::at::step);
        } else if let Some(word) =
            operation.get_ident().filter(|word| !is_operation(&word.unraw().to_string()))
        {
            errors.push(word.span(), no_operation(&word.unraw().to_string()));
            outside = syn::parse_quote!(#trainer::at::step);
        }
        let position = Position { outside: Some(outside), by: by.clone(), ..root.clone() };
        for node in nodes {
            flatten(node, &position, &mut moments, errors);
        }
    }
    moments
}

/// Returns the message about a word after `within` that is not an operation of the trainer.
fn no_operation(word: &str) -> String {
    let operation = word.strip_prefix("before_").or(word.strip_prefix("after_")).unwrap_or(word);
    let help = match nearest_operation(operation) {
        Some(operation) => format!("; did you mean `{operation}`?"),
        None => format!(
            ": name one of {}, or an operation of another lifecycle by its path",
            operations().iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
        ),
    };
    if is_point(word) {
        format!("`{word}` is a point, but only operations have moments within them{help}")
    } else {
        format!("`{word}` is not an operation of the trainer{help}")
    }
}

/// Returns the name in a path `at::name` after `within`, if these nodes declare an operation with
/// that name.
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

/// Returns the path of an operation of another lifecycle. A single word is an operation of the
/// trainer.
pub(super) fn elsewhere(operation: &Path, trainer: &Path) -> Path {
    match operation.get_ident() {
        Some(word) => {
            let trainer = spanned(trainer, word.span());
            syn::parse_quote_spanned!(word.span()=> #trainer::at::#word)
        }
        None => operation.clone(),
    }
}

/// Returns the tokens of a path, located at `span`.
pub(super) fn spanned(path: &Path, span: Span) -> TokenStream {
    let tokens = path.to_token_stream().into_iter().map(|mut token| {
        token.set_span(span);
        token
    });
    tokens.collect()
}

/// The properties that a node inherits from its position in the tree.
#[derive(Default, Clone)]
struct Position {
    phases: Vec<Ident>,
    counts: Option<Ident>,
    within: Vec<usize>,
    outside: Option<Path>,
    has: Vec<Path>,
    by: Vec<Path>,
    /// Whether a child may run in phases that do not reach its parent, as the trainer's `valid`
    /// does in `epoch`.
    leaves_phases: bool,
}

/// Appends the moments of a node and its children.
fn flatten(node: &Node, position: &Position, moments: &mut Vec<Moment>, errors: &mut Errors) {
    let (head, children) = match node {
        Node::Again(operation) => {
            match position.within.last() {
                Some(&parent) => moments[parent].again.push(operation.clone()),
                None => errors
                    .push(operation.span(), "`again` goes inside the braces of an operation, and lists another operation that runs there"),
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
            "expected only doc comments: a lifecycle is the same for every program",
        );
    }
    let mut bare = name.unraw().to_string();
    let mut name = name.clone();
    if bare.contains(char::is_uppercase) {
        errors.push(name.span(), "expected a name in snake_case: the marker type's name is derived from it");
        // Continues with the name in snake_case: the marker and the name must differ.
        let Ok(mut meant) = syn::parse_str::<Ident>(&snake(&bare)) else { return };
        meant.set_span(name.span());
        bare = meant.to_string();
        name = meant;
    }
    let names = match children {
        None => vec![bare.clone()],
        Some(_) => vec![format!("before_{bare}"), bare.clone(), format!("after_{bare}")],
    };
    if let Some(mistake) = marker_mistake(&names, moments) {
        return errors.push(name.span(), mistake);
    }
    let mut here = position.clone();
    let mut checked = Vec::new();
    if let Some(listed) = &head.phases {
        here.phases = phases(listed, errors);
        if position.phases.is_empty() {
            checked.clone_from(&here.phases);
        } else if !position.leaves_phases {
            for phase in here.phases.iter().filter(|phase| !position.phases.contains(phase)) {
                let around = position.within.last().map(|&operation| moments[operation].name.to_string());
                errors.push(
                    phase.span(),
                    format!(
                        "`{}` does not run in the phase `{phase}`, so `{bare}` inside it cannot run there",
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
    if let Some(unit) = &head.counts
        && !["batches", "steps", "epochs", "records"].iter().any(|known| unit == known)
    {
        errors.push(
            unit.span(),
            "expected `counts batches`, `counts steps`, `counts epochs` or `counts records`",
        );
        here.counts = None;
    }
    if let (Some(payload), Some(_)) = (&head.payload, children) {
        errors.push(payload.span(), "an operation has no payload: declare a point inside it that has one");
    }
    let about = docs::lines(&head.docs);
    if about.is_empty() {
        errors.push(name.span(), "expected a doc comment: `describe_hooks` and the docs show it");
    }
    let mut moment = |name: Ident, kind: Kind, docs: Vec<Line>, position: Position| Moment {
        // A custom operation may compute anything.
        computes: !position.leaves_phases || head.computes && matches!(kind, Kind::Operation { .. }),
        checked: std::mem::take(&mut checked),
        // A name of the expansion: the user cannot change it, so lints do not report it.
        marker: Ident::new(&pascal(&name.unraw().to_string()), Span::call_site().located_at(name.span())),
        name,
        docs,
        kind,
        payload: None,
        phases: position.phases,
        counts: position.counts,
        within: position.within,
        outside: position.outside,
        has: position.has,
        by: position.by,
        again: Vec::new(),
    };
    let Some(children) = children else {
        let payload = head.payload.clone().map(|written| payload::owned(written, errors));
        moments.push(Moment { payload, ..moment(name.clone(), Kind::Point, about, here) });
        return;
    };

    let before = format_ident!("before_{bare}", span = name.span());
    let after = format_ident!("after_{bare}", span = name.span());
    let docs_of_point = |when: &str| {
        let mut lines = vec![Line::Text(format!(" {when} `{bare}`:"))];
        lines.extend(about.iter().cloned());
        lines
    };
    let kind = Kind::Operation {
        before: format_ident!("{}", pascal(&before.to_string())),
        after: format_ident!("{}", pascal(&after.to_string())),
    };
    // The operation is pushed after its `before` point; its children refer to it by this index.
    here.within.push(moments.len() + 1);
    moments.push(moment(before, Kind::Before, docs_of_point("Before"), here.clone()));
    moments.push(moment(name.clone(), kind, about.clone(), here.clone()));
    for child in children {
        flatten(child, &here, moments, errors);
    }
    moments.push(moment(after, Kind::After, docs_of_point("After"), here));
}

/// Returns a message if the marker types of moments with these names cannot be declared.
fn marker_mistake(names: &[String], moments: &[Moment]) -> Option<String> {
    for name in names {
        let marker = pascal(name);
        if let Some(other) = moments.iter().find(|moment| moment.marker == marker) {
            let other = other.name.unraw();
            return Some(if other == name {
                format!("duplicate declaration of `{name}`")
            } else {
                format!("`{name}` has the same marker type as `{other}`, `{marker}`: rename one of them")
            });
        }
        if syn::parse_str::<Ident>(&marker).is_err() {
            return Some(format!(
                "the marker type's name is derived from this one, but `{marker}` is not a valid type name: choose another name"
            ));
        }
    }
    None
}

/// Returns the listed phases, and reports unknown and duplicate ones.
fn phases(listed: &[Ident], errors: &mut Errors) -> Vec<Ident> {
    let mut phases: Vec<Ident> = Vec::new();
    for name in listed {
        if phases.contains(name) {
            errors.push(name.span(), format!("duplicate phase `{name}`"));
        } else if let Some(phase) = crate::phases::check(name.clone(), errors) {
            phases.push(phase);
        }
    }
    phases
}

/// Converts to PascalCase: `AfterStep` for `after_step`. Letters without case stay as they are.
pub(crate) fn pascal(name: &str) -> String {
    let words = name.split('_').filter_map(|word| {
        let mut letters = word.chars();
        letters.next().map(|first| first.to_uppercase().to_string() + letters.as_str())
    });
    words.collect()
}

/// Converts to snake_case: `after_step` for `AfterStep`.
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
