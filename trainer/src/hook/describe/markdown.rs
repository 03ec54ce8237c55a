//! The description as a Markdown table. It has all columns of the table that trainer-tools writes,
//! and some of its own.

use std::fmt;

use trainer_formats::padded;
use unicode_width::UnicodeWidthStr;

use super::{Contributor, HookTable, escape, parameters};

const COLUMNS: [&str; 7] = ["Lifecycle Point", "Hook", "Cx", "Order", "Phases", "Source", "About"];
/// The heading of the column that is added if there is a tape.
const SEEN: &str = "Changed";

impl fmt::Display for HookTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_seen = self.rows().any(|row| row.seen.is_some());
        let mut lines = vec![COLUMNS.map(String::from).to_vec()];
        let mut changed = vec![SEEN.to_owned()];
        for node in self.moments() {
            let path = node.info.path();
            let name = if node.is_operation() { format!("around {path}") } else { path };
            if node.rows.is_empty() && !node.is_operation() {
                lines.push([&name, "(none)", "", "", "", "", ""].map(String::from).to_vec());
                changed.push(String::new());
            }
            for (nth, row) in node.rows.iter().enumerate() {
                let name = if nth == 0 { name.clone() } else { String::new() };
                changed.push(row.changed());
                lines.push(vec![
                    name,
                    row.hook.clone(),
                    row.access().to_owned(),
                    row.order(),
                    row.when(),
                    row.source(),
                    row.docs.clone(),
                ]);
            }
        }
        if has_seen {
            // After the column `Cx`, which says what a hook may change.
            lines.iter_mut().zip(changed).for_each(|(line, changed)| line.insert(3, changed));
        }
        write_table(f, lines)?;
        write!(f, "\nFrom: {}", self.from())?;
        let parameters = parameters::cells(&self.parameters);
        if !parameters.is_empty() {
            f.write_str("\n\n")?;
            write_table(f, parameters.into_iter().map(Vec::from).collect())?;
        }
        Ok(())
    }
}

/// Writes a table, whose first line is its heading.
fn write_table(f: &mut fmt::Formatter<'_>, mut lines: Vec<Vec<String>>) -> fmt::Result {
    for cell in lines.iter_mut().flatten() {
        *cell = escape::markdown(cell);
    }
    let widths: Vec<usize> = (0..lines[0].len())
        .map(|column| lines.iter().map(|line| line[column].width()).max().unwrap_or(0))
        .collect();
    for (nth, line) in lines.iter().enumerate() {
        let cells: Vec<_> = line.iter().zip(&widths).map(|(cell, width)| padded(cell, *width)).collect();
        writeln!(f, "| {} |", cells.join(" | "))?;
        if nth == 0 {
            let rules: Vec<_> = widths.iter().map(|width| "-".repeat(*width)).collect();
            writeln!(f, "| {} |", rules.join(" | "))?;
        }
    }
    Ok(())
}

impl HookTable {
    /// Lists the crates that define hooks, with their versions and numbers of hooks, and says how
    /// many hooks are not in the table because they run on rank 0 only.
    pub(super) fn from(&self) -> String {
        let listed = self.contributors().into_iter().map(|Contributor { krate, version, hooks }| {
            let name = if krate.is_empty() { "closures" } else { krate };
            let version = version.map(|version| format!(" {version}")).unwrap_or_default();
            let unit = if hooks == 1 { "hook" } else { "hooks" };
            format!("{name}{version} ({hooks} {unit})")
        });
        let listed: Vec<_> = listed.collect();
        let listed = if listed.is_empty() { "no crate".into() } else { listed.join(", ") };
        let left_out = self.left_out;
        let hooks = if left_out == 1 { "hook runs" } else { "hooks run" };
        match left_out {
            0 => listed,
            _ => format!("{listed}\nThis is rank {}: {left_out} {hooks} on rank 0 only", self.rank),
        }
    }
}
