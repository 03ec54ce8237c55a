//! The description of a trainer's hooks, generated from its dispatch table.

mod escape;
mod json;
mod lines;
mod markdown;
mod page;
mod parameters;
mod terminal;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use super::constraint::OrderConstraint;
use super::definition::{Hook, HookDef, Origin};
use super::table::Table;
use crate::error::{Error, Result, did_you_mean};
use crate::moment::{MomentInfo, MomentKind, Unit};
use crate::moments::tree::{children, moments, roots};
use crate::optim::ParameterRow;
use crate::phase::Phase;

/// Maps the index of a hook in the table to the kinds of values that the hook was seen to change.
type SeenByHook = BTreeMap<usize, Vec<&'static str>>;

/// One hook at one moment, as it is dispatched.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HookRow {
    /// The point at which the hook runs, or the operation around which it runs, such as
    /// `after_step` or `my_crate::at::after_round`.
    pub moment: String,
    /// Whether it runs around an operation.
    pub around: bool,
    /// The path of the function or type, with the name of the method unless this is the name of the
    /// point or operation. If the value has a [label](crate::checkpoint::State::label), the label
    /// follows, as in `MetricHook(accuracy)`. If several values have the same type and label, the
    /// number of the value follows, as in ` #2`.
    pub hook: String,
    /// The name of its [stage](crate::stages), if it is in one.
    pub stage: Option<&'static str>,
    /// The value of `ord`. Within a stage, and among hooks without a stage, a hook with a lower
    /// value runs earlier at a point, and further outside around an operation.
    pub ord: i32,
    /// The [sets](crate::HookSet) that it belongs to, except its stage, as written:
    /// `my_crate::Clipping`.
    pub sets: Vec<&'static str>,
    /// Its constraints, as written: `after = my_crate::Clip`. If a set has no hook at this moment,
    /// ` (none here)` follows.
    pub constraints: Vec<String>,
    /// The phases in which it runs.
    pub phases: Vec<Phase>,
    /// The number and unit of `every`.
    pub every: Option<(u64, Unit)>,
    /// The path of the function given as `when`, as written.
    pub when: Option<&'static str>,
    /// The patterns that select its modules by name, as written; empty for all modules.
    pub of: Vec<String>,
    /// Whether it runs in the process of rank 0 only.
    pub main_only: bool,
    /// Whether it only [observes](crate::Cx#observers) the run: it takes `&Cx`, or it runs around
    /// an operation and has the key [`observes`](crate::language::observes).
    pub observes: bool,
    /// Whether it [writes](crate::language::writes) something that outlives the process.
    pub writes: bool,
    /// Whether its failure [is only a warning](crate::language::may_fail).
    pub may_fail: bool,
    /// Whether it runs in the [trials](crate::language::trial) of finders; `None` if unspecified.
    pub trial: Option<bool>,
    /// The crate that defines it; empty for a closure.
    pub krate: &'static str,
    /// The version of that crate's package.
    pub version: Option<&'static str>,
    /// The path of the file, as given to rustc.
    pub file: &'static str,
    /// The line of its name in `file`; for a closure, the line of the `.on(…)` call.
    pub line: u32,
    /// The first sentence of the hook's doc comment.
    pub docs: String,
    /// Whether a neighbor has the same stage and `ord`, and no constraint orders the two. Their
    /// order then depends on when they were added, or on their names.
    pub tied: bool,
    /// Whether it is one of the trainer itself.
    pub(crate) own: bool,
    /// Whether it is defined in a binary. Other programs can link a library, but not a binary.
    pub(crate) in_binary: bool,
    /// The kinds of values that it changed while a full [tape](crate::guide::tape) recorded it,
    /// such as `["gradients", "its state"]`; `None` if none of its calls was recorded.
    pub seen: Option<Vec<&'static str>>,
}

impl HookRow {
    /// Formats when the hook runs: `train valid, every 2 batches, of encoder.*, rank 0, writes`.
    pub(crate) fn when(&self) -> String {
        let mut when = self.phases.iter().map(|phase| phase.name()).collect::<Vec<_>>().join(" ");
        if let Some((n, unit)) = self.every {
            when.push_str(&format!(", {}", unit.every(n)));
        }
        if let Some(path) = self.when {
            when.push_str(&format!(", when {path}"));
        }
        if !self.of.is_empty() {
            when.push_str(&format!(", of {}", self.of.join(" ")));
        }
        if self.main_only {
            when.push_str(", rank 0");
        }
        if self.writes {
            when.push_str(", writes");
        }
        when
    }

    /// Formats the hook's order with its sets and constraints: `10`, `10 =` if it is tied, or
    /// `10, after = my_crate::Clip`.
    fn order(&self) -> String {
        self.position() + &self.relations()
    }

    /// Formats the hook's position: `10`, `Loggers` in a stage, or `Loggers -1` in a stage with an
    /// `ord`. If the hook is tied, ` =` follows.
    fn position(&self) -> String {
        let position = match (self.stage, self.ord) {
            (None, ord) => ord.to_string(),
            (Some(stage), 0) => stage.to_owned(),
            (Some(stage), ord) => format!("{stage} {ord}"),
        };
        if self.tied { position + " =" } else { position }
    }

    /// Formats the hook's sets and constraints: `, in = my_crate::Clipping, after =
    /// my_crate::Clip`.
    fn relations(&self) -> String {
        let sets = self.sets.iter().map(|set| format!(", in = {set}"));
        sets.chain(self.constraints.iter().map(|constraint| format!(", {constraint}"))).collect()
    }

    /// Formats the hook's access to the run: `&` if it only observes, otherwise `&mut`.
    pub(crate) fn access(&self) -> &'static str {
        if self.observes { "&" } else { "&mut" }
    }

    /// Formats what the hook was seen to change: `gradients, its state`, `nothing`; empty if it was
    /// not recorded.
    fn changed(&self) -> String {
        match self.seen.as_deref() {
            None => String::new(),
            Some([]) => "nothing".to_owned(),
            Some(kinds) => kinds.join(", "),
        }
    }

    fn source(&self) -> String {
        format!("{}:{}", short(self.file), self.line)
    }
}

/// The hooks of a trainer, and when each runs. A second table shows which
/// [parameters](HookTable::parameters) each optimizer updates.
///
/// [`print`](HookTable::print) shows the table in a terminal, in the form of
/// [`terminal`](HookTable::terminal). `Display` writes a Markdown table, and
/// [`json`](HookTable::json) returns the table for programs.
///
/// The column `Cx` is `&` for a hook that only [observes](crate::Cx#observers), and `&mut` for one
/// that may change training. A hook with [`Main`](crate::Main) in its context is marked `rank 0`;
/// all others run on every rank. On ranks other than 0, the table omits the hooks marked `rank 0`,
/// and its last line states how many were omitted. After a run with a full
/// [tape](crate::guide::tape), the column `Changed` lists what each hook was seen to change.
///
/// ```
/// use trainer::prelude::*;
///
/// # let inputs = Tensor::randn([64, 4], (Kind::Float, Device::Cpu));
/// # let labels = inputs.select(1, 0).gt(0.0).to_kind(Kind::Int64);
/// # let vs = nn::VarStore::new(Device::Cpu);
/// # let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
/// # let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// # let mut train = InMemory::new((inputs, labels))?.batch_size(16);
/// # let mut trainer = Trainer::builder(task).optimizer(Sgd::new(0.1)).build()?;
/// let table = trainer.describe_hooks();
/// table.only_used().print(); // on standard output
/// # Ok::<(), trainer::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct HookTable {
    nodes: Vec<Node>,
    /// The rank of the process that the table describes.
    rank: u32,
    /// The number of hooks omitted because they run on rank 0 only; 0 on rank 0.
    left_out: usize,
    /// The paths of the types with hooks, other than this crate's, that have no value in the
    /// trainer.
    absent: BTreeSet<&'static str>,
    /// Whether the terminal format shows each built-in hook on a separate line.
    full: bool,
    parameters: Vec<ParameterRow>,
}

/// Tables are equal if their JSON representations are.
impl PartialEq for HookTable {
    fn eq(&self, other: &Self) -> bool {
        self.json() == other.json()
    }
}

impl Eq for HookTable {}

/// A point with its hooks, or an operation with the hooks around it.
#[derive(Clone, Debug)]
struct Node {
    info: &'static MomentInfo,
    rows: Vec<HookRow>,
    /// Whether this node repeats a moment, as `again` declares. The hooks of the moment are listed
    /// only where the moment itself is declared.
    again: bool,
    /// The children of an operation, including the points before and after it.
    inside: Vec<Node>,
}

impl Node {
    fn of<R>(table: &Table<R>, seen: &SeenByHook, moment: usize) -> Self {
        let inside = children(moment).into_iter().map(|child| match child.again {
            false => Node::of(table, seen, child.moment),
            true => Node { info: moments()[child.moment], rows: Vec::new(), again: true, inside: Vec::new() },
        });
        let info = moments()[moment];
        Node { info, rows: rows(table, seen, moment, info), again: false, inside: inside.collect() }
    }

    fn is_operation(&self) -> bool {
        self.info.kind == MomentKind::Operation
    }

    /// Returns the node and its descendants in the order of a run: the `before` point of an
    /// operation comes before the operation.
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

/// One version of a crate that defines hooks. The name is empty for closures.
struct Contributor<'a> {
    krate: &'a str,
    version: Option<&'a str>,
    hooks: usize,
}

impl HookTable {
    /// Returns the paths of the hook types that are linked into the program but have no value in
    /// this trainer: types that were never added with [`.hook(…)`](crate::TrainerBuilder::hook),
    /// are excluded, or belong to a different task. The hook types of this crate are left out.
    ///
    /// ```no_run
    /// # use trainer::prelude::*;
    /// # fn show(trainer: &Trainer<impl Task>) {
    /// for path in trainer.describe_hooks().not_added() {
    ///     println!("{path} has hooks, but this trainer has no value of it");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn not_added(&self) -> Vec<&'static str> {
        self.absent.iter().copied().collect()
    }

    /// Describes the hooks of a table, including what each hook was seen to change. `blocks` are
    /// the types with hooks that are linked into the program.
    pub(crate) fn of<R>(
        table: &Table<R>,
        seen: &SeenByHook,
        blocks: impl Iterator<Item = &'static Origin>,
    ) -> Self {
        let mut nodes: Vec<_> = roots().map(|moment| Node::of(table, seen, moment)).collect();
        name_versions(&mut nodes);
        let on_main = table.hooks().iter().filter(|hook| table.rank() > 0 && hook.definition.main_only);
        let paths: BTreeSet<_> =
            table.hooks().iter().map(|hook| hook.definition.origin.bare_path()).collect();
        let others = blocks.filter(|origin| !origin.is_own());
        let absent = others.map(|origin| &*origin.path).filter(|path| !paths.contains(path));
        HookTable {
            nodes,
            rank: table.rank(),
            left_out: on_main.count(),
            absent: absent.collect(),
            full: false,
            parameters: Vec::new(),
        }
    }

    /// Adds the second table.
    pub(crate) fn with_parameters(mut self, parameters: Vec<ParameterRow>) -> Self {
        self.parameters = parameters;
        self
    }

    /// Returns the rows of the second table: the parameters of each group of each optimizer, then
    /// those that no optimizer updates, if there are any. Learning rates and frozen parameters are
    /// those at the time of the call of [`describe_hooks`](crate::Trainer::describe_hooks).
    ///
    /// ```
    /// # use trainer::prelude::*;
    /// # let vs = nn::VarStore::new(Device::Cpu);
    /// # let fc1 = nn::linear(vs.root() / "fc1", 4, 8, Default::default());
    /// # let net = nn::seq().add(fc1).add(nn::linear(vs.root() / "fc2", 8, 2, Default::default()));
    /// # let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
    /// let trainer = Trainer::builder(task).optimizer_of("fc1", Sgd::new(0.1)).build()?;
    /// let table = trainer.describe_hooks();
    /// let [fc1, others] = table.parameters() else { unreachable!("two rows") };
    /// assert_eq!((fc1.algorithm, fc1.elements), (Some("Sgd"), 4 * 8 + 8));
    /// assert_eq!((others.algorithm, &*others.parameters[0]), (None, "fc2.bias")); // trained by none
    /// # Ok::<(), trainer::Error>(())
    /// ```
    #[must_use]
    pub fn parameters(&self) -> &[ParameterRow] {
        &self.parameters
    }

    /// Returns every point and operation once, where it is declared, in the order of the lifecycle.
    fn moments(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().flat_map(Node::flat).filter(|node| !node.again)
    }

    /// Returns every hook at every point and around every operation. The points and operations are
    /// in the order of the lifecycle, and the hooks of each are in dispatch order.
    pub fn rows(&self) -> impl Iterator<Item = &HookRow> {
        self.moments().flat_map(|node| &node.rows)
    }

    /// Returns the names of the hooks at a point or around an operation, in the order of dispatch.
    #[must_use]
    pub fn at(&self, moment: &str) -> Vec<&str> {
        self.rows().filter(|row| row.moment == moment).map(|row| row.hook.as_str()).collect()
    }

    /// Removes the points without hooks, and the operations without hooks around or within them.
    #[must_use = "print it with `.print()`"]
    pub fn only_used(mut self) -> Self {
        let used: Vec<String> =
            self.moments().filter(|moment| moment.is_used()).map(|moment| moment.info.path()).collect();
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
        crates.into_iter().map(|((krate, version), hooks)| Contributor { krate, version, hooks }).collect()
    }
}

/// Shortens a file's path so that it is the same on every machine. An absolute path, which rustc
/// receives for a dependency, becomes relative to the parent of the package's folder.
fn short(file: &'static str) -> &'static str {
    let package = ["/src/", "/tests/", "/examples/", "/benches/"].iter().find_map(|part| file.rfind(part));
    match package.and_then(|end| file[..end].rfind('/')) {
        Some(start) if Path::new(file).is_absolute() => &file[start + 1..],
        _ => file,
    }
}

/// Returns a suffix for each hook of a moment. If several values of the same type and label have
/// the hook, the suffix is the number of the hook's value, as in ` #2`; otherwise it is empty.
fn numbers<R>(hooks: &[(&Hook<R>, Vec<Phase>)]) -> Vec<String> {
    let keys = hooks.iter().map(|(hook, _)| {
        let origin = &hook.definition.origin;
        (origin.version, &origin.path, origin.method, &hook.label)
    });
    let mut slots: HashMap<_, Vec<Option<u32>>> = HashMap::new();
    for (key, (hook, _)) in keys.clone().zip(hooks) {
        slots.entry(key).or_default().push(hook.slot);
    }
    slots.values_mut().for_each(|slots| slots.sort_unstable());
    let numbers = keys.zip(hooks).map(|(key, (hook, _))| {
        let slots = &slots[&key];
        let before = slots.partition_point(|slot| *slot < hook.slot);
        if slots.len() > 1 { format!(" #{}", before + 1) } else { String::new() }
    });
    numbers.collect()
}

/// Returns the first sentence of a paragraph of documentation, on one line.
fn first_sentence(docs: &str) -> String {
    // The lines of a block comment may start with a `*`.
    let lines = docs.lines().map(|line| line.trim().trim_start_matches('*').trim());
    let paragraph = lines.skip_while(|line| line.is_empty()).take_while(|line| !line.is_empty());
    let paragraph = paragraph.collect::<Vec<_>>().join(" ");
    // A period within a sentence, as in "e.g. this", is not followed by a capital letter.
    let mut periods = paragraph.match_indices(". ");
    let end = periods.find(|(at, _)| paragraph[at + 2..].starts_with(char::is_uppercase));
    paragraph[..end.map_or(paragraph.len(), |(at, _)| at + 1)].to_owned()
}

/// Returns whether only the order of registration decides which of two hooks is called first.
fn are_tied<R>(one: &HookDef<R>, other: &HookDef<R>) -> bool {
    one.stage() == other.stage()
        && one.ord == other.ord
        && !one.constraints.iter().any(|constraint| other.is_target_of(constraint))
        && !other.constraints.iter().any(|constraint| one.is_target_of(constraint))
}

/// Adds the version to hook names if several versions of a crate have hooks:
/// `my_crate@1.2.0::clip`.
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

fn rows<R>(table: &Table<R>, seen: &SeenByHook, moment: usize, info: &'static MomentInfo) -> Vec<HookRow> {
    let hooks = table.dispatched(moment);
    let ties: Vec<bool> =
        hooks.windows(2).map(|pair| are_tied(&pair[0].0.definition, &pair[1].0.definition)).collect();
    let numbers = numbers(&hooks);
    let written = |constraint: &OrderConstraint| {
        let has_target = hooks.iter().any(|(other, _)| other.definition.is_target_of(constraint));
        let is_idle = constraint.target.is_set && !has_target;
        constraint.written() + if is_idle { " (none here)" } else { "" }
    };
    let rows = hooks.iter().enumerate().map(|(nth, (hook, phases))| {
        let definition = &hook.definition;
        let origin = &definition.origin;
        let unit = info.counts.unwrap_or(Unit::Batches);
        let label = hook.label.as_ref().map_or_else(String::new, |label| format!("({label})"));
        HookRow {
            moment: info.path(),
            around: definition.goes_around(),
            hook: origin
                .method
                .filter(|method| *method != info.name)
                .map_or_else(|| origin.path.to_string(), |_| origin.name())
                + &label
                + &numbers[nth],
            stage: definition.stage().name(),
            ord: definition.ord,
            sets: definition.sets.iter().filter(|set| set.stage.is_none()).map(|set| set.path).collect(),
            constraints: definition.constraints.iter().map(written).collect(),
            phases: phases.clone(),
            every: definition.every.map(|n| (n, unit)),
            when: definition.when,
            of: hook.modules.iter().map(ToString::to_string).collect(),
            main_only: definition.main_only,
            observes: definition.observes,
            writes: definition.writes,
            may_fail: definition.may_fail,
            trial: definition.trial,
            krate: origin.krate(),
            version: origin.version,
            file: origin.file,
            line: origin.line,
            docs: first_sentence(origin.docs),
            tied: ties.get(nth) == Some(&true) || nth > 0 && ties[nth - 1],
            own: origin.is_own(),
            in_binary: origin.binary,
            seen: seen.get(&table.index_of(hook)).cloned(),
        }
    });
    rows.collect()
}

/// The valid values of `TRAINER_DESCRIBE`.
const FORMATS: [&str; 4] = ["terminal", "full", "markdown", "json"];

/// Returns the description in the format with this name, which `TRAINER_DESCRIBE` has requested.
/// `terminal` returns the form for the terminal of the program.
///
/// # Errors
///
/// Returns an error if the name is not that of a format.
pub(crate) fn in_format(
    table: HookTable,
    format: &str,
    terminal: impl Fn(&HookTable) -> String,
) -> Result<String> {
    match format {
        "terminal" => Ok(terminal(&table)),
        "full" => Ok(terminal(&table.full())),
        "markdown" => Ok(table.to_string()),
        "json" => Ok(table.json()),
        other => {
            let known = FORMATS.map(|known| format!("`{known}`")).join(", ");
            let similar = did_you_mean(other, FORMATS);
            Err(Error::usage(format!(
                "`TRAINER_DESCRIBE={other}` is not a known format: expected one of {known}{similar}"
            )))
        }
    }
}
