//! Terminal output: the lines of one moment, with short hook names and folded built-in hooks.

use std::collections::HashMap;

use unicode_width::UnicodeWidthStr;

use super::terminal::letter;
use super::{HookRow, HookTable};
use crate::io::terminal::one_line;
use crate::moments::tree::moments;
use crate::phase::Phase;

/// The mark of a hook whose position depends only on when it was added.
pub(super) const TIE: char = '=';

/// The maximum width of a name that lists the labels of its values: `MetricHook(accuracy, f1)`.
const MAX_LABELS: usize = 48;

/// A line in the list of hooks at one moment.
pub(super) enum Line {
    Hook(HookLine),
    /// Consecutive built-in hooks.
    Folded(Vec<Folded>),
}

/// Built-in hooks of one type.
pub(super) struct Folded {
    /// The type's name with the labels of its values: `MetricHook(accuracy, f1)`.
    pub(super) long: String,
    /// The name for narrow lines: `MetricHook ×2`.
    pub(super) short: String,
    pub(super) count: usize,
}

impl Line {
    pub(super) fn hook(&self) -> Option<&HookLine> {
        match self {
            Line::Hook(hook) => Some(hook),
            Line::Folded(_) => None,
        }
    }
}

/// One hook, or the same hook for several values of a type.
pub(super) struct HookLine {
    pub(super) access: &'static str,
    pub(super) name: String,
    pub(super) phases: Vec<Phase>,
    /// When it runs, and its order: `TV, every 2 batches, rank 0, ord 10`.
    pub(super) when: String,
    /// The first sentence of its documentation, or its source location.
    pub(super) sentence: String,
    pub(super) is_tied: bool,
}

impl HookLine {
    fn of(rows: &[HookRow], is_alone: bool, names: &Names, full: bool) -> Self {
        let row = &rows[0];
        let source = row.source();
        // A closure has no documentation beyond the fact that it is a closure.
        let docs = if row.krate.is_empty() { "" } else { &*row.docs };
        let mut when: Vec<String> = vec![row.phases.iter().copied().map(letter).collect()];
        when.extend(row.every.map(|(n, unit)| unit.every(n)));
        when.extend(row.when.map(|path| format!("when {path}")));
        when.extend((!row.of.is_empty()).then(|| format!("of {}", row.of.join(" "))));
        when.extend(row.main_only.then(|| "rank 0".to_owned()));
        when.extend(row.writes.then(|| "writes".to_owned()));
        if !is_alone {
            when.extend(order(row));
        }
        when.extend((full && !docs.is_empty()).then(|| source.clone()));
        let name = if full { row.hook.clone() } else { joined(&names.hook(row), rows) };
        HookLine {
            access: row.access(),
            name: one_line(&name),
            phases: row.phases.clone(),
            when: one_line(&when.join(", ")),
            sentence: one_line(&if docs.is_empty() { source } else { without_links(docs) }),
            is_tied: row.tied && !is_alone,
        }
    }

    /// Returns the width of the hook's name plus the text about when it runs.
    pub(super) fn width(&self) -> usize {
        self.name.width() + 2 + self.when.width()
    }
}

/// Replaces Markdown links with their texts.
fn without_links(docs: &str) -> String {
    let mut text = String::new();
    let mut rest = docs;
    while let Some((before, (label, after))) =
        rest.split_once('[').and_then(|(before, link)| Some((before, link.split_once(']')?)))
    {
        text.push_str(before);
        let target = after.strip_prefix('(').and_then(|target| target.split_once(')'));
        match target {
            Some((_, after)) => {
                text.push_str(label);
                rest = after;
            }
            // A link to an item: [`Checkpoint`].
            None if label.starts_with('`') && label.ends_with('`') => {
                text.push_str(label);
                rest = after;
            }
            None => {
                text.push('[');
                rest = &rest[before.len() + 1..];
            }
        }
    }
    text + rest
}

/// Formats what determines when a hook runs relative to the other hooks at its moment: its stage,
/// `ord`, sets and constraints, and whether it is tied. Returns `None` if there is nothing to show.
fn order(row: &HookRow) -> Option<String> {
    let position = match (row.stage, row.ord) {
        (None, 0) => None,
        (None, ord) => Some(format!("ord {ord}")),
        (Some(stage), 0) => Some(format!("in {stage}")),
        (Some(stage), ord) => Some(format!("in {stage}, ord {ord}")),
    };
    let relations = row.relations();
    let relations = Some(relations.trim_start_matches(", ").to_owned()).filter(|text| !text.is_empty());
    let order: Vec<_> = position.into_iter().chain(relations).collect();
    let tie = row.tied.then(|| TIE.to_string());
    let order = Some(order.join(", ")).filter(|order| !order.is_empty());
    let both: Vec<_> = order.into_iter().chain(tie).collect();
    Some(both.join(" ")).filter(|order| !order.is_empty())
}

/// Returns the lines for the hooks at one moment.
pub(super) fn lines(rows: &[HookRow], names: &Names, full: bool) -> Vec<Line> {
    let is_alone = rows.len() == 1;
    if full {
        let line = |row| Line::Hook(HookLine::of(std::slice::from_ref(row), is_alone, names, full));
        return rows.iter().map(line).collect();
    }
    let mut lines = Vec::new();
    for group in rows.chunk_by(|one, other| kind(one) == kind(other)) {
        match (group[0].own, lines.last_mut()) {
            (false, _) => lines.push(Line::Hook(HookLine::of(group, is_alone, names, full))),
            (true, Some(Line::Folded(folded))) => folded.push(built_in(group)),
            (true, _) => lines.push(Line::Folded(vec![built_in(group)])),
        }
    }
    lines
}

/// Returns the properties that consecutive hooks must share to be shown on one line. Built-in hooks
/// must have the same type and the same access to the run. Hooks of the program must be equal
/// except for their values.
fn kind(row: &HookRow) -> (bool, bool, &str, String) {
    let (path, _) = split(row);
    let details = if row.own {
        String::new()
    } else {
        format!("{}:{}, {}, {:?}, {}", row.file, row.line, row.when(), row.stage, row.ord)
    };
    (row.own, row.observes, if row.own { type_of(path) } else { path }, details)
}

/// Folds built-in hooks of one type.
fn built_in(rows: &[HookRow]) -> Folded {
    let name = type_of(split(&rows[0]).0);
    let access = if rows[0].observes { "" } else { "&mut " };
    let long = one_line(&format!("{access}{}", joined(name, rows)));
    let count = rows.len();
    let short = if count == 1 { long.clone() } else { format!("{access}{name} ×{count}") };
    Folded { long, short, count }
}

/// Adds the labels of the values to the name of their type, as in `MetricHook(accuracy, f1)`. If
/// that is too long or a value has no label, adds the number of values instead: `MetricHook ×20`.
fn joined(name: &str, rows: &[HookRow]) -> String {
    if let [row] = rows {
        return format!("{name}{}", split(row).1);
    }
    let mut all: Vec<&str> = Vec::new();
    let mut width = name.width();
    for row in rows {
        let Some(label) = split(row).1.strip_prefix('(').and_then(|label| label.strip_suffix(')')) else {
            return format!("{name} ×{}", rows.len());
        };
        width += label.width() + 2;
        if width > MAX_LABELS {
            return format!("{name} ×{}", rows.len());
        }
        all.push(label);
    }
    format!("{name}({})", all.join(", "))
}

/// Splits the name of a hook into two parts: the path of its function or type, and the label and
/// number of its value. The name of a closure has no path.
fn split(row: &HookRow) -> (&str, &str) {
    let end =
        (!row.krate.is_empty()).then(|| outside(&row.hook).find(|(_, rest)| rest.starts_with(['(', ' '])));
    row.hook.split_at(end.flatten().map_or(row.hook.len(), |(at, _)| at))
}

/// Returns each position in a path that is not within the arguments of a generic type, with the
/// text from there on.
fn outside(path: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut depth = 0_u32;
    let mut last = ' ';
    path.char_indices().filter_map(move |(at, letter)| {
        let is_outside = depth == 0 && letter != '<';
        match letter {
            '<' => depth += 1,
            '>' if last != '-' => depth = depth.saturating_sub(1),
            _ => {}
        }
        last = letter;
        is_outside.then(|| (at, &path[at..]))
    })
}

/// Splits a path at each `::` that is not within the arguments of a generic type.
fn segments(path: &str) -> Vec<&str> {
    let mut all = Vec::new();
    let mut start = 0;
    for (at, _) in outside(path).filter(|(_, rest)| rest.starts_with("::")) {
        all.push(&path[start..at]);
        start = at + 2;
    }
    all.push(&path[start..]);
    all
}

/// Returns the name of the type in a built-in hook's path.
fn type_of(path: &str) -> &str {
    path.split("::").find(|name| is_type(name)).unwrap_or(path)
}

fn is_type(name: &str) -> bool {
    name.starts_with(char::is_uppercase)
}

/// The short names of hooks and moments. A short name is used only if it is unique.
pub(super) struct Names {
    /// Maps each short name to the paths that it stands for: more than one if the name is not
    /// unique.
    hooks: HashMap<String, Vec<String>>,
    moments: HashMap<String, usize>,
}

impl Names {
    pub(super) fn of(table: &HookTable) -> Self {
        let mut hooks: HashMap<String, Vec<String>> = HashMap::new();
        for row in table.rows() {
            let path = split(row).0;
            let paths = hooks.entry(shortened(row)).or_default();
            if !paths.iter().any(|other| other == path) {
                paths.push(path.to_owned());
            }
        }
        let mut names = HashMap::new();
        for info in moments() {
            *names.entry(last(&info.path()).to_owned()).or_default() += 1;
        }
        Names { hooks, moments: names }
    }

    /// Returns the name of one of the program's hooks, without the label of its value.
    fn hook(&self, row: &HookRow) -> String {
        let short = shortened(row);
        match self.hooks.get(&short) {
            Some(paths) if paths.len() > 1 => split(row).0.to_owned(),
            _ => short,
        }
    }

    /// Returns the short name of a moment if it is unique, and otherwise its path.
    pub(super) fn moment(&self, path: &str) -> String {
        let short = last(path);
        if self.moments.get(short) == Some(&1) { short.to_owned() } else { path.to_owned() }
    }
}

fn last(path: &str) -> &str {
    path.rsplit("::").next().unwrap_or(path)
}

/// The maximum width of a path that is not shortened.
const MAX_PATH: usize = 32;

/// Shortens the path of a hook: `GradientMonitor` in a binary, and `my_crate::…::clip` in a library
/// if the path is long.
fn shortened(row: &HookRow) -> String {
    let path = split(row).0;
    let words = segments(path);
    let has_method = words.len() > 2 && is_type(words[words.len() - 2]);
    let (modules, name) = words.split_at(words.len() - 1 - usize::from(has_method));
    let name = name.join("::");
    match modules {
        _ if row.krate.is_empty() => path.to_owned(),
        [] => name,
        _ if row.in_binary => name,
        [krate, _, ..] if path.width() > MAX_PATH => format!("{krate}::…::{name}"),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_replaced_by_their_text() {
        for (docs, text) in [
            ("Plain.", "Plain."),
            ("Checks [`keep_best`](Checkpoint::keep_best), and [that](x).", "Checks `keep_best`, and that."),
            ("See [`Checkpoint`].", "See `Checkpoint`."),
            ("Tensors [n, 3] and a[0](1", "Tensors [n, 3] and a[0](1"),
            ("An open [bracket", "An open [bracket"),
        ] {
            assert_eq!(without_links(docs), text);
        }
    }
}
