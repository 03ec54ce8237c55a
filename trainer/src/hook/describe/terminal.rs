//! The description for a terminal: as wide as the terminal, with the built-in hooks folded.

use std::collections::{BTreeSet, HashSet};

use unicode_width::UnicodeWidthStr;

use super::lines::{HookLine, Line, Names, TIE, lines};
use super::page::{Page, Part};
use super::{HookRow, HookTable, Node, parameters};
use crate::moment::MomentKind;
use crate::phase::Phase;

/// The minimum number of columns; a narrower terminal is treated as if it had this many.
const MIN_COLUMNS: usize = 40;

/// The minimum number of columns for sentences beside the hooks. If there are fewer, the sentences
/// are below the hooks.
const MIN_SENTENCE: usize = 40;

/// The maximum number of types that [`HookTable::absent`] names.
const MAX_ABSENT: usize = 5;

impl HookTable {
    /// Returns a line with the types that have hooks but no value in the trainer, or an empty text.
    pub(crate) fn absent_line(&self) -> String {
        let all = self.not_added();
        if all.is_empty() {
            return String::new();
        }
        let named =
            all.iter().take(MAX_ABSENT).map(|path| format!("`{path}`")).collect::<Vec<_>>().join(", ");
        let more = match all.len().saturating_sub(MAX_ABSENT) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("Types with hooks, but without a value in this trainer: {named}{more}\n")
    }

    /// Returns the table for a terminal that has this number of columns; fewer than 40 count as 40.
    /// The result is the tree of operations in the order of a run. It shows the points and
    /// operations that have hooks, each with its hooks in dispatch order.
    ///
    /// Each of the program's hooks has a line with its name, when it runs, and the first sentence
    /// of its documentation, or its source location if it has no documentation. Consecutive
    /// built-in hooks share one line, unless [`full`](HookTable::full) expands them.
    #[must_use]
    pub fn terminal(&self, columns: usize) -> String {
        self.styled(columns, false)
    }

    /// Expands the built-in hooks in a terminal. Each has a line with its path, when it runs, its
    /// source location, and the first sentence of its documentation. The other formats always list
    /// each built-in hook.
    #[must_use]
    pub fn full(mut self) -> Self {
        self.full = true;
        self
    }

    /// Returns the [`terminal`](HookTable::terminal) form of the table, with or without colors.
    pub(crate) fn styled(&self, columns: usize, colors: bool) -> String {
        let columns = columns.max(MIN_COLUMNS);
        let names = Names::of(self);
        let used = self.moments().filter(|node| node.is_used()).map(|node| node.info.path()).collect();
        let mut groups = Vec::new();
        self.nodes.iter().for_each(|node| collect(node, 0, &used, &names, &mut groups));
        let groups: Vec<(Group, Vec<Line>)> = (groups.into_iter())
            .map(|group| {
                let lines = lines(group.rows, &names, self.full);
                (group, lines)
            })
            .collect();

        let labels = groups.iter().map(|(group, _)| group.label.width());
        let left = 2 + labels.filter(|width| *width <= columns * 2 / 5).max().unwrap_or(0);
        let hooks: Vec<&HookLine> =
            groups.iter().flat_map(|(_, lines)| lines).filter_map(Line::hook).collect();
        let mut page = Page::new(columns, colors);
        page.lay_out(left, hooks.iter().map(|hook| hook.width()), MIN_SENTENCE);
        for (group, lines) in &groups {
            page.group(&group.label, group.part(), lines);
        }
        if groups.is_empty() {
            page.paragraph("no hooks");
        }
        page.paragraph("");
        if !groups.is_empty() {
            page.paragraph(&legend(&groups, &hooks));
        }
        let from = format!("From: {}", self.from());
        from.lines().for_each(|line| page.paragraph(line));
        page.table(&parameters::lines(&self.parameters, columns));
        page.text
    }
}

/// Explains the abbreviations that occur in the table.
fn legend(groups: &[(Group, Vec<Line>)], hooks: &[&HookLine]) -> String {
    let any_row = |is: fn(&HookRow) -> bool| groups.iter().any(|(group, _)| group.rows.iter().any(is));
    let mut parts = Vec::new();
    if any_row(|row| !row.observes) {
        parts.push("&mut may change training".to_owned());
    }
    if any_row(|row| row.observes) {
        parts.push("& only observes".to_owned());
    }
    let phases: BTreeSet<usize> =
        hooks.iter().flat_map(|hook| &hook.phases).map(|phase| *phase as usize).collect();
    let phases = phases.into_iter().map(|nth| format!("{} {}", letter(Phase::ALL[nth]), Phase::ALL[nth]));
    parts.push(phases.collect::<Vec<_>>().join(", "));
    if hooks.iter().any(|hook| hook.is_tied) {
        parts.push(format!("{TIE} in the order of registration"));
    }
    if groups.iter().any(|(group, _)| group.is_again) {
        parts.push("… its hooks are listed elsewhere".to_owned());
    }
    if groups.iter().any(|(_, lines)| lines.iter().any(|line| line.hook().is_none())) {
        parts.push("built-in hooks are folded: .full() expands them".to_owned());
    }
    parts.retain(|part| !part.is_empty());
    parts.join(" · ")
}

/// Returns the letter of a phase. `test` is E, because T is `train`.
pub(super) fn letter(phase: Phase) -> char {
    match phase {
        Phase::Train => 'T',
        Phase::Sanity => 'S',
        Phase::Valid => 'V',
        Phase::Test => 'E',
        Phase::Predict => 'P',
    }
}

/// A point or an operation with its hooks, or the heading of an operation that contains others.
struct Group<'a> {
    /// Its name, indented.
    label: String,
    rows: &'a [HookRow],
    /// Whether the group repeats an operation. The hooks of the operation are listed only where the
    /// operation is declared.
    is_again: bool,
}

impl Group<'_> {
    fn part(&self) -> Part {
        match self.rows {
            _ if self.is_again => Part::Faint,
            [] => Part::Heading,
            _ => Part::Plain,
        }
    }
}

/// Collects the groups of a node and its descendants, in the order of a run.
fn collect<'a>(
    node: &'a Node,
    depth: usize,
    used: &HashSet<String>,
    names: &Names,
    groups: &mut Vec<Group<'a>>,
) {
    let is_used = |node: &Node| used.contains(&node.info.path());
    if !is_used(node) {
        return;
    }
    let name = names.moment(&node.info.path());
    let mut add = |depth: usize, name: &str, rows: &'a [HookRow], is_again: bool| {
        groups.push(Group { label: "  ".repeat(depth) + name, rows, is_again });
    };
    if !node.is_operation() {
        // A point that repeats, such as `after_record`, is listed at its declaration.
        if !node.again {
            add(depth, &name, &node.rows, false);
        }
        return;
    }
    if node.again {
        return add(depth, &format!("{name} …"), &[], true);
    }
    // An operation without children other than the points before and after it has no heading.
    let is_own = |node: &Node| matches!(node.info.kind, MomentKind::Before | MomentKind::After);
    let contains = |node: &Node| is_used(node) && !is_own(node) && (node.is_operation() || !node.again);
    let has_heading = node.inside.iter().any(contains);
    if has_heading {
        add(depth, &name, &[], false);
    }
    let depth = depth + usize::from(has_heading);
    let (before, rest): (Vec<_>, Vec<_>) =
        node.inside.iter().partition(|node| node.info.kind == MomentKind::Before);
    before.into_iter().for_each(|node| collect(node, depth, used, names, groups));
    if !node.rows.is_empty() {
        groups.push(Group {
            label: "  ".repeat(depth) + "around " + &name,
            rows: &node.rows,
            is_again: false,
        });
    }
    rest.into_iter().for_each(|node| collect(node, depth, used, names, groups));
}
