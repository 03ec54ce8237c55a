//! The description as a tree that shows the lifecycle and where each hook runs in it.

use unicode_width::UnicodeWidthStr;

use super::markdown::padded;
use super::{HookRow, HookTable, Node};
use crate::io::terminal::one_line;
use crate::lifecycle::at;
use crate::moment::{Moment, MomentKind};

/// A line of the tree: a name and, for a hook, when it runs and its source location.
type Line = [String; 3];

impl HookTable {
    /// Returns the tree of operations and points, with each hook's order, name, phases and source
    /// location. The points before and after an operation are omitted if they have no hooks.
    #[must_use]
    pub fn tree(&self) -> String {
        let mut lines = Vec::new();
        // If `setup` is in the table, it is the root, as in the documentation of the lifecycle.
        let (first, rest) = self.nodes.split_at(self.nodes.len().min(1));
        let roots: Vec<_> = match first {
            [setup] if setup.info.name == at::setup::INFO.name => vec![Branch::of(setup, rest)],
            _ => self.nodes.iter().map(|node| Branch::of(node, &[])).collect(),
        };
        roots.iter().for_each(|root| draw(root, "", "", &mut lines));
        let [name_width, when_width] =
            [0, 1].map(|column| lines.iter().map(|line| line[column].width()).max().unwrap_or(0));
        let mut text = String::new();
        for [name, when, source] in &lines {
            let line = format!("{}  {}  {source}", padded(name, name_width), padded(when, when_width));
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text + "\nFrom: " + &self.from() + "\n"
    }
}

/// A line and its children.
struct Branch {
    line: Line,
    below: Vec<Branch>,
}

impl Branch {
    fn of(node: &Node, beside: &[Node]) -> Self {
        let again = if node.again { " …" } else { "" };
        let hooks = node.rows.iter().map(Branch::of_hook);
        let inside = node.inside.iter().chain(beside).filter(|node| {
            !matches!(node.info.kind, MomentKind::Before | MomentKind::After) || node.is_used()
        });
        let line = [node.info.path() + again, String::new(), String::new()];
        Branch { line, below: hooks.chain(inside.map(|node| Branch::of(node, &[]))).collect() }
    }

    fn of_hook(row: &HookRow) -> Self {
        Branch { line: [row.line(), row.when(), row.source()].map(|text| one_line(&text)), below: Vec::new() }
    }
}

fn draw(branch: &Branch, lead: &str, below: &str, lines: &mut Vec<Line>) {
    let [name, when, source] = &branch.line;
    lines.push([format!("{lead}{name}"), when.clone(), source.clone()]);
    for (nth, child) in branch.below.iter().enumerate() {
        let (corner, further) =
            if nth + 1 == branch.below.len() { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        draw(child, &format!("{below}{corner}"), &format!("{below}{further}"), lines);
    }
}
