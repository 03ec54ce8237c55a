//! The description as a Mermaid diagram.

use super::{HookRow, HookTable, Node, escape};

impl HookTable {
    /// Returns a [Mermaid](https://mermaid.js.org) flowchart, which many Markdown renderers
    /// display: each operation is a box with its points and their hooks, connected in the order of
    /// the lifecycle.
    #[must_use]
    pub fn mermaid(&self) -> String {
        let mut text = String::from("flowchart TB\n");
        draw(&self.nodes, 1, &mut 0, &mut text);
        text
    }
}

/// Draws consecutive nodes.
fn draw(nodes: &[Node], depth: usize, count: &mut usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    let mut last: Option<String> = None;
    for node in nodes {
        *count += 1;
        let id = format!("n{count}");
        let hooks: String = node.rows.iter().map(label).collect();
        let name = node.info.path();
        if node.again {
            text.push_str(&format!("{indent}{id}[\"{name} …\"]\n"));
        } else if node.is_operation() && !node.inside.is_empty() {
            text.push_str(&format!("{indent}subgraph {id}[\"{name}{hooks}\"]\n{indent}  direction TB\n"));
            draw(&node.inside, depth + 1, count, text);
            text.push_str(&format!("{indent}end\n"));
        } else {
            text.push_str(&format!("{indent}{id}[\"{name}{hooks}\"]\n"));
        }
        if let Some(last) = last.replace(id.clone()) {
            text.push_str(&format!("{indent}{last} --> {id}\n"));
        }
    }
}

fn label(row: &HookRow) -> String {
    format!("<br/>{}", escape::mermaid(&format!("{} ({})", row.line(), row.when())))
}
