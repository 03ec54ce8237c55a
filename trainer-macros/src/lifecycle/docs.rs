//! The API docs of a moment, and the table of all moments.

use quote::ToTokens;

use super::availability::Resolved;
use super::flatten::{Kind, Moment};

/// Returns the generated line below a moment's own docs: its phases, the unit of `every`, its
/// payload, and what exists or can be called.
pub(super) fn facts<'a>(moment: &Moment, exists: impl Iterator<Item = &'a Resolved<'a>>) -> String {
    let mut facts = String::new();
    if !moment.phases.is_empty() {
        facts += &format!(" Phases: {}.", phases(moment));
    }
    if let Some(unit) = &moment.counts {
        facts += &format!(" `every` counts {unit}.");
    }
    if let Some(payload) = &moment.payload {
        facts += &format!(" Payload: `{}`.", text_of(payload));
    }
    let exists: Vec<_> = exists.map(|thing| thing.noted("")).chain(promised(moment)).collect();
    if !exists.is_empty() {
        facts += &format!(" Exists or can be called here: {}.", exists.join(", "));
    }
    facts
}

/// Returns a table with a row for each moment: when it fires, its phases, the unit of `every`, and
/// what exists or can be called. `path` is the prefix from the module of the table to the module of
/// the declaration.
pub(super) fn table(moments: &[Moment], availabilities: &[Resolved<'_>], path: &str) -> Vec<String> {
    let mut rows = vec![
        " | name | when | phases | `every` counts | exists, or can be called |".to_owned(),
        " |---|---|---|---|---|".to_owned(),
    ];
    for (index, moment) in moments.iter().enumerate() {
        let exists: Vec<_> = availabilities
            .iter()
            .filter(|thing| thing.holds(index) && !thing.is_everywhere())
            .map(|thing| thing.noted(path))
            .collect();
        let exists = exists.into_iter().chain(promised(moment)).collect::<Vec<_>>().join(", ");
        let name = &moment.name;
        let about =
            moment.docs.iter().filter_map(|line| Some(line.text()?.trim())).collect::<Vec<_>>().join(" ");
        let about = match &moment.kind {
            Kind::Operation { .. } => format!("*operation*: {about}"),
            _ => about,
        };
        let counts = moment.counts.as_ref().map(ToString::to_string).unwrap_or_default();
        // These points only refer to their operation, whose own row has the docs.
        let about = match moment.kind {
            Kind::Before => format!("before `{}`", &name.to_string()["before_".len()..]),
            Kind::After => format!("after `{}`", &name.to_string()["after_".len()..]),
            _ => about,
        };
        let phases = phases(moment);
        rows.push(format!(
            " | [`{name}`](type@{path}at::{name}) | {about} | {phases} | {counts} | {exists} |"
        ));
    }
    rows
}

/// Returns a type as text, without the spaces between its tokens.
fn text_of(payload: &syn::Type) -> String {
    payload.to_token_stream().to_string().replace(' ', "")
}

fn phases(moment: &Moment) -> String {
    moment.phases.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Returns the nouns that a custom moment lists after `:` or inherits.
fn promised(moment: &Moment) -> impl Iterator<Item = String> {
    moment.has.iter().filter_map(|path| Some(path.segments.last()?.ident.to_string()))
}
