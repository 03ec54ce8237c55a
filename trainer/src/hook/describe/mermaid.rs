//! The table as a diagram: operations as boxes, points in the order in which they come.

use super::{HookRow, HookTable, Node};

impl HookTable {
    /// A [Mermaid](https://mermaid.js.org) flowchart, as Markdown renderers draw it: a box for each operation, in it its
    /// points with their hooks, joined in the order in which a run meets them.
    #[must_use]
    pub fn mermaid(&self) -> String {
        let mut text = String::from("flowchart TB\n");
        draw(&self.nodes, 1, &mut 0, &mut text);
        text
    }
}

/// Draws what comes one after the other.
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
    let text = format!("{} ({})", row.line(), row.when());
    // As HTML, which is what a label is.
    let text = text.replace('&', "#amp;").replace('<', "#lt;").replace('>', "#gt;").replace('"', "#quot;");
    format!("<br/>{text}")
}
