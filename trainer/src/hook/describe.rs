//! What runs when, read from the table that is dispatched.

use std::collections::BTreeMap;
use std::fmt;

use super::table::Table;
use crate::moment::{MomentKind, Unit};
use crate::phase::Phase;

/// One hook at one point, as it will be dispatched.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HookRow {
    /// The point.
    pub point: &'static str,
    /// The path of the function or type, and its method where that is not named after the point.
    pub hook: String,
    /// Lower runs first.
    pub ord: i32,
    /// The phases in which it runs.
    pub phases: Vec<Phase>,
    /// Each n-th step or epoch alone.
    pub every: Option<(u32, Unit)>,
    /// The crate that it comes from; empty for a closure.
    pub krate: &'static str,
    /// The version of that crate's package.
    pub version: Option<&'static str>,
    /// The file, as rustc saw it.
    pub file: &'static str,
    /// The line of its name.
    pub line: u32,
    /// The first line of its doc comment.
    pub docs: &'static str,
    /// Its neighbour has the same `ord`: their order is only that of their names.
    pub tied: bool,
}

/// What runs when. `Display` prints it as a Markdown table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookTable {
    points: Vec<(&'static str, Vec<HookRow>)>,
}

impl HookTable {
    pub(crate) fn of(table: &Table) -> Self {
        let points =
            table.dispatched().filter(|(info, _)| info.kind == MomentKind::Point).map(|(info, hooks)| {
                let ords: Vec<_> = hooks.iter().map(|(hook, _)| hook.definition.ord).collect();
                let rows = hooks.into_iter().enumerate().map(|(nth, (hook, phases))| {
                    let (definition, origin) = (&hook.definition, &hook.definition.origin);
                    let unit = definition.moment.counts.unwrap_or(Unit::Steps);
                    HookRow {
                        point: info.name,
                        hook: origin
                            .method
                            .filter(|method| *method != info.name)
                            .map_or_else(|| origin.path.to_string(), |_| origin.name()),
                        ord: definition.ord,
                        phases,
                        every: definition.every.map(|n| (n.get(), unit)),
                        krate: origin.krate(),
                        version: origin.version,
                        file: origin.file,
                        line: origin.line,
                        docs: origin.docs,
                        tied: (nth > 0 && ords[nth - 1] == ords[nth])
                            || ords.get(nth + 1) == Some(&ords[nth]),
                    }
                });
                (info.name, rows.collect())
            });
        HookTable { points: points.collect() }
    }

    /// Every hook at every point, in the order of the lifecycle, then of dispatch.
    pub fn rows(&self) -> impl Iterator<Item = &HookRow> {
        self.points.iter().flat_map(|(_, rows)| rows)
    }

    /// The names of the hooks at a point, in the order of dispatch.
    #[must_use]
    pub fn at(&self, point: &str) -> Vec<&str> {
        self.rows().filter(|row| row.point == point).map(|row| row.hook.as_str()).collect()
    }

    /// Without the points that have no hook.
    #[must_use]
    pub fn only_used(mut self) -> Self {
        self.points.retain(|(_, rows)| !rows.is_empty());
        self
    }
}

impl fmt::Display for HookTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines =
            vec![["Lifecycle Point", "Hook", "Order", "Phases", "Source", "About"].map(String::from)];
        for (point, rows) in &self.points {
            if rows.is_empty() {
                lines.push([point, "(none)", "", "", "", ""].map(String::from));
            }
            for (nth, row) in rows.iter().enumerate() {
                let phases: Vec<_> = row.phases.iter().map(|phase| phase.name()).collect();
                let mut when = phases.join(" ");
                if let Some((n, unit)) = row.every {
                    let unit = if unit == Unit::Steps { "steps" } else { "epochs" };
                    when = format!("{when}, every {n} {unit}");
                }
                lines.push([
                    if nth == 0 { (*point).to_owned() } else { String::new() },
                    row.hook.clone(),
                    format!("{}{}", row.ord, if row.tied { " =" } else { "" }),
                    when,
                    format!("{}:{}", row.file, row.line),
                    row.docs.to_owned(),
                ]);
            }
        }
        for cell in lines.iter_mut().flatten().filter(|cell| cell.contains('|')) {
            *cell = cell.replace('|', "\\|");
        }
        let widths: Vec<usize> = (0..6)
            .map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0))
            .collect();
        for (nth, line) in lines.iter().enumerate() {
            let cells: Vec<_> =
                line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            writeln!(f, "| {} |", cells.join(" | "))?;
            if nth == 0 {
                let rules: Vec<_> = widths.iter().map(|width| "-".repeat(*width)).collect();
                writeln!(f, "| {} |", rules.join(" | "))?;
            }
        }
        let mut crates: BTreeMap<&str, (Option<&str>, usize)> = BTreeMap::new();
        for row in self.rows() {
            let origin = if row.krate.is_empty() { "closures" } else { row.krate };
            crates.entry(origin).or_insert((row.version, 0)).1 += 1;
        }
        let listed = crates.into_iter().map(|(name, (version, count))| {
            let version = version.map(|version| format!(" {version}")).unwrap_or_default();
            let hooks = if count == 1 { "hook" } else { "hooks" };
            format!("{name}{version} ({count} {hooks})")
        });
        let listed = listed.collect::<Vec<_>>().join(", ");
        write!(f, "\nFrom: {}", if listed.is_empty() { "no crate" } else { &listed })
    }
}
