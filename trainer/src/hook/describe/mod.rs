//! What runs when, read from the table that is dispatched.

mod json;
mod markdown;
mod mermaid;
mod tree;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Write;
use std::path::Path;

use super::definition::{Hook, HookDef};
use super::edge::Edge;
use super::table::Table;
use crate::error::{Error, Result, suggestion};
use crate::moment::{MomentInfo, MomentKind, Unit};
use crate::phase::Phase;
use crate::tree::{children, moments, roots};

/// One hook at one moment, as it will be dispatched.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HookRow {
    /// The point, or the operation that it goes around: `after_step`, `my_crate::at::after_round`.
    pub moment: String,
    /// It goes around an operation.
    pub around: bool,
    /// The path of the function or type, and its method where that is not named after the point; ` #2` if the hook is that of
    /// the second value of its type.
    pub hook: String,
    /// Lower runs first, and further outside.
    pub ord: i32,
    /// Its constraints, as they were written: `after = my_crate::Clip`.
    pub constraints: Vec<String>,
    /// The phases in which it runs.
    pub phases: Vec<Phase>,
    /// Each n-th step or epoch alone.
    pub every: Option<(u32, Unit)>,
    /// Only in the process of rank 0.
    pub main_only: bool,
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
    /// Its neighbour has the same `ord`, and no constraint: their order is only that in which they were added, or of
    /// their names.
    pub tied: bool,
}

impl HookRow {
    /// `train valid, every 2 batches, main only`.
    fn when(&self) -> String {
        let mut when = self.phases.iter().map(|phase| phase.name()).collect::<Vec<_>>().join(" ");
        if let Some((n, unit)) = self.every {
            when.push_str(&format!(", every {n} {}", unit.name()));
        }
        if self.main_only {
            when.push_str(", main only");
        }
        when
    }

    /// `10`, `10 =` where it is tied, `10, after = my_crate::Clip`.
    fn order(&self) -> String {
        let constraints: String = self.constraints.iter().map(|it| format!(", {it}")).collect();
        self.tied_ord() + &constraints
    }

    /// `10`, `10 =` where it is tied.
    fn tied_ord(&self) -> String {
        format!("{}{}", self.ord, if self.tied { " =" } else { "" })
    }

    /// As a line by itself: `around: 10 my_crate::scaled, after = my_crate::Clip`.
    fn line(&self) -> String {
        let around = if self.around { "around: " } else { "" };
        let constraints: String = self.constraints.iter().map(|it| format!(", {it}")).collect();
        format!("{around}{} {}{constraints}", self.tied_ord(), self.hook)
    }

    fn source(&self) -> String {
        format!("{}:{}", short(self.file), self.line)
    }
}

/// What runs when. `Display` prints it as a Markdown table, aligned for a terminal; [`tree`](HookTable::tree),
/// [`json`](HookTable::json) and [`mermaid`](HookTable::mermaid) are its other forms.
#[derive(Clone, Debug)]
pub struct HookTable {
    nodes: Vec<Node>,
}

/// They say the same.
impl PartialEq for HookTable {
    fn eq(&self, other: &Self) -> bool {
        self.json() == other.json()
    }
}

impl Eq for HookTable {}

/// A point with its hooks, or an operation with those around it.
#[derive(Clone, Debug)]
struct Node {
    info: &'static MomentInfo,
    rows: Vec<HookRow>,
    /// It is declared elsewhere, and runs here too; its hooks are listed there.
    again: bool,
    /// What an operation consists of, the points before and after it included.
    inside: Vec<Node>,
}

impl Node {
    fn of(table: &Table, moment: usize) -> Self {
        let inside = children(moment).into_iter().map(|child| match child.again {
            false => Node::of(table, child.moment),
            true => Node { info: moments()[child.moment], rows: Vec::new(), again: true, inside: Vec::new() },
        });
        let info = moments()[moment];
        Node { info, rows: rows(table, moment, info), again: false, inside: inside.collect() }
    }

    fn is_operation(&self) -> bool {
        self.info.kind == MomentKind::Operation
    }

    /// Itself and what lies in it, in the order of a run: the point before an operation comes before it.
    fn flat(&self) -> Vec<&Node> {
        let first = self.inside.iter().take_while(|node| node.info.kind == MomentKind::Before && !node.again);
        let first: Vec<_> = first.collect();
        let rest = self.inside[first.len()..].iter().flat_map(Node::flat);
        first.iter().copied().chain([self]).chain(rest).collect()
    }

    fn is_used(&self) -> bool {
        !self.rows.is_empty() || self.inside.iter().any(Node::is_used)
    }

    fn retain(&mut self, keep: &impl Fn(&Node) -> bool) {
        self.inside.retain(keep);
        self.inside.iter_mut().for_each(|node| node.retain(keep));
    }
}

/// One version of a crate that hooks come from; the name of closures' is empty.
struct Contributor<'a> {
    krate: &'a str,
    version: Option<&'a str>,
    hooks: usize,
}

impl HookTable {
    pub(crate) fn of(table: &Table) -> Self {
        let mut nodes: Vec<_> = roots().map(|moment| Node::of(table, moment)).collect();
        name_versions(&mut nodes);
        HookTable { nodes }
    }

    /// Every point and operation where it is declared, in the order of a run.
    fn moments(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().flat_map(Node::flat).filter(|node| !node.again)
    }

    /// Every hook at every point and around every operation, in the order of the lifecycle, then of dispatch.
    pub fn rows(&self) -> impl Iterator<Item = &HookRow> {
        self.moments().flat_map(|node| &node.rows)
    }

    /// The names of the hooks at a point, or around an operation, in the order of dispatch.
    #[must_use]
    pub fn at(&self, moment: &str) -> Vec<&str> {
        self.rows().filter(|row| row.moment == moment).map(|row| row.hook.as_str()).collect()
    }

    /// Without the points and operations that have no hook.
    #[must_use]
    pub fn only_used(mut self) -> Self {
        let used: Vec<String> = self.moments().filter(|it| it.is_used()).map(|it| it.info.path()).collect();
        let keep = |node: &Node| used.contains(&node.info.path());
        self.nodes.retain(keep);
        self.nodes.iter_mut().for_each(|node| node.retain(&keep));
        self
    }

    fn contributors(&self) -> Vec<Contributor<'_>> {
        let mut crates: BTreeMap<(&str, Option<&str>), usize> = BTreeMap::new();
        for row in self.rows() {
            *crates.entry((row.krate, row.version)).or_default() += 1;
        }
        let contributor = |((krate, version), hooks)| Contributor { krate, version, hooks };
        crates.into_iter().map(contributor).collect()
    }
}

/// A file as it is called on every machine: of a package elsewhere, rustc gives the whole path, of which its folder is enough.
fn short(file: &'static str) -> &'static str {
    let package = ["/src/", "/tests/", "/examples/", "/benches/"].iter().find_map(|part| file.rfind(part));
    match package.and_then(|end| file[..end].rfind('/')) {
        Some(start) if Path::new(file).is_absolute() => &file[start + 1..],
        _ => file,
    }
}

/// For each hook of a moment which of several values of its type it has, as ` #2`; nothing if there is one.
fn numbers(hooks: &[(&Hook, Vec<Phase>)]) -> Vec<String> {
    let key = |hook: &Hook| {
        let origin = &hook.definition.origin;
        (hook.definition.id, origin.path.clone(), origin.method)
    };
    let mut slots: HashMap<_, Vec<Option<u32>>> = HashMap::new();
    for (hook, _) in hooks {
        slots.entry(key(hook)).or_default().push(hook.slot);
    }
    slots.values_mut().for_each(|slots| slots.sort_unstable());
    let number = |(hook, _): &(&Hook, Vec<Phase>)| {
        let slots = &slots[&key(hook)];
        let before = slots.partition_point(|slot| *slot < hook.slot);
        if slots.len() > 1 { format!(" #{}", before + 1) } else { String::new() }
    };
    hooks.iter().map(number).collect()
}

/// Tells the hooks of several versions of a crate apart: `my_crate@1.2.0::clip`.
fn name_versions(nodes: &mut [Node]) {
    fn rows_of(node: &mut Node) -> Vec<&mut HookRow> {
        let Node { rows, inside, .. } = node;
        rows.iter_mut().chain(inside.iter_mut().flat_map(rows_of)).collect()
    }
    let mut rows: Vec<&mut HookRow> = nodes.iter_mut().flat_map(rows_of).collect();
    let mut versions: HashMap<&'static str, BTreeSet<&'static str>> = HashMap::new();
    for row in &rows {
        versions.entry(row.krate).or_default().extend(row.version);
    }
    for row in rows.iter_mut().filter(|row| versions[row.krate].len() > 1) {
        if let (Some(rest), Some(version)) = (row.hook.strip_prefix(row.krate), row.version) {
            row.hook = format!("{}@{version}{rest}", row.krate);
        }
    }
}

fn rows(table: &Table, moment: usize, info: &'static MomentInfo) -> Vec<HookRow> {
    let hooks = table.dispatched(moment);
    let tied = |one: usize, other: usize| {
        let (Some((one, _)), Some((other, _))) = (hooks.get(one), hooks.get(other)) else { return false };
        let (one, other) = (&one.definition, &other.definition);
        let points_at = |it: &HookDef, target| it.edges.iter().any(|edge| edge.target == target);
        one.ord == other.ord && !points_at(one, other.id) && !points_at(other, one.id)
    };
    let numbers = numbers(&hooks);
    let row = |(nth, (hook, phases)): (usize, &(&Hook, Vec<Phase>))| {
        let (definition, origin) = (&hook.definition, &hook.definition.origin);
        let unit = info.counts.unwrap_or(Unit::Batches);
        HookRow {
            moment: info.path(),
            around: definition.goes_around(),
            hook: origin
                .method
                .filter(|method| *method != info.name)
                .map_or_else(|| origin.path.to_string(), |_| origin.name())
                + &numbers[nth],
            ord: definition.ord,
            constraints: definition.edges.iter().map(Edge::written).collect(),
            phases: phases.clone(),
            every: definition.every.map(|n| (n.get(), unit)),
            main_only: definition.main_only,
            krate: origin.krate(),
            version: origin.version,
            file: origin.file,
            line: origin.line,
            docs: origin.docs,
            tied: tied(nth, nth + 1) || nth > 0 && tied(nth - 1, nth),
        }
    };
    hooks.iter().enumerate().map(row).collect()
}

/// The forms that `TRAINER_DESCRIBE` can ask for.
const FORMS: [&str; 4] = ["markdown", "tree", "json", "mermaid"];

/// Prints the table and ends the program, if the environment variable `TRAINER_DESCRIBE` asks for it.
///
/// # Errors
///
/// A form that there is not.
pub(crate) fn if_asked(table: &Table) -> Result<()> {
    let Ok(form) = std::env::var("TRAINER_DESCRIBE") else { return Ok(()) };
    let table = HookTable::of(table);
    let text = match form.as_str() {
        "markdown" => table.to_string(),
        "tree" => table.tree(),
        "json" => table.json(),
        "mermaid" => table.mermaid(),
        other => {
            let known = FORMS.map(|form| format!("`{form}`")).join(", ");
            let similar = suggestion(other, FORMS);
            return Err(Error::usage(format!("`TRAINER_DESCRIBE={other}` is none of {known}{similar}")));
        }
    };
    // A reader that has seen enough, `… | head`, is no error.
    let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
    std::process::exit(0);
}
